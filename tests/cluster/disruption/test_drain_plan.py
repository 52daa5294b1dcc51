"""`zonewise drain --plan` predicts `kubectl drain`: the same pods, the same waves, and the pods that never leave."""

import asyncio
import json
import subprocess
from typing import Any

import pytest

from support.disruption.cluster import STOCK_BUDGETS, ZONES, DisruptionNamespace
from support.disruption.kwok import READY_AFTER
from support.disruption.processes import zonewise
from support.disruption.violations import watching
from support.lab.machine import ZONEWISE
from support.waiting import eventually
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import NAMESPACES
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")

EACH_ZONE = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}


async def plan(ns: DisruptionNamespace, *arguments: str, code: int = 0) -> str:
    command = [str(ZONEWISE), "drain", "--plan", *arguments, "--kubeconfig", str(ns.plane.kubeconfig)]
    result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == code, result.stdout + result.stderr
    return result.stdout or result.stderr


def names(wave: dict[str, Any]) -> list[str]:
    return [pod["name"] for pod in wave["pods"]]


async def test_kubectl_drain_follows_the_planned_waves(ns: DisruptionNamespace) -> None:
    """The order of equal pods is random; the order of nodes and the size of waves is not."""
    nodes = first, second = ns.node(ZONES[0]), ns.node(ZONES[1])
    selector = {"matchLabels": {"app": "db"}}
    async with zonewise(ns.client, ns.plane):
        await ns.kubectl("cordon", ns.node(ZONES[0], 1))  # so that the first node runs all three pods of its zone
        volumes = [{"name": "cache", "emptyDir": {}}]
        await ns.stateful_set("db", 9, pod_annotations={READY_AFTER: "300ms"}, volumes=volumes)
        await ns.daemon_set("log")
        await ns.until_ready("db", 9)
        await ns.until_ready("log", 6)
        await ns.kubectl("uncordon", ns.node(ZONES[0], 1))
        await ns.budget("db", selector=selector, maxUnavailable=1, nodeSelectorTerm=EACH_ZONE)
        pods_on = {node: sorted(await on_node(ns, node)) for node in nodes}
        assert len(pods_on[first]) == 3

        planned = json.loads(await plan(ns, *nodes, "-o", "json"))
        assert [(wave["node"], names(wave)) for wave in planned["waves"]] == [
            (node, [name]) for node in nodes for name in pods_on[node]
        ]
        pods = [wave["pods"][0] for wave in planned["waves"]]
        assert pods[0]["charges"] == [{"namespace": ns.namespace, "budget": "db", "domain": ZONES[0]}]
        assert all(pod["heldBy"][0]["code"] == "TooFewHealthy" for pod in pods[1:3])
        assert all("--delete-emptydir-data" in pod["remark"] for pod in pods)
        assert [pod["reasons"][0]["code"] for pod in planned["passedOver"]] == ["DaemonSetPod"] * 2
        assert (planned["never"], planned["leader"]["trouble"]) == ([], "")
        without_leader = await plan(ns, first, "--lease-namespace", "default", code=1)
        assert without_leader.startswith("the budget controller never ran")
        assert f"{first}: 3 pods leave in 3 waves" in without_leader

        ns.audit.restart()
        await ns.kubectl("drain", first, "--ignore-daemonsets", code=1)
        assert evicted(ns) == []
        async with watching(ns, "db", dict.fromkeys(ZONES, 2)) as watcher:
            await ns.drain(*nodes)
        assert not watcher.violations
        order = evicted(ns)
        assert sorted(order[:3]) == pods_on[first]
        assert sorted(order[3:]) == pods_on[second]

        await ns.budget("frozen", selector=selector, maxUnavailable=0)
        await eventually(lambda: db_is_ready(ns))
        candidates = [ns.node(ZONES[2], number) for number in (0, 1)]
        third = max([(len(await on_node(ns, node)), node) for node in candidates])[1]  # one of the two may have no pod
        output = await plan(ns, third, code=1)
        assert "0 pods leave in 0 waves" in output
        assert "is frozen by maxUnavailable 0" in output
        assert "raise the limit" in output

        unguarded = MergePatch({"metadata": {"labels": {"zonewise.dev/disruption": "unguarded"}}})
        await ns.client.patch(NAMESPACES, ns.namespace, unguarded)
        assert "leave in 1 wave, 0 never" in await plan(ns, third)

        await check_drain_continues_after_500(ns, selector)
    assert "no node nowhere" in await plan(ns, "nowhere", code=1)


async def check_drain_continues_after_500(ns: DisruptionNamespace, selector: dict[str, Any]) -> None:
    for name in ("one", "two"):
        await ns.budget(name, resource=STOCK_BUDGETS, selector=selector, maxUnavailable=1)
    nodes = [ns.node(zone, number) for zone in ZONES[1:] for number in (0, 1)]
    refused = json.loads(await plan(ns, *nodes, "-o", "json", code=1))["never"]
    assert {pod["reasons"][0]["code"] for pod in refused} == {"SeveralStockBudgets"}
    ns.audit.restart()
    await ns.drain(*nodes, code=1)
    tried = {call.name for call in ns.audit.calls(user="admin") if call.verb == "evict" and call.code == 500}
    assert tried == {pod["name"] for pod in refused}, "the drain continues with the next node"


async def on_node(ns: DisruptionNamespace, node: str) -> list[str]:
    return [pod.metadata.name for pod in await ns.pods("db") if pod.spec.node_name == node]


def evicted(ns: DisruptionNamespace) -> list[str]:
    return [call.name for call in ns.audit.calls(user="admin") if call.verb == "evict" and call.code == 201]


async def db_is_ready(ns: DisruptionNamespace) -> bool:
    return sum((await ns.ready_by_zone("db")).values()) == 9
