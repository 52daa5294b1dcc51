"""What `zonewise explain eviction` tells: the answer, each budget's numbers, who is unavailable, what would free it."""

from typing import Any

import pytest

from support.cli.output import described
from unit.disruption.build import ACROSS, BY_ZONE, EXISTS, OVERALL, STATEFUL, World, budget, pod, spread
from zonewise.cli import printing
from zonewise.cli.explain_eviction import _lines
from zonewise.diagnostics.decide.explain.eviction import EvictionFacts, EvictionReport, LeaderReport, explain
from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.objects import Key, Metadata
from zonewise.objects.policy import PodDisruptionBudget, PodDisruptionBudgetStatus

FULL = spread("3/3/3")
LENIENT = budget(EXISTS, maxUnavailable=1, unhealthyPodEvictionPolicy="AlwaysAllow")
LEADER = LeaderReport("kube-system/zonewise-disruption", "controller-1", 2.0, "")
NOBODY = LeaderReport("kube-system/zonewise-disruption", "", None, "the budget controller never ran")


def stock(allowed: int, name: str = "web") -> PodDisruptionBudget:
    status = PodDisruptionBudgetStatus(disruptions_allowed=allowed, current_healthy=9, desired_healthy=9)
    return PodDisruptionBudget(metadata=Metadata(name=name), status=status)


def told(world: World, name: str, *budgets: Budget, **more: Any) -> EvictionReport:
    seen = {"leader": LEADER, "stock": (), **more}
    return explain(
        EvictionFacts(
            pod=world.pods[name],
            owner="Deployment web",
            owner_uid="deployment",
            cases=[BudgetCase(limited, world.status(limited)) for limited in budgets],
            pods=list(world.pods.values()),
            nodes=world.nodes,
            **seen,
        )
    )


def test_a_refusal_names_budget_domain_numbers_and_who_is_unavailable() -> None:
    world = FULL.charged("b0").gone("b1").scaled(9)
    account = told(world, "b2", ACROSS, OVERALL)
    lines = list(_lines(account))
    assert not account.allowed
    assert lines[0].startswith("shop/b2 may not be evicted now: budget shop/across in domain b needs 2 healthy pods")
    assert "  b: 3 pods, 1 healthy, 2 must be, 0 may leave" in lines
    assert any(line.startswith("  unavailable: b0, charged by Eviction at ") for line in lines)
    assert "  missing: 1 that left and were not replaced" in lines
    assert "Leader     controller-1, lease renewed 2 s ago" in lines
    assert lines[-1].startswith("To change it: wait until more pods are ready")


def test_every_unavailable_pod_has_its_reason() -> None:
    world = FULL.terminating("b0").unready("b1").with_pods(pod("b3", granted=True)).charged("b0")
    (account,) = told(world, "b2", ACROSS).budgets
    assert {known.name: known.why.split(" at ")[0] for known in account.unavailable} == {
        "b0": "terminating, charged by Eviction",
        "b1": "not ready",
        "b3": "about to be deleted",
    }


ORDERED = spread("3/3/3", controller=STATEFUL)


@pytest.mark.parametrize(
    ("account", "allowed", "sentence"),
    [
        (told(FULL, "b0", ACROSS), True, "may be evicted, and is charged to across"),
        (told(FULL, "b0"), True, "may be evicted: no TopologyDisruptionBudget selects it"),
        (told(FULL, "a0", BY_ZONE), True, "may be evicted: budget shop/by-zone does not cover node node-a"),
        (told(FULL, "b0", BY_ZONE, guarded=False), True, "may be evicted: no guard is registered for its namespace"),
        (told(FULL.terminating("b0"), "b0", ACROSS), True, "may be evicted: pod shop/b0 is terminating"),
        (
            told(ORDERED.terminating("b0"), "b0", ACROSS),
            False,
            "may not be evicted now: pod shop/b0 is leaving already",
        ),
        (told(FULL, "b0", ACROSS, leader=NOBODY), False, "may not be evicted now: the budget controller never ran"),
        (told(FULL, "a0", BY_ZONE, leader=NOBODY), True, "may be evicted: budget shop/by-zone does not cover"),
        (told(FULL.unready("b0"), "b0", ACROSS, leader=NOBODY), False, "may not be evicted now: the budget controller"),
        (told(FULL.unready("b0"), "b0", LENIENT, leader=NOBODY), True, "may be evicted: pod shop/b0 is not ready"),
        (
            told(FULL, "b0", ACROSS, stock=[stock(0)]),
            False,
            "may not be evicted now: the disruption budget web needs 9",
        ),
        (told(FULL, "b0", ACROSS, stock=[stock(1)]), True, "may be evicted, and is charged to across"),
        (
            told(FULL, "b0", stock=[stock(1), stock(1, "b")]),
            False,
            "may not be evicted now: this pod has more than one",
        ),
    ],
)
def test_the_answer(account: EvictionReport, *, allowed: bool, sentence: str) -> None:
    assert account.sentence.startswith(sentence)
    assert account.allowed is allowed


def test_a_dry_run_shows_what_it_would_say() -> None:
    dry = budget(name="dry", maxUnavailable=0, enforcement="DryRun")
    account = told(FULL, "b0", dry)
    assert account.allowed
    assert "Budget     dry (DryRun): maxUnavailable 0 of all" in list(_lines(account))
    assert any("Deny (Frozen)" in line for line in _lines(account))


def test_long_lists_are_cut_and_shares_shown() -> None:
    world = spread("14/3/3", 15).unready(*(f"a{number}" for number in range(12)))
    lines = list(_lines(told(world, "a13", ACROSS)))
    assert "  unavailable: 2 more" in lines
    assert any(line.startswith("  a: 14 pods, 9 to stay, 2 healthy") for line in lines)


def test_json_keeps_its_fields(capsys: pytest.CaptureFixture[str]) -> None:
    broken = BudgetError(Key("shop", "bad"), ("spec: write it",))
    printing.echo_data(told(FULL, "b0", ACROSS, stock=[stock(1)], unreadable=[broken]), "json")
    written = described("explain eviction", capsys.readouterr().out)
    assert written["allowed"] is True
    assert written["budgets"][0]["domain"] == {
        "name": "b",
        "slots": 3,
        "target": 3,
        "healthy": 3,
        "desired": 2,
        "allowed": 1,
    }
    assert written["unreadable"] == ["TopologyDisruptionBudget shop/bad: spec: write it"]
    assert written.keys() >= {"pod", "node", "owner", "ready", "sentence", "stock", "leader", "guarded", "remedies"}
