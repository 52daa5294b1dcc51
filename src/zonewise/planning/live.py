"""A situation read from a live cluster, once. Asks only for what routing depends on."""

from __future__ import annotations

import asyncio

from zonewise.kube.access import Access
from zonewise.kube.client import Client
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, NODES, SERVICES
from zonewise.planning.situation import Situation, gather


def read(access: Access, *, own: bool | None = None) -> Situation:
    return asyncio.run(_read(access, own))


async def _read(access: Access, own: bool | None) -> Situation:
    async with Client(access, wait_for_server=False) as client:
        nodes, services, slices, namespaces = await asyncio.gather(
            client.list(NODES), client.list(SERVICES), client.list(ENDPOINT_SLICES), client.list(NAMESPACES)
        )
    return gather(nodes.items, services.items, slices.items, namespaces=namespaces.items, own=own)
