"""What the page shows, as rows of tables: plain values that become JSON. `tables` makes them, the page's scripts draw them.

Names and sentences go to the page as they are, hostile ones too: the page writes them as text, never as markup.
"""

from __future__ import annotations

import msgspec

from zonewise.diagnostics.decide.status.report import ServiceState


class DashboardRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Rows are equal when the page need not hear of them again."""


class NodeRow(DashboardRow, frozen=True):
    zone: str = ""
    region: str = ""
    ready: bool = True
    cordoned: bool = False
    control_plane: bool = False
    endpoints: int = 0


class Component(DashboardRow, frozen=True):
    """So many endpoints of a zone are for the clients of these zones."""

    zone: str
    consumers: tuple[str, ...]
    endpoints: int


class ServiceRow(DashboardRow, frozen=True):
    """Shares are of 1 and foreseen; what was measured comes with the traffic. `since` is empty where nobody said it."""

    namespace: str
    name: str
    state: ServiceState
    policy: str
    source: str
    sentence: str
    remedy: str
    endpoints: int
    in_zone: float
    overload: float
    slices: int
    cut_off: int
    headless: bool
    our_proxy: bool
    since: str = ""
    parts: tuple[Component, ...] = ()
    losses: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()


class RolloutRow(DashboardRow, frozen=True):
    """A workload whose pods are being replaced: not all of them are of its newest template."""

    kind: str
    namespace: str
    name: str
    wanted: int
    updated: int
    ready: int
    by_eviction: bool


class DrainRow(DashboardRow, frozen=True):
    """A zone that traffic is asked to leave."""

    zone: str
    by: tuple[str, ...]


class NoticeRow(DashboardRow, frozen=True):
    """Something that the page can't show as it should, and why."""

    what: str
    trouble: str


class ProxiesRow(DashboardRow, frozen=True):
    """How many nodes were asked for their traffic, and how many answer."""

    nodes: int
    answering: int
    trouble: str = ""


class ComponentRow(DashboardRow, frozen=True):
    """Something of Zonewise that runs in the cluster, or should."""

    what: str
    sentence: str
    good: bool
