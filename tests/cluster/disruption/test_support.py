"""The bed itself: pods spread over its zones, become ready when they should, and `kubectl drain` moves them."""

import pytest

from support.disruption.cluster import ZONES, Bed
from support.disruption.kwok import GONE_AFTER, READY_AFTER
from support.waiting import eventually

pytestmark = pytest.mark.xdist_group("disruption")


async def test_a_drained_node_is_empty_and_its_pods_are_elsewhere_in_their_zone(bed: Bed) -> None:
    await bed.stateful_set("web", 9)
    await bed.until_ready("web", 9)
    assert await bed.ready_by_zone("web") == dict.fromkeys(ZONES, 3)
    bed.audit.restart()
    node = bed.node("zone-a")
    await bed.drain(node)
    await bed.until_ready("web", 9)
    assert await bed.ready_by_zone("web") == dict.fromkeys(ZONES, 3)
    assert node not in {pod.spec.node_name for pod in await bed.pods("web")}
    evicted = [call for call in bed.audit.calls(user="admin") if call.verb == "evict"]
    assert evicted
    assert {call.code for call in evicted} == {201}


async def test_pods_take_their_time_if_asked(bed: Bed) -> None:
    annotations = {READY_AFTER: "1500ms", GONE_AFTER: "1500ms"}
    await bed.deployment("slow", 2, pod_annotations=annotations)

    async def running_but_unready() -> bool:
        pods = await bed.pods("slow")
        return any(pod.status.phase == "Running" for pod in pods) and not await bed.ready_by_zone("slow")

    await eventually(running_but_unready)
    pods = await bed.until_ready("slow", 2)
    await bed.client.evict(pods[0].metadata.name, bed.namespace)
    assert any(pod.metadata.deletion_timestamp for pod in await bed.pods("slow"))
    await bed.set_unready(pods[1].metadata.name)
    assert sum((await bed.ready_by_zone("slow")).values()) <= 1
