"""The report of `zonewise explain service`: the fields of its JSON.

Scripts read these fields: they are added to, never renamed.
"""

from __future__ import annotations

import msgspec

from zonewise.planning.data_plane import DataPlane
from zonewise.routing.report import EndpointReport, PolicyReport, TierReport


class EndpointShare(msgspec.Struct, frozen=True, rename="camel"):
    """`share` of the client's connections, between 0 and 1."""

    address: str
    share: float


class KubeProxyReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The outcome of a stock kube-proxy, or of stock DNS for a headless Service, with the same slices."""

    program: str
    same: bool
    code: str
    sentence: str
    addresses: tuple[str, ...]


class ClientReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """The outcome for the clients on `nodes`. If only their addresses differ, those of the first node are listed.

    `in_zone` is the share of connections that stay in their zone. `fell_back`: the policy or the hints had no endpoint
    for these clients, so they get every endpoint.
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
    """Ports of one address family with the same endpoints."""

    ports: tuple[str, ...]
    family: str
    ready: int
    clients: tuple[ClientReport, ...]
    endpoints: tuple[EndpointReport, ...]


class ServiceReport(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`asks` is the setting that counts, as written. `client` is empty for a report on all clients.

    `losses` are parts of the decision that hints can't express to a stock kube-proxy. `stale` says that the slices lack
    hints that were decided.
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
