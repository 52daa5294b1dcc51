"""Placement of endpoints in slices with as few slice writes as possible.

Slices with the same ports and consumers form a bucket. Within a bucket: endpoints stay in their slice; removed
endpoints free room in slices that are written anyway; new endpoints fill such slices, the fullest first; the rest goes
into slices that became empty, then together into the slice that it fills best, or into new slices. Nothing is
repacked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zonewise.api.names import CONSUMER, CONSUMER_ALL
from zonewise.objects import Endpoint, EndpointPort, EndpointSlice

Identity = tuple[tuple[str, ...], str, str, str]
"""Identifies an endpoint over time: addresses, hostname, and the namespace and name of its pod."""


class Bucket(NamedTuple):
    ports: frozenset[EndpointPort]
    group: str


PLACEHOLDER: Final = Bucket(frozenset(), CONSUMER_ALL)
"""The bucket of the one empty slice of a Service without endpoints."""

Desired = dict[Bucket, dict[Identity, Endpoint]]


@dataclass(slots=True)
class PlacedSlice:
    """A slice that the Service will have: an existing one, changed or not, or a new one."""

    bucket: Bucket
    endpoints: list[Endpoint]
    existing: EndpointSlice | None = None
    changed: bool = True


@dataclass(slots=True)
class Placement:
    """`added` are the endpoints that no slice of their bucket had, `removed` those that left their slice."""

    slices: list[PlacedSlice] = field(default_factory=list)
    emptied: list[EndpointSlice] = field(default_factory=list)
    added: dict[Identity, Endpoint] = field(default_factory=dict)
    removed: dict[Identity, EndpointSlice] = field(default_factory=dict)


def identity(endpoint: Endpoint) -> Identity:
    addresses = endpoint.addresses
    if len(addresses) > 1:
        addresses = tuple(sorted(addresses))
    pod = endpoint.target_ref
    if pod is None:
        return addresses, endpoint.hostname or "", "", ""
    return addresses, endpoint.hostname or "", pod.namespace, pod.name


def bucket_of(existing: EndpointSlice) -> Bucket:
    """A slice without a consumer label is for all consumers."""
    return Bucket(frozenset(existing.ports or ()), existing.metadata.labels.get(CONSUMER, CONSUMER_ALL))


def _in_order(bucket: Bucket) -> tuple[str, list[str]]:
    return bucket.group, sorted(map(repr, bucket.ports))


def place(
    slices: Sequence[EndpointSlice], desired: Desired, labels_of: Callable[[str], Mapping[str, str]], most: int
) -> Placement:
    """`slices` sorted by name. Empties `desired` of placed endpoints. `labels_of` gives the labels of a group."""
    placement = Placement()
    by_bucket: dict[Bucket, list[PlacedSlice]] = {bucket: [] for bucket in desired}
    for existing in slices:
        bucket = bucket_of(existing)
        placed = _keep(existing, bucket, desired.get(bucket, {}), placement)
        if not placed.endpoints:
            placement.emptied.append(existing)
            continue
        placed.changed = placed.changed or existing.metadata.labels != labels_of(bucket.group)
        by_bucket[bucket].append(placed)
    spare = len(placement.emptied)
    for bucket in sorted(by_bucket, key=_in_order) if len(by_bucket) > 1 else by_bucket:
        placed_slices = by_bucket[bucket]
        new = desired[bucket]
        created = _fill(bucket, [new[key] for key in sorted(new)], placed_slices, most, spare) if new else []
        spare -= len(created)
        placement.slices += (*placed_slices, *created)
        placement.added.update(new)
    return placement


def _keep(
    existing: EndpointSlice, bucket: Bucket, desired: dict[Identity, Endpoint], placement: Placement
) -> PlacedSlice:
    placed = PlacedSlice(bucket, [], existing, changed=False)
    for endpoint in existing.endpoints or ():
        key = identity(endpoint)
        endpoint_now = desired.pop(key, None)
        if endpoint_now is None:
            placement.removed[key] = existing
            placed.changed = True
        else:
            placed.endpoints.append(endpoint_now)
            if endpoint_now != endpoint:
                placed.changed = True
    return placed


def _fill(
    bucket: Bucket, new: list[Endpoint], placed_slices: Sequence[PlacedSlice], most: int, spare: int
) -> list[PlacedSlice]:
    """Puts the new endpoints into `placed_slices`, and returns the slices to create for the rest.

    While `spare` slices are left to delete, reusing one costs no more writes than deleting it.
    """
    for placed in sorted(
        (placed for placed in placed_slices if placed.changed), key=lambda placed: -len(placed.endpoints)
    ):
        room = max(0, most - len(placed.endpoints))
        placed.endpoints += new[:room]
        new = new[room:]
    created: list[PlacedSlice] = []
    while new:
        fitting = _fits_best(len(new), placed_slices, most) if len(new) < most and len(created) >= spare else None
        placed = fitting or PlacedSlice(bucket, [])
        if not fitting:
            created.append(placed)
        placed.changed = True
        placed.endpoints += new[:most]
        new = new[most:]
    return created


def _fits_best(count: int, placed_slices: Iterable[PlacedSlice], most: int) -> PlacedSlice | None:
    """The fullest unchanged slice that has room for all of them."""
    candidates = [placed for placed in placed_slices if not placed.changed and len(placed.endpoints) + count <= most]
    return max(candidates, key=lambda placed: len(placed.endpoints), default=None)


def reuse(placement: Placement, labels_of: Callable[[str], Mapping[str, str]]) -> list[EndpointSlice]:
    """Reuses slices that would be deleted for new ones; returns those that remain to delete.

    A new slice reuses the one that had most of its endpoints, so that few move.
    """
    creates = [placed for placed in placement.slices if placed.existing is None]
    spare = {emptied.metadata.name: emptied for emptied in placement.emptied}
    for placed, name in (*_by_overlap(creates, spare), *((placed, name) for name in spare for placed in creates)):
        if placed.existing is None and name in spare:
            placed.existing = spare.pop(name)
            placed.changed = not _is_same(placed, placed.existing, labels_of)
    return list(spare.values())


def _by_overlap(creates: Sequence[PlacedSlice], spare: Mapping[str, EndpointSlice]) -> list[tuple[PlacedSlice, str]]:
    if not creates or not spare:
        return []
    last_slice = {identity(endpoint): name for name, unused in spare.items() for endpoint in unused.endpoints or ()}
    overlaps: list[tuple[int, int, str]] = []
    for index, placed in enumerate(creates):
        counted = Counter(last_slice[key] for endpoint in placed.endpoints if (key := identity(endpoint)) in last_slice)
        overlaps += [(-count, index, name) for name, count in counted.items()]
    return [(creates[index], name) for _, index, name in sorted(overlaps)]


def _is_same(placed: PlacedSlice, existing: EndpointSlice, labels_of: Callable[[str], Mapping[str, str]]) -> bool:
    """Whether an existing slice is the placeholder already."""
    return (
        not placed.endpoints
        and not existing.endpoints
        and bucket_of(existing).ports == placed.bucket.ports
        and existing.metadata.labels == labels_of(placed.bucket.group)
    )
