"""What comes of a decision by whoever carries the Service: stock programs do only what they can be told. Pure.

Our own do as decided. kube-proxy goes by the hints that can be written, and gives every endpoint to clients that these
have nothing for; stock DNS gives every endpoint to everybody.
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
    """`astray` are the nodes whose clients reach endpoints that the decision keeps from them."""

    forecast: Forecast
    astray: tuple[str, ...] = ()


def carried(
    decision: Decision, expression: HintsExpression, cluster: RoutingNodes, carrier: DataPlane
) -> EffectiveRouting:
    """Of a decision that has anybody to serve."""
    if carrier is DataPlane.KUBE_PROXY and expression.losses:
        return _by(_by_kube_proxy(decision, expression, cluster), decision, expression, cluster)
    if carrier is DataPlane.STOCK_DNS and (expression.hints or expression.losses):
        everything = dict.fromkeys((a for a, each in _all(decision).items() if is_ready(each)), 1.0)
        return _by(lambda _: everything, decision, expression, cluster)
    return EffectiveRouting(forecast(decision, cluster))


def _by(gets: Gets, decision: Decision, expression: HintsExpression, cluster: RoutingNodes) -> EffectiveRouting:
    groups = list(_parted(clients_alike(cluster, served_domains(decision)), expression))
    used = {address for _, alike in groups for address in gets(alike[0])}
    endpoints = {a: each for a, each in _all(decision).items() if a in used or a in decision.endpoints}
    astray = sorted(
        name
        for _, alike in groups
        if gets(alike[0]).keys() - choose(decision, cluster, alike[0]).shares
        for name in alike
    )
    return EffectiveRouting(foresee(endpoints, cluster, groups, gets), tuple(astray))


def _parted(groups: Iterable[Alike], expression: HintsExpression) -> Iterator[Alike]:
    """By which endpoints are hinted for their node."""
    by_node: dict[str, list[str]] = {}
    for address, hints in expression.hints.items():
        for hint in hints.for_nodes:
            by_node.setdefault(hint.name, []).append(address)
    for zone, names in groups:
        parts: dict[tuple[str, ...], list[str]] = {}
        for name in names:
            parts.setdefault(tuple(by_node.get(name, ())), []).append(name)
        yield from ((zone, part) for part in parts.values())


def _all(decision: Decision) -> Mapping[str, Endpoint]:
    return {**decision.endpoints, **decision.drained}


def _by_kube_proxy(decision: Decision, expression: HintsExpression, cluster: RoutingNodes) -> Gets:
    targets = list(_targets(decision, expression))

    @cache
    def gets(node: str) -> Mapping[str, float]:
        zone = cluster.nodes[node].metadata.labels.get(ZONE, "")
        return dict.fromkeys(categorize(targets, TrafficPolicies(), node, zone).cluster, 1.0)

    return gets


def _targets(decision: Decision, expression: HintsExpression) -> Iterator[ProxyTarget]:
    for address, endpoint in _all(decision).items():
        hints = expression.hints.get(address)
        yield ProxyTarget(
            address=address,
            local=False,
            ready=is_ready(endpoint),
            draining=is_draining(endpoint),
            zone_hints=frozenset(hint.name for hint in hints.for_zones) if hints else frozenset(),
            node_hints=frozenset(hint.name for hint in hints.for_nodes) if hints else frozenset(),
        )
