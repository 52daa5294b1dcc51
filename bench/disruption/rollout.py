"""A rolling update over three zones, one pod per zone at a time: API calls, duration, and serving pods.

Ours updates a StatefulSet by eviction and a Deployment by grants. Stock is a Deployment with a PodDisruptionBudget of
the same size, restarted by `kubectl rollout restart`: it ignores zones, and rollouts ignore the budget.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from bench.disruption.cluster import BUDGETS, LEADER, WEBHOOK, ZONES, Call, Cluster, summary, wait_until
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Pod, Resource
from zonewise.topology import ZONE

APP: Final = "web"
STATEFUL_SETS: Final = Resource(dict[str, Any], "StatefulSet", "statefulsets", "apps")
DEPLOYMENTS: Final = Resource(dict[str, Any], "Deployment", "deployments", "apps")
STOCK_BUDGETS: Final = Resource(dict[str, Any], "PodDisruptionBudget", "poddisruptionbudgets", "policy")
SELECTOR: Final = {"matchLabels": {"app": APP}}
STOCK_CONTROLLERS: Final = ("deployment-controller", "replicaset-controller")


@dataclass(frozen=True)
class Figures:
    """`writes` of the components that choose and remove pods; `refused`: those with status 429."""

    writes: int
    refused: int
    seconds: float
    lowest_in_a_zone: int
    calls: Counter[str]


def lower_bound(pods: int, per_zone: int = 1, budgets: int = 1) -> int:
    """One request per pod, one write per wave and budget, and two more."""
    waves = -(-pods // (len(ZONES) * per_zone))
    return pods + waves * budgets + 2


async def ours_stateful(cluster: Cluster, pods: int) -> Figures:
    namespace = await _namespace(cluster, f"sts-{pods}")
    metadata = {"name": APP, "annotations": {"zonewise.dev/update": "Evict"}}
    strategy = {"podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"}}
    spec = {"replicas": pods, "serviceName": APP, **strategy, "selector": SELECTOR, "template": _template()}
    await cluster.client.create(STATEFUL_SETS, {"metadata": metadata, "spec": spec}, namespace)
    return await _measure(cluster, namespace, pods, "statefulset", (LEADER, WEBHOOK), budget=True)


async def ours_deployment(cluster: Cluster, pods: int) -> Figures:
    namespace = await _namespace(cluster, f"deploy-{pods}")
    await cluster.client.create(DEPLOYMENTS, _deployment(pods), namespace)
    return await _measure(cluster, namespace, pods, "deployment", (LEADER, WEBHOOK), budget=True)


async def stock(cluster: Cluster, pods: int) -> Figures:
    namespace = await _namespace(cluster, f"stock-{pods}")
    await cluster.client.create(DEPLOYMENTS, _deployment(pods), namespace)
    budget = {"metadata": {"name": APP}, "spec": {"selector": SELECTOR, "maxUnavailable": len(ZONES)}}
    await cluster.client.create(STOCK_BUDGETS, budget, namespace)
    return await _measure(cluster, namespace, pods, "deployment", STOCK_CONTROLLERS, budget=False)


async def _measure(
    cluster: Cluster, namespace: str, pods: int, kind: str, users: Iterable[str], *, budget: bool
) -> Figures:
    async with _watch_pods(cluster, namespace) as watcher:
        await watcher.wait_replaced(pods, set())
        if budget:
            await _one_per_zone(cluster, namespace)
        old = set(watcher.pods)
        watcher.lowest = pods
        mark, started = cluster.mark(), time.monotonic()
        await asyncio.to_thread(cluster.kubectl, "-n", namespace, "rollout", "restart", f"{kind}/{APP}")
        await watcher.wait_replaced(pods, old)
        seconds = time.monotonic() - started
        lowest = watcher.lowest
    await asyncio.sleep(5)  # for final writes, and the delay of the audit log
    calls = [call for call in cluster.calls(mark, namespace) if call.user.endswith(tuple(users)) and call.is_write]
    await cluster.client.delete(NAMESPACES, namespace)
    await wait_until(lambda: _is_gone(cluster, namespace), f"namespace {namespace} is gone")
    relevant = [call for call in calls if budget or _is_rollout_write(call)]
    refused = sum(call.code == 429 for call in relevant)
    return Figures(len(relevant), refused, seconds, lowest, summary(relevant))


def _is_rollout_write(call: Call) -> bool:
    """Writes of the stock controllers without the creation of pods, which they do in any case."""
    return (call.verb, call.resource) == ("delete", "pods") or call.resource in {"replicasets", "events"}


async def _one_per_zone(cluster: Cluster, namespace: str) -> None:
    term = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
    spec = {"selector": SELECTOR, "maxUnavailable": 1, "nodeSelectorTerm": term}
    await cluster.client.create(BUDGETS, {"metadata": {"name": APP}, "spec": spec}, namespace)

    async def counted() -> bool:
        budget = await cluster.client.get(BUDGETS, APP, namespace)
        return bool(budget.get("status", {}).get("disruptionsAllowed") == len(ZONES))

    await wait_until(counted, "the budget is counted")


@dataclass
class _PodWatcher:
    zones: dict[str, str]
    pods: dict[str, Pod] = field(default_factory=dict)
    lowest: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def record(self, kind: str, pod: Pod) -> None:
        if kind == "DELETED":
            self.pods.pop(pod.metadata.uid, None)
        else:
            self.pods[pod.metadata.uid] = pod
        serving = Counter(self.zones[item.spec.node_name] for item in self.pods.values() if _serves(item))
        self.lowest = min(self.lowest, *(serving[zone] for zone in ZONES))
        self.changed.set()

    async def wait_replaced(self, count: int, old: set[str]) -> None:
        async with asyncio.timeout(3600):
            while not (len(self.pods) == count and not old & set(self.pods) and all(map(_serves, self.pods.values()))):
                self.changed.clear()
                await self.changed.wait()
                await asyncio.sleep(0.05)


@asynccontextmanager
async def _watch_pods(cluster: Cluster, namespace: str) -> AsyncIterator[_PodWatcher]:
    """Follow every event of the namespace's pods."""
    nodes = (await cluster.client.list(NODES)).items
    watcher = _PodWatcher({node.metadata.name: node.metadata.labels[ZONE] for node in nodes})
    listing = await cluster.client.list(PODS, namespace)
    for pod in listing.items:
        watcher.record("ADDED", pod)

    async def follow(version: str) -> None:
        while True:
            async with aclosing(cluster.client.watch(PODS, namespace, resource_version=version)) as events:
                async for event in events:
                    version = event.object.metadata.resource_version or version
                    if event.type != "BOOKMARK":
                        watcher.record(event.type, event.object)

    watch_task = asyncio.create_task(follow(listing.resource_version))
    try:
        yield watcher
    finally:
        watch_task.cancel()
        await asyncio.gather(watch_task, return_exceptions=True)


def _serves(pod: Pod) -> bool:
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)
    return ready and pod.metadata.deletion_timestamp is None


async def _namespace(cluster: Cluster, name: str) -> str:
    await cluster.client.create(NAMESPACES, {"metadata": {"name": name}})

    async def has_account() -> bool:
        return bool((await cluster.client.list(SERVICE_ACCOUNTS, name)).items)

    await wait_until(has_account, "the default service account", 0.05)
    return name


async def _is_gone(cluster: Cluster, namespace: str) -> bool:
    try:
        await cluster.client.get(NAMESPACES, namespace)
    except NotFound:
        return True
    return False


def _deployment(pods: int) -> dict[str, Any]:
    """As many at a time as there are zones: the same rate as one per zone."""
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": len(ZONES)}}
    spec = {"replicas": pods, "strategy": strategy, "selector": SELECTOR, "template": _template()}
    return {"metadata": {"name": APP}, "spec": spec | {"progressDeadlineSeconds": 3600, "revisionHistoryLimit": 1}}


def _template() -> dict[str, Any]:
    even = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": SELECTOR}
    pod = {
        "containers": [{"name": "main", "image": "none"}],
        "topologySpreadConstraints": [even],
        "terminationGracePeriodSeconds": 1,
        "automountServiceAccountToken": False,
    }
    return {"metadata": {"labels": {"app": APP}}, "spec": pod}


def log_progress(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)
