"""Predicted refusals of stock PodDisruptionBudgets."""

from typing import Any

import pytest

from unit.disruption.build import pod
from zonewise.disruption.decide.pdb import CANNOT_EVICT, TOO_MANY, PdbRefusal, refusal
from zonewise.disruption.decide.pods import PodStage
from zonewise.objects import Key, Metadata
from zonewise.objects.policy import (
    PodDisruptionBudget,
    PodDisruptionBudgetSpec,
    PodDisruptionBudgetStatus,
    StatusCondition,
)


def stock(
    allowed: int,
    generation: int = 1,
    healthy: int = 8,
    desired: int = 8,
    policy: str | None = None,
    disrupted: int = 0,
    denial: tuple[str, str] | None = None,
) -> PodDisruptionBudget:
    """`denial`: reason and message of the condition."""
    conditions = [
        StatusCondition(type="DisruptionAllowed", status="False", reason=reason, message=message)
        for reason, message in ([denial] if denial else [])
    ]
    status = PodDisruptionBudgetStatus(
        observed_generation=1,
        disruptions_allowed=allowed,
        current_healthy=healthy,
        desired_healthy=desired,
        disrupted_pods={f"pod-{number}": "" for number in range(disrupted)},
        conditions=tuple(conditions),
    )
    spec = PodDisruptionBudgetSpec(unhealthy_pod_eviction_policy=policy)
    return PodDisruptionBudget(metadata=Metadata(name="stock", generation=generation), spec=spec, status=status)


NEEDS_8 = "The disruption budget stock needs 8 healthy pods and has 8 currently"
NONE = "The disruption budget stock does not allow evicting pods currently"
FORBIDDEN = 'poddisruptionbudget.policy "stock" is forbidden:'
UNPROCESSED = "The disruption budget stock is still being processed by the server."
CASES = {
    "none": ([], 0, None),
    "allows": ([stock(1)], 0, None),
    "refuses": ([stock(0)], 0, (CANNOT_EVICT, NEEDS_8, 0, 429, "StockBudget")),
    "allows no more than is spent": ([stock(1)], 1, (CANNOT_EVICT, NEEDS_8, 0, 429, "StockBudget")),
    "not counted yet": (
        [stock(1, generation=2)],
        0,
        (CANNOT_EVICT, UNPROCESSED, 10, 429, "StockBudgetNotObserved"),
    ),
    "its sync failed, so its numbers say nothing": (
        [stock(0, healthy=0, desired=0, denial=("SyncFailed", "no scale"))],
        0,
        (CANNOT_EVICT, f"{NONE} because it failed sync: no scale", 0, 429, "StockBudget"),
    ),
    "none although enough are healthy, with a reason": (
        [stock(0, healthy=9, denial=("Other", "for a reason"))],
        0,
        (CANNOT_EVICT, f"{NONE} (Other): for a reason", 0, 429, "StockBudget"),
    ),
    "none although enough are healthy": ([stock(0, healthy=9)], 0, (CANNOT_EVICT, NONE, 0, 429, "StockBudget")),
    "negative": ([stock(-1)], 0, (f"{FORBIDDEN} pdb disruptions allowed is negative", "", 0, 403, "StockBudget")),
    "as many unconfirmed as may be": ([stock(1, disrupted=2000)], 0, None),
    "too many unconfirmed": (
        [stock(1, disrupted=2001)],
        0,
        (
            f"{FORBIDDEN} DisruptedPods map too big - too many evictions not confirmed by PDB controller",
            "",
            0,
            403,
            "StockBudget",
        ),
    ),
    "two": ([stock(1), stock(1)], 0, (TOO_MANY, "", 0, 500, "SeveralStockBudgets")),
}


def as_tuple(expected: PdbRefusal | None) -> tuple[str, str, int, int, str] | None:
    return expected and (
        expected.message,
        expected.cause,
        expected.retry_after_seconds,
        expected.code,
        expected.reason.code,
    )


@pytest.mark.parametrize("name", CASES)
def test_refusal_of_a_ready_pod(name: str) -> None:
    budgets, spent, expected = CASES[name]
    assert as_tuple(refusal(pod("a0"), budgets, {Key("", "stock"): spent})) == expected


UNREADY = {
    "enough others are healthy": (stock(0), None),
    "too few are": (stock(0, healthy=7), "StockBudget"),
    "none need be, so none is enough": (stock(0, healthy=0, desired=0), "StockBudget"),
    "they may always go": (stock(0, healthy=7, policy="AlwaysAllow"), None),
    "not counted yet, but allowed by what was": (stock(0, generation=2), None),
}


@pytest.mark.parametrize("name", UNREADY)
def test_refusal_of_an_unready_pod(name: str) -> None:
    budget, code = UNREADY[name]
    expected = refusal(pod("a0", ready=False), [budget])
    assert (expected and expected.reason.code) == code


@pytest.mark.parametrize(
    "state", [{"terminating": True}, {"stage": PodStage.PENDING}, {"stage": PodStage.ENDED}], ids=str
)
def test_only_running_pods_are_refused(state: dict[str, Any]) -> None:
    assert refusal(pod("a0", **state), [stock(0), stock(0)]) is None
