"""Views of events.k8s.io: Events."""

from __future__ import annotations

from enum import StrEnum

from zonewise.objects.core import ObjectReference
from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource


class Severity(StrEnum):
    """What the API calls an event's type."""

    NORMAL = "Normal"
    WARNING = "Warning"


class EventSeries(View, frozen=True):
    count: int = 0
    last_observed_time: str | None = None


class Event(View, frozen=True):
    metadata: Metadata = Metadata()
    type: str = ""
    reason: str = ""
    action: str = ""
    note: str = ""
    regarding: ObjectReference = ObjectReference()
    event_time: str | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    series: EventSeries | None = None


EVENTS = Resource(view=Event, kind="Event", plural="events", group="events.k8s.io")
