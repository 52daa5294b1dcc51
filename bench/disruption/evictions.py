"""What the guard adds to an eviction: the same stream of them with it and without it, on the same control plane.

The pods are of ReplicaSets that no controller looks after, so that nobody replaces them: what is measured is the eviction
alone. Each is charged: that is the longest way through the guard.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bench.disruption.cluster import BUDGETS, ZONES, Cluster, cpu_seconds, until
from zonewise.kube.errors import NotFound, TooManyRequests
from zonewise.objects import NAMESPACES, PODS, Resource
from zonewise.objects.admissionregistration import VALIDATING_WEBHOOK_CONFIGURATIONS

PER_SECOND = 200
SECONDS = 5
NAMESPACE = "evictions"
CONTROLLERS = "serviceaccount-controller,node-lifecycle-controller"
REPLICA_SETS = Resource(dict[str, Any], "ReplicaSet", "replicasets", "apps")
_CONFIGURATION = "zonewise-disruption"
_AGAIN_SECONDS = 0.1


async def prepare(made: Cluster) -> None:
    with suppress(NotFound):
        await made.client.get(NAMESPACES, NAMESPACE)
        return
    await made.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await asyncio.to_thread(made.plane.wait_service_account, NAMESPACE)


@dataclass(frozen=True)
class Stream:
    """`taken`: milliseconds of each eviction; `cpu`: of each program, milliseconds of CPU per eviction."""

    taken: list[float]
    cpu: dict[int, float]

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.taken, n=100)[98]


async def stream(made: Cluster, budgets: int, run: str, programs: Sequence[int] = ()) -> Stream:
    """Over so many budgets."""
    names = [f"{run}-{number}" for number in range(PER_SECOND * SECONDS)]
    apps = [f"{run}-{number % budgets}" for number in range(len(names))]
    owners = {app: await _owner(made, app, apps.count(app)) for app in dict.fromkeys(apps)}
    await made.each(zip(names, apps, strict=True), lambda pod: _create(made, *pod, owners[pod[1]]))
    await until(lambda: _all_ready(made, run, len(names)), "the pods are ready", 1.0)
    for app in dict.fromkeys(apps):
        spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": "100%"}
        await made.client.create(BUDGETS, {"metadata": {"name": app}, "spec": spec}, NAMESPACE)
    for app in dict.fromkeys(apps):
        await until(lambda app=app: _is_counted(made, app), "the budgets are counted")  # type: ignore[misc]
    await asyncio.sleep(2)
    try:
        before = {pid: cpu_seconds(pid) for pid in programs}
        taken = await _evict(made, names)
        return Stream(taken, {pid: (cpu_seconds(pid) - spent) * 1000 / len(names) for pid, spent in before.items()})
    finally:
        for app in dict.fromkeys(apps):
            await made.client.delete(BUDGETS, app, NAMESPACE)
        await made.client.delete_collection(PODS, NAMESPACE, selector=f"run={run}", grace_seconds=0)


async def _evict(made: Cluster, names: Sequence[str]) -> list[float]:
    """At an even pace, whatever the answers take."""
    taken: list[float] = []

    async def one(name: str) -> None:
        begin = time.perf_counter()
        await until(lambda: _is_evicted(made, name), f"{name} is evicted", _AGAIN_SECONDS)
        taken.append((time.perf_counter() - begin) * 1000)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            await asyncio.sleep(max(0.0, begin + number / PER_SECOND - time.perf_counter()))
            group.create_task(one(name))
    return taken


async def _is_evicted(made: Cluster, name: str) -> bool:
    """None is refused for its budget, but all may be told to come again."""
    try:
        await made.client.evict(name, NAMESPACE)
    except TooManyRequests:
        return False
    return True


async def unguarded(made: Cluster) -> dict[str, Any]:
    """Takes the webhooks out of the way; gives what `guarded` puts back."""
    whole = VALIDATING_WEBHOOK_CONFIGURATIONS.whole()
    found = await made.client.get(whole, _CONFIGURATION)
    await made.client.delete(whole, _CONFIGURATION)
    await asyncio.sleep(2)
    return found


async def guarded(made: Cluster, configuration: dict[str, Any]) -> None:
    metadata = {key: configuration["metadata"][key] for key in ("name", "labels") if key in configuration["metadata"]}
    body = {"metadata": metadata, "webhooks": configuration["webhooks"]}
    await made.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS.whole(), body)
    await asyncio.sleep(3)


async def _owner(made: Cluster, app: str, pods: int) -> dict[str, Any]:
    labels = {"app": app}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "main", "image": "none"}]}}
    spec = {"replicas": pods, "selector": {"matchLabels": labels}, "template": template}
    made_one = await made.client.create(REPLICA_SETS, {"metadata": {"name": app}, "spec": spec}, NAMESPACE)
    reference = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": app, "controller": True}
    return reference | {"uid": made_one["metadata"]["uid"]}


async def _create(made: Cluster, name: str, app: str, owner: dict[str, Any]) -> None:
    number = int(name.rpartition("-")[2])
    spec = {
        "nodeName": f"kwok-{number % (20 * len(ZONES)):05d}",
        "containers": [{"name": "main", "image": "none"}],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    labels = {"app": app, "run": app.rpartition("-")[0]}
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    await made.client.create(PODS, {"metadata": metadata, "spec": spec}, NAMESPACE)


async def _all_ready(made: Cluster, run: str, count: int) -> bool:
    pods = (await made.client.list(PODS, NAMESPACE, selector=f"run={run}")).items
    ready = (any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions) for pod in pods)
    return sum(ready) == count


async def _is_counted(made: Cluster, app: str) -> bool:
    status = (await made.client.get(BUDGETS, app, NAMESPACE)).get("status", {})
    return bool(status.get("disruptionsAllowed", 0) > 0)
