"""Pods and Services that never rest, and an observer that sees whether a Service was ever left without endpoints.

Every Service has an anchor: a pod that is ready from before the Service is until the end. So however the rest changes,
the Service has ready pods, and must have a ready endpoint in every state of its slices that anybody can see.
"""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from random import Random
from typing import Any

from support.slices.cluster import OF_OURS, ZONES, World
from zonewise.api.names import PADDING, SAME_ZONE, STARTING_THRESHOLD, TOPOLOGY_MODE
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import ApiError
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import ENDPOINT_SLICES, PODS, SERVICES, EndpointSlice, Key
from zonewise.objects.change import Change
from zonewise.slices.decide.body import service_key

POLICIES: tuple[dict[str, str | None], ...] = tuple(
    dict.fromkeys((SAME_ZONE, TOPOLOGY_MODE, STARTING_THRESHOLD, PADDING)) | asked
    for asked in (
        {},
        {SAME_ZONE: "Require"},
        {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "4", PADDING: "1"},
        {TOPOLOGY_MODE: "Auto"},
    )
)
"""A preference that starts and ends with the few pods that there are."""
MOST_PODS = 7


class Churn:
    def __init__(self, world: World, random: Random, services: int) -> None:
        self._world = world
        self._random = random
        self.services = [f"churned-{number}" for number in range(services)]
        self._pods: dict[str, list[str]] = {name: [] for name in self.services}
        self._numbers = itertools.count()
        self.changes = 0

    async def populate(self) -> None:
        for name in self.services:
            await self._world.pod(f"{name}-anchor", {"app": name}, self._node())
            policy = {key: value for key, value in self._random.choice(POLICIES).items() if value}
            await self._world.service(name, annotations=policy)

    @asynccontextmanager
    async def going_on(self, pause_seconds: float = 0.02) -> AsyncIterator[None]:
        """Changes one after the other, through whatever happens to the server."""
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
        choices: list[Callable[[str], Awaitable[Any]]] = [self._add_pod, self._relabel, self._ask]
        if pods:
            choices += [self._flip, self._flip, self._delete_pod, self._end_pod]
        if len(pods) > MOST_PODS:
            choices = [self._delete_pod]
        await self._random.choice(choices)(service)
        self.changes += 1

    async def _add_pod(self, service: str) -> None:
        name = f"{service}-{next(self._numbers)}"
        self._pods[service].append(name)
        await self._world.pod(name, {"app": service}, self._node(), ready=self._random.random() < 0.7)

    async def _flip(self, service: str) -> None:
        await self._world.pod_status(self._random.choice(self._pods[service]), ready=self._random.random() < 0.5)

    async def _delete_pod(self, service: str) -> None:
        name = self._pods[service].pop(self._random.randrange(len(self._pods[service])))
        await self._world.delete_pod(name)

    async def _end_pod(self, service: str) -> None:
        name = self._random.choice(self._pods[service])
        await self._world.client.delete(PODS, name, self._world.namespace, grace_seconds=30)

    async def _relabel(self, service: str) -> None:
        patch = MergePatch({"metadata": {"labels": {"turn": str(self._random.randrange(3))}}})
        await self._world.client.patch(SERVICES, service, patch, self._world.namespace)

    async def _ask(self, service: str) -> None:
        await self._world.annotate(service, self._random.choice(POLICIES))

    def _node(self) -> str:
        return f"{self._random.choice(ZONES)}-0"


class Observer:
    """Sees every state of the slices in one namespace; `violations` are the moments without a ready endpoint."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._served: set[Key] = set()
        self.exempt: set[str] = set()
        self.violations: list[str] = []
        self.states = 0

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        async with Caches(self._world.client) as caches:
            cache = caches.of(ENDPOINT_SLICES, self._world.namespace, selector=OF_OURS)
            cache.add_index("service", lambda seen: (str(service_key(seen)),))
            await cache.wait_synced()
            cache.on_change(lambda change: self._saw(change, cache))
            yield

    def _saw(self, change: Change[EndpointSlice], cache: Cache[EndpointSlice]) -> None:
        """Judged by all that the cache holds: what a list after a lost watch changes, it changes at once."""
        seen = change.new or change.old
        assert seen is not None
        service = service_key(seen)
        self.states += 1
        slices = cache.by_index("service", str(service))
        ready = any(endpoint.conditions.ready for each in slices for endpoint in each.endpoints or ())
        if ready:
            self._served.add(service)
        elif service in self._served and service.name not in self.exempt:
            self.violations.append(f"{service} had no ready endpoint at {seen.metadata.resource_version}")
