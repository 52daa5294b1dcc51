"""Tracker of slice writes that the watch has not delivered yet, so that the next sync starts from the stored slices.

The controller reads slices through `merge` and records every write; the informers ask `is_echo` for each change, so
that a write does not trigger a sync of its own. Nothing is persisted: a new process starts from a new list.

A write is recognised by the resource version in its response. The watch may deliver it before the response arrives, so
while slices of a Service are being written, changes of these slices are held back and checked when the writes end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zonewise.objects import EndpointSlice, Key, key_of
from zonewise.objects.change import Change
from zonewise.objects.discovery import service_key


@dataclass(frozen=True, slots=True)
class _Deleted:
    uid: str


class EndpointSliceTracker:
    """`watched_version` is the resource version that the watch has reached."""

    def __init__(self, watched_version: Callable[[], str]) -> None:
        self._watched_version = watched_version
        self._pending: dict[Key, dict[Key, EndpointSlice | _Deleted]] = {}
        self._held_back: dict[Key, list[Change[EndpointSlice]]] = {}

    def begin(self, service: Key) -> None:
        self._held_back[service] = []

    def end(self, service: Key) -> bool:
        """Whether another writer changed the Service's slices since `begin`."""
        own_writes = [self._is_own(service, change) for change in self._held_back.pop(service, ())]
        return not all(own_writes)

    def wrote(self, service: Key, endpoint_slice: EndpointSlice) -> None:
        self._pending.setdefault(service, {})[key_of(endpoint_slice)] = endpoint_slice

    def deleted(self, service: Key, endpoint_slice: EndpointSlice) -> None:
        self._pending.setdefault(service, {})[key_of(endpoint_slice)] = _Deleted(endpoint_slice.metadata.uid)

    def is_echo(self, change: Change[EndpointSlice]) -> bool:
        endpoint_slice = change.new or change.old
        assert endpoint_slice is not None
        service = service_key(endpoint_slice)
        held_back = self._held_back.get(service)
        if held_back is not None:
            held_back.append(change)
            return True
        return self._is_own(service, change)

    def merge(self, service: Key, cached: Sequence[EndpointSlice]) -> Sequence[EndpointSlice]:
        """The Service's slices as stored: those of the cache, updated by writes that the watch has not delivered."""
        pending = self._pending.get(service)
        if not pending:
            return cached
        merged = {key_of(endpoint_slice): endpoint_slice for endpoint_slice in cached}
        for key, write in tuple(pending.items()):
            self._merge_one(service, key, write, merged)
        return list(merged.values())

    def forget(self, service: Key) -> None:
        self._pending.pop(service, None)

    def _merge_one(
        self, service: Key, key: Key, write: EndpointSlice | _Deleted, merged: dict[Key, EndpointSlice]
    ) -> None:
        cached = merged.get(key)
        match write:
            case _Deleted(uid) if cached is not None and cached.metadata.uid == uid:
                del merged[key]
            case EndpointSlice() if _newer(write.metadata.resource_version, self._watched_version()):
                merged[key] = write
            case _:  # delivered by the watch, or by a new list
                self._drop(service, key)

    def _is_own(self, service: Key, change: Change[EndpointSlice]) -> bool:
        write = self._pending.get(service, {}).get(change.key)
        match write, change.new:
            case None, _:
                return False
            case EndpointSlice(), EndpointSlice() as new if _newer(
                write.metadata.resource_version, new.metadata.resource_version
            ):
                return True
            case EndpointSlice(), EndpointSlice() as new:
                own = new.metadata.resource_version == write.metadata.resource_version
            case _Deleted(uid), EndpointSlice() as new if new.metadata.uid == uid:  # an update before the deletion
                return True
            case _Deleted(uid), None:
                own = change.old is not None and change.old.metadata.uid == uid
            case _:
                own = False
        self._drop(service, change.key)
        return own

    def _drop(self, service: Key, key: Key) -> None:
        pending = self._pending.get(service, {})
        pending.pop(key, None)
        if not pending:
            self._pending.pop(service, None)


def _newer(version: str, than: str) -> bool:
    """Resource versions of stock API servers are ordered integers (KEP-5504)."""
    return int(version or 0) > int(than or 0)
