"""The effect of a routing decision through the data plane of its Service. Pure.

Zonewise's proxy and DNS server do as decided. kube-proxy follows the hints that slices can express, and gives every
endpoint to clients without a matching hint. Stock DNS gives every endpoint to every client.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache

from zonewise.objects import Endpoint
from zonewise.planning.data_plane import DataPlane
from zonewise.routing import Decision, Forecast, HintsExpression, RoutingNodes, choose, forecast
from zonewise.routing.endpoints import is_draining, is_ready
from zonewise.routing.forecast import Alike, Gets, clients_alike, foresee, served_domains
from zonewise.routing.kube_proxy import ProxyTarget, TrafficPolicies, categorize
from zonewise.topology import ZONE


@dataclass(frozen=True, slots=True)
class EffectiveRouting:
    """`astray`: nodes whose clients reach endpoints that the decision withholds from them."""

    forecast: Forecast
    astray: tuple[str, ...] = ()


def apply_data_plane(
    decision: Decision, expression: HintsExpression, cluster: RoutingNodes, data_plane: DataPlane
) -> EffectiveRouting:
    """The decision must have endpoints."""
    if data_plane is DataPlane.KUBE_PROXY and expression.losses:
        return _effect(_kube_proxy_choice(decision, expression, cluster), decision, expression, cluster)
    if data_plane is DataPlane.STOCK_DNS and (expression.hints or expression.losses):
        ready = (address for address, endpoint in _all_endpoints(decision).items() if is_ready(endpoint))
        shares = dict.fromkeys(ready, 1.0)
        return _effect(lambda _: shares, decision, expression, cluster)
    return EffectiveRouting(forecast(decision, cluster))


def _effect(gets: Gets, decision: Decision, expression: HintsExpression, cluster: RoutingNodes) -> EffectiveRouting:
    groups = list(_split_by_node_hints(clients_alike(cluster, served_domains(decision)), expression))
    used = {address for _, nodes in groups for address in gets(nodes[0])}
    endpoints = {
        address: endpoint
        for address, endpoint in _all_endpoints(decision).items()
        if address in used or address in decision.endpoints
    }
    astray = sorted(
        name
        for _, nodes in groups
        if gets(nodes[0]).keys() - choose(decision, cluster, nodes[0]).shares
        for name in nodes
    )
    return EffectiveRouting(foresee(endpoints, cluster, groups, gets), tuple(astray))


def _split_by_node_hints(groups: Iterable[Alike], expression: HintsExpression) -> Iterator[Alike]:
    """Nodes of a group that the same endpoints are hinted for stay together."""
    by_node: dict[str, list[str]] = {}
    for address, hints in expression.hints.items():
        for hint in hints.for_nodes:
            by_node.setdefault(hint.name, []).append(address)
    for zone, names in groups:
        parts: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            parts.setdefault(tuple(by_node.get(name, ())), []).append(name)
        yield from ((zone, part) for part in parts.values())


def _all_endpoints(decision: Decision) -> Mapping[str, Endpoint]:
    return {**decision.endpoints, **decision.drained}


def _kube_proxy_choice(decision: Decision, expression: HintsExpression, cluster: RoutingNodes) -> Gets:
    targets = list(_proxy_targets(decision, expression))

    @cache
    def gets(node: str) -> Mapping[str, float]:
        zone = cluster.nodes[node].metadata.labels.get(ZONE, "")
        return dict.fromkeys(categorize(targets, TrafficPolicies(), node, zone).cluster, 1.0)

    return gets


def _proxy_targets(decision: Decision, expression: HintsExpression) -> Iterator[ProxyTarget]:
    for address, endpoint in _all_endpoints(decision).items():
        hints = expression.hints.get(address)
        yield ProxyTarget(
            address=address,
            local=False,
            ready=is_ready(endpoint),
            draining=is_draining(endpoint),
            zone_hints=frozenset(hint.name for hint in hints.for_zones) if hints else frozenset(),
            node_hints=frozenset(hint.name for hint in hints.for_nodes) if hints else frozenset(),
        )
