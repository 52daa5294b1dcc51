"""What `zonewise status` tells, as values: the fields of its JSON, which the dashboard shows too.

Users read these fields in scripts: one is never renamed, only added.
"""

from __future__ import annotations

from enum import StrEnum

import msgspec

from zonewise.diagnostics.decide.status.traffic import InZoneShare, ZoneFlow
from zonewise.planning.forecast import ClusterForecast


class ComponentStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A Deployment or DaemonSet of ours; `up_to_date` pods are of its newest template."""

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
    """Who holds a lease; `silent_seconds` is by this machine's clock, None where it was never renewed."""

    lease: str
    duty: str
    holder: str
    silent_seconds: float | None
    transitions: int
    alive: bool


class WebhookStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """A registered webhook of ours. `endpoints` are ready behind its Service, None where it is called by URL."""

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
    """`drained` where nodes ask traffic to leave it; the name is empty for nodes that say no zone."""

    name: str
    region: str
    nodes: int
    ready: int
    cpu_millis: int
    drained: bool


class ServiceState(StrEnum):
    """`CutOff`: in force, and some clients reach no endpoint. `Unserved`: no endpoint takes traffic."""

    IN_FORCE = "InForce"
    NOT_IN_FORCE = "NotInForce"
    CUT_OFF = "CutOff"
    UNSERVED = "Unserved"
    NOT_ASKED = "NotAsked"


class RoutingStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`outlook` is foreseen, `measured` was counted by node proxies, if any did."""

    state: ServiceState
    outlook: ClusterForecast
    measured: InZoneShare | None = None


class ZoneTraffic(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Measured since each proxy started: bytes between zones; `answered` of `proxies`, and why not all."""

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
    """A pod that is about to go, or gone and not replaced yet; `source` is how, `time` since when."""

    pod: str
    domain: str
    source: str
    time: str
    confirmed: bool


class BudgetStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`charged` pods are leaving on its account now, which `charges` tell more of; `trouble` is why it is not kept."""

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
    """Volumes that one domain holds; `nodes` can reach them now, by their labels."""

    domain: str
    volumes: int
    bound: int
    bytes: int
    nodes: int


class TakeoverStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`nodes`, in the zones `targets`, serve the volumes of `domain` in its place."""

    domain: str
    targets: tuple[str, ...]
    nodes: int


class StatusProblem(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`code` is stable."""

    code: str
    sentence: str
    remedy: str


class ClusterStatus(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`installed` tells whether anything of Zonewise runs there; `unread` what could not be looked at, and why."""

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
