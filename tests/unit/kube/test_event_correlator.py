"""Event correlation: repeats, similar events, rate limits, and bounded memory."""

import re
from collections import Counter
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.kube.decide.event_correlator import (
    COMBINED,
    Correlator,
    Dropped,
    EventLimits,
    EventSubject,
    Series,
    SeriesKey,
)
from zonewise.objects import ObjectReference
from zonewise.objects.events import Severity

WALL = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)


def subject(name: str = "web", reason: str = "Unbalanced") -> EventSubject:
    regarding = ObjectReference(kind="Service", namespace="shop", name=name, uid=f"uid-of-{name}")
    return EventSubject(regarding, Severity.WARNING, reason, "Allocate")


def observed(correlator: Correlator, event_subject: EventSubject, note: str, now: float = 0.0) -> Series:
    series = correlator.observe(event_subject, note, now, WALL + timedelta(seconds=now))
    assert not isinstance(series, Dropped), series
    assert correlator.get(series.key) is series
    return series


def write(series: Series) -> None:
    series.written = series.count


def test_repeated_event_is_one_series_with_count_and_times() -> None:
    correlator = Correlator("u")
    for now in (0.0, 10.0, 20.0):
        series = observed(correlator, subject(), "zone a is overloaded", now)
    assert (series.count, series.first, series.last) == (3, WALL, WALL + timedelta(seconds=20))
    assert len(correlator) == 1


@pytest.mark.parametrize(
    "other",
    [
        subject(name="api"),
        subject(reason="Balanced"),
        EventSubject(subject().regarding, Severity.NORMAL, "Unbalanced", "Allocate"),
        EventSubject(subject().regarding, Severity.WARNING, "Unbalanced", "Evict"),
    ],
    ids=["object", "reason", "severity", "action"],
)
def test_different_subject_is_another_series(other: EventSubject) -> None:
    correlator = Correlator("u")
    first, second = observed(correlator, subject(), "x"), observed(correlator, other, "x")
    assert first is not second
    assert first.name != second.name


def test_further_notes_are_combined() -> None:
    correlator = Correlator("u", EventLimits(notes=3))
    own = [observed(correlator, subject(), f"note {number}") for number in range(3)]
    combined = [observed(correlator, subject(), f"note {number}") for number in range(3, 6)]
    assert len({id(series) for series in combined}) == 1
    assert combined[0].note == COMBINED + "note 3", "an event's note is immutable, so the first one stays"
    assert combined[0].count == 3
    assert observed(correlator, subject(), "note 1") is own[1]
    assert observed(correlator, subject(reason="Other"), "note 9").note == "note 9"


def test_expired_series_makes_room() -> None:
    correlator = Correlator("u", EventLimits(notes=1, forget_seconds=600))
    first = observed(correlator, subject(), "a", now=0.0)
    write(first)
    assert observed(correlator, subject(), "b", now=599.0).note == COMBINED + "b"
    later = observed(correlator, subject(), "b", now=600.0)
    assert later.note == "b"
    again = observed(correlator, subject(), "a", now=601.0)
    assert again.name != first.name


def test_unwritten_series_does_not_expire() -> None:
    correlator = Correlator("u", EventLimits(forget_seconds=600))
    first = observed(correlator, subject(), "a", now=0.0)
    assert observed(correlator, subject(), "a", now=5000.0) is first
    assert first.count == 2


def test_object_has_a_refilling_budget_of_new_events() -> None:
    correlator = Correlator("u", EventLimits(burst=2, refill_seconds=300))
    for note in ("a", "b"):
        write(observed(correlator, subject(), note))
    assert correlator.observe(subject(), "c", 1.0, WALL) is Dropped.NOISE
    assert observed(correlator, subject(), "a", now=1.0).count == 2
    assert observed(correlator, subject(name="api"), "c", now=1.0).count == 1, "other objects have their own budgets"
    assert observed(correlator, subject(), "c", now=300.0).count == 1
    assert correlator.observe(subject(), "d", 301.0, WALL) is Dropped.NOISE


def test_number_of_remembered_budgets_is_bounded() -> None:
    correlator = Correlator("u", EventLimits(burst=1, objects=2))
    for name in ("a", "b", "c"):
        write(observed(correlator, subject(name), "x"))
    assert correlator.observe(subject("c"), "y", 0.0, WALL) is Dropped.NOISE
    assert observed(correlator, subject("a"), "y").count == 1, "evicted, so it starts with a full budget"


def test_full_buffer_drops_new_series_and_counts_existing() -> None:
    correlator = Correlator("u", EventLimits(series=2))
    first = observed(correlator, subject(), "a")
    observed(correlator, subject(), "b")
    assert correlator.observe(subject(), "c", 0.0, WALL) is Dropped.BUFFER_FULL
    assert observed(correlator, subject(), "a").count == 2
    write(first)
    assert observed(correlator, subject(), "c").count == 1
    assert len(correlator) == 2


def test_unwritten_series_are_listed_until_written() -> None:
    correlator = Correlator("u")
    series = observed(correlator, subject(), "a")
    assert list(correlator.unwritten()) == [(subject(), "a")]
    write(series)
    assert not list(correlator.unwritten())
    observed(correlator, subject(), "a")
    assert list(correlator.unwritten()) == [(subject(), "a")]


def test_deleted_event_gets_another_name() -> None:
    correlator = Correlator("u")
    series = observed(correlator, subject(), "a")
    write(series)
    old = series.name
    observed(correlator, subject(), "a", now=5.0)
    correlator.begin_anew(series, WALL + timedelta(hours=2))
    assert series.name != old
    assert (series.first, series.written, series.count) == (WALL + timedelta(hours=2), 0, 2)


NAMES = st.text(max_size=260) | st.from_regex(r"[a-z0-9:.\-]{1,260}", fullmatch=True)


@given(NAMES)
def test_event_names_are_valid_for_any_object_name(name: str) -> None:
    """RFC 1123 subdomains of at most 253 characters."""
    event_name = observed(Correlator("0123456789ab"), subject(name), "x").name
    assert len(event_name) <= 253
    assert re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*", event_name)


@given(
    st.lists(
        st.tuples(st.sampled_from("abc"), st.sampled_from("RS"), st.integers(0, 9), st.integers(0, 200), st.booleans()),
        max_size=200,
    )
)
def test_occurrences_are_counted_or_dropped_in_bounded_memory(
    occurrences: list[tuple[str, str, int, int, bool]],
) -> None:
    limits = EventLimits(notes=3, burst=5, refill_seconds=100, forget_seconds=300, series=6, objects=2)
    correlator = Correlator("u", limits)
    counted: Counter[str] = Counter()
    dropped = 0
    now = 0.0
    ever: dict[str, Series] = {}
    for name, reason, note, seconds, writes in occurrences:
        now += seconds
        series = correlator.observe(subject(name, reason), str(note), now, WALL)
        if isinstance(series, Dropped):
            dropped += 1
            continue
        ever[series.name] = series
        counted[series.name] += 1
        if writes:
            write(series)
        assert len(correlator) <= limits.series
        per_subject: Counter[EventSubject] = Counter(key[0] for key in keys(correlator) if key[1] is not None)
        assert all(count <= limits.notes for count in per_subject.values())
        assert correlator._notes == per_subject
    assert {name: series.count for name, series in ever.items()} == counted
    assert counted.total() + dropped == len(occurrences)


def keys(correlator: Correlator) -> list[SeriesKey]:
    return list(correlator._series)
