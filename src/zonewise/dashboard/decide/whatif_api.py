"""The dashboard's what-if requests: changes to the cluster, and their effect on every Service. Pure.

The page sends a `WhatIfQuestion` and gets a `WhatIfAnswer`, with the `zonewise plan` command that prints the same.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from typing import Annotated, Final

import msgspec

from zonewise.errors import UsageError
from zonewise.objects import Service, key_of
from zonewise.planning import whatif
from zonewise.planning.comparison import ComparisonRow, ComparisonTotal, MonthlyTraffic, compare
from zonewise.planning.forecast import PRICE_PER_GB
from zonewise.planning.snapshot import Snapshot
from zonewise.routing import HintsForm
from zonewise.topology.requirement import SelectorError
from zonewise.topology.selector_text import parse_selector

MAX_ROWS: Final = 300
_Text = Annotated[str, msgspec.Meta(max_length=2000)]


class SetPolicy(msgspec.Struct, frozen=True, tag="set", forbid_unknown_fields=True):
    policy: _Text
    value: _Text


class LoseZone(msgspec.Struct, frozen=True, tag="lose-zone", forbid_unknown_fields=True):
    zone: _Text


class AddNodes(msgspec.Struct, frozen=True, tag="add-nodes", forbid_unknown_fields=True):
    zone: _Text
    number: int


class ScaleService(msgspec.Struct, frozen=True, tag="replicas", forbid_unknown_fields=True):
    service: _Text
    number: int


Change = SetPolicy | LoseZone | AddNodes | ScaleService
_ORDER: Final = (SetPolicy, LoseZone, AddNodes, ScaleService)


class WhatIfQuestion(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """`namespace`, `selector` and `service` choose the Services that policies are set on, and that are compared."""

    changes: Annotated[tuple[Change, ...], msgspec.Meta(max_length=20)] = ()
    namespace: _Text = ""
    selector: _Text = ""
    service: _Text = ""
    gb: Annotated[float, msgspec.Meta(ge=0, le=1e12)] = 0.0
    price: Annotated[float, msgspec.Meta(ge=0, le=1e6)] = PRICE_PER_GB


class WhatIfAnswer(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """`rows` are Services that differ; `left_out` counts those beyond the limit."""

    changes: tuple[str, ...]
    today: ComparisonTotal
    planned: ComparisonTotal
    rows: tuple[ComparisonRow, ...]
    left_out: int
    command: str


def answer_question(question: WhatIfQuestion, today: Snapshot, hints: HintsForm, file: str = "") -> WhatIfAnswer:
    """`file` is the dump that is shown, if any. Raises ZonewiseError if the question names a missing object."""
    chosen = _chosen(question)
    planned = today
    for change in _in_order(question):
        planned = _changed(planned, change, chosen)
    comparison = compare(today, planned, chosen, _traffic(question), hints)
    differing = sorted((row for row in comparison.rows if row.differs), key=_weight)
    return WhatIfAnswer(
        changes=comparison.changes,
        today=comparison.today,
        planned=comparison.planned,
        rows=tuple(differing[:MAX_ROWS]),
        left_out=max(0, len(differing) - MAX_ROWS),
        command=plan_command(question, hints, file),
    )


def _weight(row: ComparisonRow) -> tuple[float, int]:
    """Services that change most come first."""
    today, planned = row.today.outlook, row.planned.outlook
    return -abs(planned.in_zone - today.in_zone) - abs(
        planned.worst_overload - today.worst_overload
    ), -planned.endpoints


def _chosen(question: WhatIfQuestion) -> Callable[[Service], bool]:
    try:
        labels = parse_selector(question.selector)
    except SelectorError as error:
        raise UsageError(str(error)) from error
    return lambda service: (
        (not question.namespace or service.metadata.namespace == question.namespace)
        and (not question.service or str(key_of(service)) == question.service)
        and labels.matches(service.metadata.labels)
    )


def _changed(snapshot: Snapshot, change: Change, chosen: Callable[[Service], bool]) -> Snapshot:
    match change:
        case SetPolicy(policy, value):
            return whatif.set_policy(snapshot, policy, value, chosen)
        case LoseZone(zone):
            return whatif.lose_zone(snapshot, zone)
        case AddNodes(zone, number):
            return whatif.add_nodes(snapshot, zone, number)
        case ScaleService(service, number):
            return whatif.scale_service(snapshot, service, number)


def _traffic(question: WhatIfQuestion) -> MonthlyTraffic | None:
    return MonthlyTraffic(question.gb, {}, question.price) if question.gb else None


def _in_order(question: WhatIfQuestion) -> list[Change]:
    """In the order in which `zonewise plan` applies its options, so that both give the same answer."""
    return sorted(question.changes, key=lambda change: _ORDER.index(type(change)))


def plan_command(question: WhatIfQuestion, hints: HintsForm, file: str = "") -> str:
    """Empty for a single Service, which `zonewise plan` can select by labels only."""
    if question.service:
        return ""
    return shlex.join(["zonewise", "plan", *(["-f", file] if file else []), *_arguments(question, hints)])


def _arguments(question: WhatIfQuestion, hints: HintsForm) -> Iterator[str]:
    for change in _in_order(question):
        match change:
            case SetPolicy(policy, value):
                yield from ("--set", f"{policy}={value}")
            case LoseZone(zone):
                yield from ("--lose-zone", zone)
            case AddNodes(zone, number):
                yield from ("--add-nodes", f"{zone}={number}")
            case ScaleService(service, number):
                yield from ("--replicas", f"{service}={number}")
    if question.namespace:
        yield from ("-n", question.namespace)
    if question.selector:
        yield from ("-l", question.selector)
    if question.gb:
        yield from ("--gb", _decimal(question.gb), "--price", _decimal(question.price))
    if hints is not HintsForm.STABLE:
        yield from ("--hints", hints.value)


def _decimal(number: float) -> str:
    """Without an exponent, which `plan` does not read."""
    return f"{number:.6f}".rstrip("0").rstrip(".")
