"""What this process wrote and its watch has not shown yet, so that the next decision starts from what is really there.

`controller` reads slices through `merge` and tells every write; `sources` asks `is_echo` of every change it hears, so
that our own writes wake nobody. Nothing here must last: a fresh start begins with a fresh list. Pure.

A write is known by the resource version in its answer. The watch may be faster than that answer, so while a Service is
written all that is heard of its slices is kept and judged when the writing ends.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from zonewise.objects import EndpointSlice, Key, key_of
from zonewise.objects.change import Change
from zonewise.slices.decide.body import service_key


@dataclass(frozen=True, slots=True)
class _Deleted:
    uid: str


class EndpointSliceTracker:
    """`heard_version` is the resource version up to which the watch has told everything."""

    def __init__(self, heard_version: Callable[[], str]) -> None:
        self._heard_version = heard_version
        self._unheard: dict[Key, dict[Key, EndpointSlice | _Deleted]] = {}
        self._heard_meanwhile: dict[Key, list[Change[EndpointSlice]]] = {}

    def begin(self, service: Key) -> None:
        self._heard_meanwhile[service] = []

    def end(self, service: Key) -> bool:
        """Whether somebody else changed the Service's slices meanwhile."""
        judged = [self._is_own(service, change) for change in self._heard_meanwhile.pop(service, ())]
        return not all(judged)

    def wrote(self, service: Key, written: EndpointSlice) -> None:
        self._unheard.setdefault(service, {})[key_of(written)] = written

    def deleted(self, service: Key, gone: EndpointSlice) -> None:
        self._unheard.setdefault(service, {})[key_of(gone)] = _Deleted(gone.metadata.uid)

    def is_echo(self, change: Change[EndpointSlice]) -> bool:
        seen = change.new or change.old
        assert seen is not None
        service = service_key(seen)
        meanwhile = self._heard_meanwhile.get(service)
        if meanwhile is not None:
            meanwhile.append(change)
            return True
        return self._is_own(service, change)

    def merge(self, service: Key, cached: Sequence[EndpointSlice]) -> Sequence[EndpointSlice]:
        """The Service's slices as the server has them, as far as we can know."""
        unheard = self._unheard.get(service)
        if not unheard:
            return cached
        merged = {key_of(seen): seen for seen in cached}
        for key, write in tuple(unheard.items()):
            self._merge_one(service, key, write, merged)
        return list(merged.values())

    def forget(self, service: Key) -> None:
        self._unheard.pop(service, None)

    def _merge_one(
        self, service: Key, key: Key, write: EndpointSlice | _Deleted, merged: dict[Key, EndpointSlice]
    ) -> None:
        seen = merged.get(key)
        match write:
            case _Deleted(uid) if seen is not None and seen.metadata.uid == uid:
                del merged[key]
            case EndpointSlice() if _newer(write.metadata.resource_version, self._heard_version()):
                merged[key] = write
            case _:  # the watch, or a list after it was lost, has told all that came of it
                self._drop(service, key)

    def _is_own(self, service: Key, change: Change[EndpointSlice]) -> bool:
        write = self._unheard.get(service, {}).get(change.key)
        match write, change.new:
            case None, _:
                return False
            case EndpointSlice(), EndpointSlice() as new if _newer(
                write.metadata.resource_version, new.metadata.resource_version
            ):
                return True
            case EndpointSlice(), EndpointSlice() as new:
                own = new.metadata.resource_version == write.metadata.resource_version
            case _Deleted(uid), EndpointSlice() as new if new.metadata.uid == uid:  # of a write before the deletion
                return True
            case _Deleted(uid), None:
                own = change.old is not None and change.old.metadata.uid == uid
            case _:
                own = False
        self._drop(service, change.key)
        return own

    def _drop(self, service: Key, key: Key) -> None:
        unheard = self._unheard.get(service, {})
        unheard.pop(key, None)
        if not unheard:
            self._unheard.pop(service, None)


def _newer(version: str, than: str) -> bool:
    """Resource versions of stock API servers are ordered integers (KEP-5504)."""
    return int(version or 0) > int(than or 0)
