"""What the proxy reads of the cluster, and when a Service must be looked at again.

Services, nodes, namespaces, and EndpointSlices in two watches: those that belong to no group, and those of the groups that clients
in this node's zone may use. When the node's zone changes, the second is replaced by the new zone's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED, HEADLESS_LABEL, PROXY_NAME, PROXY_NAME_LABEL
from zonewise.kube.client.client import Client
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import (
    ENDPOINT_SLICES,
    NAMESPACES,
    NODES,
    SERVICE_NAME,
    SERVICES,
    EndpointSlice,
    Key,
    Namespace,
    Node,
    Service,
    key_of,
)
from zonewise.objects.change import Change
from zonewise.proxy.decide.targets import NodePlace
from zonewise.routing import DRAIN_ZONE, RoutingNodes
from zonewise.topology import is_ready, zone_of

_BY_SERVICE: Final = "service"
_PAGE_SIZE: Final = 5000
"""Some ten megabytes: more, smaller pages cost the API server more."""
_LONGEST_REST_SECONDS: Final = 0.1
"""How late a change may reach the kernel while dozens come every second."""


def service_selector(*, all_services: bool) -> str:
    return "" if all_services else f"{PROXY_NAME_LABEL}={PROXY_NAME}"


def slice_selectors(zone: str, *, all_services: bool) -> tuple[str, str]:
    """Of ungrouped slices, and of the groups for the zone; a node in no zone may use every group."""
    base = f"!{HEADLESS_LABEL}" if all_services else f"{PROXY_NAME_LABEL}={PROXY_NAME},!{HEADLESS_LABEL}"
    groups = f"{CONSUMER} in ({CONSUMER_ALL},{CONSUMER_SHARED},{zone})" if zone else CONSUMER
    return f"{base},!{CONSUMER}", f"{base},{groups}"


class ProxyInformers:
    """`on_dirty` is told the Services to look at again, `on_node` that this node itself has changed."""

    def __init__(self, client: Client, node: str, *, all_services: bool) -> None:
        self.node_name = node
        self._client = client
        self._all_services = all_services
        self._caches = Caches(client, page_size=_PAGE_SIZE, longest_rest_seconds=_LONGEST_REST_SECONDS)
        self.services: Cache[Service] = self._caches.of(SERVICES, selector=service_selector(all_services=all_services))
        self._nodes: Cache[Node] = self._caches.of(NODES)
        self._namespaces: Cache[Namespace] = self._caches.of(NAMESPACES)
        self._draining: dict[str, Mapping[str, str]] = {}
        self._ungrouped = self._watch_slices(self._caches, slice_selectors("", all_services=all_services)[0])
        self._grouped: Cache[EndpointSlice] | None = None
        self._zone = ""
        self._every_group = False
        self._cluster: RoutingNodes | None = None
        self.on_dirty: Callable[[Iterable[Key]], None] = lambda _keys: None
        self.on_node: Callable[[], None] = lambda: None
        self.on_labels: Callable[[], None] = lambda: None
        self._zone_changed = asyncio.Event()

    @property
    def node(self) -> Node:
        """This node; without labels and addresses while the cluster does not know it."""
        return self._nodes.get(Key("", self.node_name)) or Node()

    def place(self) -> NodePlace:
        if self._cluster is None:
            self._cluster = RoutingNodes.of(self._nodes)
        return NodePlace(self.node_name, self._cluster, self._draining)

    def slices_of(self, key: Key) -> Sequence[EndpointSlice]:
        found = self._ungrouped.by_index(_BY_SERVICE, str(key))
        return found + self._grouped.by_index(_BY_SERVICE, str(key)) if self._grouped else found

    def watch_every_group(self, wanted: bool) -> None:
        """Not only those for this node's zone: for a zone that there are none for."""
        if wanted != self._every_group:
            self._every_group = wanted
            self._zone_changed.set()

    async def run(self, synced: asyncio.Event) -> None:
        """Until cancelled; `synced` is set once everything was read."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._caches.run(), name="watches")
            self._zone = await self._first_zone()
            task, grouped = self._watch_groups(group)
            await self._caches.wait_synced()
            await grouped.wait_synced()
            self._grouped = grouped
            self.services.on_change(lambda change: self.on_dirty([change.key]), from_now_on=True)
            for slices in (self._ungrouped, grouped):
                slices.on_change(self._slice_changed, from_now_on=True)
            self._nodes.on_change(self._node_changed)
            self._namespaces.on_change(self._namespace_changed)
            synced.set()
            await self._follow_zone(group, task)

    async def _first_zone(self) -> str:
        """Asked for by itself, so that no watch waits for another; if it can't be had, the watch of nodes will tell."""
        try:
            node = await self._client.get(NODES, self.node_name)
        except ApiError:
            return ""
        return zone_of(node.metadata.labels) or ""

    def _watch_groups(self, group: asyncio.TaskGroup) -> tuple[asyncio.Task[None], Cache[EndpointSlice]]:
        caches = Caches(self._client, page_size=_PAGE_SIZE, longest_rest_seconds=_LONGEST_REST_SECONDS)
        grouped = self._watch_slices(caches, slice_selectors(self._zone, all_services=self._all_services)[1])
        return group.create_task(caches.run(), name=f"slice groups of {self._zone or 'every zone'}"), grouped

    async def _follow_zone(self, group: asyncio.TaskGroup, task: asyncio.Task[None]) -> None:
        """The old zone's groups serve until those of the new one are there."""
        while True:
            await self._zone_changed.wait()
            self._zone_changed.clear()
            zone = "" if self._every_group else zone_of(self.node.metadata.labels) or ""
            if zone == self._zone:
                continue
            self._zone, old = zone, task
            task, grouped = self._watch_groups(group)
            await grouped.wait_synced()
            self._grouped = grouped
            grouped.on_change(self._slice_changed, from_now_on=True)
            old.cancel()
            self.on_dirty(self.services.keys())

    @staticmethod
    def _watch_slices(caches: Caches, selector: str) -> Cache[EndpointSlice]:
        cache = caches.of(ENDPOINT_SLICES, selector=selector)
        cache.add_index(_BY_SERVICE, _service_names)
        return cache

    def _slice_changed(self, change: Change[EndpointSlice]) -> None:
        found = {name for each in (change.old, change.new) if each for name in _service_names(each)}
        self.on_dirty(Key(*name.split("/", 1)) for name in found)

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        name = change.key.name
        before = self._draining.pop(name, {})
        said = change.new.metadata.annotations if change.new else {}
        if DRAIN_ZONE in said:
            self._draining[name] = {DRAIN_ZONE: said[DRAIN_ZONE]}
        if before != self._draining.get(name, {}):
            self.on_labels()

    def _node_changed(self, change: Change[Node]) -> None:
        """Heartbeats change nothing that routing sees."""
        if change.old is not None and change.new is not None and _seen(change.old) == _seen(change.new):
            return
        self._cluster = None
        self.on_labels()
        if change.key.name == self.node_name:
            self.on_node()
            self._zone_changed.set()


def _service_names(found: EndpointSlice) -> Iterable[str]:
    name = found.metadata.labels.get(SERVICE_NAME)
    return [str(Key(found.metadata.namespace, name))] if name else []


def _seen(node: Node) -> tuple[object, ...]:
    drain, cpu = node.metadata.annotations.get(DRAIN_ZONE), node.status.allocatable.get("cpu")
    where = node.metadata.labels, node.status.addresses, node.spec.pod_cidrs
    return key_of(node), is_ready(node), drain, cpu, *where
