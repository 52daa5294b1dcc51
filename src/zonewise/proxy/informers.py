"""Informers of the node proxy: Services, nodes, namespaces, and the EndpointSlices that this node may use.

EndpointSlices come in two watches: those without a consumer group, and those of the groups for clients in this node's
zone. When the node's zone changes, the second watch is replaced by one of the new zone's groups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED, HEADLESS_LABEL, PROXY_NAME, PROXY_NAME_LABEL
from zonewise.kube.client.client import Client
from zonewise.kube.watch.cache import Cache, matters_by
from zonewise.kube.watch.informers import Caches
from zonewise.kube.watch.service_informers import ServiceInformers, drain_matters
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import (
    ENDPOINT_SLICES,
    NODES,
    SERVICES,
    EndpointSlice,
    Key,
    Namespace,
    Node,
    Service,
)
from zonewise.objects.change import Change
from zonewise.objects.discovery import service_key
from zonewise.proxy.decide.targets import NodeLocation
from zonewise.routing import DRAIN_ZONE, RoutingNodes
from zonewise.topology import is_ready, zone_of

PAGE_SIZE: Final = 5000
"""About ten megabytes. Smaller pages cost the API server more."""
LONGEST_REST_SECONDS: Final = 0.1
"""Longest delay of a change while dozens arrive every second."""


def service_selector(*, all_services: bool) -> str:
    return "" if all_services else f"{PROXY_NAME_LABEL}={PROXY_NAME}"


def slice_selectors(zone: str, *, all_services: bool) -> tuple[str, str]:
    """Of ungrouped slices, and of the groups for the zone; a node without a zone may use every group."""
    base = f"!{HEADLESS_LABEL}" if all_services else f"{PROXY_NAME_LABEL}={PROXY_NAME},!{HEADLESS_LABEL}"
    groups = f"{CONSUMER} in ({CONSUMER_ALL},{CONSUMER_SHARED},{zone})" if zone else CONSUMER
    return f"{base},!{CONSUMER}", f"{base},{groups}"


class ProxyInformers(ServiceInformers[Service, EndpointSlice]):
    """`slices` are those without a group.

    Calls `on_dirty` with Services to sync, `on_topology` when nodes or drained zones change, `on_pod_ranges` when those of
    any node do, `on_node` when this node does.
    `on_slice` gets the slices that are there at the start and then each change, before their Services are dirty.
    """

    def __init__(self, client: Client, caches: Caches, node: str, *, all_services: bool) -> None:
        super().__init__(
            caches,
            lambda key, _cause: self.on_dirty((key,)),
            services=caches.of(SERVICES, selector=service_selector(all_services=all_services)),
            slices=caches.of(ENDPOINT_SLICES, selector=slice_selectors("", all_services=all_services)[0]),
            owner=service_key,
        )
        self.node_name = node
        self._client = client
        self._all_services = all_services
        self._draining: dict[str, Mapping[str, str]] = {}
        self._grouped: Cache[EndpointSlice] | None = None
        self._zone = ""
        self._every_group = False
        self._cluster: RoutingNodes | None = None
        self._pod_ranges: tuple[str, ...] | None = None
        self.on_dirty: Callable[[Iterable[Key]], None] = lambda _keys: None
        self.on_node: Callable[[], None] = lambda: None
        self.on_topology: Callable[[], None] = lambda: None
        self.on_pod_ranges: Callable[[], None] = lambda: None
        self.on_slice: Callable[[Change[EndpointSlice]], None] = lambda _change: None
        self._zone_changed = asyncio.Event()
        self.last_node = Node()
        """As `node`, but as it last was when its object is gone: the machine may run on for a while."""

    @property
    def node(self) -> Node:
        """This node; without labels and addresses while the API server has no such Node."""
        return self.nodes.get(Key("", self.node_name)) or Node()

    def _keep_node(self, change: Change[Node]) -> None:
        if change.new is not None and change.new.metadata.name == self.node_name:
            self.last_node = change.new

    def location(self) -> NodeLocation:
        if self._cluster is None:
            self._cluster = RoutingNodes.of(self.nodes)
        return NodeLocation(self.node_name, self._cluster, self._draining)

    def pod_ranges(self) -> tuple[str, ...]:
        """Of all nodes."""
        if self._pod_ranges is None:
            self._pod_ranges = tuple(text for node in self.nodes for text in node.spec.pod_cidrs)
        return self._pod_ranges

    def slices_of(self, service: Key) -> list[EndpointSlice]:
        grouped = self.slices_in(self._grouped, service) if self._grouped is not None else []
        return super().slices_of(service) + grouped

    def watch_every_group(self, every_group: bool) -> None:
        """Instead of the groups for this node's zone: for a zone that has no group."""
        if every_group != self._every_group:
            self._every_group = every_group
            self._zone_changed.set()

    async def run(self, synced: asyncio.Event) -> None:
        """While the caches run, until cancelled; `synced` is set once everything was read."""
        async with asyncio.TaskGroup() as group:
            self._zone = await self._first_zone()
            task, grouped = self._watch_groups(group)
            for watch in (*self.watches, grouped):
                await watch.wait_synced()
            self._grouped = grouped
            for slices in (self.slices, grouped):
                slices.on_change(self.on_slice)
            self.follow(from_now_on=True)
            grouped.on_change(self.slice_changed, from_now_on=True)
            self.nodes.on_change(self._keep_node)
            self.nodes.on_change(self._node_changed, when=matters_by(_node_facts))
            self.namespaces.on_change(self._namespace_changed, when=drain_matters)
            synced.set()
            await self._follow_zone(group, task)

    async def _first_zone(self) -> str:
        """Read apart, so that no watch waits for another; if this fails, the watch of nodes reports the zone later."""
        try:
            node = await self._client.get(NODES, self.node_name)
        except ApiError:
            return ""
        return zone_of(node.metadata.labels) or ""

    def _watch_groups(self, group: asyncio.TaskGroup) -> tuple[asyncio.Task[None], Cache[EndpointSlice]]:
        caches = Caches(self._client, page_size=PAGE_SIZE, longest_rest_seconds=LONGEST_REST_SECONDS)
        selector = slice_selectors(self._zone, all_services=self._all_services)[1]
        grouped = caches.of(ENDPOINT_SLICES, selector=selector)
        self.index_slices(grouped)
        return group.create_task(caches.run(), name=f"slice groups of {self._zone or 'every zone'}"), grouped

    async def _follow_zone(self, group: asyncio.TaskGroup, task: asyncio.Task[None]) -> None:
        """The groups of the old zone serve until those of the new one are synced, whose slices are no news to `on_slice`."""
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
            grouped.on_change(self.on_slice, from_now_on=True)
            grouped.on_change(self.slice_changed, from_now_on=True)
            old.cancel()
            self.on_dirty(self.services.keys())

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        self._draining.pop(change.key.name, None)
        annotations = change.new.metadata.annotations if change.new else {}
        if DRAIN_ZONE in annotations:
            self._draining[change.key.name] = {DRAIN_ZONE: annotations[DRAIN_ZONE]}
        self.on_topology()

    def _node_changed(self, change: Change[Node]) -> None:
        self._cluster = None
        self.on_topology()
        if _pod_cidrs(change.old) != _pod_cidrs(change.new):
            self._pod_ranges = None
            self.on_pod_ranges()
        if change.key.name == self.node_name:
            self.on_node()
            self._zone_changed.set()


def _pod_cidrs(node: Node | None) -> tuple[str, ...]:
    return node.spec.pod_cidrs if node else ()


def _node_facts(node: Node) -> tuple[object, ...]:
    """All that the proxy reads of a node: heartbeats are not part of it."""
    drain, cpu = node.metadata.annotations.get(DRAIN_ZONE), node.status.allocatable.get("cpu")
    return node.metadata.labels, node.status.addresses, node.spec.pod_cidrs, is_ready(node), drain, cpu
