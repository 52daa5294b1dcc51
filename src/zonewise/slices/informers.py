"""Informers of what slices are made from: Services, pods, nodes, namespaces and the slices that exist.

They stand between the watch caches and the controllers: they report which Service a change concerns, return what a
decision about one Service needs, and drop changes that concern no Service, such as the heartbeats of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Any, Final

from zonewise.api.names import MANAGED_BY, STOCK_MANAGER
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.watch.service_informers import DirtyHandler, ServiceInformers, SyncCause, drain_matters
from zonewise.objects import (
    ENDPOINT_SLICES,
    PODS,
    SERVICE_NAME,
    SERVICES,
    EndpointSlice,
    Key,
    Namespace,
    Node,
    Pod,
    Service,
)
from zonewise.objects.change import Change
from zonewise.objects.discovery import service_key
from zonewise.routing import Drain, RoutingNodes, drained_zones
from zonewise.slices.decide.change_filter import (
    moves_endpoints,
    names_drain,
    pod_matters,
    routing_matters,
    service_matters,
    wants_routing,
)
from zonewise.slices.decide.selectors import PodsByLabel, ServicesBySelector

_BY_NODE: Final = "node"


class SlicesMode(StrEnum):
    """Who writes the slices: this process alone, or the stock controller, to whose slices hints are added."""

    OWN = "own"
    OVERLAY = "overlay"


OwnWrite = Callable[[Change[EndpointSlice]], bool]
"""Whether a change of a slice is only the echo of a write of this process."""


class SliceInformers(ServiceInformers[Service, EndpointSlice]):
    """Made before `caches` run. Reading is right once `caches` are synced."""

    def __init__(self, caches: Caches, mode: SlicesMode, is_own_write: OwnWrite = lambda _change: False) -> None:
        super().__init__(
            caches,
            self._mark,
            services=caches.of(SERVICES),
            slices=caches.of(ENDPOINT_SLICES, selector=_slices_selector(mode)),
            owner=service_key,
        )
        self.pods: Cache[Pod] | None = caches.of(PODS) if mode is SlicesMode.OWN else None
        self._is_own_write = is_own_write
        self._handlers: list[DirtyHandler] = []
        self._cluster: RoutingNodes | None = None
        self._pods_by_label = PodsByLabel()
        self._services_by_selector = ServicesBySelector()
        self._routed: dict[Key, None] = {}
        self._draining_nodes: set[str] = set()
        self.follow(service_matters=service_matters)
        self.nodes.on_change(self._node_changed, when=routing_matters)
        self.namespaces.on_change(self._namespace_changed, when=drain_matters)
        if self.pods is not None:
            self.pods.add_index(_BY_NODE, _node_of)
            self.pods.on_change(self._pod_changed)

    @property
    def watches(self) -> tuple[Cache[Any], ...]:
        return (*super().watches, self.pods) if self.pods is not None else super().watches

    def on_service_dirty(self, handler: DirtyHandler) -> None:
        """Call `handler` for every Service that must be synced again, and for all that are there now."""
        self._handlers.append(handler)
        services = self.services.keys()
        for key in services:
            handler(key, SyncCause.SERVICE)

    def cluster(self) -> RoutingNodes:
        """The same value until a node changes in a way that routing sees."""
        if self._cluster is None:
            self._cluster = RoutingNodes.of(self.nodes)
        return self._cluster

    def pods_of(self, service: Service) -> list[Pod]:
        """In mode own; none for a Service without a selector."""
        selector = service.spec.selector
        if selector is None or self.pods is None:
            return []
        keys = self._pods_by_label.matching(service.metadata.namespace, selector)
        return [pod for key in keys if (pod := self.pods.get(key)) is not None]

    def drained_zones(self, service: Service) -> Drain:
        """The zones that the Service, its namespace or nodes ask its traffic to leave."""
        namespace = self.namespaces.get(Key("", service.metadata.namespace))
        annotations = namespace.metadata.annotations if namespace is not None else {}
        return drained_zones(service, annotations, self.cluster().node_drains)

    def _mark(self, service: Key, cause: SyncCause) -> None:
        for handler in self._handlers:
            handler(service, cause)

    def _mark_all(self, services: Iterable[Key], cause: SyncCause) -> None:
        for key in services:
            self._mark(key, cause)

    def _service_changed(self, change: Change[Service]) -> None:
        self._services_by_selector.put(change.key, change.new.spec.selector if change.new else None)
        self._routed.pop(change.key, None)
        if change.new is not None and wants_routing(change.new):
            self._routed[change.key] = None
        super()._service_changed(change)

    def _pod_changed(self, change: Change[Pod]) -> None:
        old, new = change.old, change.new
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            if pod_matters(old, new):
                self._mark_all(self._services_of(new), SyncCause.PODS)
            return
        if old is not None:
            self._pods_by_label.remove(change.key, old.metadata.labels)
        if new is not None:
            self._pods_by_label.put(change.key, new.metadata.labels)
        touched = [key for pod in (old, new) if pod is not None for key in self._services_of(pod)]
        self._mark_all(dict.fromkeys(touched), SyncCause.PODS)

    def _services_of(self, pod: Pod) -> list[Key]:
        return self._services_by_selector.matching(pod.metadata.namespace, pod.metadata.labels)

    def _node_changed(self, change: Change[Node]) -> None:
        self._cluster = None
        if names_drain(change.new) is None:
            self._draining_nodes.discard(change.key.name)
        else:
            self._draining_nodes.add(change.key.name)
        self._mark_all(self._touched_by(change), SyncCause.NODES)

    def _touched_by(self, change: Change[Node]) -> Collection[Key]:
        """All Services while zones are drained; else those that ask for routing, and those with pods on the node."""
        if self._draining_nodes or names_drain(change.old) is not None:
            return self.services.keys()
        touched = dict(self._routed)
        if moves_endpoints(change.old, change.new):
            touched.update(dict.fromkeys(self._on_node(change.key.name)))
        return touched

    def _on_node(self, node: str) -> Iterable[Key]:
        for pod in self.pods.by_index(_BY_NODE, node) if self.pods is not None else ():
            yield from self._services_of(pod)

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        self._mark_all(self.services_in(change.key.name), SyncCause.NAMESPACE)

    def slice_changed(self, change: Change[EndpointSlice]) -> None:
        if not self._is_own_write(change):
            super().slice_changed(change)


def _node_of(pod: Pod) -> tuple[str, ...]:
    return (pod.spec.node_name,) if pod.spec.node_name else ()


def _slices_selector(mode: SlicesMode) -> str:
    return f"{MANAGED_BY}={STOCK_MANAGER},{SERVICE_NAME}" if mode is SlicesMode.OWN else SERVICE_NAME
