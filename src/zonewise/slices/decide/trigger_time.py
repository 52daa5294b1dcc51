"""Trigger time: the value of the last-change-trigger-time annotation, since when the slices are out of date.

Consumers measure with it how long a change took to reach them. As in the stock controller: for a new Service it is the
creation time; after that the earliest change since the last sync, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from zonewise.objects import Key, Pod, Service, key_of


@dataclass(frozen=True, slots=True)
class _Times:
    service: str
    pods: dict[str, str]


_NO_TIMES: Final = _Times("", {})


class TriggerTimeTracker:
    """The API writes times in UTC with whole seconds, so they compare as strings."""

    def __init__(self) -> None:
        self._last_times: dict[Key, _Times] = {}
        self._unwritten: dict[Key, str] = {}

    def since(self, service: Service, pods: Iterable[Pod]) -> str | None:
        """The earliest change that was not `mark_written` yet; None if no change has a time."""
        key = key_of(service)
        before = self._last_times.get(key, _NO_TIMES)
        now = self._last_times[key] = _Times(service.metadata.creation_timestamp or "", dict(_ready_times(pods)))
        times = [*_changed(before, now), *self._unwritten.pop(key, "").split()]
        if times:
            self._unwritten[key] = min(times)
        return self._unwritten.get(key)

    def mark_written(self, service: Key) -> None:
        """Call when the slices carry the trigger time, or need no write."""
        self._unwritten.pop(service, None)

    def forget(self, service: Key) -> None:
        self._last_times.pop(service, None)
        self._unwritten.pop(service, None)


def _changed(before: _Times, now: _Times) -> Iterable[str]:
    if now.service > before.service:
        yield now.service
    if before is not _NO_TIMES:
        yield from (time for name, time in now.pods.items() if time > before.pods.get(name, ""))


def _ready_times(pods: Iterable[Pod]) -> Iterable[tuple[str, str]]:
    for pod in pods:
        for condition in pod.status.conditions:
            if condition.type == "Ready" and condition.last_transition_time:
                yield pod.metadata.name, condition.last_transition_time
                break
