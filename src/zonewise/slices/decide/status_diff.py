"""What to write into a Service's annotation and which events are new, given what was written last. Pure.

`reporting` asks after every sync. The annotation is the memory of what was said already: what it says makes no second
event, not even after a restart.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

import msgspec

from zonewise.api.names import PROXY_NAME, PROXY_NAME_LABEL
from zonewise.objects import Service
from zonewise.objects.events import Severity
from zonewise.routing import Decision, HintsExpression, RoutingCode, RoutingNodes, RoutingReason
from zonewise.routing.endpointslice_events import STOCK_CODES, stock_event
from zonewise.routing.policy import AutomaticHints
from zonewise.slices.decide.service_status import (
    DRAIN_CODES,
    STOCK_DNS_LOSS,
    ServiceRoutingState,
    cut,
    differs,
    forecasts_of,
    has_state,
    identity,
    kinds,
    own_complaints,
    read_state,
    state_of,
)

_NEEDS_DNS_REMEDY: Final = "answer the cluster's names with `zonewise dns`, where it does not do so already"
_NEEDS_PROXY_REMEDY: Final = f"label the Service {PROXY_NAME_LABEL}={PROXY_NAME} where the Zonewise proxy runs"


@dataclass(frozen=True, slots=True)
class EventNote:
    """One event on the Service."""

    severity: Severity
    reason: str
    text: str


@dataclass(frozen=True, slots=True)
class StatusReport:
    """`text` is the annotation as it should be, None for none; `changes` where it is not so yet."""

    state: ServiceRoutingState | None
    text: str | None
    changes: bool = False
    notes: tuple[EventNote, ...] = ()


def report_on(
    service: Service,
    decisions: Mapping[str, Decision],
    expressions: Mapping[str, HintsExpression],
    cluster: RoutingNodes,
    written: str | None,
    now: datetime,
    *,
    stock_events: bool = False,
) -> StatusReport:
    """`decisions` and `expressions` by address type; `written` is the annotation as it is."""
    if not decisions or (written is None and not any(map(has_state, decisions.values()))):
        return StatusReport(None, written)
    before = read_state(written)
    if not any(map(has_state, decisions.values())):
        return StatusReport(None, None, changes=True, notes=tuple(_farewell(before, next(iter(decisions.values())))))
    state = state_of(service, decisions, expressions, forecasts_of(decisions.values(), cluster), _time(now), before)
    if before and not differs(before, state):
        return StatusReport(state, written)
    notes = [*_notes(before, state, decisions)]
    if stock_events and (before is None or identity(before) != identity(state)):
        notes += _stock_notes(decisions)
    return StatusReport(state, msgspec.json.encode(state).decode(), changes=True, notes=tuple(notes))


def _notes(
    before: ServiceRoutingState | None, state: ServiceRoutingState, decisions: Mapping[str, Decision]
) -> Iterator[EventNote]:
    said = before.complaints if before else ()
    complaints = {str(found.sentence): found for decision in decisions.values() for found in own_complaints(decision)}
    for sentence, complaint in complaints.items():
        if cut(sentence) not in said:
            yield EventNote(Severity.WARNING, complaint.code, _with_remedy(sentence, complaint.remedy))
    if _is_news(before, state) and state.code != RoutingCode.NO_POLICY:
        yield _state_note(state, _drain_reason(state, decisions))
    yield from _drain_notes(before, state, _drain_reason(state, decisions))
    if state.losses and kinds(state.losses) != kinds(before.losses if before else ()):
        yield _loss_note(state)


def _loss_note(state: ServiceRoutingState) -> EventNote:
    """Who answers names or carries traffic is not known here: both say what to do where it is a stock component."""
    if STOCK_DNS_LOSS in state.losses:
        return EventNote(Severity.WARNING, RoutingCode.NEEDS_DNS, _with_remedy(STOCK_DNS_LOSS, _NEEDS_DNS_REMEDY))
    said = f"stock proxies will not do all that was decided: {'; '.join(state.losses)}"
    return EventNote(Severity.WARNING, RoutingCode.NEEDS_PROXY, _with_remedy(said, _NEEDS_PROXY_REMEDY))


def _is_news(before: ServiceRoutingState | None, state: ServiceRoutingState) -> bool:
    """Another state, or another place that it leaves without endpoints."""
    return before is None or identity(before) != identity(state) or not _cut_off(state) <= _cut_off(before)


def _cut_off(state: ServiceRoutingState) -> set[str]:
    """The zones and regions that are required to stay at home and have nothing there. Nodes: too many come and go."""
    return {
        name for name in state.blame if state.code == RoutingCode.REQUIRED and name.startswith(("Zone ", "Region "))
    }


def _drain_reason(state: ServiceRoutingState, decisions: Mapping[str, Decision]) -> RoutingReason | None:
    reasons = [reason for decision in decisions.values() for reason in decision.reasons]
    return next((reason for reason in reasons if reason.code == state.drain), None)


def _drain_notes(
    before: ServiceRoutingState | None, state: ServiceRoutingState, reason: RoutingReason | None
) -> Iterator[EventNote]:
    """Where a drain is not itself the reason of the state, which then says it."""
    was = (before.drain, before.drained) if before else ("", ())
    if was == (state.drain, state.drained):
        return
    if before and before.drain == RoutingCode.ZONE_DRAINED != state.drain:
        yield _drain_ended(before)
    is_news = state.code not in DRAIN_CODES or (before and identity(before) == identity(state))
    if reason and is_news:
        severity = Severity.NORMAL if reason.code is RoutingCode.ZONE_DRAINED else Severity.WARNING
        yield EventNote(severity, reason.code, _with_remedy(reason.sentence, reason.remedy))


def _drain_ended(before: ServiceRoutingState) -> EventNote:
    return EventNote(Severity.NORMAL, RoutingCode.DRAIN_ENDED, f"traffic returns to {', '.join(before.drained)}")


def _farewell(before: ServiceRoutingState | None, decision: Decision) -> Iterator[EventNote]:
    """The Service asks for nothing any more."""
    if before and before.drain == RoutingCode.ZONE_DRAINED:
        yield _drain_ended(before)
    if before and before.policy != "none":
        yield EventNote(Severity.NORMAL, decision.reason.code, f"{before.policy} ended: {decision.reason.sentence}")


def _state_note(state: ServiceRoutingState, drain: RoutingReason | None) -> EventNote:
    """What the policy says; a drain beside it has an event of its own."""
    severity = Severity.NORMAL if state.active and not _cut_off(state) else Severity.WARNING
    if state.policy == "none":
        return EventNote(severity, state.code, _with_remedy(state.sentence, state.remedy))
    how = "is in force" if state.active else "is not in force"
    sentence = state.sentence.removesuffix(f"; {drain.sentence}") if drain else state.sentence
    remedy = f"; {state.remedy}".removesuffix(f"; {drain.remedy}").removeprefix("; ") if drain else state.remedy
    return EventNote(severity, state.code, _with_remedy(f"{state.policy} {how}: {sentence}", remedy))


def _stock_notes(decisions: Mapping[str, Decision]) -> Iterator[EventNote]:
    """Beside our own words the stock controller's, which people have alerts on."""
    for family, decision in sorted(decisions.items()):
        if isinstance(decision.reading.policy, AutomaticHints) and decision.reason.code in STOCK_CODES:
            event = stock_event(decision.reason, family)
            yield EventNote(Severity(event.type), event.reason, event.message)


def _with_remedy(sentence: str, remedy: str) -> str:
    return f"{sentence}. What helps: {remedy}" if remedy else sentence


def _time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
