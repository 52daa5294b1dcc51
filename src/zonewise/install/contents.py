"""Contents of our namespace that are the user's: found by the API's own list of kinds, so that no kind is missed."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import Collection
from typing import Any, Final

from zonewise.install.decide.document import Document, identity
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import Resource

_PASSING: Final = {"events", "leases", "endpoints"}
"""Made and renewed by controllers; nothing of a user's is in them."""
_EVERY_NAMESPACE: Final = {("ConfigMap", "kube-root-ca.crt"), ("ServiceAccount", "default")}
_DEADLINE_SECONDS: Final = 10.0
_STORED: Final = {"create", "delete", "list"}
"""Verbs of a kind whose objects are stored, and not computed as metrics are."""


async def of_users(client: Client, namespace: str, ours: Collection[tuple[str, str, str]]) -> list[Document]:
    """All objects in the namespace but ours, what goes with its owner, and what each namespace has."""
    kinds = await _kinds(client)
    listed = await asyncio.gather(*(_objects(client, kind, namespace) for kind in kinds))
    return [
        live
        for live in itertools.chain.from_iterable(listed)
        if identity(live) not in ours
        and (live["kind"], live["metadata"]["name"]) not in _EVERY_NAMESPACE
        and not live["metadata"].keys() & {"ownerReferences", "deletionTimestamp"}
    ]


async def _objects(client: Client, kind: Resource[dict[str, Any]], namespace: str) -> list[Document]:
    try:
        items = (await client.list(kind, namespace)).items
    except NotFound:  # the kind went meanwhile
        return []
    return [{"apiVersion": kind.api_version, "kind": kind.kind, **item} for item in items]


async def _kinds(client: Client) -> list[Resource[dict[str, Any]]]:
    """Every kind that a namespace can hold, once, in the version that its group prefers."""
    groups = json.loads(await client.request("GET", "/apis"))["groups"]
    versions = ["v1", *(group["preferredVersion"]["groupVersion"] for group in groups)]
    answers = await asyncio.gather(*(_resources(client, version) for version in versions))
    kinds: dict[tuple[str, str], Resource[dict[str, Any]]] = {}
    for version, resources in zip(versions, answers, strict=True):
        group, _, number = version.rpartition("/")
        for resource in resources:
            plural, is_stored = resource["name"], set(resource["verbs"]) >= _STORED
            if resource["namespaced"] and is_stored and "/" not in plural and plural not in _PASSING:
                kinds[group, plural] = Resource(dict[str, Any], resource["kind"], plural, group, number)
    return list(kinds.values())


async def _resources(client: Client, version: str) -> list[dict[str, Any]]:
    path = f"/apis/{version}" if "/" in version else f"/api/{version}"
    answer = await client.request("GET", path, deadline_seconds=_DEADLINE_SECONDS)
    resources: list[dict[str, Any]] = json.loads(answer)["resources"]
    return resources
