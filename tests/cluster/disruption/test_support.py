"""The test cluster itself: pods spread over zones, delayed readiness, and `kubectl drain`."""

import pytest

from support.disruption.cluster import ZONES, DisruptionNamespace
from support.disruption.kwok import GONE_AFTER, READY_AFTER
from support.waiting import eventually

pytestmark = pytest.mark.xdist_group("disruption")


async def test_drained_pods_move_within_their_zone(ns: DisruptionNamespace) -> None:
    await ns.stateful_set("web", 9)
    await ns.until_ready("web", 9)
    assert await ns.ready_by_zone("web") == dict.fromkeys(ZONES, 3)
    ns.audit.restart()
    node = ns.node("zone-a")
    await ns.drain(node)
    await ns.until_ready("web", 9)
    assert await ns.ready_by_zone("web") == dict.fromkeys(ZONES, 3)
    assert node not in {pod.spec.node_name for pod in await ns.pods("web")}
    evicted = [call for call in ns.audit.calls(user="admin") if call.verb == "evict"]
    assert evicted
    assert {call.code for call in evicted} == {201}


async def test_annotated_pods_become_ready_and_leave_late(ns: DisruptionNamespace) -> None:
    annotations = {READY_AFTER: "1500ms", GONE_AFTER: "1500ms"}
    await ns.deployment("slow", 2, pod_annotations=annotations)

    async def running_but_unready() -> bool:
        pods = await ns.pods("slow")
        return any(pod.status.phase == "Running" for pod in pods) and not await ns.ready_by_zone("slow")

    await eventually(running_but_unready)
    pods = await ns.until_ready("slow", 2)
    await ns.client.evict(pods[0].metadata.name, ns.namespace)
    assert any(pod.metadata.deletion_timestamp for pod in await ns.pods("slow"))
    await ns.set_unready(pods[1].metadata.name)
    assert sum((await ns.ready_by_zone("slow")).values()) <= 1
