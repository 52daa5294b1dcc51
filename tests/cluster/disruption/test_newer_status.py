"""A budget whose status a newer release wrote: no pod goes by it, nothing is written to it, other budgets go on."""

import pytest

from support.disruption.cluster import BUDGETS, DisruptionNamespace
from support.disruption.processes import Installed
from support.disruption.webhook import set_ready, until_allowed, zone_budget
from support.waiting import eventually
from zonewise.kube.wire.errors import TooManyRequests

pytestmark = pytest.mark.xdist_group("disruption")

FREE = dict.fromkeys(("zone-a", "zone-b", "zone-c"), 1)


async def set_version(ns: DisruptionNamespace, version: int) -> str:
    """As a newer release might write it; returns its resource version."""
    stored = await ns.client.get(BUDGETS, "budget", ns.namespace)
    stored["status"] |= {"version": version, "charges": "one line that only a newer release can read"}
    written = await ns.client.update(BUDGETS, stored, ns.namespace, subresource="status")
    return str(written["metadata"]["resourceVersion"])


async def test_a_newer_status_is_left_alone(ns: DisruptionNamespace, installed: Installed) -> None:
    for app, budget in (("web", "budget"), ("other", "beside")):
        await ns.deployment(app, 6)
        await ns.until_ready(app, 6)
        await zone_budget(ns, budget, app=app)
        await until_allowed(ns, FREE, budget)
    written = await set_version(ns, 2)
    await eventually(lambda: ns.events("StatusNewer"), "an event on the budget")
    pods = [pod.metadata.name for pod in await ns.pods("web")]
    await set_ready(ns, pods[0], ready=False)  # a reason to count again
    for pod in pods:
        with pytest.raises(TooManyRequests, match="its status has format version 2"):
            await ns.client.evict(pod, ns.namespace)
    await ns.client.evict((await ns.pods("other"))[0].metadata.name, ns.namespace)
    await until_allowed(ns, FREE, "beside")
    stored = await ns.client.get(BUDGETS, "budget", ns.namespace)
    assert stored["metadata"]["resourceVersion"] == written
    assert len(await ns.events("StatusNewer")) == 1
    assert len([line for line in installed.leader.lines if line["event"] == "budget left alone"]) == 1

    await set_ready(ns, pods[0], ready=True)
    await set_version(ns, 1)
    await until_allowed(ns, FREE)
    await ns.client.evict(pods[0], ns.namespace)
