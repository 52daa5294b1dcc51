"""`zonewise explain eviction` compared with real evictions."""

import asyncio
import subprocess
from typing import Any

import pytest

from support.cli.output import described
from support.disruption.cluster import BUDGETS, ZONES, DisruptionNamespace
from support.disruption.processes import Installed
from support.lab.machine import ZONEWISE
from support.waiting import eventually
from zonewise.kube.wire.errors import TooManyRequests
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")

EACH_ZONE = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}


async def explained(ns: DisruptionNamespace, pod: str) -> tuple[int, dict[str, Any]]:
    options = ("-n", ns.namespace, "--kubeconfig", str(ns.plane.kubeconfig))
    command = [str(ZONEWISE), "explain", "eviction", pod, "-o", "json", *options]
    result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert result.stdout, result.stderr
    return result.returncode, described("explain eviction", result.stdout)


async def allowed(ns: DisruptionNamespace) -> str:
    budget = await ns.client.get(BUDGETS, "across", ns.namespace)
    return str(budget.get("status", {}).get("allowedByDomain", ""))


async def test_explain_eviction_predicts_the_api_servers_verdict(ns: DisruptionNamespace, installed: Installed) -> None:
    await ns.deployment("web", 9)
    await ns.until_ready("web", 9)
    await ns.budget("across", selector={"matchLabels": {"app": "web"}}, maxUnavailable=1, nodeSelectorTerm=EACH_ZONE)
    first, second, _ = ZONES
    unready, healthy, _ = await ns.in_zone("web", first)
    await ns.set_unready(unready)
    await eventually(lambda: allowed_starts_with(ns, f"{first}=0 {second}=1"), "the zone allows no disruption")

    code, refused = await explained(ns, healthy)
    assert (code, refused["allowed"]) == (1, False)
    (budget,) = refused["budgets"]
    assert budget["unavailable"] == [{"name": unready, "why": "not ready"}]
    assert (refused["guarded"], refused["leader"]["trouble"]) == (True, "")
    with pytest.raises(TooManyRequests) as denied:
        await ns.client.evict(healthy, ns.namespace)
    assert budget["sentence"] in [cause.message for cause in denied.value.causes]

    evictable = (await ns.in_zone("web", second))[0]
    code, granted = await explained(ns, evictable)
    assert (code, granted["sentence"]) == (0, "may be evicted, and is charged to across")
    await ns.client.evict(evictable, ns.namespace)


async def allowed_starts_with(ns: DisruptionNamespace, beginning: str) -> bool:
    return (await allowed(ns)).startswith(beginning)
