"""A situation read from a live cluster, once. Asks only for what routing depends on."""

from __future__ import annotations

import asyncio
from typing import TypeVar

from zonewise.kube.client.client import Client
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, NODES, SERVICES, Resource
from zonewise.objects.apps import DAEMON_SETS, DEPLOYMENTS
from zonewise.planning.data_plane import CARRYING, UNTOLD, DataPlanes, Overrides, carriers_of
from zonewise.planning.snapshot import Snapshot, gather

T = TypeVar("T")


def read(access: ClusterAccess, *, own: bool | None = None, told: Overrides = UNTOLD) -> Snapshot:
    return asyncio.run(_read(access, own, told))


async def _read(access: ClusterAccess, own: bool | None, told: Overrides) -> Snapshot:
    async with Client(access, wait_for_server=False) as client:
        nodes, services, slices, namespaces, carriers = await asyncio.gather(
            client.list(NODES),
            client.list(SERVICES),
            client.list(ENDPOINT_SLICES),
            client.list(NAMESPACES),
            read_carriers(client),
        )
    return gather(
        nodes.items,
        services.items,
        slices.items,
        namespaces=namespaces.items,
        own=own,
        carriers=told.over(carriers),
    )


async def read_carriers(client: Client) -> DataPlanes:
    """Who may not read workloads takes none of Zonewise's to be there."""
    daemon_sets, deployments = await asyncio.gather(_ours(client, DAEMON_SETS), _ours(client, DEPLOYMENTS))
    return carriers_of([*daemon_sets, *deployments])


async def _ours(client: Client, resource: Resource[T]) -> list[T]:
    try:
        return (await client.list(resource, selector=CARRYING)).items
    except (Forbidden, NotFound):
        return []
