"""Comparison of watch caches with the API server's contents."""

from __future__ import annotations

from typing import Any

from prometheus_client import REGISTRY

from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.watch.cache import Cache
from zonewise.objects import Key, Resource, key_of


def contents(cache: Cache[Any]) -> dict[Key, Any]:
    return {key_of(item): item for item in cache}


async def server_contents(
    client: Client, resource: Resource[Any], namespace: str = "", **selection: str
) -> dict[Key, Any]:
    listing = await client.list(resource, namespace, **selection)
    return {key_of(item): item for item in listing.items}


async def until_equal(
    cache: Cache[Any], client: Client, resource: Resource[Any], namespace: str = "", **selection: str
) -> None:
    """Wait until the cache equals the server's contents in every decoded field."""

    async def equal() -> bool:
        return cache.synced and contents(cache) == await server_contents(client, resource, namespace, **selection)

    await eventually(equal, f"{cache.name} equal to the server")


def sample(name: str, cache: Cache[Any], **labels: str) -> float:
    resource, _, selection = cache.name.partition(" ")
    return REGISTRY.get_sample_value(name, {"resource": resource, "selection": selection, **labels}) or 0.0
