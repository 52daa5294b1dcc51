"""Rows of the dashboard's tables, as JSON for the page's scripts.

Names and sentences are sent unescaped, hostile ones too: the page inserts them as text, never as markup.
"""

from __future__ import annotations

import msgspec

from zonewise.diagnostics.decide.status.report import ServiceState


class DashboardRow(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A row that equals the last one is not sent again."""


class NodeRow(DashboardRow, frozen=True):
    zone: str = ""
    region: str = ""
    ready: bool = True
    cordoned: bool = False
    control_plane: bool = False
    endpoints: int = 0


class AssignmentPart(DashboardRow, frozen=True):
    """Endpoints of one zone that serve the clients of the zones `consumers`."""

    zone: str
    consumers: tuple[str, ...]
    endpoints: int


class ServiceRow(DashboardRow, frozen=True):
    """Shares are forecasts between 0 and 1; measured ones come with the traffic. `since` is empty if unknown."""

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
    parts: tuple[AssignmentPart, ...] = ()
    losses: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()


class RolloutRow(DashboardRow, frozen=True):
    """A workload that is replacing pods of an old template."""

    kind: str
    namespace: str
    name: str
    wanted: int
    updated: int
    ready: int
    by_eviction: bool


class DrainRow(DashboardRow, frozen=True):
    """A drained zone, and the objects that drain it."""

    zone: str
    by: tuple[str, ...]


class NoticeRow(DashboardRow, frozen=True):
    """A table that is incomplete, and why."""

    what: str
    trouble: str


class ProxiesRow(DashboardRow, frozen=True):
    """How many nodes are scraped for traffic, and how many answer."""

    nodes: int
    answering: int
    trouble: str = ""


class ComponentRow(DashboardRow, frozen=True):
    """A workload, leader or webhook of Zonewise."""

    what: str
    sentence: str
    good: bool
