"""Putting back what somebody takes off: at once the first time, then ever more rarely."""

from zonewise.objects import EndpointHints, Hint, Key
from zonewise.slices.decide.overlay import Hints
from zonewise.slices.decide.repair_backoff import RepairBackoff

WEB = Key("shop", "web")
FIRST, SECOND = Key("shop", "web-1"), Key("shop", "web-2")
A: Hints = (EndpointHints(for_zones=(Hint(name="a"),)),)
B: Hints = (EndpointHints(for_zones=(Hint(name="b"),)),)


def written(repairs: RepairBackoff, hints: Hints, now: float) -> float:
    """How long it had to wait."""
    wait = repairs.wait_seconds(WEB, FIRST, hints, now)
    repairs.note(WEB, FIRST, hints, now + wait)
    return wait


def test_who_undoes_every_write_is_answered_ever_more_rarely() -> None:
    repairs, now, waits = RepairBackoff(), 100.0, []
    for _ in range(8):
        waits.append(written(repairs, A, now))
        now += waits[-1] + 1.0  # a second later it is undone
    assert waits == [0.0, 0.0, 1.0, 9.0, 59.0, 299.0, 299.0, 299.0]


def test_hints_that_do_not_stay_are_known_after_some_repairs() -> None:
    repairs = RepairBackoff()
    known = []
    for now in (0.0, 1.0, 3.0, 20.0):
        known.append(repairs.is_undone(WEB, FIRST, A, now))
        written(repairs, A, now)
    assert known == [False, False, False, True]
    assert not repairs.is_undone(WEB, FIRST, B, 21.0)
    assert not repairs.is_undone(WEB, SECOND, A, 21.0)
    assert not repairs.is_undone(WEB, FIRST, A, 2000.0)


def test_another_answer_is_written_at_once() -> None:
    repairs = RepairBackoff()
    for now in (0.0, 0.1, 5.0):
        written(repairs, A, now)
    assert repairs.wait_seconds(WEB, FIRST, A, 5.0) > 0
    assert repairs.wait_seconds(WEB, FIRST, B, 5.0) == 0
    assert repairs.wait_seconds(WEB, SECOND, A, 5.0) == 0
    written(repairs, B, 5.0)
    assert repairs.wait_seconds(WEB, FIRST, A, 5.0) == 0


def test_what_stood_for_long_is_repaired_at_once_again() -> None:
    repairs = RepairBackoff()
    for now in (0.0, 0.1, 5.0, 30.0):
        written(repairs, A, now)
    assert [written(repairs, A, now) for now in (2000.0, 2001.0)] == [0.0, 0.0]


def test_slices_that_are_gone_are_forgotten() -> None:
    repairs = RepairBackoff()
    for now in (0.0, 0.1):
        written(repairs, A, now)
    repairs.forget_all_but(WEB, [FIRST])
    assert repairs.wait_seconds(WEB, FIRST, A, 0.1) > 0
    repairs.forget_all_but(WEB, [])
    assert repairs.wait_seconds(WEB, FIRST, A, 0.1) == 0
