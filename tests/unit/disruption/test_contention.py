"""Delay between two writes of a budget: none without conflicts, and never too long."""

import pytest

from zonewise.disruption.decide.contention import LONGEST_SECONDS, ContentionDelay

CASES: dict[str, tuple[int, int, float, float]] = {
    "nothing happened": (0, 0, 0.01, 0.0),
    "no race was lost, though writes take long": (0, 3, 2.0, 0.0),
    "one was lost": (1, 1, 0.01, 0.0075),
    "two were lost": (2, 1, 0.01, 0.0175),
    "one in five is lost": (4, 16, 0.01, 0.0),
    "all are lost, and writes take long": (100, 1, 2.0, LONGEST_SECONDS),
    "after a storm": (100, 64, 0.01, 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_delay_after_writes(name: str) -> None:
    lost, stored, write_seconds, seconds = CASES[name]
    pause = ContentionDelay()
    for _ in range(lost):
        pause.lost()
    for _ in range(stored):
        pause.stored(write_seconds)
    assert pause.seconds == pytest.approx(seconds)


def test_conflicts_without_a_stored_write_cause_no_delay() -> None:
    """It does not know yet what a write takes, and has let others go first already."""
    pause = ContentionDelay()
    pause.lost()
    assert not pause.seconds
