"""Hints for slices that the stock EndpointSlice controller writes, decided over all slices of a Service.

The webhook asks while a slice is being written, the overlay controller at any other time; both call `overlay`, so
they agree. The hints in the slices are the memory of the last decision, and the overlay of slices that already have these
hints changes nothing. The state annotation of the Service tells which policy the hints were decided for; hints of
another policy, or of another program, are ignored.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from zonewise.api.names import MANAGED_BY, STOCK_MANAGER
from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Key, Service, key_of
from zonewise.routing import (
    NO_DRAIN,
    Decision,
    Drain,
    HintsExpression,
    HintsForm,
    RoutingNodes,
    decide,
    express,
    recall,
)
from zonewise.routing.policy import NoPolicy
from zonewise.routing.slice_memory import hints_match_policy

_MOST_ROUNDS: Final = 4
"""Limits the search for a stable decision, so that it always ends."""

Endpoints = tuple[Endpoint, ...]
Hints = tuple[EndpointHints | None, ...]
Operations = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Overlay:
    """`hints` by slice, one per endpoint in the order of the slice; decisions and expressions by address type."""

    hints: Mapping[Key, Hints]
    decisions: Mapping[str, Decision]
    expressions: Mapping[str, HintsExpression]

    @property
    def is_silent(self) -> bool:
        """The Service has no policy and gets no hints: existing hints in its slices are left alone."""
        return not any(
            expression.hints or not isinstance(self.decisions[family].reading.policy, NoPolicy)
            for family, expression in self.expressions.items()
        )

    def operations_on(self, endpoint_slice: EndpointSlice) -> Operations:
        """The JSON patch that sets the hints of the slice; empty if they are set."""
        return _operations(endpoint_slice.endpoints or (), self.hints[key_of(endpoint_slice)])


def is_stock(endpoint_slice: EndpointSlice) -> bool:
    """Whether the stock EndpointSlice controller manages the slice, and it is not being deleted."""
    return (
        endpoint_slice.metadata.labels.get(MANAGED_BY) == STOCK_MANAGER
        and endpoint_slice.metadata.deletion_timestamp is None
    )


def overlay(
    service: Service,
    slices: Iterable[EndpointSlice],
    cluster: RoutingNodes,
    *,
    hints: HintsForm = HintsForm.STABLE,
    drained: Drain = NO_DRAIN,
) -> Overlay:
    """`slices` are all slices of the stock controller, with the hints of the last decision."""
    families: dict[str, list[EndpointSlice]] = defaultdict(list)
    for endpoint_slice in sorted(slices, key=key_of):
        families[endpoint_slice.address_type].append(endpoint_slice)
    hints_match = hints_match_policy(service)
    decisions: dict[str, Decision] = {}
    expressions: dict[str, HintsExpression] = {}
    hints_by_slice: dict[Key, Hints] = {}
    for family, members in sorted(families.items()):
        remembered = [
            (endpoint_slice.endpoints or ()) if hints_match else _with_earlier_hints(endpoint_slice, ())
            for endpoint_slice in members
        ]
        decide_now = partial(decide, service, cluster=cluster, hints=hints, drained=drained)
        decisions[family], expressions[family], slice_hints = _decide_until_stable(remembered, cluster, decide_now)
        hints_by_slice |= dict(zip(map(key_of, members), slice_hints, strict=True))
    return Overlay(hints_by_slice, decisions, expressions)


def _decide_until_stable(
    slices: Sequence[Endpoints], cluster: RoutingNodes, decide_now: Callable[..., Decision]
) -> tuple[Decision, HintsExpression, list[Hints]]:
    """The stable decision: the one that is made again from its own hints.

    Hints do not hold all of a decision (for example which of two levels they express), so the first decision may
    differ from the next one.
    """
    for rounds in itertools.count(1):
        endpoints = [endpoint for slice_endpoints in slices for endpoint in slice_endpoints]
        decision = decide_now(endpoints, previous=recall(endpoints, cluster))
        expression = express(decision, cluster)
        hints = [_hints_of(slice_endpoints, expression) for slice_endpoints in slices]
        if rounds == _MOST_ROUNDS or all(map(_has_hints, slices, hints)):
            return decision, expression, hints
        slices = list(map(endpoints_with_hints, slices, hints))
    raise AssertionError("unreachable: itertools.count is infinite")


def as_remembered(endpoint_slice: EndpointSlice, earlier: Sequence[EndpointSlice]) -> EndpointSlice:
    """The slice with the last hints of its endpoints, from any of the `earlier` slices; the later one wins.

    The stock controller removes hints that it did not make, so the hints it writes are no memory.
    """
    return msgspec.structs.replace(endpoint_slice, endpoints=_with_earlier_hints(endpoint_slice, earlier))


def _with_earlier_hints(endpoint_slice: EndpointSlice, earlier: Sequence[EndpointSlice]) -> Endpoints:
    hints_by_address = {
        endpoint.addresses[0]: endpoint.hints
        for earlier_slice in earlier
        if earlier_slice.address_type == endpoint_slice.address_type
        for endpoint in earlier_slice.endpoints or ()
        if endpoint.addresses and endpoint.hints
    }
    endpoints = endpoint_slice.endpoints or ()
    return endpoints_with_hints(
        endpoints,
        [hints_by_address.get(endpoint.addresses[0]) if endpoint.addresses else None for endpoint in endpoints],
    )


def endpoints_with_hints(endpoints: Endpoints, hints: Sequence[EndpointHints | None]) -> Endpoints:
    return tuple(
        endpoint if endpoint.hints == endpoint_hints else msgspec.structs.replace(endpoint, hints=endpoint_hints)
        for endpoint, endpoint_hints in zip(endpoints, hints, strict=True)
    )


def _has_hints(endpoints: Endpoints, hints: Hints) -> bool:
    return all(endpoint.hints == endpoint_hints for endpoint, endpoint_hints in zip(endpoints, hints, strict=True))


def _hints_of(endpoints: Endpoints, expression: HintsExpression) -> Hints:
    """Endpoints without traffic get no hints."""
    return tuple(expression.hints.get(endpoint.addresses[0]) if endpoint.addresses else None for endpoint in endpoints)


def _operations(endpoints: Endpoints, desired: Hints) -> Operations:
    operations: list[Mapping[str, Any]] = []
    for index, (endpoint, hints) in enumerate(zip(endpoints, desired, strict=True)):
        path = f"/endpoints/{index}/hints"
        if endpoint.hints == hints:
            continue
        if hints is None:
            operations.append({"op": "remove", "path": path})
        else:
            operations.append({"op": "add", "path": path, "value": msgspec.to_builtins(hints)})
    return tuple(operations)
