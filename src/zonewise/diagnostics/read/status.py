"""Reads from a cluster, once, what its state is told by. What may not be read is left out, and said."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final, TypeVar
from urllib.parse import quote

from zonewise.api.names import APP_NAME_LABEL, APP_PROXY
from zonewise.diagnostics.decide.status import assemble
from zonewise.diagnostics.decide.status.assemble import COMPONENTS, ClusterSnapshot
from zonewise.diagnostics.decide.status.report import ClusterStatus
from zonewise.diagnostics.decide.status.traffic import METRIC, Bytes, MeasuredTraffic, read_bytes
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, Forbidden, NotFound
from zonewise.objects import ENDPOINT_SLICES, LEASES, NAMESPACES, NODES, PODS, SERVICES, Pod, Resource
from zonewise.objects.admissionregistration import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from zonewise.objects.apps import DAEMON_SETS, DEPLOYMENTS
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.objects.storage import PERSISTENT_VOLUMES

T = TypeVar("T")

_OURS: Final = f"{APP_NAME_LABEL} in ({','.join(COMPONENTS)})"
MOST_PROXIES: Final = 500
_AT_ONCE: Final = 8
_SCRAPE_SECONDS: Final = 3.0
_METRICS_PORT: Final = 10356


async def survey(client: Client, now: datetime | None = None, *, traffic: bool = True) -> ClusterStatus:
    return assemble.assemble(await read(client, traffic=traffic), now or datetime.now(UTC))


async def read(client: Client, *, traffic: bool = True) -> ClusterSnapshot:
    """Nodes, Services and slices are asked for; raises ApiError where even these can't be had."""
    unread: list[str] = []

    async def may(resource: Resource[T], *, selector: str = "", fields: str = "") -> list[T]:
        try:
            return (await client.list(resource, selector=selector, fields=fields)).items
        except NotFound:
            return []  # a cluster that does not know the kind has none
        except Forbidden as error:
            unread.append(f"{resource.plural}: {error.message}")
            return []

    async def named(resource: Resource[T], names: Iterable[str]) -> list[T]:
        found = await asyncio.gather(*(may(resource, fields=f"metadata.name={name}") for name in names))
        return [each for part in found for each in part]

    version, nodes, services, slices = await asyncio.gather(
        client.version(), client.list(NODES), client.list(SERVICES), client.list(ENDPOINT_SLICES)
    )
    namespaces, deployments, daemon_sets, leases, budgets, volumes = await asyncio.gather(
        may(NAMESPACES),
        may(DEPLOYMENTS, selector=_OURS),
        may(DAEMON_SETS, selector=_OURS),
        named(LEASES, assemble.LEASES),
        may(TOPOLOGY_DISRUPTION_BUDGETS),
        may(PERSISTENT_VOLUMES),
    )
    mutating, validating, measured = await asyncio.gather(
        named(MUTATING_WEBHOOK_CONFIGURATIONS, assemble.CONFIGURATIONS),
        named(VALIDATING_WEBHOOK_CONFIGURATIONS, assemble.CONFIGURATIONS),
        measure(client) if traffic else _nothing_measured(),
    )
    return ClusterSnapshot(
        server=client.access.server,
        version=version,
        nodes=nodes.items,
        namespaces=namespaces,
        services=services.items,
        slices=slices.items,
        deployments=deployments,
        daemon_sets=daemon_sets,
        leases=leases,
        webhooks=[*mutating, *validating],
        budgets=budgets,
        volumes=volumes,
        traffic=measured,
        unread=sorted(set(unread)),
    )


async def _nothing_measured() -> MeasuredTraffic:
    return MeasuredTraffic(problem="not asked for")


async def measure(client: Client) -> MeasuredTraffic:
    """Asks the proxies' pods through the API server: from anywhere, with rights on pods/proxy where they run and no other.

    Few at once and each for a moment only: figures that are late are no figures.
    """
    try:
        pods = (await client.list(PODS, selector=f"{APP_NAME_LABEL}={APP_PROXY}")).items
    except Forbidden as error:
        return MeasuredTraffic(problem=error.message, forbidden=True)
    running = [pod for pod in pods if pod.status.phase == "Running"]
    turn = asyncio.Semaphore(_AT_ONCE)
    answers = await asyncio.gather(*(_scrape(client, pod, turn) for pod in running[:MOST_PROXIES]))
    by_node: dict[str, Bytes] = {}
    silent: dict[str, ApiError] = {}
    for pod, told in zip(running, answers, strict=False):
        if isinstance(told, ApiError):
            silent[pod.spec.node_name] = told
        else:
            by_node[pod.spec.node_name] = told
    problem = next((" ".join(error.message.split()) for error in silent.values()), "")
    if not problem and len(running) > MOST_PROXIES:
        problem = f"only {MOST_PROXIES} are asked"
    forbidden = any(isinstance(error, Forbidden) for error in silent.values())
    return MeasuredTraffic(by_node, len(pods), problem, tuple(silent), forbidden)


async def _scrape(client: Client, pod: Pod, turn: asyncio.Semaphore) -> Bytes | ApiError:
    """What it counted, or why that is not known."""
    name = f"{quote(pod.metadata.name, safe='')}:{_METRICS_PORT}"
    path = f"{PODS.path(pod.metadata.namespace)}/{name}/proxy/metrics"
    async with turn:
        try:
            body = await client.request("GET", path, params={"name[]": METRIC}, deadline_seconds=_SCRAPE_SECONDS)
        except ApiError as error:
            return error
    return read_bytes(body.decode(errors="replace"))
