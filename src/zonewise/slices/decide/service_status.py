"""The routing state of a Service, as in its annotation `zonewise.dev/routing`: policy, activity, reason and figures.

`status_diff` compares the state with the last one written: the annotation is rewritten if the state changes or its
figures move visibly, not with every pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from zonewise.api.names import PROXY_NAME, PROXY_NAME_LABEL, ROUTING_STATE
from zonewise.objects import Service, stored
from zonewise.routing import (
    Decision,
    Forecast,
    HintsExpression,
    RoutingCode,
    RoutingNodes,
    RoutingReason,
    RoutingSubject,
    forecast,
)
from zonewise.routing.policy import NoPolicy, policy_name

STOCK_DNS_LOSS: Final = "the Service is headless, and stock DNS gives its clients every endpoint"

_IN_FORCE: Final = frozenset(
    {
        RoutingCode.TOPOLOGY_KEYS,
        RoutingCode.REQUIRED,
        RoutingCode.PREFERRED,
        RoutingCode.HINTED,
        RoutingCode.DISTRIBUTED,
        RoutingCode.ZONE_DRAINED,
    }
)
DRAIN_CODES: Final = frozenset({RoutingCode.ZONE_DRAINED, RoutingCode.NOT_DRAINED})
_VISIBLE: Final = 0.1
"""Shares that moved by less are not worth a write."""
_FEW: Final = 0.25
"""A number of endpoints that changed by at most this part is not worth a write either."""
_MOST_LISTED: Final = 12
_LONGEST: Final = 500
_FIGURES: Final = re.compile(r"\d+(\.\d+)?")


class ServiceRoutingState(stored.Stored, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """`since` is when policy, activity and code last changed, `as_of` when the figures were taken.

    Shares are of 1 and assume that proxies do all that was decided; `losses` are what stock proxies will not do.
    `drain` is the outcome of the request to drain the zones `drained`.
    """

    policy: str
    active: bool
    code: str
    sentence: str
    since: str
    as_of: str
    endpoints: int
    in_zone: float
    worst_overload: float
    source: str = ""
    blame: tuple[str, ...] = ()
    remedy: str = ""
    drain: str = ""
    drained: tuple[str, ...] = ()
    losses: tuple[str, ...] = ()
    complaints: tuple[str, ...] = ()


def has_state(decision: Decision) -> bool:
    """Whether the Service has a policy, a drain, or complaints about its annotations."""
    return (
        not isinstance(decision.reading.policy, NoPolicy)
        or decision.reason.code in DRAIN_CODES
        or bool(own_complaints(decision))
    )


def own_complaints(decision: Decision) -> list[RoutingReason]:
    return [complaint for complaint in decision.complaints if complaint.blame[0].kind == "Service"]


def foreign_complaints(decision: Decision) -> list[RoutingReason]:
    """Complaints about the namespace: reported there, not on each of its Services."""
    return [complaint for complaint in decision.complaints if complaint.blame[0].kind != "Service"]


def forecasts_of(decisions: Iterable[Decision], cluster: RoutingNodes) -> list[Forecast]:
    """Forecasts of the decisions that have endpoints."""
    return [forecast(decision, cluster) for decision in decisions if decision.endpoints]


def state_of(
    service: Service,
    decisions: Mapping[str, Decision],
    expressions: Mapping[str, HintsExpression],
    forecasts: Sequence[Forecast],
    now: str,
    before: ServiceRoutingState | None = None,
) -> ServiceRoutingState:
    """If the families differ, the first whose policy is not in force gives the reason."""
    reasons = {family: _main_reason(decision) for family, decision in sorted(decisions.items())}
    family = next(
        (name for name, main_reason in reasons.items() if not _in_force(main_reason, decisions[name])),
        next(iter(reasons)),
    )
    decision, main_reason = decisions[family], reasons[family]
    differ = len({main.code for main in reasons.values()}) > 1
    sentence = "; ".join(reason.sentence for reason in decision.reasons if reason.code is not RoutingCode.NO_POLICY)
    drain = next((reason for reason in decision.reasons if reason.code in DRAIN_CODES), None)
    state = ServiceRoutingState(
        policy=policy_name(decision.reading.policy),
        source=decision.reading.source,
        active=_in_force(main_reason, decision),
        code=main_reason.code,
        sentence=cut(f"{family}: {sentence}" if differ else sentence or main_reason.sentence),
        blame=_listed(subject for reason in decision.reasons for subject in reason.blame),
        remedy=cut("; ".join(dict.fromkeys(reason.remedy for reason in decision.reasons if reason.remedy))),
        endpoints=len(decision.endpoints),
        in_zone=round(min((prediction.in_zone for prediction in forecasts), default=0.0), 2),
        worst_overload=round(max((prediction.worst_overload for prediction in forecasts), default=0.0), 2),
        drain=drain.code if drain else "",
        drained=drain.facts["zones"] if drain else (),
        losses=_losses(service, expressions),
        complaints=_distinct([own_complaints(decision)]),
        since=now,
        as_of=now,
    )
    return (
        msgspec.structs.replace(state, since=before.since) if before and identity(before) == identity(state) else state
    )


def _main_reason(decision: Decision) -> RoutingReason:
    """The main reason: of the first level that is not in force, else the first reason."""
    reasons = [reason for reason in decision.reasons if reason.code not in DRAIN_CODES] or list(decision.reasons)
    if isinstance(decision.reading.policy, NoPolicy):
        reasons = [decision.reason]
    return next((reason for reason in reasons if not _in_force(reason, decision)), reasons[0])


def _in_force(reason: RoutingReason, decision: Decision) -> bool:
    """`Balanced` is in force if the policy requests it; for any other policy it is a fallback."""
    is_balanced_policy = policy_name(decision.reading.policy) == "same-zone Balanced"
    return reason.code in _IN_FORCE or (reason.code is RoutingCode.BALANCED and is_balanced_policy)


def identity(state: ServiceRoutingState) -> tuple[str, bool, str]:
    return state.policy, state.active, state.code


def differs(before: ServiceRoutingState, state: ServiceRoutingState) -> bool:
    return (
        _significant_fields(before) != _significant_fields(state)
        or abs(before.in_zone - state.in_zone) >= _VISIBLE
        or abs(before.worst_overload - state.worst_overload) >= _VISIBLE
        or abs(before.endpoints - state.endpoints) > before.endpoints * _FEW
    )


def _significant_fields(state: ServiceRoutingState) -> tuple[object, ...]:
    """The state without its figures, and without endpoints to blame, which change like pods."""
    blame = tuple(name for name in state.blame if not name.startswith("Endpoint "))
    return (*identity(state), state.source, blame, state.drain, state.drained, state.complaints, kinds(state.losses))


def kinds(sentences: Iterable[str]) -> tuple[str, ...]:
    return tuple(_FIGURES.sub("#", sentence) for sentence in sentences)


def _losses(service: Service, expressions: Mapping[str, HintsExpression]) -> tuple[str, ...]:
    """What stock components do not do. Headless Services are served by DNS, which ignores hints."""
    if _has_our_proxy(service):
        return ()
    if service.spec.cluster_ip == "None":
        decided = any(expression.hints or expression.losses for expression in expressions.values())
        return (STOCK_DNS_LOSS,) if decided else ()
    return _distinct(expressions[name].losses for name in sorted(expressions))


def _has_our_proxy(service: Service) -> bool:
    return service.metadata.labels.get(PROXY_NAME_LABEL) == PROXY_NAME


def _distinct(groups: Iterable[Iterable[RoutingReason]]) -> tuple[str, ...]:
    sentences = dict.fromkeys(cut(reason.sentence) for reasons in groups for reason in reasons)
    return tuple(sentences)[:_MOST_LISTED]


def _listed(subjects: Iterable[RoutingSubject]) -> tuple[str, ...]:
    names = [str(subject) for subject in dict.fromkeys(subjects)]
    more = (f"{len(names) - _MOST_LISTED} more",) if len(names) > _MOST_LISTED else ()
    return (*names[:_MOST_LISTED], *more)


def cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def read_state(annotation: str | None) -> ServiceRoutingState | None:
    """An annotation that can't be used counts as absent."""
    try:
        return parse_state(annotation) if annotation else None
    except stored.StoredError:
        return None


def state_problem(annotation: str) -> str:
    """Why it can't be used; empty if it can, or there is none."""
    try:
        if annotation:
            parse_state(annotation)
    except stored.StoredError as error:
        return str(error)
    return ""


def parse_state(annotation: str) -> ServiceRoutingState:
    """Raises NewerError or TornError."""
    return stored.read(annotation, ServiceRoutingState, f"annotation {ROUTING_STATE}")
