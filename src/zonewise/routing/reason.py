"""Reasons of routing decisions: the codes, and the value that explain, events, metrics and the dashboard show.

Every decision of this package returns a `RoutingReason` beside its result. It adds to the common form the objects to
blame and what would change the result, both as data, so that `explain` can name the node and a user can act on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Final, NamedTuple

from zonewise import topology


class RoutingCode(StrEnum):
    """Stable: users write alerts on these. Codes may be added; a code never changes its meaning."""

    # Problems in the annotations of a Service.
    INVALID_VALUE = "InvalidValue"
    OVERRULED = "Overruled"
    NO_EFFECT = "NoEffect"

    # The rule that decides.
    NO_POLICY = "NoPolicy"
    BALANCED = "Balanced"
    TOPOLOGY_KEYS = "TopologyKeys"
    REQUIRED = "Required"
    PREFERRED = "Preferred"
    HINTED = "Hinted"
    DISTRIBUTED = "Distributed"

    # Why a preference is not in force.
    NO_ENDPOINTS = "NoEndpoints"
    NO_NODES = "NoNodes"
    ONE_DOMAIN = "OneDomain"
    BELOW_START = "BelowStart"
    WOULD_OVERLOAD = "WouldOverload"
    ONLY_TERMINATING = "OnlyTerminating"
    INSUFFICIENT_NODE_INFO = "InsufficientNodeInfo"
    TOO_FEW_ENDPOINTS = "TooFewEndpoints"
    ENDPOINT_WITHOUT_ZONE = "EndpointWithoutZone"
    ENDPOINT_WITHOUT_NODE = "EndpointWithoutNode"

    # The outcome of a drain.
    ZONE_DRAINED = "ZoneDrained"
    NOT_DRAINED = "NotDrained"
    DRAIN_ENDED = "DrainEnded"

    # The choice for one client.
    CHOSEN = "Chosen"
    NONE_REACHABLE = "NoneReachable"

    # What a stock kube-proxy makes of the hints.
    PROXY_SAME_NODE = "ProxySameNode"
    PROXY_SAME_ZONE = "ProxySameZone"
    PROXY_LOCAL_ONLY = "ProxyLocalOnly"
    PROXY_LEAVES_ALONE = "ProxyLeavesAlone"
    PROXY_IGNORES_HINTS = "ProxyIgnoresHints"
    MISSING_HINTS = "MissingHints"
    NODE_WITHOUT_ZONE = "NodeWithoutZone"
    ZONE_NOT_HINTED = "ZoneNotHinted"

    # What hints cannot express for a stock kube-proxy.
    NEEDS_PROXY = "NeedsProxy"

    # What stock DNS does not do for a headless Service.
    NEEDS_DNS = "NeedsDNS"


class RoutingSubject(NamedTuple):
    """An object that a user can inspect: `Node worker-7`, `Service default/web`, `Endpoint 10.0.0.3`, `Zone eu-1a`."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


@dataclass(frozen=True, slots=True)
class RoutingReason(topology.Reason):
    """`blame` are the objects that caused it, `remedy` is what would change it; both empty if nothing is wrong."""

    code: RoutingCode
    facts: Mapping[str, Any] = field(default_factory=dict, hash=False)
    blame: tuple[RoutingSubject, ...] = ()
    remedy: str = ""


NO_ENDPOINT_READY: Final = RoutingReason(
    RoutingCode.NO_ENDPOINTS, "no endpoint is ready", remedy="make a pod of the Service ready"
)


def only_terminating(count: int, use: str, facts: Mapping[str, Any]) -> RoutingReason:
    """`use` says how the endpoints are used: `used without preference`."""
    sentence = f"no endpoint is ready, so the {count} that terminate but still serve are {use}"
    return RoutingReason(RoutingCode.ONLY_TERMINATING, sentence, facts, remedy="make a pod of the Service ready")
