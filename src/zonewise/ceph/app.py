"""The driver's two processes: gRPC on a unix socket in threads, and what speaks to Kubernetes on the event loop beside it.

A node plugin serves from its start: volumes are mounted and unmounted whether the API server is there or not. What ends
a process, ends from the inside out: calls under way get their time, then the lease, events and watches go.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final

from zonewise import log
from zonewise.api.names import CSI_LEASE, CSI_REPORTER
from zonewise.ceph.controller.auto_takeover import AutoTakeover, AutoTakeoverConfig
from zonewise.ceph.controller.events import ClaimEvents
from zonewise.ceph.grpc_server import GrpcServer
from zonewise.ceph.node.topology_labels import NodeTopology, TopologyLabels
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import LeaderElector, unique_identity
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.decide.election import Timing
from zonewise.kube.server.health import Health
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.access import ClusterAccess

_GRACE_SECONDS: Final = 15.0
_log = log.get_logger(__name__)

Services = dict[str, object]
"""By the name in the CSI specification."""
Segments = Callable[[], Mapping[str, str]]
Announce = Callable[[Mapping[str, str], str, str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunAsLeader:
    namespace: str
    lease_seconds: int = 15

    @property
    def timing(self) -> Timing:
        return Timing(self.lease_seconds, self.lease_seconds * 2 / 3, self.lease_seconds * 2 / 15)


@asynccontextmanager
async def serving(endpoint: str, services: Services) -> AsyncIterator[None]:
    server = GrpcServer(endpoint, services)
    await asyncio.to_thread(server.start)
    try:
        yield
    finally:
        await asyncio.shield(asyncio.to_thread(server.stop, _GRACE_SECONDS))


async def alone(endpoint: str, services: Services, health: Health) -> None:
    """Without an orchestrator: only the socket, until cancelled."""
    async with serving(endpoint, services):
        health.started()
        await asyncio.Event().wait()


async def node(
    access: ClusterAccess, endpoint: str, where: NodeTopology, services: Callable[[Segments], Services], health: Health
) -> None:
    async with Client(access) as client:
        caches = Caches(client)
        async with Recorder(client, CSI_REPORTER, where.node) as recorder:
            advertising = TopologyLabels(client, caches, recorder, where)
            health.add_ready("topology", advertising.trouble)
            async with serving(endpoint, services(advertising.segments)), caches:
                health.started()
                _log.info("node plugin started", node=where.node, labels=list(where.labels.keys))
                await caches.wait_synced()
                await advertising.run()


async def controller(
    access: ClusterAccess,
    endpoint: str,
    settings: AutoTakeoverConfig,
    lead: RunAsLeader | None,
    services: Callable[[Announce], Services],
    health: Health,
) -> None:
    """Every replica serves; takeovers are the leader's. Without a `lead` this process must be the only one."""
    identity = unique_identity()
    async with Client(access) as client:
        leadership = (
            LeaderElector(client, CSI_LEASE, lead.namespace, identity=identity, timing=lead.timing)
            if lead is not None
            else None
        )
        caches = Caches(client)
        async with Recorder(client, CSI_REPORTER, identity) as recorder:
            announcements = ClaimEvents(client, recorder)
            writing = client.guarded(leadership) if leadership else client
            automatic = AutoTakeover(writing, caches, recorder, settings)
            health.add_ready("takeover", automatic.trouble)
            async with serving(endpoint, services(announcements.announce)), caches, asyncio.TaskGroup() as group:
                health.started()
                _log.info("controller plugin started", automatic=settings.writes, watched=settings.watched)
                group.create_task(announcements.run(), name="announcements")
                await caches.wait_synced()
                await (leadership.run(automatic.run) if leadership else automatic.run())
