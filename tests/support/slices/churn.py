"""Churn of pods and Services, and an observer that detects moments without a ready endpoint.

Every Service has an anchor: a pod that is ready from before the Service exists until the end. So whatever else changes,
the Service has ready pods, and must have a ready endpoint in every visible state of its slices.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from support.slices.cluster import OF_OURS, ZONES, ClusterNamespace
from zonewise.api.names import PADDING, SAME_ZONE, STARTING_THRESHOLD, TOPOLOGY_MODE
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import ApiError
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import ENDPOINT_SLICES, PODS, SERVICES, EndpointSlice, Key
from zonewise.objects.change import Change
from zonewise.objects.discovery import service_key

POLICIES: tuple[dict[str, str | None], ...] = tuple(
    dict.fromkeys((SAME_ZONE, TOPOLOGY_MODE, STARTING_THRESHOLD, PADDING)) | policy
    for policy in (
        {},
        {SAME_ZONE: "Require"},
        {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "4", PADDING: "1"},
        {TOPOLOGY_MODE: "Auto"},
    )
)
"""The preference starts and ends with a few pods."""
MOST_PODS = 7


class Churn:
    def __init__(self, ns: ClusterNamespace, random: Random, services: int) -> None:
        self._ns = ns
        self._random = random
        self.services = [f"churned-{number}" for number in range(services)]
        self._pods: dict[str, list[str]] = {name: [] for name in self.services}
        self._numbers = itertools.count()
        self.changes = 0

    async def populate(self) -> None:
        for name in self.services:
            await self._ns.pod(f"{name}-anchor", {"app": name}, self._node())
            policy = {key: value for key, value in self._random.choice(POLICIES).items() if value}
            await self._ns.service(name, annotations=policy)

    @asynccontextmanager
    async def going_on(self, pause_seconds: float = 0.02) -> AsyncIterator[None]:
        """Makes one change after the other, also while the API server is down."""
        async with asyncio.TaskGroup() as group:
            task = group.create_task(self._forever(pause_seconds))
            yield
            task.cancel()

    async def some(self, count: int) -> None:
        for _ in range(count):
            with suppress(ApiError):
                await self._change()

    async def _forever(self, pause_seconds: float) -> None:
        while True:
            await self.some(1)
            await asyncio.sleep(pause_seconds)

    async def _change(self) -> None:
        service = self._random.choice(self.services)
        pods = self._pods[service]
        choices: list[Callable[[str], Awaitable[Any]]] = [self._add_pod, self._relabel, self._set_policy]
        if pods:
            choices += [self._flip, self._flip, self._delete_pod, self._end_pod]
        if len(pods) > MOST_PODS:
            choices = [self._delete_pod]
        await self._random.choice(choices)(service)
        self.changes += 1

    async def _add_pod(self, service: str) -> None:
        name = f"{service}-{next(self._numbers)}"
        self._pods[service].append(name)
        await self._ns.pod(name, {"app": service}, self._node(), ready=self._random.random() < 0.7)

    async def _flip(self, service: str) -> None:
        await self._ns.pod_status(self._random.choice(self._pods[service]), ready=self._random.random() < 0.5)

    async def _delete_pod(self, service: str) -> None:
        name = self._pods[service].pop(self._random.randrange(len(self._pods[service])))
        await self._ns.delete_pod(name)

    async def _end_pod(self, service: str) -> None:
        name = self._random.choice(self._pods[service])
        await self._ns.client.delete(PODS, name, self._ns.namespace, grace_seconds=30)

    async def _relabel(self, service: str) -> None:
        patch = MergePatch({"metadata": {"labels": {"turn": str(self._random.randrange(3))}}})
        await self._ns.client.patch(SERVICES, service, patch, self._ns.namespace)

    async def _set_policy(self, service: str) -> None:
        await self._ns.annotate(service, self._random.choice(POLICIES))

    def _node(self) -> str:
        return f"{self._random.choice(ZONES)}-0"


class Observer:
    """Watches the slices of one namespace; `violations` are the moments without a ready endpoint."""

    def __init__(self, ns: ClusterNamespace) -> None:
        self._ns = ns
        self._served: set[Key] = set()
        self.exempt: set[str] = set()
        self.violations: list[str] = []
        self.states = 0

    def outcome(self, fault: str, rounds: int) -> dict[str, Any]:
        """A row of the report of faults; a moment without a ready endpoint is a violation."""
        facts = {"requests": self.states, "what": "changes of slices", "violations": len(self.violations)}
        return {"component": "slice controller", "fault": fault, "rounds": rounds, **facts}

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with Caches(self._ns.client) as caches:
            cache = caches.of(ENDPOINT_SLICES, self._ns.namespace, selector=OF_OURS)
            cache.add_index("service", lambda endpoint_slice: (str(service_key(endpoint_slice)),))
            await cache.wait_synced()
            cache.on_change(lambda change: self._check(change, cache))
            yield

    def _check(self, change: Change[EndpointSlice], cache: Cache[EndpointSlice]) -> None:
        """Checks the whole cache: a list after a lost watch changes several slices at once."""
        endpoint_slice = change.new or change.old
        assert endpoint_slice is not None
        service = service_key(endpoint_slice)
        self.states += 1
        slices = cache.by_index("service", str(service))
        ready = any(endpoint.conditions.ready for service_slice in slices for endpoint in service_slice.endpoints or ())
        if ready:
            self._served.add(service)
        elif service in self._served and service.name not in self.exempt:
            self.violations.append(f"{service} had no ready endpoint at {endpoint_slice.metadata.resource_version}")
