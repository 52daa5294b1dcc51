"""What slices are made from, as last heard: Services, pods, nodes, namespaces and the slices that exist.

Stands between the watch caches and the controllers: says which Service a change concerns, gives all that a decision
about one Service needs, and lets what concerns nobody, such as the heartbeats of nodes, cost nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from enum import StrEnum
from typing import Final

from zonewise.api.names import MANAGED_BY, STOCK_MANAGER
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.objects import (
    ENDPOINT_SLICES,
    NAMESPACES,
    NODES,
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
from zonewise.routing import Drain, RoutingNodes, drained_zones
from zonewise.slices.decide.body import service_key
from zonewise.slices.decide.change_filter import (
    moves_endpoints,
    names_drain,
    pod_matters,
    routing_matters,
    service_matters,
    wants_routing,
)
from zonewise.slices.decide.selectors import PodsByLabel, ServicesBySelector

_OF_SERVICE: Final = "service"


class SlicesMode(StrEnum):
    """Who writes the slices: we alone, or the stock controller, on whose slices we put hints."""

    OWN = "own"
    OVERLAY = "overlay"


class SyncCause(StrEnum):
    """What changed about a Service."""

    SERVICE = "service"
    PODS = "pods"
    SLICES = "slices"
    NODES = "nodes"
    NAMESPACE = "namespace"


DirtyHandler = Callable[[Key, SyncCause], None]
OwnWrite = Callable[[Change[EndpointSlice]], bool]
"""Whether a change of a slice is only the echo of what this process wrote."""


class SliceInformers:
    """Registered with `caches` before these run. Reading is right once `caches` are synced."""

    def __init__(self, caches: Caches, mode: SlicesMode, is_own_write: OwnWrite = lambda _change: False) -> None:
        self.mode = mode
        self.services: Cache[Service] = caches.of(SERVICES)
        self.nodes: Cache[Node] = caches.of(NODES)
        self.namespaces: Cache[Namespace] = caches.of(NAMESPACES)
        self.slices: Cache[EndpointSlice] = caches.of(ENDPOINT_SLICES, selector=_slices_selector(mode))
        self.pods: Cache[Pod] | None = caches.of(PODS) if mode is SlicesMode.OWN else None
        self._is_own_write = is_own_write
        self._handlers: list[DirtyHandler] = []
        self._cluster: RoutingNodes | None = None
        self._pods_by_label = PodsByLabel()
        self._pods_by_node: dict[str, dict[Key, None]] = {}
        self._services_by_selector = ServicesBySelector()
        self._routed: dict[Key, None] = {}
        self._draining_nodes: set[str] = set()
        self.slices.add_index(_OF_SERVICE, _service_of)
        self._follow()

    def _follow(self) -> None:
        self.services.on_change(self._service_changed)
        self.nodes.on_change(self._node_changed)
        self.namespaces.on_change(self._namespace_changed)
        self.slices.on_change(self._slice_changed)
        if self.pods is not None:
            self.pods.on_change(self._pod_changed)

    def on_service_dirty(self, handler: DirtyHandler) -> None:
        """Call `handler` for every Service that must be looked at again, and for all that are there now."""
        self._handlers.append(handler)
        services = self.services.keys()
        for key in services:
            handler(key, SyncCause.SERVICE)

    def cluster(self) -> RoutingNodes:
        """The same value until a node changes in a way that routing sees."""
        if self._cluster is None:
            self._cluster = RoutingNodes.of(self.nodes)
        return self._cluster

    def slices_of(self, service: Key) -> list[EndpointSlice]:
        return self.slices.by_index(_OF_SERVICE, str(service))

    def pods_of(self, service: Service) -> list[Pod]:
        """In mode own; none for a Service without a selector."""
        selector = service.spec.selector
        if selector is None or self.pods is None:
            return []
        keys = self._pods_by_label.matching(service.metadata.namespace, selector)
        return [pod for key in keys if (pod := self.pods.get(key)) is not None]

    def drained_zones(self, service: Service) -> Drain:
        """The zones that the Service, its namespace or nodes say its traffic is to leave."""
        namespace = self.namespaces.get(Key("", service.metadata.namespace))
        annotations = namespace.metadata.annotations if namespace is not None else {}
        return drained_zones(service, annotations, self.cluster().node_drains)

    def _mark(self, services: Iterable[Key], cause: SyncCause) -> None:
        for key in services:
            for handler in self._handlers:
                handler(key, cause)

    def _service_changed(self, change: Change[Service]) -> None:
        if not service_matters(change.old, change.new):
            return
        self._services_by_selector.put(change.key, change.new.spec.selector if change.new else None)
        self._routed.pop(change.key, None)
        if change.new is not None and wants_routing(change.new):
            self._routed[change.key] = None
        self._mark((change.key,), SyncCause.SERVICE)

    def _pod_changed(self, change: Change[Pod]) -> None:
        old, new = change.old, change.new
        if old is not None and new is not None and old.metadata.labels == new.metadata.labels:
            if old.spec.node_name != new.spec.node_name:
                self._place_pod(change.key, old, new)
            if pod_matters(old, new):
                self._mark(self._services_of(new), SyncCause.PODS)
            return
        self._index_pod(change)
        touched = [key for pod in (old, new) if pod is not None for key in self._services_of(pod)]
        self._mark(dict.fromkeys(touched), SyncCause.PODS)

    def _services_of(self, pod: Pod) -> list[Key]:
        return self._services_by_selector.matching(pod.metadata.namespace, pod.metadata.labels)

    def _index_pod(self, change: Change[Pod]) -> None:
        if change.old is not None:
            self._pods_by_label.remove(change.key, change.old.metadata.labels)
        if change.new is not None:
            self._pods_by_label.put(change.key, change.new.metadata.labels)
        self._place_pod(change.key, change.old, change.new)

    def _place_pod(self, key: Key, old: Pod | None, new: Pod | None) -> None:
        if old is not None and old.spec.node_name:
            on_node = self._pods_by_node.get(old.spec.node_name, {})
            on_node.pop(key, None)
            if not on_node:
                self._pods_by_node.pop(old.spec.node_name, None)
        if new is not None and new.spec.node_name:
            self._pods_by_node.setdefault(new.spec.node_name, {})[key] = None

    def _node_changed(self, change: Change[Node]) -> None:
        if not routing_matters(change.old, change.new):
            return
        self._cluster = None
        if names_drain(change.new) is None:
            self._draining_nodes.discard(change.key.name)
        else:
            self._draining_nodes.add(change.key.name)
        self._mark(self._touched_by(change), SyncCause.NODES)

    def _touched_by(self, change: Change[Node]) -> Collection[Key]:
        """Drained zones concern every Service; else those that ask for routing, and those with pods on the node."""
        if self._draining_nodes or names_drain(change.old) is not None:
            return self.services.keys()
        touched = dict(self._routed)
        if moves_endpoints(change.old, change.new):
            touched.update(dict.fromkeys(self._on_node(change.key.name)))
        return touched

    def _on_node(self, node: str) -> Iterable[Key]:
        for key in self._pods_by_node.get(node, ()):
            pod = self.pods.get(key) if self.pods is not None else None
            if pod is not None:
                yield from self._services_of(pod)

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        if names_drain(change.old) != names_drain(change.new):
            services = self.services.keys()
            self._mark((key for key in services if key.namespace == change.key.name), SyncCause.NAMESPACE)

    def _slice_changed(self, change: Change[EndpointSlice]) -> None:
        if self._is_own_write(change):
            return
        touched = [service_key(seen) for seen in (change.old, change.new) if seen is not None]
        self._mark(dict.fromkeys(key for key in touched if key.name), SyncCause.SLICES)


def _service_of(viewed: EndpointSlice) -> tuple[str]:
    return (str(service_key(viewed)),)


def _slices_selector(mode: SlicesMode) -> str:
    return f"{MANAGED_BY}={STOCK_MANAGER},{SERVICE_NAME}" if mode is SlicesMode.OWN else SERVICE_NAME
