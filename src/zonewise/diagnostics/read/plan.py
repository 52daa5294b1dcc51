"""A planning snapshot read from a live cluster: only what routing depends on."""

from __future__ import annotations

import asyncio

from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, NODES, SERVICES
from zonewise.objects.apps import DAEMON_SETS, DEPLOYMENTS
from zonewise.planning.data_plane import DATA_PLANE_SELECTOR, NO_OVERRIDES, DataPlanes, Overrides, find_data_planes
from zonewise.planning.snapshot import Snapshot, build_snapshot


async def read_snapshot(
    reader: ClusterReader, *, own: bool | None = None, overrides: Overrides = NO_OVERRIDES
) -> Snapshot:
    nodes, services, slices, namespaces, data_planes = await asyncio.gather(
        reader.list(NODES),
        reader.list(SERVICES),
        reader.list(ENDPOINT_SLICES),
        reader.list(NAMESPACES),
        read_data_planes(reader),
    )
    return build_snapshot(
        nodes, services, slices, namespaces=namespaces, own=own, data_planes=overrides.apply_to(data_planes)
    )


async def read_data_planes(reader: ClusterReader) -> DataPlanes:
    """If workloads may not be read, assume that neither the Zonewise proxy nor its DNS server runs."""
    daemon_sets, deployments = await asyncio.gather(
        reader.list_or_empty(DAEMON_SETS, selector=DATA_PLANE_SELECTOR),
        reader.list_or_empty(DEPLOYMENTS, selector=DATA_PLANE_SELECTOR),
    )
    return find_data_planes([*daemon_sets, *deployments])
