"""Changes of a Service's routing state: the annotation to write and the events to emit, given the last annotation.

The reporter asks after every sync. The annotation records what was reported already: a state that is in it makes no
second event, not even after a restart.
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
from zonewise.objects.stored import NewerError, StoredError
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
    parse_state,
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
    """`text` is the desired annotation, None to remove it; `changes` if it must be written.

    `problem`: why the current one can't be used. A torn one is replaced, one of a newer release stays.
    """

    state: ServiceRoutingState | None
    text: str | None
    changes: bool = False
    notes: tuple[EventNote, ...] = ()
    problem: str = ""


def report_on(
    service: Service,
    decisions: Mapping[str, Decision],
    expressions: Mapping[str, HintsExpression],
    cluster: RoutingNodes,
    annotation: str | None,
    now: datetime,
    *,
    stock_events: bool = False,
) -> StatusReport:
    """`decisions` and `expressions` by address type; `annotation` is the current one."""
    if not decisions or (annotation is None and not any(map(has_state, decisions.values()))):
        return StatusReport(None, annotation)
    before, problem = None, ""
    try:
        before = parse_state(annotation) if annotation else None
    except StoredError as error:
        problem = str(error)
        if isinstance(error, NewerError):
            return StatusReport(None, annotation, problem=problem)
    if not any(map(has_state, decisions.values())):
        return StatusReport(
            None,
            None,
            changes=True,
            notes=tuple(_policy_removed_notes(before, next(iter(decisions.values())))),
            problem=problem,
        )
    state = state_of(service, decisions, expressions, forecasts_of(decisions.values(), cluster), _time(now), before)
    if before and not differs(before, state):
        return StatusReport(state, annotation)
    notes = [*_notes(before, state, decisions)]
    if stock_events and (before is None or identity(before) != identity(state)):
        notes += _stock_notes(decisions)
    text = msgspec.json.encode(state).decode()
    return StatusReport(state, text, changes=True, notes=tuple(notes), problem=problem)


def _notes(
    before: ServiceRoutingState | None, state: ServiceRoutingState, decisions: Mapping[str, Decision]
) -> Iterator[EventNote]:
    reported = before.complaints if before else ()
    complaints = {
        str(complaint.sentence): complaint for decision in decisions.values() for complaint in own_complaints(decision)
    }
    for sentence, complaint in complaints.items():
        if cut(sentence) not in reported:
            yield EventNote(Severity.WARNING, complaint.code, _with_remedy(sentence, complaint.remedy))
    if _is_reportable(before, state) and state.code != RoutingCode.NO_POLICY:
        yield _state_note(state, _drain_reason(state, decisions))
    yield from _drain_notes(before, state, _drain_reason(state, decisions))
    if state.losses and kinds(state.losses) != kinds(before.losses if before else ()):
        yield _loss_note(state)


def _loss_note(state: ServiceRoutingState) -> EventNote:
    """Which DNS and proxy the cluster runs is unknown here, so the remedy is for stock components."""
    if STOCK_DNS_LOSS in state.losses:
        return EventNote(Severity.WARNING, RoutingCode.NEEDS_DNS, _with_remedy(STOCK_DNS_LOSS, _NEEDS_DNS_REMEDY))
    sentence = f"stock proxies will not do all that was decided: {'; '.join(state.losses)}"
    return EventNote(Severity.WARNING, RoutingCode.NEEDS_PROXY, _with_remedy(sentence, _NEEDS_PROXY_REMEDY))


def _is_reportable(before: ServiceRoutingState | None, state: ServiceRoutingState) -> bool:
    """Another state, or another zone or region that it leaves without endpoints."""
    return before is None or identity(before) != identity(state) or not _cut_off(state) <= _cut_off(before)


def _cut_off(state: ServiceRoutingState) -> set[str]:
    """Zones and regions that `Require` leaves without endpoints. Nodes are left out: they change too often."""
    return {
        name for name in state.blame if state.code == RoutingCode.REQUIRED and name.startswith(("Zone ", "Region "))
    }


def _drain_reason(state: ServiceRoutingState, decisions: Mapping[str, Decision]) -> RoutingReason | None:
    reasons = [reason for decision in decisions.values() for reason in decision.reasons]
    return next((reason for reason in reasons if reason.code == state.drain), None)


def _drain_notes(
    before: ServiceRoutingState | None, state: ServiceRoutingState, reason: RoutingReason | None
) -> Iterator[EventNote]:
    """Events about a drain; none if the drain is the reason of the state, which has its own event."""
    last_drain = (before.drain, before.drained) if before else ("", ())
    if last_drain == (state.drain, state.drained):
        return
    if before and before.drain == RoutingCode.ZONE_DRAINED != state.drain:
        yield _drain_ended(before)
    needs_event = state.code not in DRAIN_CODES or (before and identity(before) == identity(state))
    if reason and needs_event:
        severity = Severity.NORMAL if reason.code is RoutingCode.ZONE_DRAINED else Severity.WARNING
        yield EventNote(severity, reason.code, _with_remedy(reason.sentence, reason.remedy))


def _drain_ended(before: ServiceRoutingState) -> EventNote:
    return EventNote(Severity.NORMAL, RoutingCode.DRAIN_ENDED, f"traffic returns to {', '.join(before.drained)}")


def _policy_removed_notes(before: ServiceRoutingState | None, decision: Decision) -> Iterator[EventNote]:
    """The events for a Service whose policy was removed."""
    if before and before.drain == RoutingCode.ZONE_DRAINED:
        yield _drain_ended(before)
    if before and before.policy != "none":
        yield EventNote(Severity.NORMAL, decision.reason.code, f"{before.policy} ended: {decision.reason.sentence}")


def _state_note(state: ServiceRoutingState, drain: RoutingReason | None) -> EventNote:
    """The event about the policy; a drain has its own event."""
    severity = Severity.NORMAL if state.active and not _cut_off(state) else Severity.WARNING
    if state.policy == "none":
        return EventNote(severity, state.code, _with_remedy(state.sentence, state.remedy))
    how = "is in force" if state.active else "is not in force"
    sentence = state.sentence.removesuffix(f"; {drain.sentence}") if drain else state.sentence
    remedy = f"; {state.remedy}".removesuffix(f"; {drain.remedy}").removeprefix("; ") if drain else state.remedy
    return EventNote(severity, state.code, _with_remedy(f"{state.policy} {how}: {sentence}", remedy))


def _stock_notes(decisions: Mapping[str, Decision]) -> Iterator[EventNote]:
    """The events of the stock controller in addition to ours: alerts may depend on them."""
    for family, decision in sorted(decisions.items()):
        if isinstance(decision.reading.policy, AutomaticHints) and decision.reason.code in STOCK_CODES:
            event = stock_event(decision.reason, family)
            yield EventNote(Severity(event.type), event.reason, event.message)


def _with_remedy(sentence: str, remedy: str) -> str:
    return f"{sentence}. What helps: {remedy}" if remedy else sentence


def _time(now: datetime) -> str:
    return now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
