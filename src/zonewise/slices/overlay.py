"""Hints for slices that the stock controller writes: what each endpoint should say, decided over a Service's slices.

The webhook asks while one of the slices is being written, the overlay controller while nobody writes; both take the
answer from here, so they agree. The hints that stand in the slices are the memory of the last decision, and laying the
answer over slices that have it already changes nothing. Which policy that decision was for is told by the state that
stands on the Service; hints of another policy are nobody's memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Key, Service, key_of
from zonewise.routing import (
    NO_DRAIN,
    Cluster,
    Decision,
    Drain,
    Expression,
    HintsForm,
    decide,
    express,
    read_policy,
    recall,
)
from zonewise.routing.policy import NoPolicy
from zonewise.slices.names import MANAGED_BY, STATE, STOCK_MANAGER
from zonewise.slices.state import policy_name, read_state

FIELD_MANAGER: Final = "zonewise-overlay"
"""Under which the overlay controller writes; the webhook lets its requests pass."""

Hints = tuple[EndpointHints | None, ...]
Operations = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Overlay:
    """`hints` of every endpoint in its slice's order, by slice; decisions and expressions by address type."""

    hints: Mapping[Key, Hints]
    decisions: Mapping[str, Decision]
    expressions: Mapping[str, Expression]

    @property
    def is_silent(self) -> bool:
        """The Service asks for nothing and gets nothing: hints that stand in its slices are not ours to judge."""
        return not any(
            expression.hints or not isinstance(self.decisions[family].reading.policy, NoPolicy)
            for family, expression in self.expressions.items()
        )

    def operations_on(self, found: EndpointSlice) -> Operations:
        """The JSON patch that gives the slice its hints; empty when it has them."""
        return _operations(found.endpoints or (), self.hints[key_of(found)])


def is_stock(found: EndpointSlice) -> bool:
    """Whether the stock EndpointSlice controller wrote it, and it is there to stay."""
    return found.metadata.labels.get(MANAGED_BY) == STOCK_MANAGER and found.metadata.deletion_timestamp is None


def overlay(
    service: Service,
    slices: Iterable[EndpointSlice],
    cluster: Cluster,
    *,
    hints: HintsForm = HintsForm.STABLE,
    drained: Drain = NO_DRAIN,
) -> Overlay:
    """`slices` are the stock controller's, all of them, with the hints that were decided last."""
    families: dict[str, list[EndpointSlice]] = defaultdict(list)
    for found in sorted(slices, key=key_of):
        families[found.address_type].append(found)
    decisions: dict[str, Decision] = {}
    expressions: dict[str, Expression] = {}
    wanted: dict[Key, Hints] = {}
    is_remembered = _is_told_of(service)
    for family, members in sorted(families.items()):
        told = members if is_remembered else [as_remembered(found, ()) for found in members]
        endpoints = [endpoint for found in told for endpoint in found.endpoints or ()]
        memory = recall(endpoints, cluster)
        decision = decide(service, endpoints, cluster, memory, hints=hints, drained=drained)
        decisions[family], expressions[family] = decision, express(decision, cluster)
        wanted |= {key_of(found): _hints_of(found, expressions[family]) for found in members}
    return Overlay(wanted, decisions, expressions)


def _is_told_of(service: Service) -> bool:
    """Whether the hints in a Service's slices are of the policy it has now, as far as is known."""
    state = read_state(service.metadata.annotations.get(STATE))
    return state is None or state.policy == policy_name(read_policy(service).policy)


def as_remembered(written: EndpointSlice, earlier: Sequence[EndpointSlice]) -> EndpointSlice:
    """The slice with the hints its endpoints had, wherever they stood; of two places the later one counts.

    The stock controller takes hints off that it does not know, so those in what it writes tell nothing.
    """
    known = {
        endpoint.addresses[0]: endpoint.hints
        for found in earlier
        if found.address_type == written.address_type
        for endpoint in found.endpoints or ()
        if endpoint.addresses and endpoint.hints
    }
    return msgspec.structs.replace(
        written, endpoints=tuple(_with_hints(endpoint, known) for endpoint in written.endpoints or ())
    )


def _with_hints(endpoint: Endpoint, known: Mapping[str, EndpointHints]) -> Endpoint:
    remembered = known.get(endpoint.addresses[0]) if endpoint.addresses else None
    return endpoint if endpoint.hints == remembered else msgspec.structs.replace(endpoint, hints=remembered)


def _hints_of(found: EndpointSlice, expression: Expression) -> Hints:
    """An endpoint that takes no traffic says nothing, as nobody reads it."""
    return tuple(
        expression.hints.get(endpoint.addresses[0]) if endpoint.addresses else None
        for endpoint in found.endpoints or ()
    )


def _operations(endpoints: Sequence[Endpoint], wanted: Hints) -> Operations:
    operations: list[Mapping[str, Any]] = []
    for index, (endpoint, hints) in enumerate(zip(endpoints, wanted, strict=True)):
        path = f"/endpoints/{index}/hints"
        if endpoint.hints == hints:
            continue
        if hints is None:
            operations.append({"op": "remove", "path": path})
        else:
            operations.append({"op": "add", "path": path, "value": msgspec.to_builtins(hints)})
    return tuple(operations)
