"""A rolling update over three zones, one pod of each at a time: what it costs in calls, how long it takes, what it keeps.

Ours updates a StatefulSet by eviction and a Deployment by grants. Stock is a Deployment with a PodDisruptionBudget of
the same size, restarted by `kubectl rollout restart`: nothing tells it of zones, and rollouts don't ask the budget.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterable
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from bench.disruption.cluster import BUDGETS, LEADER, WEBHOOK, ZONES, Call, Cluster, summary, until
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Pod, Resource
from zonewise.topology import ZONE

APP = "web"
STATEFUL_SETS = Resource(dict[str, Any], "StatefulSet", "statefulsets", "apps")
DEPLOYMENTS = Resource(dict[str, Any], "Deployment", "deployments", "apps")
STOCK_BUDGETS = Resource(dict[str, Any], "PodDisruptionBudget", "poddisruptionbudgets", "policy")
SELECTOR = {"matchLabels": {"app": APP}}
STOCK_CONTROLLERS = ("deployment-controller", "replicaset-controller")


@dataclass(frozen=True)
class Figures:
    """`writes` are those of whoever chooses and removes pods; `refused` those of them that were answered 429."""

    writes: int
    refused: int
    seconds: float
    lowest_in_a_zone: int
    calls: Counter[str]


def lower_bound(pods: int, per_zone: int = 1, budgets: int = 1) -> int:
    """One request per pod, one write per wave and budget, and two."""
    waves = -(-pods // (len(ZONES) * per_zone))
    return pods + waves * budgets + 2


async def ours_stateful(made: Cluster, pods: int) -> Figures:
    namespace = await _namespace(made, f"sts-{pods}")
    metadata = {"name": APP, "annotations": {"zonewise.dev/update": "Evict"}}
    strategy = {"podManagementPolicy": "Parallel", "updateStrategy": {"type": "OnDelete"}}
    spec = {"replicas": pods, "serviceName": APP, **strategy, "selector": SELECTOR, "template": _template()}
    await made.client.create(STATEFUL_SETS, {"metadata": metadata, "spec": spec}, namespace)
    return await _measure(made, namespace, pods, "statefulset", (LEADER, WEBHOOK), budget=True)


async def ours_deployment(made: Cluster, pods: int) -> Figures:
    namespace = await _namespace(made, f"deploy-{pods}")
    await made.client.create(DEPLOYMENTS, _deployment(pods), namespace)
    return await _measure(made, namespace, pods, "deployment", (LEADER, WEBHOOK), budget=True)


async def stock(made: Cluster, pods: int) -> Figures:
    namespace = await _namespace(made, f"stock-{pods}")
    await made.client.create(DEPLOYMENTS, _deployment(pods), namespace)
    budget = {"metadata": {"name": APP}, "spec": {"selector": SELECTOR, "maxUnavailable": len(ZONES)}}
    await made.client.create(STOCK_BUDGETS, budget, namespace)
    return await _measure(made, namespace, pods, "deployment", STOCK_CONTROLLERS, budget=False)


async def _measure(
    made: Cluster, namespace: str, pods: int, kind: str, users: Iterable[str], *, budget: bool
) -> Figures:
    async with _crowd(made, namespace) as crowd:
        await crowd.until_new(pods, set())
        if budget:
            await _one_per_zone(made, namespace)
        old = set(crowd.pods)
        crowd.lowest = pods
        mark, begin = made.mark(), time.monotonic()
        await asyncio.to_thread(made.kubectl, "-n", namespace, "rollout", "restart", f"{kind}/{APP}")
        await crowd.until_new(pods, old)
        seconds = time.monotonic() - begin
        lowest = crowd.lowest
    await asyncio.sleep(5)  # last words of those who tidy up, and the log's own delay
    calls = [call for call in made.calls(mark, namespace) if call.user.endswith(tuple(users)) and call.is_write]
    await made.client.delete(NAMESPACES, namespace)
    await until(lambda: _is_gone(made, namespace), f"namespace {namespace} is gone")
    relevant = [call for call in calls if budget or _moves_pods(call)]
    refused = sum(call.code == 429 for call in relevant)
    return Figures(len(relevant), refused, seconds, lowest, summary(relevant))


def _moves_pods(call: Call) -> bool:
    """Of the stock controllers: not the creation of pods, which is theirs in any case."""
    return (call.verb, call.resource) == ("delete", "pods") or call.resource in {"replicasets", "events"}


async def _one_per_zone(made: Cluster, namespace: str) -> None:
    term = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
    spec = {"selector": SELECTOR, "maxUnavailable": 1, "nodeSelectorTerm": term}
    await made.client.create(BUDGETS, {"metadata": {"name": APP}, "spec": spec}, namespace)

    async def counted() -> bool:
        found = await made.client.get(BUDGETS, APP, namespace)
        return bool(found.get("status", {}).get("disruptionsAllowed") == len(ZONES))

    await until(counted, "the budget is counted")


@dataclass
class _Crowd:
    zones: dict[str, str]
    pods: dict[str, Pod] = field(default_factory=dict)
    lowest: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, kind: str, pod: Pod) -> None:
        if kind == "DELETED":
            self.pods.pop(pod.metadata.uid, None)
        else:
            self.pods[pod.metadata.uid] = pod
        serving = Counter(self.zones[each.spec.node_name] for each in self.pods.values() if _serves(each))
        self.lowest = min(self.lowest, *(serving[zone] for zone in ZONES))
        self.changed.set()

    async def until_new(self, count: int, old: set[str]) -> None:
        async with asyncio.timeout(3600):
            while not (len(self.pods) == count and not old & set(self.pods) and all(map(_serves, self.pods.values()))):
                self.changed.clear()
                await self.changed.wait()
                await asyncio.sleep(0.05)


@asynccontextmanager
async def _crowd(made: Cluster, namespace: str) -> AsyncIterator[_Crowd]:
    """Every event of the namespace's pods is looked at."""
    nodes = (await made.client.list(NODES)).items
    crowd = _Crowd({node.metadata.name: node.metadata.labels[ZONE] for node in nodes})
    listing = await made.client.list(PODS, namespace)
    for pod in listing.items:
        crowd.note("ADDED", pod)

    async def follow(version: str) -> None:
        while True:
            async with aclosing(made.client.watch(PODS, namespace, resource_version=version)) as events:
                async for event in events:
                    version = event.object.metadata.resource_version or version
                    if event.type != "BOOKMARK":
                        crowd.note(event.type, event.object)

    following = asyncio.create_task(follow(listing.resource_version))
    try:
        yield crowd
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


def _serves(pod: Pod) -> bool:
    ready = any(each.type == "Ready" and each.status == "True" for each in pod.status.conditions)
    return ready and pod.metadata.deletion_timestamp is None


async def _namespace(made: Cluster, name: str) -> str:
    await made.client.create(NAMESPACES, {"metadata": {"name": name}})

    async def has_account() -> bool:
        return bool((await made.client.list(SERVICE_ACCOUNTS, name)).items)

    await until(has_account, "the default service account", 0.05)
    return name


async def _is_gone(made: Cluster, namespace: str) -> bool:
    try:
        await made.client.get(NAMESPACES, namespace)
    except NotFound:
        return True
    return False


def _deployment(pods: int) -> dict[str, Any]:
    """As many at a time as there are zones: the same pace that one per zone gives."""
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


def say(line: str) -> None:
    print(f"  {line}", file=sys.stderr, flush=True)
