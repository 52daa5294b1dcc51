"""The manager of a program that runs against one cluster: client, watch caches, events, leader leases and health.

An app builds its controllers from `client`, `caches`, `recorder` and `leader`, adds what is to run, and awaits `run`.
Parts of one process share the manager, and with it every watch. `run` starts from the outside in and ends from the
inside out: client, event recorders, servers, watch caches, then the parts with their leases. A part that fails ends
them all.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any

from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import LeaderElector, unique_identity
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.decide.election import Timing
from zonewise.kube.server.health import Health
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.access import ClusterAccess

Run = Callable[[], Coroutine[Any, Any, None]]
"""Works until cancelled."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseConfig:
    name: str
    namespace: str = "kube-system"
    lease_seconds: int = 15

    @property
    def timing(self) -> Timing:
        return Timing(self.lease_seconds, self.lease_seconds * 2 / 3, self.lease_seconds * 2 / 15)


class Leader:
    """Runs work under a lease. Without an elector it always leads: the process must then be the only one."""

    def __init__(self, elector: LeaderElector | None) -> None:
        self._elector = elector

    @property
    def is_alone(self) -> bool:
        return self._elector is None

    def guarded(self, client: Client) -> Client:
        """`client`, but its writes fail while this process does not lead."""
        return client.guarded(self._elector) if self._elector else client

    async def run(self, *runs: Run) -> None:
        """Run all of `runs` during each leadership, until they return, one fails, or this is cancelled."""
        lead = partial(_run_together, [(None, run) for run in runs])
        await (self._elector.run(lead) if self._elector else lead())


class Manager:
    """`page_size` and `longest_rest_seconds` are those of `Caches`."""

    def __init__(
        self,
        access: ClusterAccess,
        health: Health,
        *,
        identity: str = "",
        page_size: int | None = None,
        longest_rest_seconds: float = 0.0,
    ) -> None:
        self.access = access
        self.health = health
        self.client = Client(access)
        self.caches = Caches(self.client, page_size=page_size, longest_rest_seconds=longest_rest_seconds)
        self._identity = identity or unique_identity()
        self._recorders: list[Recorder] = []
        self._servers: list[AbstractAsyncContextManager[Any]] = []
        self._parts: list[tuple[str | None, Run]] = []

    def recorder(self, reporter: str) -> Recorder:
        """Writes events from the start of `run`; what is left at its end is written after the servers have stopped."""
        self._recorders.append(Recorder(self.client, reporter, self._identity))
        return self._recorders[-1]

    def leader(self, lease: LeaseConfig | None) -> Leader:
        if lease is None:
            return Leader(None)
        return Leader(
            LeaderElector(self.client, lease.name, lease.namespace, identity=self._identity, timing=lease.timing)
        )

    def add_server(self, server: AbstractAsyncContextManager[Any]) -> None:
        """Serves before the caches are synced, and until they have stopped."""
        self._servers.append(server)

    def add(self, name: str, run: Run) -> None:
        """A part of the program, cancelled when `run` is; the caches are running, but not synced."""
        self._parts.append((name, run))

    async def started(self, watches: Iterable[Cache[Any]]) -> None:
        """Wait for these only: a kind that another part can't read must not hold this one up. Then report readiness."""
        for watch in watches:
            await watch.wait_synced()
        self.health.started()

    async def run(self) -> None:
        """Until every part has returned, one fails, or this is cancelled."""
        async with self.client, AsyncExitStack() as stack:
            for recorder in self._recorders:
                await stack.enter_async_context(recorder)
            for server in self._servers:
                await stack.enter_async_context(server)
            await stack.enter_async_context(self.caches)
            await _run_together(self._parts)


async def _run_together(runs: Iterable[tuple[str | None, Run]]) -> None:
    async with asyncio.TaskGroup() as group:
        for name, run in runs:
            group.create_task(run(), name=name)
