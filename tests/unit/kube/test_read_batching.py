"""Changes one by one are read at once; crowds of them together, but never later than their reader can bear."""

from __future__ import annotations

from zonewise.kube.decide.read_batching import SHORTEST_SECONDS, ReadBatching


def test_single_changes_are_followed_by_the_shortest_rest() -> None:
    pace = ReadBatching(1.0)
    assert [pace.rest_after(1) for _ in range(3)] == [SHORTEST_SECONDS] * 3


def test_rests_grow_with_crowds_up_to_the_longest_and_shrink_after_them() -> None:
    pace = ReadBatching(SHORTEST_SECONDS * 3)
    grown = [pace.rest_after(5) for _ in range(3)]
    assert grown == [SHORTEST_SECONDS * 2, SHORTEST_SECONDS * 3, SHORTEST_SECONDS * 3]
    assert pace.rest_after(1) == SHORTEST_SECONDS * 1.5
    assert pace.rest_after(0) == SHORTEST_SECONDS


def test_without_a_longest_rest_there_is_none() -> None:
    pace = ReadBatching(0.0)
    assert [pace.rest_after(events) for events in (1, 100, 1)] == [0.0, 0.0, 0.0]
