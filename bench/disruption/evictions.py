"""Latency that the webhook adds to an eviction: the same stream with and without it, on the same control plane.

No controllers, scheduler, kubelets or audit log run. The pods belong to ReplicaSets without a controller, their ready
condition is set by the benchmark, and they stay terminating, so that only the eviction is measured. Each is charged,
the longest path through the webhook. Without the webhook there are no budgets either: the leader would write a status
for every pod that leaves without a charge, and that would count as the API server's work.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.disruption.cluster import BUDGETS, ZONES, Cluster, cpu_seconds, wait_until
from bench.disruption.eviction_client import Evictor
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import NAMESPACES, PODS, SERVICE_ACCOUNTS, Resource
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS

SECONDS: Final = 5
NAMESPACE: Final = "evictions"
PROGRAMS: Final = (Program.ETCD, Program.APISERVER)
REPLICA_SETS: Final = Resource(dict[str, Any], "ReplicaSet", "replicasets", "apps")
_CONFIGURATION: Final = "zonewise-disruption"
_RETRY_SECONDS: Final = 0.1
_CONNECTIONS: Final = 32
_EVICTED: Final = 201
_RETRIED: Final = frozenset({429, 500, 504})
"""No budget denies an eviction, but every one may have to be retried; an overloaded server answers 500 for webhooks."""


async def prepare(cluster: Cluster) -> None:
    """Create what controllers would create."""
    await cluster.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await cluster.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, NAMESPACE)


@dataclass(frozen=True)
class Stream:
    """`milliseconds`: of each eviction; `cpu`: CPU milliseconds per eviction, by program."""

    milliseconds: list[float]
    cpu: dict[str, float]
    retries: int

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.milliseconds, n=100)[98]


async def stream(
    cluster: Cluster, workloads: int, per_second: int, run: str, programs: Mapping[str, int], *, budgets: bool
) -> Stream:
    """Evict pods of `workloads` workloads at a fixed rate, with a budget for each workload or without any."""
    names = [f"{run}-{number}" for number in range(per_second * SECONDS)]
    apps = [f"{run}-{number % workloads}" for number in range(len(names))]
    owners = {app: await _owner(cluster, app, apps.count(app)) for app in dict.fromkeys(apps)}
    await cluster.for_each(zip(names, apps, strict=True), lambda pod: _create(cluster, *pod, owners[pod[1]]))
    budget_apps = list(owners) if budgets else []
    for app in budget_apps:
        spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": "100%"}
        await cluster.client.create(BUDGETS, {"metadata": {"name": app}, "spec": spec}, NAMESPACE)
    for app in budget_apps:
        await wait_until(lambda app=app: _is_counted(cluster, app, apps.count(app)), "the budgets are counted")  # type: ignore[misc]
    await asyncio.sleep(2)
    try:
        async with _evictor(cluster) as evictor:
            await evictor.connect(_CONNECTIONS)
            before = {name: cpu_seconds(pid) for name, pid in programs.items()}
            milliseconds, retries = await _evict(evictor, names, per_second)
            spent = {name: cpu_seconds(pid) - before[name] for name, pid in programs.items()}
        return Stream(milliseconds, {name: seconds * 1000 / len(names) for name, seconds in spent.items()}, retries)
    finally:
        for app in budget_apps:
            await cluster.client.delete(BUDGETS, app, NAMESPACE)
        await cluster.client.delete_collection(PODS, NAMESPACE, selector=f"run={run}", grace_seconds=0)


def _evictor(cluster: Cluster) -> Evictor:
    layout = cluster.plane.layout
    port = layout.port(Program.APISERVER)
    return Evictor(port, cluster.plane.ca_path, layout.pki / "admin.crt", layout.pki / "admin.key")


async def _evict(evictor: Evictor, names: Sequence[str], per_second: int) -> tuple[list[float], int]:
    """At a fixed rate, independent of the replies. Returns the times and the number of retries."""
    milliseconds: list[float] = []
    retries = 0

    async def evict_pod(name: str) -> None:
        nonlocal retries
        started = time.perf_counter()
        while (code := await evictor.evict(name, NAMESPACE)) != _EVICTED:
            if code not in _RETRIED:
                raise RuntimeError(f"unexpected status {code} for the eviction of {name}")
            retries += 1
            await asyncio.sleep(_RETRY_SECONDS)
        milliseconds.append((time.perf_counter() - started) * 1000)

    started = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            await asyncio.sleep(max(0.0, started + number / per_second - time.perf_counter()))
            group.create_task(evict_pod(name))
    return milliseconds, retries


async def unguarded(cluster: Cluster) -> dict[str, Any]:
    """Delete the webhook configuration; returns it for `guarded`."""
    resource = MUTATING_WEBHOOK_CONFIGURATIONS.whole()
    configuration = await cluster.client.get(resource, _CONFIGURATION)
    await cluster.client.delete(resource, _CONFIGURATION)
    await asyncio.sleep(2)
    return configuration


async def guarded(cluster: Cluster, configuration: dict[str, Any]) -> None:
    metadata = {key: configuration["metadata"][key] for key in ("name", "labels") if key in configuration["metadata"]}
    body = {"metadata": metadata, "webhooks": configuration["webhooks"]}
    await cluster.client.create(MUTATING_WEBHOOK_CONFIGURATIONS.whole(), body)
    await asyncio.sleep(3)


async def _owner(cluster: Cluster, app: str, pods: int) -> dict[str, Any]:
    labels = {"app": app}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template}
    replica_set = await cluster.client.create(REPLICA_SETS, {"metadata": {"name": app}, "spec": spec}, NAMESPACE)
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "controller": True}
    return reference | {"uid": replica_set["metadata"]["uid"]}


async def _create(cluster: Cluster, name: str, app: str, owner: dict[str, Any]) -> None:
    number = int(name.rpartition("-")[2])
    spec = {
        "nodeName": f"kwok-{number % (20 * len(ZONES)):05d}",
        "containers": [{"name": "main", "image": "none"}],
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    labels = {"app": app, "run": app.rpartition("-")[0]}
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    await cluster.client.create(PODS, {"metadata": metadata, "spec": spec}, NAMESPACE)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await cluster.client.patch(PODS, name, MergePatch({"status": ready}), NAMESPACE, subresource="status")


async def _is_counted(cluster: Cluster, app: str, pods: int) -> bool:
    status = (await cluster.client.get(BUDGETS, app, NAMESPACE)).get("status", {})
    return bool(status.get("disruptionsAllowed", 0) == pods)
