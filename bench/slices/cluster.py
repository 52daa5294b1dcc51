"""The cluster that the controllers are measured on: Services, mostly with kwok pods, and pods that the bench makes ready."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import StrategicPatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.nodes import kwok
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, NODES, PODS, SERVICES, EndpointSlice, Key, Pod
from zonewise.objects.change import Change

T = TypeVar("T")

ZONES = ("zone-a", "zone-b", "zone-c")
NODES_OF_KWOK = 60
BY_HAND_NODE = "by-hand"
CROWD, BY_HAND = "crowd", "by-hand"
"""Namespaces: `crowd-0`, `crowd-1`, ... of kwok's pods, and one whose pods the bench makes ready itself."""
SERVICE_NAME = "kubernetes.io/service-name"
_AT_ONCE = 32


class BenchCluster:
    def __init__(self, client: Client, caches: Caches, services: int, pods_per_service: int, namespaces: int) -> None:
        self.client = client
        self.pods_per_service = pods_per_service
        self.crowd = [Key(f"{CROWD}-{number % namespaces}", f"svc-{number}") for number in range(services)]
        self.replaced = self.crowd[: services // 10]
        """The Services whose pods are all replaced: a thousand pods of ten thousand."""
        self.suffixes = {key: [str(index) for index in range(pods_per_service)] for key in self.crowd}
        self.by_hand = [Key(BY_HAND, f"svc-{number}") for number in range(30)]
        self._slices = caches.of(ENDPOINT_SLICES)
        self._pods = caches.of(PODS)
        self._slices.add_index("service", _service_of)
        self._slices.on_change(self._note)
        self._pods.add_index("service", _service_of_pod)
        self._pods.on_change(self._note_pod)
        self._changed = asyncio.Event()
        self.writes = 0
        self.last_write_at = 0.0

    def _note_pod(self, _change: Change[Pod]) -> None:
        self._changed.set()

    def _note(self, _change: Change[EndpointSlice]) -> None:
        self.writes += 1
        self.last_write_at = time.monotonic()
        self._changed.set()

    def ready_addresses(self, service: Key) -> Counter[str]:
        return Counter(
            address
            for endpoint_slice in self._slices.by_index("service", str(service))
            for endpoint in endpoint_slice.endpoints or ()
            if endpoint.conditions.ready
            for address in endpoint.addresses
        )

    def expected_addresses(self, service: Key) -> Counter[str]:
        pods = self._pods.by_index("service", str(service))
        return Counter(pod.status.pod_ip for pod in pods if is_ready(pod) and not pod.metadata.deletion_timestamp)

    async def until_right(self, services: Iterable[Key], patience_seconds: float = 600) -> None:
        """Waits until slices have every ready pod once and no other."""
        waiting = set(services)
        async with asyncio.timeout(patience_seconds):
            while True:
                self._changed.clear()
                waiting = {key for key in waiting if self.ready_addresses(key) != self.expected_addresses(key)}
                if not waiting:
                    return
                await self._changed.wait()
                await asyncio.sleep(0.005 if len(waiting) < 50 else 0.1)

    async def until_quiet(self, seconds: float = 2.0) -> None:
        while (left := self.last_write_at + seconds - time.monotonic()) > 0:  # noqa: ASYNC110 - waits for silence
            await asyncio.sleep(left)

    async def until(
        self, holds: Callable[[], bool], *, pause_seconds: float = 0.0, patience_seconds: float = 600
    ) -> None:
        async with asyncio.timeout(patience_seconds):
            while not holds():
                self._changed.clear()
                await self._changed.wait()
                await asyncio.sleep(pause_seconds)

    async def populate(self) -> None:
        await self._concurrently(
            kwok.manifests(NODES_OF_KWOK, ZONES, tainted=False), lambda node: self.client.create(NODES, node)
        )
        node = kwok.manifest(0, ZONES[0], 0, tainted=False)
        node["metadata"] |= {"name": BY_HAND_NODE, "annotations": {}}
        await self.client.create(NODES, node)
        names = {key.namespace for key in (*self.crowd, *self.by_hand)}
        await self._concurrently(names, lambda name: self.client.create(NAMESPACES, {"metadata": {"name": name}}))
        services = (*self.crowd, *self.by_hand)
        await self._concurrently(services, lambda key: self.client.create(SERVICES, _service(key)))
        await self._concurrently(
            [(key, str(number)) for key in services for number in range(self.pods_per_service)],
            lambda pod: self.create_pod(*pod),
        )
        for number, key in enumerate(self.by_hand):
            for index in range(self.pods_per_service):
                await self.set_ready(key, str(index), ready=False, address=f"10.9.{number}.{index + 1}")
        expected_pods = len(self.crowd) * self.pods_per_service
        await self.until(lambda: sum(map(is_ready, self._pods)) >= expected_pods, pause_seconds=1)

    async def create_pod(self, service: Key, suffix: str) -> None:
        index = hash_of(f"{service}{suffix}") % NODES_OF_KWOK
        node = BY_HAND_NODE if service.namespace == BY_HAND else f"kwok-{index:05d}"
        await self.client.create(PODS, _pod(service, suffix, node))

    async def replace_pod(self, service: Key, old: str, new: str) -> None:
        """Like a rolling update with a surge of one: creates the new pod, and deletes the old one once that is ready."""
        await self.create_pod(service, new)
        await self.until(lambda: (pod := self._pods.get(_pod_key(service, new))) is not None and is_ready(pod))
        await self.client.delete(PODS, _pod_key(service, old).name, service.namespace)
        await self.until(lambda: self._pods.get(_pod_key(service, old)) is None)

    async def set_ready(self, service: Key, suffix: str, *, ready: bool, address: str = "") -> None:
        status: dict[str, Any] = {
            "phase": "Running",
            "conditions": [{"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}],
        }
        if address:
            status |= {"podIP": address, "podIPs": [{"ip": address}]}
        key = _pod_key(service, suffix)
        patch = StrategicPatch({"status": status})
        await self.client.patch(PODS, key.name, patch, key.namespace, subresource="status")

    def address_of(self, service: Key, suffix: str) -> str:
        pod = self._pods.get(_pod_key(service, suffix))
        assert pod is not None
        return pod.status.pod_ip

    async def without_slices(self) -> None:
        """Deletes all slices, and makes all pods by hand unready."""
        pods = [(key, str(index)) for key in self.by_hand for index in range(self.pods_per_service)]
        await self._concurrently(pods, lambda pod: self.set_ready(*pod, ready=False))
        for namespace in {key.namespace for key in (*self.crowd, *self.by_hand)}:
            await self.client.delete_collection(ENDPOINT_SLICES, namespace)
        await self.until(lambda: not len(self._slices))

    async def _concurrently(self, items: Iterable[T], act: Callable[[T], Awaitable[Any]]) -> None:
        remaining = iter(items)

        async def work() -> None:
            for item in remaining:
                await act(item)

        async with asyncio.TaskGroup() as group:
            for _ in range(_AT_ONCE):
                group.create_task(work())


@asynccontextmanager
async def bench_cluster(
    plane: ControlPlane, *, services: int, pods_per_service: int, namespaces: int
) -> AsyncIterator[BenchCluster]:
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        caches = Caches(client)
        cluster = BenchCluster(client, caches, services, pods_per_service, namespaces)
        async with caches:
            await caches.wait_synced()
            await cluster.populate()
            yield cluster


def is_ready(pod: Pod) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)


def hash_of(text: str) -> int:
    """A hash that is the same in every run."""
    return sum(ord(letter) * 31**position for position, letter in enumerate(text))


def _service_of(endpoint_slice: EndpointSlice) -> list[str]:
    return [f"{endpoint_slice.metadata.namespace}/{endpoint_slice.metadata.labels.get(SERVICE_NAME, '')}"]


def _service_of_pod(pod: Pod) -> list[str]:
    return [f"{pod.metadata.namespace}/{pod.metadata.labels.get('app', '')}"]


def _pod_key(service: Key, suffix: str) -> Key:
    return Key(service.namespace, f"{service.name}-{suffix}")


def _service(key: Key) -> dict[str, Any]:
    return {
        "metadata": {"name": key.name, "namespace": key.namespace, "labels": {"app": key.name}},
        "spec": {"selector": {"app": key.name}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }


def _pod(service: Key, suffix: str, node: str) -> dict[str, Any]:
    key = _pod_key(service, suffix)
    container = {"name": "main", "image": "none", "ports": [{"name": "http", "containerPort": 8080}]}
    return {
        "metadata": {"name": key.name, "namespace": key.namespace, "labels": {"app": service.name, "tier": "bench"}},
        "spec": {
            "nodeName": node,
            "containers": [container],
            "terminationGracePeriodSeconds": 1,
            "tolerations": [{"operator": "Exists"}],
        },
    }
