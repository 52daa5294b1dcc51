"""All that has to be written so that the slices of one Service are right. Pure.

The controller calls it with what its caches say and writes the answer: creates, then updates in their order, then
deletes. Nothing is remembered between two calls but what stands in the slices.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Final

from zonewise.api.names import STARTED, WEIGHTS
from zonewise.objects import EndpointPort, EndpointSlice, Pod, Service
from zonewise.routing import NO_DRAIN, Decision, Drain, HintsExpression, HintsForm, RoutingNodes, express
from zonewise.routing.load import Consumers
from zonewise.routing.policy import AutomaticHints
from zonewise.routing.weights_annotation import write_weights
from zonewise.slices.decide.body import SliceBody, SliceUpdate, annotations_for, is_owned_by, labels_for
from zonewise.slices.decide.endpoints import ByPorts, endpoints_of
from zonewise.slices.decide.families import ServiceFamily, families_of
from zonewise.slices.decide.placement import PLACEHOLDER, PlacedSlice, Placement, place, reuse
from zonewise.slices.decide.route import RoutedEndpoints, route
from zonewise.slices.decide.strict_hints import carry_hints, hint_bodies
from zonewise.slices.decide.update_order import EndpointMoves, count_moves, in_safe_order

MOST_PER_SLICE: Final = 100


@dataclass(frozen=True, slots=True)
class SlicesPlan:
    """`decisions` and `expressions` by address type; the counts are for metrics.

    `reallocated` endpoints are for other zones than before. `pods_without_node` come back when their node does.
    """

    creates: tuple[SliceBody, ...] = ()
    updates: tuple[SliceUpdate, ...] = ()
    deletes: tuple[EndpointSlice, ...] = ()
    decisions: Mapping[str, Decision] = field(default_factory=dict)
    expressions: Mapping[str, HintsExpression] = field(default_factory=dict)
    added: int = 0
    removed: int = 0
    reallocated: int = 0
    desired_endpoints: int = 0
    desired_slices: int = 0
    slices: int = 0
    pods_without_node: tuple[str, ...] = ()

    @property
    def writes(self) -> int:
        return len(self.creates) + len(self.updates) + len(self.deletes)


def has_slices(service: Service) -> bool:
    """Whether the slices of the Service are a controller's to write: those without a selector are their owner's."""
    return service.spec.selector is not None and service.spec.type != "ExternalName"


def plan_slices(
    service: Service,
    pods: Iterable[Pod],
    cluster: RoutingNodes,
    existing: Sequence[EndpointSlice],
    *,
    most_per_slice: int = MOST_PER_SLICE,
    hints: HintsForm = HintsForm.STABLE,
    drained: Drain = NO_DRAIN,
    trigger_time: str | None = None,
) -> SlicesPlan:
    """`existing` are the slices of this Service that carry our manager label, an earlier Service's included."""
    if not has_slices(service):
        return SlicesPlan()
    families = families_of(service)
    found = endpoints_of(service, pods, cluster, families)
    by_family, strays = _sort_out(service, existing, families)
    task = _Task(service, cluster, most_per_slice, hints, drained, trigger_time)
    parts = [task.plan(family, found.by_family[family], by_family[family]) for family in families]
    return _together(service, parts, strays, found.without_node)


@dataclass(frozen=True, slots=True)
class _Part:
    """The plan for one family."""

    family: ServiceFamily
    decision: Decision
    expression: HintsExpression
    creates: list[SliceBody]
    updates: list[SliceUpdate]
    deletes: list[EndpointSlice]
    moves: EndpointMoves
    endpoints: int
    desired_slices: int
    slices: int


@dataclass(frozen=True, slots=True)
class _Task:
    service: Service
    cluster: RoutingNodes
    most: int
    form: HintsForm
    drained: Drain
    trigger_time: str | None

    def plan(self, family: ServiceFamily, by_ports: ByPorts, slices: Sequence[EndpointSlice]) -> _Part:
        routed = route(self.service, by_ports, slices, self.cluster, self.form, self.drained)
        decision, expression = routed.decision, routed.expression
        labels_of = self._labels(grouped=routed.grouped)
        sizes = [len(endpoints) for endpoints in routed.wanted.values()]
        strictly = self._hints_follow_slices(decision)
        if strictly:
            carry_hints(slices, routed.wanted)
        placement = place(slices, routed.wanted, labels_of, self.most)
        if strictly:
            decision = hint_bodies(placement.bodies, self.cluster, decision)
            expression = express(decision, self.cluster)
        if not placement.bodies:
            placement.bodies.append(PlacedSlice(PLACEHOLDER, []))
        deletes = reuse(placement, labels_of)
        _let_remember(placement.bodies, routed.started)
        _let_weigh(placement.bodies, routed.weights)
        creates, updates = self._drafts(family, by_ports, placement, labels_of, routed)
        return _Part(
            family=family,
            decision=decision,
            expression=expression,
            creates=creates,
            updates=updates,
            deletes=deletes,
            moves=count_moves(placement),
            endpoints=sum(sizes),
            desired_slices=sum(-(-size // self.most) for size in sizes) or 1,
            slices=len(placement.bodies),
        )

    def _hints_follow_slices(self, decision: Decision) -> bool:
        policy = decision.reading.policy
        return self.form is HintsForm.STRICT and isinstance(policy, AutomaticHints) and not decision.drained

    def _labels(self, *, grouped: bool) -> Callable[[str], Mapping[str, str]]:
        return cache(lambda group: labels_for(self.service, group if grouped else None))

    def _drafts(
        self,
        family: ServiceFamily,
        by_ports: ByPorts,
        placement: Placement,
        labels_of: Callable[[str], Mapping[str, str]],
        routed: RoutedEndpoints,
    ) -> tuple[list[SliceBody], list[SliceUpdate]]:
        ports_of = {frozenset(ports): ports for ports in by_ports}
        changed = [body for body in placement.bodies if body.changed]

        def draft(body: PlacedSlice) -> SliceBody:
            return SliceBody(
                self.service,
                family.value,
                _ports_of(body, ports_of),
                tuple(body.endpoints),
                labels_of(body.bucket.group),
                annotations_for(body.existing, self.trigger_time, routed.started, _weights_of(body, routed.weights)),
            )

        creates = [draft(body) for body in changed if body.existing is None]
        updated = in_safe_order(placement, [body for body in changed if body.existing is not None])
        return creates, [SliceUpdate(body.existing, draft(body)) for body in updated if body.existing is not None]


def _ports_of(
    body: PlacedSlice, ports_of: Mapping[frozenset[EndpointPort], tuple[EndpointPort, ...]]
) -> tuple[EndpointPort, ...]:
    """In the order that the slice has, if these are its ports."""
    if body.existing and frozenset(body.existing.ports or ()) == body.bucket.ports:
        return body.existing.ports or ()
    return ports_of.get(body.bucket.ports, ())


def _let_remember(bodies: Sequence[PlacedSlice], started: str) -> None:
    """One slice is enough to remember what has started; none may say what is no longer so."""
    said = [body.existing.metadata.annotations.get(STARTED, "") if body.existing else "" for body in bodies]
    for body, keys in zip(bodies, said, strict=True):
        body.changed = body.changed or keys not in {"", started}
    if started and not any(body.changed or keys == started for body, keys in zip(bodies, said, strict=True)):
        bodies[0].changed = True


def _let_weigh(bodies: Sequence[PlacedSlice], weights: Mapping[str, Consumers]) -> None:
    for body in bodies:
        said = body.existing.metadata.annotations.get(WEIGHTS, "") if body.existing else ""
        body.changed = body.changed or said != _weights_of(body, weights)


def _weights_of(body: PlacedSlice, weights: Mapping[str, Consumers]) -> str:
    return write_weights(weights, (endpoint.addresses[0] for endpoint in body.endpoints)) if weights else ""


def _sort_out(
    service: Service, existing: Sequence[EndpointSlice], families: Sequence[ServiceFamily]
) -> tuple[dict[str, list[EndpointSlice]], list[EndpointSlice]]:
    """The Service's own slices by family, in order of name, and those that have to go whatever they hold."""
    by_family: dict[str, list[EndpointSlice]] = {family: [] for family in families}
    strays: list[EndpointSlice] = []
    for found in sorted(existing, key=lambda found: found.metadata.name):
        if found.metadata.deletion_timestamp is not None:
            continue
        if found.address_type in by_family and is_owned_by(found, service):
            by_family[found.address_type].append(found)
        else:
            strays.append(found)
    return by_family, strays


def _together(
    service: Service, parts: Sequence[_Part], strays: Sequence[EndpointSlice], without_node: tuple[str, ...]
) -> SlicesPlan:
    """Nothing is created for a Service that is going: the garbage collector would have to delete it again."""
    going = service.metadata.deletion_timestamp is not None
    return SlicesPlan(
        creates=() if going else tuple(draft for part in parts for draft in part.creates),
        updates=tuple(update for part in parts for update in part.updates),
        deletes=(*(found for part in parts for found in part.deletes), *strays),
        decisions={part.family: part.decision for part in parts},
        expressions={part.family: part.expression for part in parts},
        added=sum(part.moves.added for part in parts),
        removed=sum(part.moves.removed for part in parts),
        reallocated=sum(part.moves.reallocated for part in parts),
        desired_endpoints=sum(part.endpoints for part in parts),
        desired_slices=sum(part.desired_slices for part in parts),
        slices=sum(part.slices for part in parts),
        pods_without_node=without_node,
    )
