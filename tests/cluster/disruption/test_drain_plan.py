"""`zonewise drain --plan` says what `kubectl drain` then does: the same pods, in the same waves, and what never goes."""

import asyncio
import json
import subprocess
from typing import Any

import pytest

from support.disruption.cluster import STOCK_BUDGETS, ZONES, Bed
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


async def plan(bed: Bed, *arguments: str, code: int = 0) -> str:
    command = [str(ZONEWISE), "drain", "--plan", *arguments, "--kubeconfig", str(bed.plane.kubeconfig)]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    return done.stdout or done.stderr


def names(wave: dict[str, Any]) -> list[str]:
    return [pod["name"] for pod in wave["pods"]]


async def test_a_drain_takes_the_waves_that_were_planned(bed: Bed) -> None:
    """Which of two pods that are alike goes first is left to chance; node after node, and how many at a time, is not."""
    nodes = first, second = bed.node(ZONES[0]), bed.node(ZONES[1])
    selector = {"matchLabels": {"app": "db"}}
    async with zonewise(bed.client, bed.plane):
        await bed.kubectl("cordon", bed.node(ZONES[0], 1))  # so that the first node has all three of its zone
        volumes = [{"name": "cache", "emptyDir": {}}]
        await bed.stateful_set("db", 9, pod_annotations={READY_AFTER: "300ms"}, volumes=volumes)
        await bed.daemon_set("log")
        await bed.until_ready("db", 9)
        await bed.until_ready("log", 6)
        await bed.kubectl("uncordon", bed.node(ZONES[0], 1))
        await bed.budget("db", selector=selector, maxUnavailable=1, nodeSelectorTerm=EACH_ZONE)
        there = {node: sorted(await on_node(bed, node)) for node in nodes}
        assert len(there[first]) == 3

        planned = json.loads(await plan(bed, *nodes, "-o", "json"))
        assert [(wave["node"], names(wave)) for wave in planned["waves"]] == [
            (node, [name]) for node in nodes for name in there[node]
        ]
        pods = [wave["pods"][0] for wave in planned["waves"]]
        assert pods[0]["charges"] == [{"namespace": bed.namespace, "budget": "db", "domain": ZONES[0]}]
        assert all(pod["heldBy"][0]["code"] == "TooFewHealthy" for pod in pods[1:3])
        assert all("--delete-emptydir-data" in pod["remark"] for pod in pods)
        assert [pod["reasons"][0]["code"] for pod in planned["passedOver"]] == ["DaemonSetPod"] * 2
        assert (planned["never"], planned["leader"]["trouble"]) == ([], "")
        nobody_leads = await plan(bed, first, "--lease-namespace", "default", code=1)
        assert nobody_leads.startswith("the budget controller never ran")
        assert f"{first}: 3 pods leave in 3 waves" in nobody_leads

        bed.audit.restart()
        await bed.kubectl("drain", first, "--ignore-daemonsets", code=1)
        assert evicted(bed) == []
        async with watching(bed, "db", dict.fromkeys(ZONES, 2)) as watcher:
            await bed.drain(*nodes)
        assert not watcher.violations
        left = evicted(bed)
        assert sorted(left[:3]) == there[first]
        assert sorted(left[3:]) == there[second]

        await bed.budget("frozen", selector=selector, maxUnavailable=0)
        await eventually(lambda: db_is_back(bed))
        said = await plan(bed, bed.node(ZONES[2]), code=1)
        assert "0 pods leave in 0 waves" in said
        assert "is frozen by maxUnavailable 0" in said
        assert "raise the limit" in said

        unguarded = MergePatch({"metadata": {"labels": {"zonewise.dev/disruption": "unguarded"}}})
        await bed.client.patch(NAMESPACES, bed.namespace, unguarded)
        assert "leave in 1 wave, 0 never" in await plan(bed, bed.node(ZONES[2]))

        await it_goes_on_past_what_is_no_429(bed, selector)
    assert "no node nowhere" in await plan(bed, "nowhere", code=1)


async def it_goes_on_past_what_is_no_429(bed: Bed, selector: dict[str, Any]) -> None:
    for name in ("one", "two"):
        await bed.budget(name, resource=STOCK_BUDGETS, selector=selector, maxUnavailable=1)
    rest = [bed.node(zone, number) for zone in ZONES[1:] for number in (0, 1)]
    refused = json.loads(await plan(bed, *rest, "-o", "json", code=1))["never"]
    assert {pod["reasons"][0]["code"] for pod in refused} == {"SeveralStockBudgets"}
    bed.audit.restart()
    await bed.drain(*rest, code=1)
    tried = {call.name for call in bed.audit.calls(user="admin") if call.verb == "evict" and call.code == 500}
    assert tried == {pod["name"] for pod in refused}, "it goes on to the next node"


async def on_node(bed: Bed, node: str) -> list[str]:
    return [pod.metadata.name for pod in await bed.pods("db") if pod.spec.node_name == node]


def evicted(bed: Bed) -> list[str]:
    return [call.name for call in bed.audit.calls(user="admin") if call.verb == "evict" and call.code == 201]


async def db_is_back(bed: Bed) -> bool:
    return sum((await bed.ready_by_zone("db")).values()) == 9
