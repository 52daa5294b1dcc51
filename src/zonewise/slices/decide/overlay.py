"""Hints for slices that the stock controller writes: what each endpoint should say, decided over a Service's slices.

The webhook asks while one of the slices is being written, the overlay controller while nobody writes; both take the
answer from here, so they agree. The hints that stand in the slices are the memory of the last decision, and laying the
answer over slices that have it already changes nothing. Which policy that decision was for is told by the state that
stands on the Service; hints of another policy are nobody's memory.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from zonewise.api.names import MANAGED_BY, ROUTING_STATE, STOCK_MANAGER
from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Key, Service, key_of
from zonewise.routing import (
    NO_DRAIN,
    Decision,
    Drain,
    HintsExpression,
    HintsForm,
    Memory,
    RoutingNodes,
    decide,
    express,
    read_policy,
    recall,
)
from zonewise.routing.policy import NoPolicy
from zonewise.slices.decide.service_status import policy_name, read_state

_MOST_ROUNDS: Final = 4
"""So that it ends whatever routing does."""

Endpoints = tuple[Endpoint, ...]
Hints = tuple[EndpointHints | None, ...]
Operations = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True)
class Overlay:
    """`hints` of every endpoint in its slice's order, by slice; decisions and expressions by address type."""

    hints: Mapping[Key, Hints]
    decisions: Mapping[str, Decision]
    expressions: Mapping[str, HintsExpression]

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
    cluster: RoutingNodes,
    *,
    hints: HintsForm = HintsForm.STABLE,
    drained: Drain = NO_DRAIN,
) -> Overlay:
    """`slices` are the stock controller's, all of them, with the hints that were decided last."""
    families: dict[str, list[EndpointSlice]] = defaultdict(list)
    for found in sorted(slices, key=key_of):
        families[found.address_type].append(found)
    is_remembered = _is_told_of(service)
    decisions: dict[str, Decision] = {}
    expressions: dict[str, HintsExpression] = {}
    wanted: dict[Key, Hints] = {}
    for family, members in sorted(families.items()):
        told = [(found.endpoints or ()) if is_remembered else _with_hints(found, ()) for found in members]
        decide_now = partial(decide, service, cluster=cluster, hints=hints, drained=drained)
        decisions[family], expressions[family], rest = _at_rest(told, cluster, decide_now)
        wanted |= dict(zip(map(key_of, members), rest, strict=True))
    return Overlay(wanted, decisions, expressions)


def _at_rest(
    told: Sequence[Endpoints], cluster: RoutingNodes, decide_now: Callable[..., Decision]
) -> tuple[Decision, HintsExpression, list[Hints]]:
    """The decision that, remembered by its hints, is made again.

    Hints do not tell all of a decision, such as which of two levels they are of, so the first may not be the last.
    """
    for rounds in itertools.count(1):
        endpoints = [endpoint for found in told for endpoint in found]
        decision = decide_now(endpoints, previous=recall(endpoints, cluster))
        expression = express(decision, cluster)
        wanted = [_hints_of(found, expression) for found in told]
        if rounds == _MOST_ROUNDS or all(map(_has, told, wanted)):
            return decision, expression, wanted
        told = list(map(_hinted, told, wanted))
    raise AssertionError("counting does not end")


def recalled(service: Service, endpoints: Iterable[Endpoint], cluster: RoutingNodes) -> Memory:
    """What the hints of the stock controller's slices tell of the last decision."""
    return recall(endpoints, cluster) if _is_told_of(service) else {}


def _is_told_of(service: Service) -> bool:
    """Whether the hints in a Service's slices are of the policy it has now, as far as is known."""
    state = read_state(service.metadata.annotations.get(ROUTING_STATE))
    return state is None or state.policy == policy_name(read_policy(service).policy)


def as_remembered(written: EndpointSlice, earlier: Sequence[EndpointSlice]) -> EndpointSlice:
    """The slice with the hints its endpoints had, wherever they stood; of two places the later one counts.

    The stock controller takes hints off that it does not know, so those in what it writes tell nothing.
    """
    return msgspec.structs.replace(written, endpoints=_with_hints(written, earlier))


def _with_hints(written: EndpointSlice, earlier: Sequence[EndpointSlice]) -> Endpoints:
    known = {
        endpoint.addresses[0]: endpoint.hints
        for found in earlier
        if found.address_type == written.address_type
        for endpoint in found.endpoints or ()
        if endpoint.addresses and endpoint.hints
    }
    endpoints = written.endpoints or ()
    return _hinted(
        endpoints, [known.get(endpoint.addresses[0]) if endpoint.addresses else None for endpoint in endpoints]
    )


def _hinted(endpoints: Endpoints, hints: Sequence[EndpointHints | None]) -> Endpoints:
    return tuple(
        endpoint if endpoint.hints == said else msgspec.structs.replace(endpoint, hints=said)
        for endpoint, said in zip(endpoints, hints, strict=True)
    )


def _has(endpoints: Endpoints, hints: Hints) -> bool:
    return all(endpoint.hints == said for endpoint, said in zip(endpoints, hints, strict=True))


def _hints_of(endpoints: Endpoints, expression: HintsExpression) -> Hints:
    """An endpoint that takes no traffic says nothing, as nobody reads it."""
    return tuple(expression.hints.get(endpoint.addresses[0]) if endpoint.addresses else None for endpoint in endpoints)


def _operations(endpoints: Endpoints, wanted: Hints) -> Operations:
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
