"""Which endpoint stands in which slice, so that as few slices as possible are written. Pure.

Slices of the same ports and consumers form a bucket. Within it: endpoints stay where they are; those that go make room
in slices that are written anyway; those that come fill such slices, the fullest first; the rest goes into slices that
were left empty, then together into the slice that it fills best, or into new ones. Nothing is repacked.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from zonewise.api.names import CONSUMER, CONSUMER_ALL
from zonewise.objects import Endpoint, EndpointPort, EndpointSlice

Identity = tuple[tuple[str, ...], str, str, str]
"""What makes an endpoint the same one before and after: addresses, hostname, and the pod's namespace and name."""


class Bucket(NamedTuple):
    ports: frozenset[EndpointPort]
    group: str


PLACEHOLDER: Final = Bucket(frozenset(), CONSUMER_ALL)
"""Where a slice stands that only tells that there is no endpoint."""

Wanted = dict[Bucket, dict[Identity, Endpoint]]


@dataclass(slots=True)
class PlacedSlice:
    """A slice that will be there: an existing one, with or without a change, or a new one."""

    bucket: Bucket
    endpoints: list[Endpoint]
    existing: EndpointSlice | None = None
    changed: bool = True


@dataclass(slots=True)
class Placement:
    """`come` are the endpoints that no slice of their bucket had, `gone` those that left the slice they stood in."""

    bodies: list[PlacedSlice] = field(default_factory=list)
    emptied: list[EndpointSlice] = field(default_factory=list)
    come: dict[Identity, Endpoint] = field(default_factory=dict)
    gone: dict[Identity, EndpointSlice] = field(default_factory=dict)


def identity(endpoint: Endpoint) -> Identity:
    addresses = endpoint.addresses
    if len(addresses) > 1:
        addresses = tuple(sorted(addresses))
    pod = endpoint.target_ref
    if pod is None:
        return addresses, endpoint.hostname or "", "", ""
    return addresses, endpoint.hostname or "", pod.namespace, pod.name


def bucket_of(existing: EndpointSlice) -> Bucket:
    """A slice without a consumer label is for everyone."""
    return Bucket(frozenset(existing.ports or ()), existing.metadata.labels.get(CONSUMER, CONSUMER_ALL))


def _in_order(bucket: Bucket) -> tuple[str, list[str]]:
    return bucket.group, sorted(map(repr, bucket.ports))


def place(
    slices: Sequence[EndpointSlice], wanted: Wanted, labels_of: Callable[[str], Mapping[str, str]], most: int
) -> Placement:
    """`slices` in order of their names; takes the endpoints out of `wanted`. `labels_of` gives a group's labels."""
    placement = Placement()
    by_bucket: dict[Bucket, list[PlacedSlice]] = {bucket: [] for bucket in wanted}
    for existing in slices:
        bucket = bucket_of(existing)
        body = _keep(existing, bucket, wanted.get(bucket, {}), placement)
        if not body.endpoints:
            placement.emptied.append(existing)
            continue
        body.changed = body.changed or existing.metadata.labels != labels_of(bucket.group)
        by_bucket[bucket].append(body)
    spare = len(placement.emptied)
    for bucket in sorted(by_bucket, key=_in_order) if len(by_bucket) > 1 else by_bucket:
        bodies = by_bucket[bucket]
        new = wanted[bucket]
        created = _fill(bucket, [new[key] for key in sorted(new)], bodies, most, spare) if new else []
        spare -= len(created)
        placement.bodies += (*bodies, *created)
        placement.come.update(new)
    return placement


def _keep(
    existing: EndpointSlice, bucket: Bucket, wanted: dict[Identity, Endpoint], placement: Placement
) -> PlacedSlice:
    body = PlacedSlice(bucket, [], existing, changed=False)
    for endpoint in existing.endpoints or ():
        key = identity(endpoint)
        got = wanted.pop(key, None)
        if got is None:
            placement.gone[key] = existing
            body.changed = True
        else:
            body.endpoints.append(got)
            if got != endpoint:
                body.changed = True
    return body


def _fill(
    bucket: Bucket, new: list[Endpoint], bodies: Sequence[PlacedSlice], most: int, spare: int
) -> list[PlacedSlice]:
    """Puts the new endpoints into `bodies`, and returns the slices to create for those that find no place.

    As long as there are `spare` slices to be deleted, using one again costs no write more than deleting it.
    """
    for body in sorted((body for body in bodies if body.changed), key=lambda body: -len(body.endpoints)):
        room = max(0, most - len(body.endpoints))
        body.endpoints += new[:room]
        new = new[room:]
    created: list[PlacedSlice] = []
    while new:
        fitting = _fits_best(len(new), bodies, most) if len(new) < most and len(created) >= spare else None
        body = fitting or PlacedSlice(bucket, [])
        if not fitting:
            created.append(body)
        body.changed = True
        body.endpoints += new[:most]
        new = new[most:]
    return created


def _fits_best(count: int, bodies: Iterable[PlacedSlice], most: int) -> PlacedSlice | None:
    """The unchanged slice that is fullest with all of them in it."""
    fitting = [body for body in bodies if not body.changed and len(body.endpoints) + count <= most]
    return max(fitting, key=lambda body: len(body.endpoints), default=None)


def reuse(placement: Placement, labels_of: Callable[[str], Mapping[str, str]]) -> list[EndpointSlice]:
    """Gives slices that would be deleted to bodies that would be created; returns those that nobody needs.

    A body gets the slice that most of its endpoints stood in, so that few move.
    """
    creates = [body for body in placement.bodies if body.existing is None]
    spare = {found.metadata.name: found for found in placement.emptied}
    for body, name in (*_by_overlap(creates, spare), *((body, name) for name in spare for body in creates)):
        if body.existing is None and name in spare:
            body.existing = spare.pop(name)
            body.changed = not _is_same(body, body.existing, labels_of)
    return list(spare.values())


def _by_overlap(creates: Sequence[PlacedSlice], spare: Mapping[str, EndpointSlice]) -> list[tuple[PlacedSlice, str]]:
    if not creates or not spare:
        return []
    stood = {identity(endpoint): name for name, found in spare.items() for endpoint in found.endpoints or ()}
    found: list[tuple[int, int, str]] = []
    for index, body in enumerate(creates):
        counted = Counter(stood[key] for endpoint in body.endpoints if (key := identity(endpoint)) in stood)
        found += [(-count, index, name) for name, count in counted.items()]
    return [(creates[index], name) for _, index, name in sorted(found)]


def _is_same(body: PlacedSlice, existing: EndpointSlice, labels_of: Callable[[str], Mapping[str, str]]) -> bool:
    """True for a placeholder that is there already."""
    return (
        not body.endpoints
        and not existing.endpoints
        and bucket_of(existing).ports == body.bucket.ports
        and existing.metadata.labels == labels_of(body.bucket.group)
    )
