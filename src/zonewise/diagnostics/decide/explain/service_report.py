"""What `zonewise explain service` tells, as values: the fields of its JSON.

Users read these fields in scripts: one is never renamed, only added.
"""

from __future__ import annotations

import msgspec

from zonewise.planning.data_plane import DataPlane
from zonewise.routing.report import EndpointReport, PolicyReport, TierReport


class EndpointShare(msgspec.Struct, frozen=True, rename="camel"):
    """`share` of the client's connections, of 1."""

    address: str
    share: float


class KubeProxyReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What a stock kube-proxy, or stock DNS for a headless Service, makes of the same slices."""

    program: str
    same: bool
    code: str
    sentence: str
    addresses: tuple[str, ...]


class ClientReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """What the clients on `nodes` get, who are alike in this; where they differ in addresses, those of the first.

    `in_zone` is the share of their connections that stays in their zone. `fell_back` where a rule or hints had nothing
    for them and they got every endpoint for that.
    """

    zone: str
    nodes: tuple[str, ...]
    gets: int
    in_zone: float
    fell_back: bool
    code: str
    sentence: str
    blame: tuple[str, ...]
    remedy: str
    shares: tuple[EndpointShare, ...]
    tiers: tuple[TierReport, ...]
    stock: KubeProxyReport


class FrontendReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """Ports of one address family that are served alike."""

    ports: tuple[str, ...]
    family: str
    ready: int
    clients: tuple[ClientReport, ...]
    endpoints: tuple[EndpointReport, ...]


class ServiceReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`asks` is the statement that counts, as it is written; `client` whom it was asked for, empty for everybody.

    `losses` are what the slices' hints can't tell a stock kube-proxy of what was decided, `stale` tells that they don't
    say yet what they could.
    """

    namespace: str
    name: str
    type: str
    client: str
    verdict: str
    asks: str
    policy_name: str
    in_force: bool
    policy: PolicyReport
    carrier: DataPlane
    carried: str
    fronts: tuple[FrontendReport, ...]
    losses: tuple[str, ...]
    stale: str
    remedies: tuple[str, ...]
