"""Verdicts and reasons: every code, several budgets, dry runs, and peers that go first."""

from dataclasses import replace

import pytest

from unit.disruption.build import (
    ACROSS,
    BY_ZONE,
    EXISTS,
    NAKED,
    NODES,
    OVERALL,
    STATEFUL,
    Cluster,
    budget,
    pod,
    spread,
    workloads,
)
from zonewise.disruption.decide.budget import Budget, DisruptionKind, Enforcement
from zonewise.disruption.decide.ledger import MOST_ENTRIES, LedgerEntry, ledger_of
from zonewise.disruption.decide.pods import ControllerRef, Owner, Workload
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.status import DISRUPTION_ALLOWED, SYNC_FAILED, read
from zonewise.disruption.decide.verdict import BudgetCase, EvictionVerdict, PodVerdict, depends_on_counts, judge_all
from zonewise.objects.policy import StatusCondition, TopologyDisruptionBudget, TopologyDisruptionBudgetStatus
from zonewise.topology import ZONE

FULL = spread("3/3/3")
SHRINKING = FULL.scaled(6)
ONE_DOMAIN = budget(EXISTS, maxUnavailable="100%", maxDisruptedDomains=1)
ALWAYS = budget(EXISTS, maxUnavailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")
WITHOUT_NODE_B = Cluster(
    {**FULL.pods, "b0": pod("b0", labels={ZONE: "b"})},
    workloads(9),
    nodes={name: labels for name, labels in NODES.items() if name != "node-b"},
)

CODES: dict[str, tuple[Cluster, str, Budget, EvictionVerdict, DisruptionCode]] = {
    "switched off": (
        FULL,
        "b0",
        budget(maxUnavailable=0, enforcement="Off"),
        EvictionVerdict.ALLOW,
        DisruptionCode.NOT_ENFORCED,
    ),
    "other requests": (
        FULL,
        "b0",
        budget(maxUnavailable=0, applyTo=["Deletes"]),
        EvictionVerdict.ALLOW,
        DisruptionCode.NOT_APPLIED,
    ),
    "pending": (FULL.pending("n0"), "n0", BY_ZONE, EvictionVerdict.ALLOW, DisruptionCode.NOT_RUNNING),
    "terminating": (FULL.terminating("b0"), "b0", BY_ZONE, EvictionVerdict.ALLOW, DisruptionCode.NOT_RUNNING),
    "node gone": (WITHOUT_NODE_B, "b0", ACROSS, EvictionVerdict.ALLOW, DisruptionCode.NODE_GONE),
    "not covered": (FULL, "a0", BY_ZONE, EvictionVerdict.ALLOW, DisruptionCode.NOT_COVERED),
    "charged": (FULL.charged("b0"), "b0", ACROSS, EvictionVerdict.ALLOW, DisruptionCode.ALREADY_CHARGED),
    "not ready": (FULL.unready("b0"), "b0", ACROSS, EvictionVerdict.ALLOW, DisruptionCode.NOT_READY),
    "not ready, always": (FULL.unready("b0", "b1"), "b0", ALWAYS, EvictionVerdict.ALLOW, DisruptionCode.NOT_READY),
    "not ready, too few": (
        FULL.unready("b0", "b1"),
        "b0",
        ACROSS,
        EvictionVerdict.DENY,
        DisruptionCode.TOO_FEW_HEALTHY,
    ),
    "within": (FULL, "b0", ACROSS, EvictionVerdict.CHARGE, DisruptionCode.WITHIN_BUDGET),
    "frozen": (FULL, "b0", BY_ZONE, EvictionVerdict.DENY, DisruptionCode.FROZEN),
    "no controller": (
        spread("3/3/3", controller=NAKED),
        "b0",
        ACROSS,
        EvictionVerdict.DENY,
        DisruptionCode.NO_CONTROLLER,
    ),
    "others disrupted": (
        FULL.charged("a0"),
        "b0",
        ONE_DOMAIN,
        EvictionVerdict.DENY,
        DisruptionCode.OTHER_DOMAINS_DISRUPTED,
    ),
    "spread": (SHRINKING.charged("a0"), "a1", ACROSS, EvictionVerdict.DENY, DisruptionCode.KEEPS_SPREAD),
    "too few": (FULL.charged("b0"), "b1", ACROSS, EvictionVerdict.DENY, DisruptionCode.TOO_FEW_HEALTHY),
    "too few, one missing": (FULL.lost("c0"), "b1", ACROSS, EvictionVerdict.DENY, DisruptionCode.TOO_FEW_HEALTHY),
}


@pytest.mark.parametrize(("cluster", "name", "limited", "verdict", "code"), CODES.values(), ids=CODES)
def test_verdict_and_reason(
    cluster: Cluster, name: str, limited: Budget, verdict: EvictionVerdict, code: DisruptionCode
) -> None:
    (judged,) = cluster.judge(name, limited).verdicts
    assert (judged.verdict, judged.reason.code) == (verdict, code)
    assert bool(judged.reason.remedy) is (verdict is EvictionVerdict.DENY)
    assert str(limited.key) in judged.reason.facts["budget"]


def test_denial_names_budget_domain_and_numbers() -> None:
    (verdict,) = FULL.charged("b0").judge("b1", ACROSS).denials
    assert str(verdict.reason) == "budget shop/across in domain b needs 2 healthy pods and has 2 currently"
    facts = {"slots": "3", "target": "3", "healthy": "2", "desired": "2", "allowed": "0", "domain": "b"}
    assert facts.items() <= verdict.reason.facts.items()


def one(case: BudgetCase, name: str = "b0", cluster: Cluster = FULL) -> tuple[EvictionVerdict, DisruptionCode]:
    (verdict,) = judge_all([case], cluster.pods[name], cluster.node_domains).verdicts
    return verdict.verdict, DisruptionCode(verdict.reason.code)


def test_unobserved_spec_allows_nothing() -> None:
    status = FULL.status(ACROSS)
    assert one(BudgetCase(replace(ACROSS, generation=2), status)) == (EvictionVerdict.DENY, DisruptionCode.NOT_OBSERVED)


def test_failed_sync_allows_nothing() -> None:
    failed = StatusCondition(type=DISRUPTION_ALLOWED, status="False", reason=SYNC_FAILED, message="can't be read")
    stored = TopologyDisruptionBudgetStatus(observed_generation=1, conditions=(failed,))
    status = read(ACROSS, TopologyDisruptionBudget(status=stored))
    assert one(BudgetCase(ACROSS, status)) == (EvictionVerdict.DENY, DisruptionCode.SYNC_FAILED)


def test_freeze_keeps_the_pods_that_serve() -> None:
    """As with stock PodDisruptionBudgets, a pod that is not ready may leave while enough others are healthy."""
    frozen = budget(EXISTS, maxUnavailable=0)
    more = FULL.with_pods(pod("b9", ready=False))
    assert one(BudgetCase(frozen, more.status(frozen)), "b9", more) == (EvictionVerdict.ALLOW, DisruptionCode.NOT_READY)
    assert one(BudgetCase(frozen, more.status(frozen)), "b0", more) == (EvictionVerdict.DENY, DisruptionCode.FROZEN)
    short = FULL.unready("b0")
    assert one(BudgetCase(frozen, short.status(frozen)), "b0", short) == (EvictionVerdict.DENY, DisruptionCode.FROZEN)


@pytest.mark.parametrize(("enforcement", "hangs"), [("Enforce", True), ("DryRun", False)])
def test_dry_run_needs_no_leader(enforcement: str, hangs: bool) -> None:
    """It refuses nothing, also while the controller is away."""
    cluster, limited = FULL.unready("b0"), budget(EXISTS, maxUnavailable=1, enforcement=enforcement)
    judged = judge_all([BudgetCase(limited, cluster.status(limited))], cluster.pods["b0"], cluster.node_domains)
    assert judged.verdict is EvictionVerdict.ALLOW
    assert depends_on_counts(judged.verdicts, [limited]) is hangs


def test_unplaced_pods_also_hold_unready_pods() -> None:
    """It may be missing from b: then b has one healthy pod less than it must."""
    cluster = spread("3/3/3", 10).unready("b0")
    (verdict,) = cluster.judge("b0", ACROSS).verdicts
    assert (verdict.verdict, verdict.reason.code) == (EvictionVerdict.DENY, DisruptionCode.TOO_FEW_HEALTHY)
    assert "1 pod missing from a domain that is not known must be counted in each" in str(verdict.reason)
    assert cluster.judge("b0", budget(EXISTS, minAvailable=2)).verdict is EvictionVerdict.ALLOW, (
        "which asks for no more than two"
    )


def test_uncounted_domain_allows_nothing() -> None:
    cluster = FULL.with_pods(pod("d0"))
    assert one(BudgetCase(ACROSS, FULL.status(ACROSS)), "d0", cluster) == (
        EvictionVerdict.DENY,
        DisruptionCode.DOMAIN_NOT_COUNTED,
    )


def test_full_ledger_allows_nothing() -> None:
    entries = ledger_of(LedgerEntry(uid=f"x{number}") for number in range(MOST_ENTRIES))
    assert one(BudgetCase(ACROSS, replace(FULL.status(ACROSS), ledger=entries))) == (
        EvictionVerdict.DENY,
        DisruptionCode.LEDGER_FULL,
    )


def test_dry_run_allows_and_keeps_the_enforced_verdict() -> None:
    dry = budget(EXISTS, maxUnavailable=1, enforcement="DryRun")
    (verdict,) = FULL.charged("b0").judge("b1", dry).verdicts
    assert (verdict.verdict, verdict.if_enforced, verdict.reason.code) == (
        EvictionVerdict.ALLOW,
        EvictionVerdict.DENY,
        DisruptionCode.TOO_FEW_HEALTHY,
    )
    (verdict,) = FULL.judge("b1", dry).verdicts
    assert (verdict.verdict, verdict.if_enforced) == (EvictionVerdict.ALLOW, EvictionVerdict.CHARGE)


def test_all_budgets_must_allow_or_none_is_charged() -> None:
    both = FULL.charged("a0").judge("c0", ACROSS, OVERALL)
    assert (both.verdict, [str(denial.budget) for denial in both.denials]) == (EvictionVerdict.DENY, ["shop/overall"])
    assert [verdict.budget.name for verdict in both.verdicts] == ["across", "overall"]
    assert [charge.domain for charge in FULL.judge("c0", OVERALL, ACROSS).charges] == ["c", "all"]
    assert FULL.judge("a0", BY_ZONE).verdict is EvictionVerdict.ALLOW
    assert PodVerdict(()).verdict is EvictionVerdict.ALLOW


def test_budget_applies_only_to_its_kinds_of_requests() -> None:
    people = budget(maxUnavailable=0, applyTo=["Deletes"])
    cases = [BudgetCase(people, FULL.status(people))]
    answers = {kind: judge_all(cases, FULL.pods["a0"], FULL.node_domains, kind=kind).verdict for kind in DisruptionKind}
    assert answers == {
        DisruptionKind.EVICTIONS: EvictionVerdict.ALLOW,
        DisruptionKind.CONTROLLER_DELETES: EvictionVerdict.ALLOW,
        DisruptionKind.DELETES: EvictionVerdict.DENY,
    }


def test_pod_does_not_wait_for_a_frozen_peer() -> None:
    """Zones b and c may not shrink, so zone a need not wait for them."""
    assert SHRINKING.charged("a0").judge("a1", ACROSS).verdict is EvictionVerdict.DENY
    assert SHRINKING.charged("a0").judge("a1", ACROSS, BY_ZONE).verdict is EvictionVerdict.CHARGE
    thawed = replace(BY_ZONE, enforcement=Enforcement.DRY_RUN)
    assert SHRINKING.charged("a0").judge("a1", ACROSS, thawed).verdict is EvictionVerdict.DENY
    people_only = replace(BY_ZONE, apply_to=frozenset({DisruptionKind.DELETES}))
    assert SHRINKING.charged("a0").judge("a1", ACROSS, people_only).verdict is EvictionVerdict.DENY


@pytest.mark.parametrize(
    "cluster",
    [
        SHRINKING.charged("a0").unready("b0", "b1", "b2", "c0", "c1", "c2"),
        SHRINKING.charged("a0").changed("b0", "b1", "b2", "c0", "c1", "c2", granted=True),
        SHRINKING.charged("a0").changed("b0", "b1", "b2", "c0", "c1", "c2", controller=STATEFUL),
        spread("3/3/3", 6, STATEFUL).charged("a0"),
    ],
    ids=["the others are not ready", "the others leave already", "the others are not its own", "the order is fixed"],
)
def test_pod_does_not_wait_for_an_unavailable_peer(cluster: Cluster) -> None:
    (verdict,) = cluster.judge("a1", ACROSS).verdicts
    assert verdict.reason.code != DisruptionCode.KEEPS_SPREAD


def test_pod_does_not_wait_for_the_surplus_of_another_workload() -> None:
    """A drain in zone b continues while another Deployment under the same budget has more than its share in zone a."""
    other = ControllerRef("ReplicaSet", "api-1", "rs-api")
    api = Workload(Owner("Deployment", "api", "api"), 1)
    extra = {name: pod(name, "node-a", other) for name in ("api-0", "api-1")}
    cluster = Cluster({**FULL.pods, **extra}, {**FULL.workloads, "rs-api": api, "api": api})
    cases, peers = [BudgetCase(ACROSS, cluster.status(ACROSS))], list(FULL.pods.values())
    answers = [
        judge_all(cases, cluster.pods["b0"], cluster.node_domains, peers, owner=owner).verdict
        for owner in ("", "deployment")
    ]
    assert answers == [EvictionVerdict.DENY, EvictionVerdict.CHARGE]


def test_pod_waits_for_a_peer_in_an_uncovered_domain() -> None:
    outside = budget({"key": ZONE, "operator": "NotIn", "values": ["a"]}, EXISTS, maxUnavailable=1)
    (verdict,) = spread("3/2/2", 6).judge("b0", outside).verdicts
    assert verdict.reason.code == DisruptionCode.KEEPS_SPREAD
    assert "pod a0" in str(verdict.reason)
