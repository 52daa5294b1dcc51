"""Routing of the endpoints of one IP family: the decision, its hints, and the bucket of each endpoint.

Runs between `endpoints`, which makes the endpoints, and `placement`, which puts them into slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from zonewise.api.names import CONSUMER_ALL
from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Hint, Service
from zonewise.routing import Decision, Drain, HintsExpression, HintsForm, Memory, RoutingNodes, decide, express
from zonewise.routing.endpoints import is_marked_ready
from zonewise.routing.load import Consumers
from zonewise.routing.policy import Distribution, TrafficDistribution
from zonewise.routing.slice_memory import is_grouped, remember
from zonewise.slices.decide.endpoints import ByPorts
from zonewise.slices.decide.groups import Grouping, beyond_hints, started
from zonewise.slices.decide.placement import Bucket, Desired, Identity, identity

GroupAndHints = Callable[[Endpoint], tuple[str, EndpointHints | None]]
"""Gives the group and the hints of an endpoint."""


@dataclass(frozen=True, slots=True)
class RoutedEndpoints:
    """`started` and `weights` go into annotations of the slices: hints cannot express them."""

    decision: Decision
    expression: HintsExpression
    desired: Desired
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
    """`memory` is the last decision; by default it is read from `slices`."""
    if memory is None:
        memory = remember(slices, service, cluster)
    endpoints = [endpoint for same_ports in by_ports.values() for endpoint in same_ports]
    decision = decide(service, endpoints, cluster, memory, hints=form, drained=drained)
    expression = express(decision, cluster)
    hints, policy = expression.hints, decision.reading.policy
    if is_grouped(policy):
        grouping = Grouping(decision, expression, cluster, _waiting(decision, endpoints), memory)
        desired = _by_bucket(by_ports, grouping.of)
        weights = beyond_hints(decision, cluster)
        return RoutedEndpoints(decision, expression, desired, True, started(decision, memory), weights)
    if isinstance(policy, Distribution) and not decision.drained:
        return RoutedEndpoints(decision, expression, _by_bucket(by_ports, _nearest(policy)))
    if hints:
        return RoutedEndpoints(
            decision,
            expression,
            _by_bucket(by_ports, lambda endpoint: (CONSUMER_ALL, hints.get(endpoint.addresses[0]))),
        )
    return RoutedEndpoints(decision, expression, _unhinted(by_ports))


def with_hints(endpoint: Endpoint, hints: EndpointHints | None) -> Endpoint:
    return endpoint if hints is endpoint.hints else msgspec.structs.replace(endpoint, hints=hints)


def _waiting(decision: Decision, endpoints: Iterable[Endpoint]) -> dict[str, Endpoint]:
    """Endpoints outside the decision, by address: they are not ready."""
    return {
        address: endpoint
        for endpoint in endpoints
        if (address := endpoint.addresses[0]) not in decision.endpoints and address not in decision.drained
    }


def _by_bucket(by_ports: ByPorts, group_and_hints: GroupAndHints) -> Desired:
    desired: Desired = {}
    for ports, endpoints in by_ports.items():
        buckets: dict[str, dict[Identity, Endpoint]] = {}
        for endpoint in endpoints:
            group, hints = group_and_hints(endpoint)
            if group not in buckets:
                buckets[group] = desired.setdefault(Bucket(frozenset(ports), group), {})
            buckets[group][identity(endpoint)] = with_hints(endpoint, hints)
    return desired


def _unhinted(by_ports: ByPorts) -> Desired:
    desired: Desired = {}
    for ports, endpoints in by_ports.items():
        bucket = desired.setdefault(Bucket(frozenset(ports), CONSUMER_ALL), {})
        bucket.update((identity(endpoint), endpoint) for endpoint in endpoints)
    return desired


def _nearest(policy: Distribution) -> GroupAndHints:
    """Hints as the stock controller writes them: every ready endpoint for its own zone, even if others lack one."""
    with_nodes = policy.value is TrafficDistribution.PREFER_SAME_NODE
    hints_by_location: dict[tuple[str | None, str | None], EndpointHints] = {}

    def group_and_hints(endpoint: Endpoint) -> tuple[str, EndpointHints | None]:
        location = endpoint.zone, endpoint.node_name if with_nodes else None
        if not is_marked_ready(endpoint) or location == (None, None):
            return CONSUMER_ALL, None
        if location not in hints_by_location:
            zone, node = location
            hints_by_location[location] = EndpointHints(for_zones=_hints(zone), for_nodes=_hints(node))
        return CONSUMER_ALL, hints_by_location[location]

    return group_and_hints


def _hints(name: str | None) -> tuple[Hint, ...]:
    return (Hint(name=name),) if name else ()
