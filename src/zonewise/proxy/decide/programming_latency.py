"""Network programming latency: from the change that an EndpointSlice states until this node's rules follow it. Pure.

The controller writes the time of the change, that of a pod or of the Service, into an annotation of the slices. Which
changes count is as in kube-proxy (`pkg/proxy/endpointschangetracker.go`), so that the figures of both can be compared and
added up:

- Each addition or update of a slice that has a time counts once, whatever it changes for this node.
- A change from before the start of this process does not: its rules may have been late for the lack of a process.
- A removed slice does not: its time is that of an earlier update. What its Service waits for in that family is dropped.
- A change whose rules the kernel rejects does not, although they are sent again.
- Clocks are taken as they are: on a node whose clock is behind the controller's, a latency may be negative.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import NamedTuple

from zonewise.api.names import TRIGGER_TIME
from zonewise.objects import EndpointSlice, Key
from zonewise.objects.change import Change
from zonewise.objects.discovery import service_key
from zonewise.proxy.wire.family import FAMILIES


class TriggerTime(NamedTuple):
    family: str
    time: datetime

    def latency_seconds(self, now: datetime) -> float:
        return (now - self.time).total_seconds()


@dataclass(slots=True)
class PendingTriggerTimes:
    """Trigger times of changes that no sync has taken yet. `started` is the start of the process."""

    started: datetime
    _times: dict[tuple[Key, str], list[datetime]] = field(default_factory=dict)
    """By Service and address family."""

    def slice_changed(self, change: Change[EndpointSlice]) -> None:
        endpoint_slice = change.new or change.old
        if endpoint_slice is None or endpoint_slice.address_type not in FAMILIES:
            return
        service = service_key(endpoint_slice)
        if not service.name:
            return
        if change.new is None:
            self._times.pop((service, endpoint_slice.address_type), None)
        elif (time := _trigger_time(change.new)) is not None and time > self.started:
            self._times.setdefault((service, endpoint_slice.address_type), []).append(time)

    def drop(self, service: Key) -> None:
        """Its rules could not be decided."""
        for family in FAMILIES:
            self._times.pop((service, family), None)

    def take(self) -> list[TriggerTime]:
        """Of all changes until now, which the next transactions carry."""
        taken = [TriggerTime(family, time) for (_, family), times in self._times.items() for time in times]
        self._times.clear()
        return taken


def _trigger_time(endpoint_slice: EndpointSlice) -> datetime | None:
    """None also for what is no time of RFC 3339: anyone who may write slices may write anything."""
    text = endpoint_slice.metadata.annotations.get(TRIGGER_TIME)
    if text is None:
        return None
    try:
        time = datetime.fromisoformat(text)
    except ValueError:
        return None
    return time if time.tzinfo is not None else None
