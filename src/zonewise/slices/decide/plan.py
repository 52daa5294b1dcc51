"""The plan of a sync: every write that brings the EndpointSlices of one Service up to date.

The controller calls `plan_slices` with the content of its caches and writes the result: creates, then updates in their
order, then deletes. The slices are the only memory between two calls.
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
from zonewise.slices.decide.strict_hints import carry_hints, hint_slices
from zonewise.slices.decide.update_order import EndpointMoves, count_moves, in_safe_order

MOST_PER_SLICE: Final = 100


@dataclass(frozen=True, slots=True)
class SlicesPlan:
    """`decisions` and `expressions` by address type; the counts are for metrics.

    `reallocated` endpoints serve other zones than before. `pods_without_node` are left out until their node is known.
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
    """Whether a controller writes the slices of the Service; without a selector its owner does."""
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
    """`existing` are all slices with our manager label for this Service name, an earlier Service's included."""
    if not has_slices(service):
        return SlicesPlan()
    families = families_of(service)
    endpoints = endpoints_of(service, pods, cluster, families)
    by_family, strays = _sort_out(service, existing, families)
    task = _Task(service, cluster, most_per_slice, hints, drained, trigger_time)
    plans = [task.plan(family, endpoints.by_family[family], by_family[family]) for family in families]
    return _merge(service, plans, strays, endpoints.without_node)


@dataclass(frozen=True, slots=True)
class _FamilyPlan:
    """The plan of one IP family."""

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

    def plan(self, family: ServiceFamily, by_ports: ByPorts, slices: Sequence[EndpointSlice]) -> _FamilyPlan:
        routed = route(self.service, by_ports, slices, self.cluster, self.form, self.drained)
        decision, expression = routed.decision, routed.expression
        labels_of = self._labels(grouped=routed.grouped)
        sizes = [len(endpoints) for endpoints in routed.desired.values()]
        hints_last = self._hints_follow_slices(decision)
        if hints_last:
            carry_hints(slices, routed.desired)
        placement = place(slices, routed.desired, labels_of, self.most)
        if hints_last:
            decision = hint_slices(placement.slices, self.cluster, decision)
            expression = express(decision, self.cluster)
        if not placement.slices:
            placement.slices.append(PlacedSlice(PLACEHOLDER, []))
        deletes = reuse(placement, labels_of)
        _mark_started(placement.slices, routed.started)
        _mark_weights(placement.slices, routed.weights)
        creates, updates = self._writes(family, by_ports, placement, labels_of, routed)
        return _FamilyPlan(
            family=family,
            decision=decision,
            expression=expression,
            creates=creates,
            updates=updates,
            deletes=deletes,
            moves=count_moves(placement),
            endpoints=sum(sizes),
            desired_slices=sum(-(-size // self.most) for size in sizes) or 1,
            slices=len(placement.slices),
        )

    def _hints_follow_slices(self, decision: Decision) -> bool:
        policy = decision.reading.policy
        return self.form is HintsForm.STRICT and isinstance(policy, AutomaticHints) and not decision.drained

    def _labels(self, *, grouped: bool) -> Callable[[str], Mapping[str, str]]:
        return cache(lambda group: labels_for(self.service, group if grouped else None))

    def _writes(
        self,
        family: ServiceFamily,
        by_ports: ByPorts,
        placement: Placement,
        labels_of: Callable[[str], Mapping[str, str]],
        routed: RoutedEndpoints,
    ) -> tuple[list[SliceBody], list[SliceUpdate]]:
        ports_of = {frozenset(ports): ports for ports in by_ports}
        changed = [placed for placed in placement.slices if placed.changed]

        def body_for(placed: PlacedSlice) -> SliceBody:
            return SliceBody(
                self.service,
                family.value,
                _ports_of(placed, ports_of),
                tuple(placed.endpoints),
                labels_of(placed.bucket.group),
                annotations_for(
                    placed.existing, self.trigger_time, routed.started, _weights_of(placed, routed.weights)
                ),
            )

        creates = [body_for(placed) for placed in changed if placed.existing is None]
        updated = in_safe_order(placement, [placed for placed in changed if placed.existing is not None])
        return creates, [
            SliceUpdate(placed.existing, body_for(placed)) for placed in updated if placed.existing is not None
        ]


def _ports_of(
    placed: PlacedSlice, ports_of: Mapping[frozenset[EndpointPort], tuple[EndpointPort, ...]]
) -> tuple[EndpointPort, ...]:
    """The ports in the order of the existing slice, if it has the same ones."""
    if placed.existing and frozenset(placed.existing.ports or ()) == placed.bucket.ports:
        return placed.existing.ports or ()
    return ports_of.get(placed.bucket.ports, ())


def _mark_started(slices: Sequence[PlacedSlice], started: str) -> None:
    """Marks slices whose `started` annotation is outdated; at least one slice must carry the current value."""
    annotations = [
        placed.existing.metadata.annotations.get(STARTED, "") if placed.existing else "" for placed in slices
    ]
    for placed, annotation in zip(slices, annotations, strict=True):
        placed.changed = placed.changed or annotation not in {"", started}
    if started and not any(
        placed.changed or annotation == started for placed, annotation in zip(slices, annotations, strict=True)
    ):
        slices[0].changed = True


def _mark_weights(slices: Sequence[PlacedSlice], weights: Mapping[str, Consumers]) -> None:
    for placed in slices:
        annotation = placed.existing.metadata.annotations.get(WEIGHTS, "") if placed.existing else ""
        placed.changed = placed.changed or annotation != _weights_of(placed, weights)


def _weights_of(placed: PlacedSlice, weights: Mapping[str, Consumers]) -> str:
    return write_weights(weights, (endpoint.addresses[0] for endpoint in placed.endpoints)) if weights else ""


def _sort_out(
    service: Service, existing: Sequence[EndpointSlice], families: Sequence[ServiceFamily]
) -> tuple[dict[str, list[EndpointSlice]], list[EndpointSlice]]:
    """The slices owned by the Service by family, sorted by name, and the strays to delete."""
    by_family: dict[str, list[EndpointSlice]] = {family: [] for family in families}
    strays: list[EndpointSlice] = []
    for endpoint_slice in sorted(existing, key=lambda endpoint_slice: endpoint_slice.metadata.name):
        if endpoint_slice.metadata.deletion_timestamp is not None:
            continue
        if endpoint_slice.address_type in by_family and is_owned_by(endpoint_slice, service):
            by_family[endpoint_slice.address_type].append(endpoint_slice)
        else:
            strays.append(endpoint_slice)
    return by_family, strays


def _merge(
    service: Service,
    plans: Sequence[_FamilyPlan],
    strays: Sequence[EndpointSlice],
    without_node: tuple[str, ...],
) -> SlicesPlan:
    """Merges the plans of all families. For a Service that is being deleted nothing is created: it would be garbage."""
    deleting = service.metadata.deletion_timestamp is not None
    return SlicesPlan(
        creates=() if deleting else tuple(body for plan in plans for body in plan.creates),
        updates=tuple(update for plan in plans for update in plan.updates),
        deletes=(*(unused for plan in plans for unused in plan.deletes), *strays),
        decisions={plan.family: plan.decision for plan in plans},
        expressions={plan.family: plan.expression for plan in plans},
        added=sum(plan.moves.added for plan in plans),
        removed=sum(plan.moves.removed for plan in plans),
        reallocated=sum(plan.moves.reallocated for plan in plans),
        desired_endpoints=sum(plan.endpoints for plan in plans),
        desired_slices=sum(plan.desired_slices for plan in plans),
        slices=sum(plan.slices for plan in plans),
        pods_without_node=without_node,
    )
