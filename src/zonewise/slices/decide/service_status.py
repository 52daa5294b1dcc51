"""How a Service is routed, as its annotation `zonewise.dev/routing` says it: policy, activity, reason and figures. Pure.

`news` compares the state with the one that was written last: it changes when the state does or its figures move visibly,
not with every pod.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from zonewise.api.names import PROXY_NAME, PROXY_NAME_LABEL
from zonewise.objects import Service
from zonewise.routing import (
    Decision,
    Forecast,
    HintsExpression,
    Policy,
    RoutingCode,
    RoutingNodes,
    RoutingReason,
    RoutingSubject,
    forecast,
)
from zonewise.routing.policy import (
    AutomaticHints,
    Distribution,
    NoPolicy,
    SameDomain,
    Strength,
    TopologyKeys,
)

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
"""Figures that moved by less are not worth a write,"""
_FEW: Final = 0.25
"""nor is a number of endpoints."""
_MOST_LISTED: Final = 12
_LONGEST: Final = 500
_FIGURES: Final = re.compile(r"\d+(\.\d+)?")


class ServiceRoutingState(msgspec.Struct, frozen=True, omit_defaults=True, rename="camel", kw_only=True):
    """`since` is when policy, activity and code became what they are, `as_of` when the figures were taken.

    Shares are of 1 and hold if proxies do all that was decided; `losses` are what stock proxies will not do. `drain` says
    what became of the wish to drain the zones `drained`.
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


def policy_name(policy: Policy) -> str:
    """Few enough to be the label of a metric."""
    match policy:
        case TopologyKeys(soft=True):
            return "topology-keys (soft)"
        case TopologyKeys():
            return "topology-keys (hard)"
        case SameDomain():
            levels = {"same-node": policy.node, "same-zone": policy.zone, "same-region": policy.region}
            said = [f"{level} {how}" for level, how in levels.items() if how is not Strength.BALANCED]
            return ", ".join(said) or "same-zone Balanced"
        case AutomaticHints():
            return "automatic hints"
        case Distribution(value):
            return f"trafficDistribution {value}"
        case NoPolicy():
            return "none"


def has_state(decision: Decision) -> bool:
    """Something is asked of the Service's routing, or was meant to be."""
    return (
        not isinstance(decision.reading.policy, NoPolicy)
        or decision.reason.code in DRAIN_CODES
        or bool(own_complaints(decision))
    )


def own_complaints(decision: Decision) -> list[RoutingReason]:
    return [complaint for complaint in decision.complaints if complaint.blame[0].kind == "Service"]


def foreign_complaints(decision: Decision) -> list[RoutingReason]:
    """About the namespace: told there, not on each of its Services."""
    return [complaint for complaint in decision.complaints if complaint.blame[0].kind != "Service"]


def forecasts_of(decisions: Iterable[Decision], cluster: RoutingNodes) -> list[Forecast]:
    """Of those that have anybody to serve."""
    return [forecast(found, cluster) for found in decisions if found.endpoints]


def state_of(
    service: Service,
    decisions: Mapping[str, Decision],
    expressions: Mapping[str, HintsExpression],
    forecasts: Sequence[Forecast],
    now: str,
    before: ServiceRoutingState | None = None,
) -> ServiceRoutingState:
    """Of two families that differ, the first that does not get its way speaks."""
    told = {family: _told(decision) for family, decision in sorted(decisions.items())}
    family = next((name for name, reason in told.items() if not _in_force(reason, decisions[name])), next(iter(told)))
    decision, reason = decisions[family], told[family]
    differ = len({found.code for found in told.values()}) > 1
    sentence = "; ".join(found.sentence for found in decision.reasons if found.code is not RoutingCode.NO_POLICY)
    drain = next((found for found in decision.reasons if found.code in DRAIN_CODES), None)
    state = ServiceRoutingState(
        policy=policy_name(decision.reading.policy),
        source=decision.reading.source,
        active=_in_force(reason, decision),
        code=reason.code,
        sentence=cut(f"{family}: {sentence}" if differ else sentence or reason.sentence),
        blame=_listed(subject for found in decision.reasons for subject in found.blame),
        remedy=cut("; ".join(dict.fromkeys(found.remedy for found in decision.reasons if found.remedy))),
        endpoints=len(decision.endpoints),
        in_zone=round(min((found.in_zone for found in forecasts), default=0.0), 2),
        worst_overload=round(max((found.worst_overload for found in forecasts), default=0.0), 2),
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


def _told(decision: Decision) -> RoutingReason:
    """The reason that counts: the first level that does not get its way, else the first of all."""
    reasons = [reason for reason in decision.reasons if reason.code not in DRAIN_CODES] or list(decision.reasons)
    if isinstance(decision.reading.policy, NoPolicy):
        reasons = [decision.reason]
    return next((reason for reason in reasons if not _in_force(reason, decision)), reasons[0])


def _in_force(reason: RoutingReason, decision: Decision) -> bool:
    """An even spread is in force where it was asked for, and is a refusal where something else was."""
    asked_evenly = policy_name(decision.reading.policy) == "same-zone Balanced"
    return reason.code in _IN_FORCE or (reason.code is RoutingCode.BALANCED and asked_evenly)


def identity(state: ServiceRoutingState) -> tuple[str, bool, str]:
    return state.policy, state.active, state.code


def differs(before: ServiceRoutingState, state: ServiceRoutingState) -> bool:
    return (
        _essence(before) != _essence(state)
        or abs(before.in_zone - state.in_zone) >= _VISIBLE
        or abs(before.worst_overload - state.worst_overload) >= _VISIBLE
        or abs(before.endpoints - state.endpoints) > before.endpoints * _FEW
    )


def _essence(state: ServiceRoutingState) -> tuple[object, ...]:
    """What a state is but for its figures; endpoints to blame come and go like pods."""
    blame = tuple(name for name in state.blame if not name.startswith("Endpoint "))
    return (*identity(state), state.source, blame, state.drain, state.drained, state.complaints, kinds(state.losses))


def kinds(sentences: Iterable[str]) -> tuple[str, ...]:
    return tuple(_FIGURES.sub("#", sentence) for sentence in sentences)


def _losses(service: Service, expressions: Mapping[str, HintsExpression]) -> tuple[str, ...]:
    """Headless Services are DNS's, which knows no hints, and no proxy's."""
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


def read_state(written: str | None) -> ServiceRoutingState | None:
    """What nobody can read was never said."""
    try:
        return msgspec.json.decode(written, type=ServiceRoutingState) if written else None
    except msgspec.DecodeError:
        return None
