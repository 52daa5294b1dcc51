"""`zonewise drain --plan` says what `kubectl drain` then does: the same pods, in the same waves, and what never goes."""

import asyncio
import json
import subprocess
from typing import Any

import pytest

from disruption_bed import STOCK_BUDGETS, ZONES, Bed
from disruption_kwok import READY_AFTER
from disruption_processes import zonewise
from lab_machine import ZONEWISE
from waiting import eventually
from zonewise.kube.patch import MergePatch
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
    node = bed.node(ZONES[0])
    selector = {"matchLabels": {"app": "db"}}
    async with zonewise(bed.client, bed.plane):
        await bed.stateful_set("db", 9, pod_annotations={READY_AFTER: "300ms"})
        await bed.daemon_set("log")
        await bed.until_ready("db", 9)
        await bed.until_ready("log", 6)
        await bed.budget("db", selector=selector, maxUnavailable=1, nodeSelectorTerm=EACH_ZONE)
        there = sorted(pod.metadata.name for pod in await bed.pods("db") if pod.spec.node_name == node)

        planned = json.loads(await plan(bed, node, "-o", "json"))
        assert [names(wave) for wave in planned["waves"]] == [[name] for name in there]
        assert planned["waves"][0]["pods"][0]["charges"] == [
            {"namespace": bed.namespace, "budget": "db", "domain": ZONES[0]}
        ]
        assert all(wave["pods"][0]["heldBy"][0]["code"] == "TooFewHealthy" for wave in planned["waves"][1:])
        assert [pod["reasons"][0]["code"] for pod in planned["passedOver"]] == ["DaemonSetPod"]
        assert planned["never"] == []

        bed.audit.restart()
        await bed.drain(node)
        left = {call.name for call in bed.audit.calls(user="admin") if call.verb == "evict" and call.code == 201}
        assert left == set(there)

        await bed.budget("frozen", selector=selector, maxUnavailable=0)
        await eventually(lambda: db_is_back(bed))
        said = await plan(bed, bed.node(ZONES[1]), code=1)
        assert "0 pods leave in 0 waves" in said
        assert "is frozen by maxUnavailable 0" in said
        assert "raise the limit" in said

        unguarded = MergePatch({"metadata": {"labels": {"zonewise.dev/disruption": "unguarded"}}})
        await bed.client.patch(NAMESPACES, bed.namespace, unguarded)
        assert "leave in 1 wave, 0 never" in await plan(bed, bed.node(ZONES[1]))

        for name in ("one", "two"):
            await bed.budget(name, resource=STOCK_BUDGETS, selector=selector, maxUnavailable=1)
        nodes = [bed.node(zone, number) for zone in ZONES[1:] for number in (0, 1)]
        refused = json.loads(await plan(bed, *nodes, "-o", "json", code=1))["never"]
        assert {pod["reasons"][0]["code"] for pod in refused} == {"SeveralStockBudgets"}
        bed.audit.restart()
        await bed.drain(*nodes, code=1)
        tried = {call.name for call in bed.audit.calls(user="admin") if call.verb == "evict" and call.code == 500}
        assert tried == {pod["name"] for pod in refused}, "it goes on to the next node"
    assert "no node nowhere" in await plan(bed, "nowhere", code=1)


async def db_is_back(bed: Bed) -> bool:
    return sum((await bed.ready_by_zone("db")).values()) == 9
