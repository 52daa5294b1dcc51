"""The EndpointSlice to write: its labels, annotations and body, and the merge patch for a slice that exists.

`plan` makes each `SliceBody`; the writer sends `body_of` for a new slice and `patch_of` for an existing one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from zonewise.api.names import CONSUMER, HEADLESS_LABEL, MANAGED_BY, STARTED, STOCK_MANAGER, TRIGGER_TIME, WEIGHTS
from zonewise.objects import SERVICE_NAME, Endpoint, EndpointPort, EndpointSlice, OwnerReference, Service
from zonewise.slices.decide.families import is_headless

_LONGEST_NAME: Final = 253
_RESERVED: Final = {SERVICE_NAME, MANAGED_BY, HEADLESS_LABEL, CONSUMER}


@dataclass(frozen=True, slots=True)
class SliceBody:
    """A slice as it should be. Labels and annotations are complete: others are removed."""

    service: Service
    address_type: str
    ports: tuple[EndpointPort, ...]
    endpoints: tuple[Endpoint, ...]
    labels: Mapping[str, str]
    annotations: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class SliceUpdate:
    existing: EndpointSlice
    body: SliceBody


def body_of(body: SliceBody) -> dict[str, Any]:
    service = body.service.metadata
    return {
        "metadata": {
            "generateName": name_prefix(service.name),
            "namespace": service.namespace,
            "labels": dict(body.labels),
            "annotations": dict(body.annotations),
            "ownerReferences": [_owner_of(body.service)],
        },
        "addressType": body.address_type,
        "ports": msgspec.to_builtins(body.ports),
        "endpoints": msgspec.to_builtins(body.endpoints),
    }


def patch_of(existing: EndpointSlice, body: SliceBody) -> dict[str, Any]:
    """A merge patch with the differences. Its resource version makes it fail if the slice changed since the read."""
    before = existing.metadata
    patch: dict[str, Any] = {"metadata": {"resourceVersion": before.resource_version}}
    if labels := _difference(before.labels, body.labels):
        patch["metadata"]["labels"] = labels
    if annotations := _difference(before.annotations, body.annotations):
        patch["metadata"]["annotations"] = annotations
    if frozenset(existing.ports or ()) != frozenset(body.ports):
        patch["ports"] = msgspec.to_builtins(body.ports)
    if (existing.endpoints or ()) != body.endpoints:
        patch["endpoints"] = msgspec.to_builtins(body.endpoints)
    return patch


def labels_for(service: Service, group: str | None) -> dict[str, str]:
    """Labels of a slice: those of its Service, and the reserved ones. Without a group there is no consumer label.

    The group is a label so that a node proxy can watch only the slices that its own zone consumes.
    """
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
    """Annotations of other writers are kept. The trigger time is the one of this write, or none."""
    existing_annotations = existing.metadata.annotations if existing else {}
    annotations = {
        key: value for key, value in existing_annotations.items() if key not in {TRIGGER_TIME, STARTED, WEIGHTS}
    }
    ours: Mapping[str, str | None] = {TRIGGER_TIME: trigger_time, STARTED: started, WEIGHTS: weights}
    return annotations | {key: value for key, value in ours.items() if value}


def is_owned_by(existing: EndpointSlice, service: Service) -> bool:
    """False for a slice of an earlier Service with the same name, whose uid differs."""
    return any(_refers_to(owner, service) for owner in existing.metadata.owner_references)


def name_prefix(service_name: str) -> str:
    """The Service name and a dash; without the dash if the prefix would be too long."""
    return f"{service_name}-" if len(service_name) < _LONGEST_NAME else service_name


def _refers_to(owner: OwnerReference, service: Service) -> bool:
    return owner.uid == service.metadata.uid and owner.kind == "Service" and owner.api_version == "v1"


def _owner_of(service: Service) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "name": service.metadata.name,
        "uid": service.metadata.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }


def _difference(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Changed keys as a merge patch (RFC 7386): null for a removed key."""
    changed: dict[str, str | None] = {key: value for key, value in after.items() if before.get(key) != value}
    return changed | {key: None for key in before if key not in after}
