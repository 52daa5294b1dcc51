"""The report of `zonewise status`: the fields of its JSON, some of which the dashboard shows too.

Scripts read these fields: they are added to, never renamed.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from zonewise.diagnostics.decide.status.traffic import InZoneShare, ZoneFlow
from zonewise.planning.forecast import ServiceForecast


class ComponentStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A Deployment or DaemonSet of Zonewise; `up_to_date` counts pods of its newest template."""

    name: str
    namespace: str
    kind: str
    wanted: int
    ready: int
    up_to_date: int

    @property
    def healthy(self) -> bool:
        return self.wanted > 0 and self.ready >= self.wanted


class LeaderStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The holder of a lease. `silent_seconds` is by this machine's clock, None if it was never renewed."""

    lease: str
    duty: str
    holder: str
    silent_seconds: float | None
    transitions: int
    alive: bool


class WebhookStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A registered webhook of Zonewise. `endpoints` counts ready ones of its Service, None if it is called by URL."""

    configuration: str
    name: str
    target: str
    failure_policy: str
    trusted: bool
    endpoints: int | None

    @property
    def healthy(self) -> bool:
        return self.trusted and self.endpoints != 0


class ZoneStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`drained`: annotations of its nodes drain it. The name is empty for nodes without a zone label."""

    name: str
    region: str
    nodes: int
    ready: int
    cpu_millis: int
    drained: bool


class ServiceState(StrEnum):
    """`CutOff`: in force, but some clients reach no endpoint. `Unserved`: no endpoint is ready."""

    IN_FORCE = "InForce"
    NOT_IN_FORCE = "NotInForce"
    CUT_OFF = "CutOff"
    UNSERVED = "Unserved"
    NOT_ASKED = "NotAsked"


class RoutingStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`outlook` is the forecast; `measured` is counted by node proxies, if they run."""

    state: ServiceState
    outlook: ServiceForecast
    measured: InZoneShare | None = None


class ZoneTraffic(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Bytes between zones since each proxy started. `problem` is why only `answered` of `proxies` reported."""

    proxies: int = 0
    answered: int = 0
    problem: str = ""
    in_zone: int = 0
    cross_zone: int = 0
    flows: tuple[ZoneFlow, ...] = ()

    @property
    def share(self) -> float | None:
        return InZoneShare(self.in_zone, self.cross_zone).share


class BudgetDomainStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    name: str
    pods: int
    healthy: int
    desired: int
    allowed: int


class ChargeStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A pod that is leaving, or gone and not replaced yet; `source` is the cause, `time` the start."""

    pod: str
    domain: str
    source: str
    time: str
    confirmed: bool


class BudgetStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`charged` names the pods that are leaving now, `charges` has details; `trouble` is why it is not enforced."""

    namespace: str
    name: str
    limit: str
    enforcement: str
    allowed: int
    healthy: int
    desired: int
    pods: int
    charged: tuple[str, ...]
    charges: tuple[ChargeStatus, ...]
    domains: tuple[BudgetDomainStatus, ...]
    trouble: str


class VolumeDomain(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Volumes of one domain; `nodes` counts nodes that can reach them now, by their labels."""

    domain: str
    volumes: int
    bound: int
    bytes: int
    nodes: int


class TakeoverStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`nodes` in the zones `targets` serve the volumes of `domain`."""

    domain: str
    targets: tuple[str, ...]
    nodes: int


class StatusProblem(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`code` is stable."""

    code: str
    sentence: str
    remedy: str


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`installed`: a component of Zonewise is present. `unread`: kinds that may not be read, and why."""

    at: str
    server: str
    version: str
    installed: bool
    sentence: str
    troubles: tuple[StatusProblem, ...]
    components: tuple[ComponentStatus, ...]
    leaders: tuple[LeaderStatus, ...]
    webhooks: tuple[WebhookStatus, ...]
    zones: tuple[ZoneStatus, ...]
    states: dict[ServiceState, int]
    services: tuple[RoutingStatus, ...]
    traffic: ZoneTraffic
    budgets: tuple[BudgetStatus, ...]
    volumes: tuple[VolumeDomain, ...]
    takeovers: tuple[TakeoverStatus, ...]
    unread: tuple[str, ...]
