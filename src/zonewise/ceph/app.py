"""The processes of the CSI driver: gRPC on a unix socket in threads, Kubernetes on the event loop beside it.

A node plugin serves from its start: volumes are mounted and unmounted whether the API server is there or not. At the end
the lease and the watches go first, then calls under way get their time, and events are written last.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

from zonewise import log
from zonewise.api.names import CSI_REPORTER
from zonewise.ceph.controller.auto_takeover import AutoTakeover, AutoTakeoverConfig
from zonewise.ceph.controller.events import ClaimEvents
from zonewise.ceph.grpc_server import GrpcServer
from zonewise.ceph.node.registration import registering
from zonewise.ceph.node.service import NodeService
from zonewise.ceph.node.topology_labels import NodeTopology, TopologyLabels
from zonewise.ceph.node.volume_watch import VolumeWatch
from zonewise.kube.manager import LeaseConfig, Manager
from zonewise.kube.server.health import Health
from zonewise.kube.wire.access import ClusterAccess

_GRACE_SECONDS: Final = 15.0
_log = log.get_logger(__name__)

Services = dict[str, object]
"""By the name in the CSI specification."""
Segments = Callable[[], Mapping[str, str]]
Announce = Callable[[Mapping[str, str], str, str], None]


@asynccontextmanager
async def serving(endpoint: str, services: Services) -> AsyncIterator[None]:
    server = GrpcServer(endpoint, services)
    await asyncio.to_thread(server.start)
    try:
        yield
    finally:
        await asyncio.shield(asyncio.to_thread(server.stop, _GRACE_SECONDS))


async def alone(endpoint: str, services: Services, health: Health) -> None:
    """Without an orchestrator: only the socket, until cancelled. Broken volumes of a node are logged and counted."""
    async with serving(endpoint, services):
        health.started()
        node_service = services.get("Node")
        if isinstance(node_service, NodeService):
            await VolumeWatch(node_service.broken_volumes, lambda _sentence: None).run()
        await asyncio.Event().wait()


async def node(
    access: ClusterAccess,
    endpoint: str,
    registration: Path | None,
    where: NodeTopology,
    services: Callable[[Segments], Services],
    health: Health,
) -> None:
    """`registration`: the kubelet's directory for sockets of plugins; None if a sidecar registers the driver."""
    manager = Manager(access, health, identity=where.node)
    topology = TopologyLabels(manager.client, manager.caches, manager.recorder(CSI_REPORTER), where)
    health.add_ready("topology", topology.trouble)
    served = services(topology.segments)
    manager.add_server(serving(endpoint, served))
    if registration is not None:  # begins after the driver's own socket, and ends before it
        manager.add_server(registering(registration, endpoint, health))
    node_service = served["Node"]
    assert isinstance(node_service, NodeService)
    manager.add("volumes", VolumeWatch(node_service.broken_volumes, topology.report_broken_volume).run)

    async def run() -> None:
        health.started()
        _log.info("node plugin started", node=where.node, labels=list(where.labels.keys))
        await manager.caches.wait_synced()
        await topology.run()

    manager.add("topology", run)
    await manager.run()


async def controller(
    access: ClusterAccess,
    endpoint: str,
    settings: AutoTakeoverConfig,
    lease: LeaseConfig | None,
    services: Callable[[Announce], Services],
    health: Health,
) -> None:
    """Every replica serves; only the leader takes over. Without a `lease` this process must be the only one."""
    manager = Manager(access, health)
    leader = manager.leader(lease)
    recorder = manager.recorder(CSI_REPORTER)
    events = ClaimEvents(manager.client, recorder)
    takeover = AutoTakeover(leader.guarded(manager.client), manager.caches, recorder, settings)
    health.add_ready("takeover", takeover.trouble)
    manager.add_server(serving(endpoint, services(events.announce)))

    async def run() -> None:
        health.started()
        _log.info("controller plugin started", automatic=settings.writes, watched=settings.watched)
        await manager.caches.wait_synced()
        await leader.run(takeover.run)

    manager.add("announcements", events.run)
    manager.add("takeover", run)
    await manager.run()
