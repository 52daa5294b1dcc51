"""Since when slices are out of date: the time that the last-change-trigger-time annotation tells. Pure.

Consumers measure with it how long a change took to reach them. As the stock controller has it: when a Service is first
seen, its creation; after that the earliest of the changes since the last look, or none.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from zonewise.objects import Key, Pod, Service, key_of


@dataclass(frozen=True, slots=True)
class _Seen:
    service: str
    pods: dict[str, str]


_NOTHING: Final = _Seen("", {})


class TriggerTimeTracker:
    """The API writes times in UTC with whole seconds, so their texts are ordered as they are."""

    def __init__(self) -> None:
        self._seen: dict[Key, _Seen] = {}
        self._untold: dict[Key, str] = {}

    def since(self, service: Service, pods: Iterable[Pod]) -> str | None:
        """Of what changed since the call before, and of what was not `told` since; None if nothing has a time."""
        key = key_of(service)
        before = self._seen.get(key, _NOTHING)
        now = self._seen[key] = _Seen(service.metadata.creation_timestamp or "", dict(_ready_times(pods)))
        times = [*_changed(before, now), *self._untold.pop(key, "").split()]
        if times:
            self._untold[key] = min(times)
        return self._untold.get(key)

    def told(self, service: Key) -> None:
        """The slices say it, or need not."""
        self._untold.pop(service, None)

    def forget(self, service: Key) -> None:
        self._seen.pop(service, None)
        self._untold.pop(service, None)


def _changed(before: _Seen, now: _Seen) -> Iterable[str]:
    if now.service > before.service:
        yield now.service
    if before is not _NOTHING:
        yield from (time for name, time in now.pods.items() if time > before.pods.get(name, ""))


def _ready_times(pods: Iterable[Pod]) -> Iterable[tuple[str, str]]:
    for pod in pods:
        for condition in pod.status.conditions:
            if condition.type == "Ready" and condition.last_transition_time:
                yield pod.metadata.name, condition.last_transition_time
                break
