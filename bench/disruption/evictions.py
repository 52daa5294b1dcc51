"""What the guard adds to an eviction: the same stream of them with it and without it, on the same control plane.

Nobody else is at work: no controllers, no scheduler, no kubelets and no audit log. The pods are of ReplicaSets that no
controller looks after, are ready because we say so, and stay behind terminating: what is measured is the eviction alone.
Each is charged: that is the longest way through the guard. Without the guard there are no budgets either: the leader would
write of every pod that leaves unannounced, and that would be counted as the server's own work.
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from bench.disruption.asker import Evictor
from bench.disruption.cluster import BUDGETS, ZONES, Cluster, cpu_seconds, until
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import NAMESPACES, PODS, SERVICE_ACCOUNTS, Resource
from zonewise.objects.admissionregistration import VALIDATING_WEBHOOK_CONFIGURATIONS

SECONDS: Final = 5
NAMESPACE: Final = "evictions"
PROGRAMS: Final = (Program.ETCD, Program.APISERVER)
REPLICA_SETS = Resource(dict[str, Any], "ReplicaSet", "replicasets", "apps")
_CONFIGURATION: Final = "zonewise-disruption"
_AGAIN_SECONDS: Final = 0.1
_CONNECTIONS: Final = 32
_EVICTED: Final = 201
_COME_AGAIN: Final = frozenset({429, 500, 504})
"""None is refused for its budget, but all may be told to come again; an overloaded server gives up on webhooks with 500."""


async def prepare(made: Cluster) -> None:
    """What controllers would see to."""
    await made.client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
    await made.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, NAMESPACE)


@dataclass(frozen=True)
class Stream:
    """`taken`: milliseconds of each eviction; `cpu`: of each program, milliseconds of CPU per eviction."""

    taken: list[float]
    cpu: dict[str, float]
    again: int

    @property
    def p99(self) -> float:
        return statistics.quantiles(self.taken, n=100)[98]


async def stream(
    made: Cluster, workloads: int, per_second: int, run: str, programs: Mapping[str, int], *, budgets: bool
) -> Stream:
    """Of so many workloads' pods, each with a budget or none with any, at so many a second."""
    names = [f"{run}-{number}" for number in range(per_second * SECONDS)]
    apps = [f"{run}-{number % workloads}" for number in range(len(names))]
    owners = {app: await _owner(made, app, apps.count(app)) for app in dict.fromkeys(apps)}
    await made.each(zip(names, apps, strict=True), lambda pod: _create(made, *pod, owners[pod[1]]))
    limited = list(owners) if budgets else []
    for app in limited:
        spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": "100%"}
        await made.client.create(BUDGETS, {"metadata": {"name": app}, "spec": spec}, NAMESPACE)
    for app in limited:
        await until(lambda app=app: _is_counted(made, app, apps.count(app)), "the budgets are counted")  # type: ignore[misc]
    await asyncio.sleep(2)
    try:
        async with _evictor(made) as evictor:
            await evictor.connect(_CONNECTIONS)
            before = {name: cpu_seconds(pid) for name, pid in programs.items()}
            taken, again = await _evict(evictor, names, per_second)
            spent = {name: cpu_seconds(pid) - before[name] for name, pid in programs.items()}
        return Stream(taken, {name: seconds * 1000 / len(names) for name, seconds in spent.items()}, again)
    finally:
        for app in limited:
            await made.client.delete(BUDGETS, app, NAMESPACE)
        await made.client.delete_collection(PODS, NAMESPACE, selector=f"run={run}", grace_seconds=0)


def _evictor(made: Cluster) -> Evictor:
    layout = made.plane.layout
    port = layout.port(Program.APISERVER)
    return Evictor(port, made.plane.ca_path, layout.pki / "admin.crt", layout.pki / "admin.key")


async def _evict(evictor: Evictor, names: Sequence[str], per_second: int) -> tuple[list[float], int]:
    """At an even pace, whatever the answers take; and how many were told to come again."""
    taken: list[float] = []
    again = 0

    async def one(name: str) -> None:
        nonlocal again
        begin = time.perf_counter()
        while (code := await evictor.evict(name, NAMESPACE)) != _EVICTED:
            if code not in _COME_AGAIN:
                raise RuntimeError(f"the eviction of {name} was answered {code}")
            again += 1
            await asyncio.sleep(_AGAIN_SECONDS)
        taken.append((time.perf_counter() - begin) * 1000)

    begin = time.perf_counter()
    async with asyncio.TaskGroup() as group:
        for number, name in enumerate(names):
            await asyncio.sleep(max(0.0, begin + number / per_second - time.perf_counter()))
            group.create_task(one(name))
    return taken, again


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
        "automountServiceAccountToken": False,
        "tolerations": [{"operator": "Exists"}],
    }
    labels = {"app": app, "run": app.rpartition("-")[0]}
    metadata = {"name": name, "labels": labels, "ownerReferences": [owner]}
    await made.client.create(PODS, {"metadata": metadata, "spec": spec}, NAMESPACE)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await made.client.patch(PODS, name, MergePatch({"status": ready}), NAMESPACE, subresource="status")


async def _is_counted(made: Cluster, app: str, pods: int) -> bool:
    status = (await made.client.get(BUDGETS, app, NAMESPACE)).get("status", {})
    return bool(status.get("disruptionsAllowed", 0) == pods)
