"""May this pod be disrupted now? What every budget answers, and why. Pure.

Webhooks ask before they charge, the planners of rollouts and scale-downs ask pod after pod on a working copy of the
status (`status.charged` makes the next one), `explain` asks to tell a person. All of them must allow, or none is charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from zonewise.disruption.decide.allowance import DomainAllowance, spared
from zonewise.disruption.decide.budget import Budget, BudgetDomainKey, DisruptionKind, Enforcement, UnhealthyPolicy
from zonewise.disruption.decide.ledger import MOST_ENTRIES
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, PodStage
from zonewise.disruption.decide.reason import DisruptionCode, DisruptionReason
from zonewise.disruption.decide.status import PublishedStatus
from zonewise.objects import Key

_NOWHERE: Final = BudgetDomainKey("", covered=False)


class EvictionVerdict(StrEnum):
    """CHARGE: may go once it stands in the ledger."""

    ALLOW = "Allow"
    CHARGE = "Charge"
    DENY = "Deny"


@dataclass(frozen=True, slots=True)
class BudgetCase:
    """A budget whose selector matches the pod, with its status as last known."""

    budget: Budget
    status: PublishedStatus


@dataclass(frozen=True, slots=True)
class BudgetVerdict:
    """`would` is what the budget would say if it were enforced; it differs from the verdict in a dry run only."""

    budget: Key
    verdict: EvictionVerdict
    reason: DisruptionReason
    would: EvictionVerdict
    domain: str = ""


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """What all budgets of a pod say, in the order of their names."""

    each: tuple[BudgetVerdict, ...]

    @property
    def verdict(self) -> EvictionVerdict:
        if self.denials:
            return EvictionVerdict.DENY
        return EvictionVerdict.CHARGE if self.charges else EvictionVerdict.ALLOW

    @property
    def denials(self) -> tuple[BudgetVerdict, ...]:
        return tuple(judgement for judgement in self.each if judgement.verdict is EvictionVerdict.DENY)

    @property
    def charges(self) -> tuple[BudgetVerdict, ...]:
        """Those to charge; only meaningful where no budget denies."""
        return tuple(judgement for judgement in self.each if judgement.verdict is EvictionVerdict.CHARGE)


def hangs_on_numbers(judgements: Iterable[BudgetVerdict], budgets: Iterable[Budget]) -> bool:
    """Whether what is said holds only while somebody counts: refusals, charges, and pods that may go for others' health."""
    healthy_matters = {
        budget.key
        for budget in budgets
        if budget.unhealthy is UnhealthyPolicy.IF_HEALTHY_BUDGET and budget.enforcement is Enforcement.ENFORCE
    }
    return any(
        judgement.verdict is not EvictionVerdict.ALLOW
        or (judgement.reason.code is DisruptionCode.NOT_READY and judgement.budget in healthy_matters)
        for judgement in judgements
    )


def judge_all(
    cases: Iterable[BudgetCase],
    pod: PodFacts,
    atlas: NodeDomains,
    peers: Iterable[PodFacts] = (),
    request: DisruptionKind = DisruptionKind.EVICTIONS,
    owner: str = "",
) -> PodVerdict:
    """`cases`: every budget that selects the pod, also where it does not cover it. `peers`: pods of its ReplicaSet.

    `owner` is the uid of its top-level controller; where it is not known, any surplus is taken for its own.
    """
    ordered = sorted(cases, key=lambda case: case.budget.key)
    pods = tuple(peers)
    return PodVerdict(tuple(judge(case, pod, atlas, pods, request, ordered, owner) for case in ordered))


def judge(
    case: BudgetCase,
    pod: PodFacts,
    atlas: NodeDomains,
    peers: Sequence[PodFacts] = (),
    request: DisruptionKind = DisruptionKind.EVICTIONS,
    all_cases: Sequence[BudgetCase] = (),
    owner: str = "",
) -> BudgetVerdict:
    """`all_cases` say where else a peer may be frozen, so that it is not waited for."""
    budget = case.budget
    if budget.enforcement is Enforcement.OFF:
        return _allow(case, DisruptionCode.NOT_ENFORCED, f"budget {budget.key} is switched off")
    if request not in budget.apply_to:
        return _allow(case, DisruptionCode.NOT_APPLIED, f"budget {budget.key} does not apply to {request}")
    freezing = [other.budget for other in all_cases if _freezes(other.budget, request)]
    if owner and not case.status.numbers.tally.surplus.get(owner):
        peers = ()  # its controller gives up no pod, so there is none to take instead
    judgement = _look_at_pod(case, pod, atlas) or _ask_numbers(case, pod, atlas, peers, freezing)
    if budget.enforcement is Enforcement.DRY_RUN:
        return replace(judgement, verdict=EvictionVerdict.ALLOW)
    return judgement


def _freezes(budget: Budget, request: DisruptionKind) -> bool:
    return budget.frozen and budget.enforcement is Enforcement.ENFORCE and request in budget.apply_to


def _look_at_pod(case: BudgetCase, pod: PodFacts, atlas: NodeDomains) -> BudgetVerdict | None:
    """Allowed whatever the numbers are."""
    budget = case.budget
    if pod.stage is not PodStage.RUNNING or pod.terminating:
        state = "terminating" if pod.terminating else str(pod.stage).lower()
        return _allow(case, DisruptionCode.NOT_RUNNING, f"pod {pod.key} is {state}: budgets keep running pods only")
    place = atlas.place(budget, pod)
    if not place.covered:
        return _allow(case, DisruptionCode.NOT_COVERED, f"budget {budget.key} does not cover node {pod.node}")
    if pod.uid in case.status.ledger:
        return _allow(
            case, DisruptionCode.ALREADY_CHARGED, f"pod {pod.key} is charged to budget {budget.key} already", place
        )
    if not atlas.has(pod.node):
        return _allow(
            case, DisruptionCode.NODE_GONE, f"node {pod.node} of pod {pod.key} is gone, and the pod with it", place
        )
    if not pod.ready and budget.unhealthy is UnhealthyPolicy.ALWAYS_ALLOW:
        return _allow(
            case, DisruptionCode.NOT_READY, f"pod {pod.key} is not ready, and such pods may always leave", place
        )
    return None


def _ask_numbers(
    case: BudgetCase, pod: PodFacts, atlas: NodeDomains, peers: Sequence[PodFacts], freezing: Sequence[Budget]
) -> BudgetVerdict:
    budget, status = case.budget, case.status
    place = atlas.place(budget, pod)
    if status.observed_generation < budget.generation:
        return _deny(
            case, place, DisruptionCode.NOT_OBSERVED, "was changed and is not counted yet", "retry in a moment"
        )
    if status.failure:
        return _deny(
            case, place, DisruptionCode.SYNC_FAILED, f"could not be counted: {status.failure}", "correct the budget"
        )
    domain = status.numbers.domains.get(place.domain)
    if domain is None:
        return _deny(
            case, place, DisruptionCode.DOMAIN_NOT_COUNTED, "has not counted this domain yet", "retry in a moment"
        )
    spare = spared(budget, status.numbers.tally, domain.healthy, domain.desired)
    if not pod.ready and domain.desired > 0 and spare >= 0:
        told = (
            f"pod {pod.key} is not ready, and domain {domain.name} has {domain.healthy} healthy ones "
            f"where {domain.desired} must be"
        )
        return _allow(case, DisruptionCode.NOT_READY, told, place)
    return _refusal(case, pod, domain, atlas, peers, freezing) or _charge(case, domain)


def _refusal(
    case: BudgetCase,
    pod: PodFacts,
    domain: DomainAllowance,
    atlas: NodeDomains,
    peers: Sequence[PodFacts],
    freezing: Sequence[Budget],
) -> BudgetVerdict | None:
    budget, numbers = case.budget, case.status.numbers
    place = BudgetDomainKey(domain.name, covered=True)
    if budget.frozen:
        return _deny(
            case, place, DisruptionCode.FROZEN, f"is frozen by {budget.limit}", "raise the limit to let pods leave"
        )
    if domain.allowed < 1:
        return _too_few(case, domain)
    if len(case.status.ledger) >= MOST_ENTRIES:
        return _deny(
            case, place, DisruptionCode.LEDGER_FULL, f"has {MOST_ENTRIES} disruptions under way", "wait for some to end"
        )
    if pod.ready and domain.surplus == 0 and numbers.any_surplus:
        better = _better_peer(case, pod, atlas, peers, freezing)
        if better is not None:
            return _keeps_spread(case, domain, atlas.place(budget, better), better)
    return None


def _better_peer(
    case: BudgetCase, pod: PodFacts, atlas: NodeDomains, peers: Sequence[PodFacts], freezing: Sequence[Budget]
) -> PodFacts | None:
    """A pod of the same ReplicaSet in a domain that has too many: its controller can take that one instead."""
    if not pod.replica_set:
        return None
    for peer in peers:
        if (
            peer.replica_set == pod.replica_set
            and peer.active
            and peer.ready
            and not peer.leaving
            and peer.uid not in case.status.ledger
            and case.status.numbers.gives(atlas.place(case.budget, peer))
            and not any(atlas.place(budget, peer).covered for budget in freezing)
        ):
            return peer
    return None


def _too_few(case: BudgetCase, domain: DomainAllowance) -> BudgetVerdict:
    budget, tally = case.budget, case.status.numbers.tally
    place = BudgetDomainKey(domain.name, covered=True)
    if tally.expected == 0 and tally.unmanaged:
        told = "finds no controller that says how many pods there should be"
        return _deny(case, place, DisruptionCode.NO_CONTROLLER, told, "write minAvailable as a number, without a term")
    if spared(budget, tally, domain.healthy, domain.desired) > 0:
        told = f"must wait: others are disrupted, and maxDisruptedDomains is {budget.max_disrupted_domains}"
        return _deny(case, place, DisruptionCode.OTHER_DOMAINS_DISRUPTED, told, "wait until their pods are ready")
    told = f"needs {domain.desired} healthy pods and has {domain.healthy} currently"
    if tally.unplaced and budget.maximum is not None and domain.healthy >= domain.desired:
        told += f"; {_pods(tally.unplaced)} missing from a domain that is not known must be counted in each"
    return _deny(
        case, place, DisruptionCode.TOO_FEW_HEALTHY, told, f"wait until more pods are ready, or relax {budget.limit}"
    )


def _keeps_spread(case: BudgetCase, domain: DomainAllowance, richer: BudgetDomainKey, peer: PodFacts) -> BudgetVerdict:
    told = f"has its share, {_pods(domain.slots)}, while {richer.domain} has more than that: pod {peer.name} for one"
    place = BudgetDomainKey(domain.name, covered=True)
    return _deny(case, place, DisruptionCode.KEEPS_SPREAD, told, f"take pods of {richer.domain} first")


def _pods(number: int) -> str:
    return f"{number} pod" if number == 1 else f"{number} pods"


def _charge(case: BudgetCase, domain: DomainAllowance) -> BudgetVerdict:
    told = (
        f"budget {case.budget.key} lets {_pods(domain.allowed)} leave domain {domain.name}: "
        f"{domain.healthy} healthy there, {domain.desired} must be"
    )
    reason = DisruptionReason(DisruptionCode.WITHIN_BUDGET, told, _facts(case, domain.name))
    return BudgetVerdict(case.budget.key, EvictionVerdict.CHARGE, reason, EvictionVerdict.CHARGE, domain.name)


def _allow(case: BudgetCase, code: DisruptionCode, sentence: str, place: BudgetDomainKey = _NOWHERE) -> BudgetVerdict:
    domain = place.domain if place.covered else ""
    reason = DisruptionReason(code, sentence, _facts(case, domain))
    return BudgetVerdict(case.budget.key, EvictionVerdict.ALLOW, reason, EvictionVerdict.ALLOW, domain)


def _deny(case: BudgetCase, place: BudgetDomainKey, code: DisruptionCode, told: str, remedy: str) -> BudgetVerdict:
    where = "" if case.budget.whole else f" in domain {place.domain}"
    reason = DisruptionReason(code, f"budget {case.budget.key}{where} {told}", _facts(case, place.domain), remedy)
    return BudgetVerdict(case.budget.key, EvictionVerdict.DENY, reason, EvictionVerdict.DENY, place.domain)


def _facts(case: BudgetCase, domain: str) -> dict[str, str]:
    facts = {"budget": str(case.budget.key), "limit": case.budget.limit}
    numbers = case.status.numbers.domains.get(domain)
    if numbers is None:
        return facts
    return facts | {
        "domain": domain,
        "slots": str(numbers.slots),
        "target": str(numbers.target),
        "healthy": str(numbers.healthy),
        "desired": str(numbers.desired),
        "allowed": str(numbers.allowed),
    }
