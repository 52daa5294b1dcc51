"""The report of explain eviction: the verdict, each budget's numbers, unavailable pods, and remedies."""

from typing import Any

import pytest

from support.cli.output import described
from unit.disruption.build import ACROSS, BY_ZONE, EXISTS, OVERALL, STATEFUL, Cluster, budget, pod, spread
from zonewise.cli import printing
from zonewise.cli.explain_eviction import _lines
from zonewise.diagnostics.decide.explain.eviction import (
    EvictionFacts,
    EvictionReport,
    LeaderReport,
    build_eviction_report,
)
from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.objects import Key, Metadata
from zonewise.objects.policy import PodDisruptionBudget, PodDisruptionBudgetStatus

FULL = spread("3/3/3")
LENIENT = budget(EXISTS, maxUnavailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")
LEADER = LeaderReport("kube-system/zonewise-disruption", "controller-1", 2.0, "")
NO_LEADER = LeaderReport("kube-system/zonewise-disruption", "", None, "the budget controller never ran")


def stock(allowed: int, name: str = "web") -> PodDisruptionBudget:
    status = PodDisruptionBudgetStatus(disruptions_allowed=allowed, current_healthy=9, desired_healthy=9)
    return PodDisruptionBudget(metadata=Metadata(name=name), status=status)


def report(cluster: Cluster, name: str, *budgets: Budget, **more: Any) -> EvictionReport:
    facts = {"leader": LEADER, "stock": (), **more}
    return build_eviction_report(
        EvictionFacts(
            pod=cluster.pods[name],
            owner="Deployment web",
            owner_uid="deployment",
            cases=[BudgetCase(limit, cluster.status(limit)) for limit in budgets],
            pods=list(cluster.pods.values()),
            nodes=cluster.nodes,
            **facts,
        )
    )


def test_a_denial_names_budget_domain_numbers_and_pods() -> None:
    cluster = FULL.charged("b0").gone("b1").scaled(9)
    reported = report(cluster, "b2", ACROSS, OVERALL)
    lines = list(_lines(reported))
    assert not reported.allowed
    assert lines[0].startswith("shop/b2 may not be evicted now: budget shop/across in domain b needs 2 healthy pods")
    assert "  b: 3 pods, 1 healthy, 2 must be, 0 may leave" in lines
    assert any(line.startswith("  unavailable: b0, charged by Eviction at ") for line in lines)
    assert "  missing: 1 that left and were not replaced" in lines
    assert "Leader     controller-1, lease renewed 2 s ago" in lines
    assert lines[-1].startswith("To change it: wait until more pods are ready")


def test_every_unavailable_pod_has_its_reason() -> None:
    cluster = FULL.terminating("b0").unready("b1").with_pods(pod("b3", granted=True)).charged("b0")
    (reported,) = report(cluster, "b2", ACROSS).budgets
    assert {pod.name: pod.why.split(" at ")[0] for pod in reported.unavailable} == {
        "b0": "terminating, charged by Eviction",
        "b1": "not ready",
        "b3": "about to be deleted",
    }


ORDERED = spread("3/3/3", controller=STATEFUL)


@pytest.mark.parametrize(
    ("reported", "allowed", "sentence"),
    [
        (report(FULL, "b0", ACROSS), True, "may be evicted, and is charged to across"),
        (report(FULL, "b0"), True, "may be evicted: no TopologyDisruptionBudget selects it"),
        (report(FULL, "a0", BY_ZONE), True, "may be evicted: budget shop/by-zone does not cover node node-a"),
        (
            report(FULL, "b0", BY_ZONE, guarded=False),
            True,
            "may be evicted: no webhook is registered for its namespace",
        ),
        (report(FULL.terminating("b0"), "b0", ACROSS), True, "may be evicted: pod shop/b0 is terminating"),
        (report(ORDERED.terminating("b0"), "b0", ACROSS), True, "may be evicted: pod shop/b0 is terminating"),
        (
            report(FULL, "b0", *(budget(EXISTS, name=f"b{number}", maxUnavailable=1) for number in range(17))),
            False,
            "may not be evicted now: pod shop/b0 is under 17 budgets, and no more than 16 can be charged at once",
        ),
        (
            report(FULL, "b0", ACROSS, leader=NO_LEADER),
            False,
            "may not be evicted now: the budget controller never ran",
        ),
        (report(FULL, "a0", BY_ZONE, leader=NO_LEADER), True, "may be evicted: budget shop/by-zone does not cover"),
        (
            report(FULL.unready("b0"), "b0", ACROSS, leader=NO_LEADER),
            False,
            "may not be evicted now: the budget controller",
        ),
        (report(FULL.unready("b0"), "b0", LENIENT, leader=NO_LEADER), True, "may be evicted: pod shop/b0 is not ready"),
        (
            report(FULL, "b0", ACROSS, stock=[stock(0)]),
            False,
            "may not be evicted now: the disruption budget web needs 9",
        ),
        (report(FULL, "b0", ACROSS, stock=[stock(1)]), True, "may be evicted, and is charged to across"),
        (
            report(FULL, "b0", stock=[stock(1), stock(1, "b")]),
            False,
            "may not be evicted now: this pod has more than one",
        ),
    ],
)
def test_verdict_sentences(reported: EvictionReport, *, allowed: bool, sentence: str) -> None:
    assert reported.sentence.startswith(sentence)
    assert reported.allowed is allowed


def test_a_dry_run_shows_its_verdict() -> None:
    dry = budget(name="dry", maxUnavailable=0, enforcement="DryRun")
    reported = report(FULL, "b0", dry)
    assert reported.allowed
    assert "Budget     dry (DryRun): maxUnavailable 0 of all" in list(_lines(reported))
    assert any("Deny (Frozen)" in line for line in _lines(reported))


def test_long_lists_are_cut_and_targets_shown() -> None:
    cluster = spread("14/3/3", 15).unready(*(f"a{number}" for number in range(12)))
    lines = list(_lines(report(cluster, "a13", ACROSS)))
    assert "  unavailable: 2 more" in lines
    assert any(line.startswith("  a: 14 pods, 9 to stay, 2 healthy") for line in lines)


def test_the_json_keeps_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    broken = BudgetError(Key("shop", "bad"), ("spec: write it",))
    printing.echo_data(report(FULL, "b0", ACROSS, stock=[stock(1)], unreadable=[broken]), "json")
    body = described("explain eviction", capsys.readouterr().out)
    assert body["allowed"] is True
    assert body["budgets"][0]["domain"] == {
        "name": "b",
        "slots": 3,
        "target": 3,
        "healthy": 3,
        "desired": 2,
        "allowed": 1,
    }
    assert body["unreadable"] == ["TopologyDisruptionBudget shop/bad: spec: write it"]
    assert body.keys() >= {"pod", "node", "owner", "ready", "sentence", "stock", "leader", "guarded", "remedies"}
