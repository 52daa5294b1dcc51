"""What a stock budget says to an eviction, said before anything is charged for it."""

import pytest

from unit.disruption.build import pod
from zonewise.disruption.stock import CANNOT_EVICT, TOO_MANY, Refusal, refusal
from zonewise.objects import Metadata
from zonewise.objects.policy import PodDisruptionBudget, PodDisruptionBudgetStatus


def stock(allowed: int, generation: int = 1) -> PodDisruptionBudget:
    status = PodDisruptionBudgetStatus(
        observed_generation=1, disruptions_allowed=allowed, current_healthy=8, desired_healthy=8
    )
    return PodDisruptionBudget(metadata=Metadata(name="stock", generation=generation), status=status)


CASES = {
    "none": ([], None),
    "allows": ([stock(1)], None),
    "refuses": (
        [stock(0)],
        Refusal(CANNOT_EVICT, "The disruption budget stock needs 8 healthy pods and has 8 currently"),
    ),
    "not counted yet": (
        [stock(1, generation=2)],
        Refusal(CANNOT_EVICT, "The disruption budget stock is still being processed by the server.", 10),
    ),
    "two": ([stock(1), stock(1)], Refusal(TOO_MANY, code=500)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_ready_pod(name: str) -> None:
    budgets, told = CASES[name]
    assert refusal(pod("a0"), budgets) == told


def test_a_pod_that_is_not_ready_may_go_for_all_it_says() -> None:
    assert refusal(pod("a0", ready=False), [stock(0)]) is None
