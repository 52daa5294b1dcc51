"""Labels and annotations of slices: what they mirror of their Service, what says whose they are, and who consumes them.

Pure. The group a slice belongs to is a label, so that a node proxy can watch only what its own zone consumes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zonewise.api.names import CONSUMER, HEADLESS_LABEL, MANAGED_BY, STARTED, STOCK_MANAGER, TRIGGER_TIME, WEIGHTS
from zonewise.objects import SERVICE_NAME, EndpointSlice, Service
from zonewise.slices.decide.families import is_headless

_RESERVED: Final = {SERVICE_NAME, MANAGED_BY, HEADLESS_LABEL, CONSUMER}


def labels_for(service: Service, group: str | None) -> dict[str, str]:
    """The Service's own, but for the reserved ones, which say what the slice is. Without a group there is no consumer."""
    labels = {key: value for key, value in service.metadata.labels.items() if key not in _RESERVED}
    labels |= {SERVICE_NAME: service.metadata.name, MANAGED_BY: STOCK_MANAGER}
    if is_headless(service):
        labels[HEADLESS_LABEL] = ""
    if group is not None:
        labels[CONSUMER] = group
    return labels


def annotations_for(
    existing: EndpointSlice | None, trigger_time: str | None, started: str, weights: str = ""
) -> dict[str, str]:
    """What others wrote stays; the time of the change is that of this write, or none."""
    kept = existing.metadata.annotations if existing else {}
    annotations = {key: value for key, value in kept.items() if key not in {TRIGGER_TIME, STARTED, WEIGHTS}}
    ours: Mapping[str, str | None] = {TRIGGER_TIME: trigger_time, STARTED: started, WEIGHTS: weights}
    return annotations | {key: value for key, value in ours.items() if value}
