"""A planning snapshot read from a live cluster: only what routing depends on."""

from __future__ import annotations

import asyncio

from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, NODES, SERVICES
from zonewise.objects.apps import DAEMON_SETS, DEPLOYMENTS
from zonewise.planning.data_plane import CARRYING, UNTOLD, DataPlanes, Overrides, carriers_of
from zonewise.planning.snapshot import Snapshot, gather


async def read_snapshot(reader: ClusterReader, *, own: bool | None = None, overrides: Overrides = UNTOLD) -> Snapshot:
    nodes, services, slices, namespaces, data_planes = await asyncio.gather(
        reader.list(NODES),
        reader.list(SERVICES),
        reader.list(ENDPOINT_SLICES),
        reader.list(NAMESPACES),
        read_data_planes(reader),
    )
    return gather(nodes, services, slices, namespaces=namespaces, own=own, carriers=overrides.over(data_planes))


async def read_data_planes(reader: ClusterReader) -> DataPlanes:
    """If workloads may not be read, assume that neither the Zonewise proxy nor its DNS server runs."""
    daemon_sets, deployments = await asyncio.gather(
        reader.list_or_empty(DAEMON_SETS, selector=CARRYING), reader.list_or_empty(DEPLOYMENTS, selector=CARRYING)
    )
    return carriers_of([*daemon_sets, *deployments])
