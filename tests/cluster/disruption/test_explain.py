"""`zonewise explain eviction` beside real evictions: what it says is what becomes of them."""

import asyncio
import subprocess
from typing import Any

import pytest

from support.cli.output import described
from support.disruption.cluster import BUDGETS, ZONES, Bed
from support.disruption.processes import Installed
from support.lab.machine import ZONEWISE
from support.waiting import eventually
from zonewise.kube.wire.errors import TooManyRequests
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")

EACH_ZONE = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}


async def explained(bed: Bed, pod: str) -> tuple[int, dict[str, Any]]:
    where = ("-n", bed.namespace, "--kubeconfig", str(bed.plane.kubeconfig))
    command = [str(ZONEWISE), "explain", "eviction", pod, "-o", "json", *where]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout, done.stderr
    return done.returncode, described("explain eviction", done.stdout)


async def allowed(bed: Bed) -> str:
    budget = await bed.client.get(BUDGETS, "across", bed.namespace)
    return str(budget.get("status", {}).get("allowedByDomain", ""))


async def test_explain_says_what_becomes_of_an_eviction(bed: Bed, installed: Installed) -> None:
    await bed.deployment("web", 9)
    await bed.until_ready("web", 9)
    await bed.budget("across", selector={"matchLabels": {"app": "web"}}, maxUnavailable=1, nodeSelectorTerm=EACH_ZONE)
    first, second, _ = ZONES
    sick, other, _ = await bed.in_zone("web", first)
    await bed.set_unready(sick)
    await eventually(lambda: _is(bed, f"{first}=0 {second}=1"), "the zone has nobody to spare")

    code, refused = await explained(bed, other)
    assert (code, refused["allowed"]) == (1, False)
    (budget,) = refused["budgets"]
    assert budget["unavailable"] == [{"name": sick, "why": "not ready"}]
    assert (refused["guarded"], refused["leader"]["trouble"]) == (True, "")
    with pytest.raises(TooManyRequests) as denied:
        await bed.client.evict(other, bed.namespace)
    assert budget["sentence"] in [cause.message for cause in denied.value.causes]

    fine = (await bed.in_zone("web", second))[0]
    code, free = await explained(bed, fine)
    assert (code, free["sentence"]) == (0, "may be evicted, and is charged to across")
    await bed.client.evict(fine, bed.namespace)


async def _is(bed: Bed, beginning: str) -> bool:
    return (await allowed(bed)).startswith(beginning)
