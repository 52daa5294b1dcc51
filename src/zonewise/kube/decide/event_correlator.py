"""Event correlation: repeats become one series, similar events one summary, excess events are dropped. Pure.

`zonewise.kube.controller.recorder` passes every occurrence to `Correlator` and writes the series it keeps. A repeated
event only raises its series' count. When an object has had many notes of one reason, further new ones share one series.
And each object has a budget of new events, so that one that flaps does not fill the server's storage.
"""

from __future__ import annotations

import re
from collections import Counter, OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from zonewise.kube.decide.token_bucket import TokenBucket
from zonewise.objects import ObjectReference
from zonewise.objects.events import Severity

_LONGEST_OBJECT_NAME = 200

COMBINED = "(combined from similar events): "


class Dropped(StrEnum):
    NOISE = "noise"
    BUFFER_FULL = "buffer full"


@dataclass(frozen=True, slots=True)
class EventSubject:
    """What an event is about, apart from its words."""

    regarding: ObjectReference
    severity: Severity
    reason: str
    action: str


@dataclass(frozen=True, slots=True)
class EventLimits:
    notes: int = 10
    """How many different notes a subject may have before further ones are combined."""
    burst: int = 25
    """How many new events an object may have at once,"""
    refill_seconds: float = 300.0
    """and after how long one more."""
    forget_seconds: float = 600.0
    """After how long without a repeat a series ends: the next occurrence is a new event."""
    series: int = 1000
    """How many series are kept; those that wait for the server have precedence over new ones."""
    objects: int = 4096
    """For how many objects the budget is remembered."""


SeriesKey = tuple[EventSubject, str | None]
"""A subject with a note, or without one for the series that combines its further notes."""


@dataclass(slots=True)
class Series:
    """One event and its repeats. `written` counts the occurrences that are stored in the API server."""

    key: SeriesKey
    name: str
    note: str
    first: datetime
    last: datetime
    seen_at: float
    count: int = 1
    written: int = 0

    @property
    def subject(self) -> EventSubject:
        return self.key[0]


class Correlator:
    """`unique` is part of every event's name: no two processes may share it."""

    def __init__(self, unique: str, limits: EventLimits | None = None) -> None:
        self._unique = unique
        self._limits = limits or EventLimits()
        self._series: OrderedDict[SeriesKey, Series] = OrderedDict()
        self._notes: Counter[EventSubject] = Counter()
        self._budgets: OrderedDict[ObjectReference, TokenBucket] = OrderedDict()
        self._named = 0

    def __len__(self) -> int:
        return len(self._series)

    def get(self, key: SeriesKey) -> Series | None:
        return self._series.get(key)

    def observe(self, subject: EventSubject, note: str, now: float, wall: datetime) -> Series | Dropped:
        """The series that the occurrence belongs to, now to be written, or why there is none."""
        self._forget_ended(now)
        key = self._key(subject, note)
        if key in self._series:
            return self._repeat(key, now, wall)
        if not self._admit(subject.regarding, now):
            return Dropped.NOISE
        if len(self._series) >= self._limits.series and not self._make_room():
            return Dropped.BUFFER_FULL
        return self._begin(key, note, now, wall)

    def unwritten(self) -> Iterator[SeriesKey]:
        return (key for key, series in self._series.items() if series.written < series.count)

    def begin_anew(self, series: Series, wall: datetime) -> None:
        """The server has deleted the event: the next occurrence starts another object, and the count continues."""
        series.name, series.first, series.written = self._next_name(series.subject), wall, 0

    def discard(self, key: SeriesKey) -> None:
        del self._series[key]
        subject, note = key
        if note is not None:
            self._notes[subject] -= 1
            if not self._notes[subject]:
                del self._notes[subject]

    def _key(self, subject: EventSubject, note: str) -> SeriesKey:
        exact = (subject, note)
        if exact in self._series or self._notes[subject] < self._limits.notes:
            return exact
        return (subject, None)

    def _repeat(self, key: SeriesKey, now: float, wall: datetime) -> Series:
        self._series.move_to_end(key)
        series = self._series[key]
        series.count += 1
        series.last = wall
        series.seen_at = now
        return series

    def _begin(self, key: SeriesKey, note: str, now: float, wall: datetime) -> Series:
        subject, own_note = key
        if own_note is None:
            note = COMBINED + note
        else:
            self._notes[subject] += 1
        series = Series(key, self._next_name(subject), note, first=wall, last=wall, seen_at=now)
        self._series[key] = series
        return series

    def _next_name(self, subject: EventSubject) -> str:
        """Where the object's own name is no valid name for an event, such as "system:node", what is not is replaced."""
        self._named += 1
        readable = re.sub(r"[^a-z0-9.]+", "-", subject.regarding.name.lower())[:_LONGEST_OBJECT_NAME]
        readable = re.sub(r"-?\.[.-]*", ".", readable).strip(".-")
        return f"{readable or 'event'}.{self._unique}{self._named:x}"

    def _admit(self, regarding: ObjectReference, now: float) -> bool:
        budget = self._budgets.pop(regarding, None)
        if budget is None:
            budget = TokenBucket(1 / self._limits.refill_seconds, self._limits.burst, now)
        self._budgets[regarding] = budget
        if len(self._budgets) > self._limits.objects:
            self._budgets.popitem(last=False)
        if budget.take(now) == 0:
            return True
        budget.give_back(now)
        return False

    def _forget_ended(self, now: float) -> None:
        """Series are kept in the order they were last seen; one that is not written yet holds up those behind it."""
        while self._series:
            key, oldest = next(iter(self._series.items()))
            if oldest.written < oldest.count or now - oldest.seen_at < self._limits.forget_seconds:
                return
            self.discard(key)

    def _make_room(self) -> bool:
        written = next((key for key, series in self._series.items() if series.written == series.count), None)
        if written is None:
            return False
        self.discard(written)
        return True
