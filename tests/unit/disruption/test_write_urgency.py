"""Urgency of status writes: falling numbers at once, the rest batched."""

import pytest

from unit.disruption.build import ACROSS, Cluster, spread
from zonewise.disruption.decide.write_urgency import (
    HELD_SECONDS,
    LAZY_SECONDS,
    NEVER,
    SOON_SECONDS,
    Urgency,
    due_at,
    urgency,
)

WHOLE = spread("3/3/3")
HELD = WHOLE.unready("a0", "b0", "c0")
CASES: dict[str, tuple[Cluster, Cluster, Urgency]] = {
    "the same": (WHOLE, spread("3/3/3"), Urgency.NOTHING),
    "a pod is lost": (WHOLE, WHOLE.unready("a0"), Urgency.NOW),
    "one more, where none may leave": (WHOLE.unready("a0"), WHOLE.unready("a0", "a1"), Urgency.SHORT),
    "and yet another": (WHOLE.unready("a0", "a1"), WHOLE.unready("a0", "a1", "a2"), Urgency.SOON),
    "one never came up, where none may leave": (HELD, HELD.scaled(10), Urgency.SHORT),
    "a pod is back": (WHOLE.unready("a0"), WHOLE, Urgency.SOON),
    "one lost, one back": (WHOLE.unready("a0"), WHOLE.unready("b0"), Urgency.NOW),
    "a domain is gone": (WHOLE, spread("3/3"), Urgency.NOW),
    "a domain is new": (spread("3/3"), WHOLE, Urgency.SOON),
}


@pytest.mark.parametrize("name", CASES)
def test_urgency_of_a_change(name: str) -> None:
    before, after, urgent = CASES[name]
    assert urgency(before.status(ACROSS), after.status(ACROSS)) is urgent


@pytest.mark.parametrize(
    ("urgent", "held", "written_at", "due"),
    [
        (Urgency.NOTHING, False, 90.0, float("inf")),
        (Urgency.NOW, False, 99.9, 100.0),
        (Urgency.NOW, True, 99.9, 100.0),
        (Urgency.SHORT, False, NEVER, 100.0),
        (Urgency.SHORT, True, 99.5, 99.5 + SOON_SECONDS),
        (Urgency.SOON, False, NEVER, 100.0),
        (Urgency.SOON, False, 99.5, 99.5 + SOON_SECONDS),
        (Urgency.SOON, True, 99.5, 99.5 + HELD_SECONDS),
        (Urgency.LAZY, False, NEVER, 100.0 + LAZY_SECONDS),
        (Urgency.LAZY, False, 99.5, 100.0 + LAZY_SECONDS),
        (Urgency.LAZY, True, 99.5, 99.5 + HELD_SECONDS),
    ],
)
def test_due_time(urgent: Urgency, held: bool, written_at: float, due: float) -> None:
    assert due_at(urgent, noticed_at=100.0, written_at=written_at, held=held) == due
