"""What routing says of one family of a Service's endpoints: the decision, its hints, and the bucket each belongs to.

Stands between `pods`, which makes the endpoints, and `placement`, which puts them into slices. Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from zonewise.api.names import CONSUMER_ALL
from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Hint, Service
from zonewise.routing import Decision, Drain, HintsExpression, HintsForm, Memory, RoutingNodes, decide, express
from zonewise.routing.endpoints import is_marked_ready
from zonewise.routing.load import Consumers
from zonewise.routing.policy import Distribution, TrafficDistribution
from zonewise.slices.decide.endpoints import ByPorts
from zonewise.slices.decide.groups import Grouping, beyond_hints, is_grouped, remember, started
from zonewise.slices.decide.placement import Bucket, Identity, Wanted, identity

Place = Callable[[Endpoint], tuple[str, EndpointHints | None]]
"""The group and the hints of an endpoint."""


@dataclass(frozen=True, slots=True)
class RoutedEndpoints:
    """`started` is what the slices have to remember beside their hints, `weights` what proxies can't learn from these."""

    decision: Decision
    expression: HintsExpression
    wanted: Wanted
    grouped: bool = False
    started: str = ""
    weights: Mapping[str, Consumers] = field(default_factory=dict)


def route(
    service: Service,
    by_ports: ByPorts,
    slices: Sequence[EndpointSlice],
    cluster: RoutingNodes,
    form: HintsForm,
    drained: Drain,
    memory: Memory | None = None,
) -> RoutedEndpoints:
    """`memory` is of the last decision; without it, it is what our own slices remember."""
    if memory is None:
        memory = remember(slices, service, cluster)
    endpoints = [endpoint for found in by_ports.values() for endpoint in found]
    decision = decide(service, endpoints, cluster, memory, hints=form, drained=drained)
    expression = express(decision, cluster)
    hints, policy = expression.hints, decision.reading.policy
    if is_grouped(policy):
        grouping = Grouping(decision, expression, cluster, _waiting(decision, endpoints), memory)
        wanted = _placed(by_ports, grouping.of)
        weights = beyond_hints(decision, cluster)
        return RoutedEndpoints(decision, expression, wanted, True, started(decision, memory), weights)
    if isinstance(policy, Distribution) and not decision.drained:
        return RoutedEndpoints(decision, expression, _placed(by_ports, _nearest(policy)))
    if hints:
        return RoutedEndpoints(
            decision, expression, _placed(by_ports, lambda endpoint: (CONSUMER_ALL, hints.get(endpoint.addresses[0])))
        )
    return RoutedEndpoints(decision, expression, _unhinted(by_ports))


def hinted(endpoint: Endpoint, hints: EndpointHints | None) -> Endpoint:
    if hints is endpoint.hints:
        return endpoint
    return Endpoint(
        addresses=endpoint.addresses,
        conditions=endpoint.conditions,
        hints=hints,
        hostname=endpoint.hostname,
        node_name=endpoint.node_name,
        zone=endpoint.zone,
        target_ref=endpoint.target_ref,
    )


def _waiting(decision: Decision, endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
    """Those that the decision says nothing of, by address: they are not ready."""
    return {
        address: endpoint
        for endpoint in endpoints
        if (address := endpoint.addresses[0]) not in decision.endpoints and address not in decision.drained
    }


def _placed(by_ports: ByPorts, place: Place) -> Wanted:
    wanted: Wanted = {}
    for ports, endpoints in by_ports.items():
        buckets: dict[str, dict[Identity, Endpoint]] = {}
        for endpoint in endpoints:
            group, hints = place(endpoint)
            if group not in buckets:
                buckets[group] = wanted.setdefault(Bucket(frozenset(ports), group), {})
            buckets[group][identity(endpoint)] = hinted(endpoint, hints)
    return wanted


def _unhinted(by_ports: ByPorts) -> Wanted:
    wanted: Wanted = {}
    for ports, endpoints in by_ports.items():
        bucket = wanted.setdefault(Bucket(frozenset(ports), CONSUMER_ALL), {})
        bucket.update((identity(endpoint), endpoint) for endpoint in endpoints)
    return wanted


def _nearest(policy: Distribution) -> Place:
    """As the stock controller writes it: every ready endpoint for its own zone, even where others have none."""
    with_nodes = policy.value is TrafficDistribution.PREFER_SAME_NODE
    made: dict[tuple[str | None, str | None], EndpointHints] = {}

    def place(endpoint: Endpoint) -> tuple[str, EndpointHints | None]:
        near = endpoint.zone, endpoint.node_name if with_nodes else None
        if not is_marked_ready(endpoint) or near == (None, None):
            return CONSUMER_ALL, None
        if near not in made:
            zone, node = near
            made[near] = EndpointHints(for_zones=_hints(zone), for_nodes=_hints(node))
        return CONSUMER_ALL, made[near]

    return place


def _hints(name: str | None) -> tuple[Hint, ...]:
    return (Hint(name=name),) if name else ()
