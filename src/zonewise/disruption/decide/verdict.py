"""Verdict of each budget on the disruption of one pod, with its reason. Pure.

Webhooks judge before they charge. The planners of rollouts and scale-downs judge pod after pod on a working copy of the
status (`status.charged` makes the next one). `explain` prints the verdicts. All budgets must allow, or none is charged.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from zonewise.disruption.decide.allowance import DomainAllowance, spare_pods
from zonewise.disruption.decide.budget import Budget, BudgetDomainKey, DisruptionKind, Enforcement, UnhealthyPolicy
from zonewise.disruption.decide.ledger import MOST_ENTRIES
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, PodStage
from zonewise.disruption.decide.reason import DisruptionCode, DisruptionReason
from zonewise.disruption.decide.status import PublishedStatus
from zonewise.objects import Key

MOST_BUDGETS: Final = 16
"""On one pod. They are charged one after the other, each by a write, within the deadline of a webhook."""
_NOWHERE: Final = BudgetDomainKey("", covered=False)


class EvictionVerdict(StrEnum):
    """CHARGE: the pod may go once it is in the ledger."""

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
    """`if_enforced`: the verdict if the budget were enforced; it differs only for budgets in a dry run."""

    budget: Key
    verdict: EvictionVerdict
    reason: DisruptionReason
    if_enforced: EvictionVerdict
    domain: str = ""


@dataclass(frozen=True, slots=True)
class PodVerdict:
    """The verdicts of all budgets of a pod, in the order of their names."""

    verdicts: tuple[BudgetVerdict, ...]

    @property
    def verdict(self) -> EvictionVerdict:
        if self.denials:
            return EvictionVerdict.DENY
        return EvictionVerdict.CHARGE if self.charges else EvictionVerdict.ALLOW

    @property
    def denials(self) -> tuple[BudgetVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.verdict is EvictionVerdict.DENY)

    @property
    def charges(self) -> tuple[BudgetVerdict, ...]:
        """Only meaningful if no budget denies."""
        return tuple(verdict for verdict in self.verdicts if verdict.verdict is EvictionVerdict.CHARGE)


def too_many(pod: PodFacts, budgets: Sequence[Budget]) -> DisruptionReason | None:
    """Why a pod under so many budgets is kept, whatever each of them says."""
    if len(budgets) <= MOST_BUDGETS:
        return None
    text = f"pod {pod.key} is under {len(budgets)} budgets, and no more than {MOST_BUDGETS} can be charged at once"
    names = ", ".join(sorted(budget.key.name for budget in budgets)[:3])
    remedy = f"let fewer budgets select it; the first are {names}"
    return DisruptionReason(DisruptionCode.TOO_MANY_BUDGETS, text, {"budgets": str(len(budgets))}, remedy)


def depends_on_counts(verdicts: Iterable[BudgetVerdict], budgets: Iterable[Budget]) -> bool:
    """Whether the verdicts need a leader that counts: denials, charges, and unready pods that go because others are healthy."""
    healthy_matters = {
        budget.key
        for budget in budgets
        if budget.unhealthy is UnhealthyPolicy.IF_HEALTHY_BUDGET and budget.enforcement is Enforcement.ENFORCE
    }
    return any(
        verdict.verdict is not EvictionVerdict.ALLOW
        or (verdict.reason.code is DisruptionCode.NOT_READY and verdict.budget in healthy_matters)
        for verdict in verdicts
    )


def judge_all(
    cases: Iterable[BudgetCase],
    pod: PodFacts,
    node_domains: NodeDomains,
    peers: Iterable[PodFacts] = (),
    kind: DisruptionKind = DisruptionKind.EVICTIONS,
    owner: str = "",
) -> PodVerdict:
    """`cases`: every budget that selects the pod, whether or not it covers its node. `peers`: pods of its ReplicaSet.

    `owner` is the uid of its top-level controller. If it is empty, any surplus is taken for its own.
    """
    ordered = sorted(cases, key=lambda case: case.budget.key)
    pods = tuple(peers)
    return PodVerdict(tuple(judge(case, pod, node_domains, pods, kind, ordered, owner) for case in ordered))


def judge(
    case: BudgetCase,
    pod: PodFacts,
    node_domains: NodeDomains,
    peers: Sequence[PodFacts] = (),
    kind: DisruptionKind = DisruptionKind.EVICTIONS,
    all_cases: Sequence[BudgetCase] = (),
    owner: str = "",
) -> BudgetVerdict:
    """`all_cases` show where else a peer may be frozen, so that the pod does not wait for it."""
    budget = case.budget
    if budget.enforcement is Enforcement.OFF:
        return _allow(case, DisruptionCode.NOT_ENFORCED, f"budget {budget.key} is switched off")
    if kind not in budget.apply_to:
        return _allow(case, DisruptionCode.NOT_APPLIED, f"budget {budget.key} does not apply to {kind}")
    freezing = [other.budget for other in all_cases if _freezes(other.budget, kind)]
    if owner and not case.status.numbers.tally.surplus.get(owner):
        peers = ()  # its controller gives up no pod, so no peer can be taken instead
    verdict = _judge_pod(case, pod, node_domains) or _judge_counts(case, pod, node_domains, peers, freezing)
    if budget.enforcement is Enforcement.DRY_RUN:
        return replace(verdict, verdict=EvictionVerdict.ALLOW)
    return verdict


def _freezes(budget: Budget, kind: DisruptionKind) -> bool:
    return budget.frozen and budget.enforcement is Enforcement.ENFORCE and kind in budget.apply_to


def _judge_pod(case: BudgetCase, pod: PodFacts, node_domains: NodeDomains) -> BudgetVerdict | None:
    """The verdict if it is the same whatever the counts are."""
    budget = case.budget
    if pod.stage is not PodStage.RUNNING or pod.terminating:
        state = "terminating" if pod.terminating else str(pod.stage).lower()
        return _allow(case, DisruptionCode.NOT_RUNNING, f"pod {pod.key} is {state}: budgets keep running pods only")
    domain_key = node_domains.domain_key(budget, pod)
    if not domain_key.covered:
        return _allow(case, DisruptionCode.NOT_COVERED, f"budget {budget.key} does not cover node {pod.node}")
    if case.status.refusal:
        remedy = "upgrade Zonewise, or go back to the release that wrote it"
        return _deny(case, domain_key, DisruptionCode.STATUS_NEWER, f"is not judged: {case.status.refusal}", remedy)
    if entry := case.status.ledger.get(pod.uid):
        if entry.closed and not entry.confirmed:
            text = f"let pod {pod.key} go a moment ago, and it is still there"
            return _deny(case, domain_key, DisruptionCode.CHARGE_UNUSED, text, "ask again when that charge has ended")
        return _allow(
            case, DisruptionCode.ALREADY_CHARGED, f"pod {pod.key} is charged to budget {budget.key} already", domain_key
        )
    if not node_domains.has(pod.node):
        return _allow(
            case, DisruptionCode.NODE_GONE, f"node {pod.node} of pod {pod.key} is gone, and the pod with it", domain_key
        )
    if not pod.ready and budget.unhealthy is UnhealthyPolicy.ALWAYS_ALLOW:
        return _allow(
            case, DisruptionCode.NOT_READY, f"pod {pod.key} is not ready, and such pods may always leave", domain_key
        )
    return None


def _judge_counts(
    case: BudgetCase, pod: PodFacts, node_domains: NodeDomains, peers: Sequence[PodFacts], freezing: Sequence[Budget]
) -> BudgetVerdict:
    budget, status = case.budget, case.status
    domain_key = node_domains.domain_key(budget, pod)
    if status.observed_generation < budget.generation:
        return _deny(
            case, domain_key, DisruptionCode.NOT_OBSERVED, "was changed and is not counted yet", "retry in a moment"
        )
    if failure := status.numbers.tally.failure:
        return _deny(
            case,
            domain_key,
            DisruptionCode.SYNC_FAILED,
            f"could not be counted: {failure}",
            "correct the budget, or select only pods of controllers with a scale",
        )
    domain = status.numbers.domains.get(domain_key.domain)
    if domain is None:
        return _deny(
            case, domain_key, DisruptionCode.DOMAIN_NOT_COUNTED, "has not counted this domain yet", "retry in a moment"
        )
    spare = spare_pods(budget, status.numbers.tally, domain.healthy, domain.desired)
    if not pod.ready and domain.desired > 0 and spare >= 0:
        text = (
            f"pod {pod.key} is not ready, and domain {domain.name} has {domain.healthy} healthy ones "
            f"where {domain.desired} must be"
        )
        return _allow(case, DisruptionCode.NOT_READY, text, domain_key)
    return _refusal(case, pod, domain, node_domains, peers, freezing) or _charge(case, domain)


def _refusal(
    case: BudgetCase,
    pod: PodFacts,
    domain: DomainAllowance,
    node_domains: NodeDomains,
    peers: Sequence[PodFacts],
    freezing: Sequence[Budget],
) -> BudgetVerdict | None:
    budget, numbers = case.budget, case.status.numbers
    domain_key = BudgetDomainKey(domain.name, covered=True)
    if budget.frozen:
        return _deny(
            case, domain_key, DisruptionCode.FROZEN, f"is frozen by {budget.limit}", "raise the limit to let pods leave"
        )
    if domain.allowed < 1:
        return _deny_too_few(case, domain)
    if len(case.status.ledger) >= MOST_ENTRIES:
        return _deny(
            case,
            domain_key,
            DisruptionCode.LEDGER_FULL,
            f"has {MOST_ENTRIES} disruptions under way",
            "wait for some to end",
        )
    if pod.ready and domain.surplus == 0 and numbers.any_surplus:
        better = _better_peer(case, pod, node_domains, peers, freezing)
        if better is not None:
            return _deny_keeps_spread(case, domain, node_domains.domain_key(budget, better), better)
    return None


def _better_peer(
    case: BudgetCase, pod: PodFacts, node_domains: NodeDomains, peers: Sequence[PodFacts], freezing: Sequence[Budget]
) -> PodFacts | None:
    """A pod of the same ReplicaSet in a domain with a surplus, which its controller can take instead."""
    if not pod.replica_set:
        return None
    for peer in peers:
        if (
            peer.replica_set == pod.replica_set
            and peer.active
            and peer.ready
            and not peer.leaving
            and peer.uid not in case.status.ledger
            and case.status.numbers.has_surplus(node_domains.domain_key(case.budget, peer))
            and not any(node_domains.domain_key(budget, peer).covered for budget in freezing)
        ):
            return peer
    return None


def _deny_too_few(case: BudgetCase, domain: DomainAllowance) -> BudgetVerdict:
    budget, tally = case.budget, case.status.numbers.tally
    domain_key = BudgetDomainKey(domain.name, covered=True)
    if tally.expected == 0 and tally.unmanaged:
        text = "finds no controller that says how many pods there should be"
        return _deny(
            case, domain_key, DisruptionCode.NO_CONTROLLER, text, "write minAvailable as a number, without a term"
        )
    if spare_pods(budget, tally, domain.healthy, domain.desired) > 0:
        text = f"must wait: others are disrupted, and maxDisruptedDomains is {budget.max_disrupted_domains}"
        return _deny(case, domain_key, DisruptionCode.OTHER_DOMAINS_DISRUPTED, text, "wait until their pods are ready")
    text = f"needs {domain.desired} healthy pods and has {domain.healthy} currently"
    if tally.unplaced and budget.maximum is not None and domain.healthy >= domain.desired:
        text += f"; {_pods(tally.unplaced)} missing from a domain that is not known must be counted in each"
    return _deny(
        case,
        domain_key,
        DisruptionCode.TOO_FEW_HEALTHY,
        text,
        f"wait until more pods are ready, or relax {budget.limit}",
    )


def _deny_keeps_spread(
    case: BudgetCase, domain: DomainAllowance, fuller: BudgetDomainKey, peer: PodFacts
) -> BudgetVerdict:
    text = f"has its share, {_pods(domain.slots)}, while {fuller.domain} has more than that: pod {peer.name} for one"
    domain_key = BudgetDomainKey(domain.name, covered=True)
    return _deny(case, domain_key, DisruptionCode.KEEPS_SPREAD, text, f"take pods of {fuller.domain} first")


def _pods(number: int) -> str:
    return f"{number} pod" if number == 1 else f"{number} pods"


def _charge(case: BudgetCase, domain: DomainAllowance) -> BudgetVerdict:
    text = (
        f"budget {case.budget.key} lets {_pods(domain.allowed)} leave domain {domain.name}: "
        f"{domain.healthy} healthy there, {domain.desired} must be"
    )
    reason = DisruptionReason(DisruptionCode.WITHIN_BUDGET, text, _facts(case, domain.name))
    return BudgetVerdict(case.budget.key, EvictionVerdict.CHARGE, reason, EvictionVerdict.CHARGE, domain.name)


def _allow(
    case: BudgetCase, code: DisruptionCode, sentence: str, domain_key: BudgetDomainKey = _NOWHERE
) -> BudgetVerdict:
    domain = domain_key.domain if domain_key.covered else ""
    reason = DisruptionReason(code, sentence, _facts(case, domain))
    return BudgetVerdict(case.budget.key, EvictionVerdict.ALLOW, reason, EvictionVerdict.ALLOW, domain)


def _deny(case: BudgetCase, domain_key: BudgetDomainKey, code: DisruptionCode, text: str, remedy: str) -> BudgetVerdict:
    where = "" if case.budget.whole else f" in domain {domain_key.domain}"
    reason = DisruptionReason(code, f"budget {case.budget.key}{where} {text}", _facts(case, domain_key.domain), remedy)
    return BudgetVerdict(case.budget.key, EvictionVerdict.DENY, reason, EvictionVerdict.DENY, domain_key.domain)


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
