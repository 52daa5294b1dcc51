"""Backoff of hint repairs: immediate at first, then ever less often."""

from zonewise.objects import EndpointHints, Hint, Key
from zonewise.slices.decide.overlay import Hints
from zonewise.slices.decide.repair_backoff import RepairBackoff

WEB = Key("shop", "web")
FIRST, SECOND = Key("shop", "web-1"), Key("shop", "web-2")
A: Hints = (EndpointHints(for_zones=(Hint(name="a"),)),)
B: Hints = (EndpointHints(for_zones=(Hint(name="b"),)),)


def repair(repairs: RepairBackoff, hints: Hints, now: float) -> float:
    """Writes the hints after the wait, and returns the wait."""
    wait = repairs.wait_seconds(WEB, FIRST, hints, now)
    repairs.note(WEB, FIRST, hints, now + wait)
    return wait


def test_repairs_back_off_if_every_write_is_undone() -> None:
    repairs, now, waits = RepairBackoff(), 100.0, []
    for _ in range(8):
        waits.append(repair(repairs, A, now))
        now += waits[-1] + 1.0  # a second later it is undone
    assert waits == [0.0, 0.0, 1.0, 9.0, 59.0, 299.0, 299.0, 299.0]


def test_hints_count_as_undone_after_some_repairs() -> None:
    repairs = RepairBackoff()
    undone = []
    for now in (0.0, 1.0, 3.0, 20.0):
        undone.append(repairs.is_undone(WEB, FIRST, A, now))
        repair(repairs, A, now)
    assert undone == [False, False, False, True]
    assert not repairs.is_undone(WEB, FIRST, B, 21.0)
    assert not repairs.is_undone(WEB, SECOND, A, 21.0)
    assert not repairs.is_undone(WEB, FIRST, A, 2000.0)


def test_other_hints_are_written_at_once() -> None:
    repairs = RepairBackoff()
    for now in (0.0, 0.1, 5.0):
        repair(repairs, A, now)
    assert repairs.wait_seconds(WEB, FIRST, A, 5.0) > 0
    assert repairs.wait_seconds(WEB, FIRST, B, 5.0) == 0
    assert repairs.wait_seconds(WEB, SECOND, A, 5.0) == 0
    repair(repairs, B, 5.0)
    assert repairs.wait_seconds(WEB, FIRST, A, 5.0) == 0


def test_backoff_resets_after_a_long_time() -> None:
    repairs = RepairBackoff()
    for now in (0.0, 0.1, 5.0, 30.0):
        repair(repairs, A, now)
    assert [repair(repairs, A, now) for now in (2000.0, 2001.0)] == [0.0, 0.0]


def test_removed_slices_are_forgotten() -> None:
    repairs = RepairBackoff()
    for now in (0.0, 0.1):
        repair(repairs, A, now)
    repairs.forget_all_but(WEB, [FIRST])
    assert repairs.wait_seconds(WEB, FIRST, A, 0.1) > 0
    repairs.forget_all_but(WEB, [])
    assert repairs.wait_seconds(WEB, FIRST, A, 0.1) == 0
