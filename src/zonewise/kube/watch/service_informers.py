"""Informers of Services, EndpointSlices, Nodes and Namespaces, and the Services that a change concerns.

Everything that routes reads these four kinds. A change of a Service or of one of its slices makes that Service dirty.
What a change of a node or a namespace concerns depends on the reader, which registers for these itself.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import cache
from typing import Any, Final, Generic, TypeVar

from zonewise.api.names import DRAIN_ZONE
from zonewise.kube.watch.cache import Cache, IndexFunction, Matters
from zonewise.kube.watch.informers import Caches
from zonewise.objects import NAMESPACES, NODES, HasMetadata, Key, Namespace, Node
from zonewise.objects.change import Change

S = TypeVar("S", bound=HasMetadata)
"""A Service, or what the reader keeps of it."""
E = TypeVar("E", bound=HasMetadata)
"""An EndpointSlice, or what the reader keeps of it."""

_BY_SERVICE: Final = "service"


class SyncCause(StrEnum):
    """What changed about a Service."""

    SERVICE = "service"
    PODS = "pods"
    SLICES = "slices"
    NODES = "nodes"
    NAMESPACE = "namespace"


DirtyHandler = Callable[[Key, SyncCause], None]


def drain_matters(old: HasMetadata | None, new: HasMetadata | None) -> bool:
    """Whether an object asks to drain other zones than before; those that ask for none may come and go."""
    before, after = (viewed and viewed.metadata.annotations.get(DRAIN_ZONE) for viewed in (old, new))
    return before != after


class ServiceInformers(Generic[S, E]):
    """Made before `caches` run. `owner` names the Service of a slice; the name is empty where there is none."""

    def __init__(
        self,
        caches: Caches,
        on_dirty: DirtyHandler,
        *,
        services: Cache[S],
        slices: Cache[E],
        owner: Callable[[E], Key],
    ) -> None:
        self.services = services
        self.slices = slices
        self.nodes: Cache[Node] = caches.of(NODES)
        self.namespaces: Cache[Namespace] = caches.of(NAMESPACES)
        self._on_dirty = on_dirty
        self._owner = owner
        self.index_slices(slices)

    @property
    def watches(self) -> tuple[Cache[Any], ...]:
        return self.services, self.nodes, self.namespaces, self.slices

    def slices_of(self, service: Key) -> list[E]:
        return self.slices_in(self.slices, service)

    def services_in(self, namespace: str) -> list[Key]:
        services = self.services.keys()
        return [key for key in services if key.namespace == namespace]

    def follow(self, *, service_matters: Matters[S] | None = None, from_now_on: bool = False) -> None:
        """Report dirty Services; those that are there now as well, unless only changes `from_now_on` count."""
        self.services.on_change(self._service_changed, when=service_matters, from_now_on=from_now_on)
        self.slices.on_change(self.slice_changed, from_now_on=from_now_on)

    # For readers with more caches of slices than one.

    def index_slices(self, slices: Cache[E]) -> None:
        slices.add_index(_BY_SERVICE, _by_owner(self._owner))

    @staticmethod
    def slices_in(slices: Cache[E], service: Key) -> list[E]:
        return slices.by_index(_BY_SERVICE, str(service))

    def slice_changed(self, change: Change[E]) -> None:
        for owner in dict.fromkeys(self._owner(state) for state in (change.old, change.new) if state is not None):
            if owner.name:
                self._on_dirty(owner, SyncCause.SLICES)

    def _service_changed(self, change: Change[S]) -> None:
        self._on_dirty(change.key, SyncCause.SERVICE)


@cache
def _by_owner(owner: Callable[[E], Key]) -> IndexFunction[E]:
    """The same function for the same owner: readers that share a cache share its index."""
    return lambda viewed: (str(key),) if (key := owner(viewed)).name else ()
