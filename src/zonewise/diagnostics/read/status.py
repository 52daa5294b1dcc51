"""The state of a live cluster for `zonewise status`, and the traffic counters of its node proxies."""

from __future__ import annotations

import asyncio
from typing import Final
from urllib.parse import quote

from zonewise.api.names import APP_NAME_LABEL, APP_PROXY, METRICS_TOKEN_HEADER
from zonewise.diagnostics.decide.status import assemble
from zonewise.diagnostics.decide.status.assemble import COMPONENTS, ClusterSnapshot
from zonewise.diagnostics.decide.status.traffic import METRIC, ByteCounters, MeasuredTraffic, parse_counters
from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.kube.client.client import Client
from zonewise.kube.client.metrics_token import request_token
from zonewise.kube.wire.errors import ApiError, Forbidden
from zonewise.objects import ENDPOINT_SLICES, LEASES, NAMESPACES, NODES, PODS, SERVICES, Pod
from zonewise.objects.admissionregistration import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from zonewise.objects.apps import DAEMON_SETS, DEPLOYMENTS
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.objects.storage import PERSISTENT_VOLUMES

_OUR_WORKLOADS: Final = f"{APP_NAME_LABEL} in ({','.join(COMPONENTS)})"
MAX_PROXIES: Final = 500
_MAX_CONCURRENT_SCRAPES: Final = 8
_SCRAPE_SECONDS: Final = 3.0
_METRICS_PORT: Final = 10357


async def read_cluster_snapshot(reader: ClusterReader, *, traffic: bool = True) -> ClusterSnapshot:
    """Raises ApiError if nodes, Services or slices can't be read. All else is optional."""
    version, nodes, services, slices = await asyncio.gather(
        reader.client.version(), reader.list(NODES), reader.list(SERVICES), reader.list(ENDPOINT_SLICES)
    )
    namespaces, deployments, daemon_sets, leases, budgets, volumes = await asyncio.gather(
        reader.list_or_empty(NAMESPACES),
        reader.list_or_empty(DEPLOYMENTS, selector=_OUR_WORKLOADS),
        reader.list_or_empty(DAEMON_SETS, selector=_OUR_WORKLOADS),
        reader.list_named(LEASES, assemble.LEASE_DUTIES),
        reader.list_or_empty(TOPOLOGY_DISRUPTION_BUDGETS),
        reader.list_or_empty(PERSISTENT_VOLUMES),
    )
    mutating, validating, measured = await asyncio.gather(
        reader.list_named(MUTATING_WEBHOOK_CONFIGURATIONS, assemble.WEBHOOK_CONFIGURATIONS),
        reader.list_named(VALIDATING_WEBHOOK_CONFIGURATIONS, assemble.WEBHOOK_CONFIGURATIONS),
        measure_traffic(reader.client) if traffic else _not_measured(),
    )
    return ClusterSnapshot(
        server=reader.client.access.server,
        version=version,
        nodes=nodes,
        namespaces=namespaces,
        services=services,
        slices=slices,
        deployments=deployments,
        daemon_sets=daemon_sets,
        leases=leases,
        webhooks=[*mutating, *validating],
        budgets=budgets,
        volumes=volumes,
        traffic=measured,
        unread=reader.unread,
    )


async def _not_measured() -> MeasuredTraffic:
    return MeasuredTraffic(problem="not asked for")


async def measure_traffic(client: Client) -> MeasuredTraffic:
    """Scrapes the proxies' pods through the API server. This works from anywhere, and needs `get` of pods/proxy and
    `create` of the token of zonewise-metrics-reader.

    A slow proxy is left out after three seconds: late figures would be compared with recent ones.
    """
    reader = ClusterReader(client)
    pods = await reader.list_or_empty(PODS, selector=f"{APP_NAME_LABEL}={APP_PROXY}")
    if reader.unread:
        return MeasuredTraffic(problem=reader.unread[0], forbidden=True)
    running = [pod for pod in pods if pod.status.phase == "Running"]
    slots = asyncio.Semaphore(_MAX_CONCURRENT_SCRAPES)
    tokens = {namespace: await _token(client, namespace) for namespace in {pod.metadata.namespace for pod in running}}
    replies = await asyncio.gather(
        *(_scrape(client, pod, tokens[pod.metadata.namespace], slots) for pod in running[:MAX_PROXIES])
    )
    by_node: dict[str, ByteCounters] = {}
    errors: dict[str, ApiError] = {}
    for pod, reply in zip(running, replies, strict=False):
        if isinstance(reply, ApiError):
            errors[pod.spec.node_name] = reply
        else:
            by_node[pod.spec.node_name] = reply
    problem = next((" ".join(error.message.split()) for error in errors.values()), "")
    if not problem and len(running) > MAX_PROXIES:
        problem = f"only {MAX_PROXIES} are asked"
    forbidden = any(isinstance(error, Forbidden) for error in errors.values())
    return MeasuredTraffic(by_node, len(pods), problem, tuple(errors), forbidden)


async def _token(client: Client, namespace: str) -> str | ApiError:
    """A pod gets a token of its own namespace only: a pod elsewhere that imitates a proxy learns nothing."""
    try:
        return await request_token(client, namespace)
    except ApiError as error:
        return error


async def _scrape(client: Client, pod: Pod, token: str | ApiError, slots: asyncio.Semaphore) -> ByteCounters | ApiError:
    if isinstance(token, ApiError):
        return token
    name = f"https:{quote(pod.metadata.name, safe='')}:{_METRICS_PORT}"
    path = f"{PODS.path(pod.metadata.namespace)}/{name}/proxy/metrics"
    async with slots:
        try:
            body = await client.request(
                "GET",
                path,
                params={"name[]": METRIC},
                headers={METRICS_TOKEN_HEADER: token},
                deadline_seconds=_SCRAPE_SECONDS,
            )
        except ApiError as error:
            return error
    return parse_counters(body.decode(errors="replace"))
