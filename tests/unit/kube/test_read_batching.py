"""Read batching: single changes at once, bursts together within the reader's limit."""

from __future__ import annotations

from zonewise.kube.decide.read_batching import SHORTEST_SECONDS, ReadBatching


def test_single_changes_get_the_shortest_pause() -> None:
    pace = ReadBatching(1.0)
    assert [pace.rest_after(1) for _ in range(3)] == [SHORTEST_SECONDS] * 3


def test_pause_grows_with_bursts_up_to_the_longest_and_shrinks() -> None:
    pace = ReadBatching(SHORTEST_SECONDS * 3)
    grown = [pace.rest_after(5) for _ in range(3)]
    assert grown == [SHORTEST_SECONDS * 2, SHORTEST_SECONDS * 3, SHORTEST_SECONDS * 3]
    assert pace.rest_after(1) == SHORTEST_SECONDS * 1.5
    assert pace.rest_after(0) == SHORTEST_SECONDS


def test_longest_pause_of_zero_means_no_pause() -> None:
    pace = ReadBatching(0.0)
    assert [pace.rest_after(events) for events in (1, 100, 1)] == [0.0, 0.0, 0.0]
