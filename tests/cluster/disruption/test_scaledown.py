"""Stock controllers delete the pods that keep the spread, as many as budgets allow: rollouts of Deployments, scale-downs.

Their deletes are guarded by a policy in the API server: what goes through was granted, pod by pod.
"""

import pytest

from support.disruption.cluster import (
    BUDGETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    ZONES,
    Bed,
)
from support.disruption.processes import Installed
from support.disruption.rollouts import EACH_ZONE, SOON, budget_status, guard, writes
from support.disruption.violations import watching
from support.waiting import eventually
from zonewise.api.names import DISRUPTION_FIELD_MANAGER, GRANTED
from zonewise.disruption.decide.budget import EVERYWHERE
from zonewise.kube.wire.patch import Apply, MergePatch
from zonewise.objects import PODS, Pod
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")


def count(bed: Bed, resource: str) -> int:
    return sum(call.resource == resource and call.code == 200 for call in writes(bed))


async def test_a_deployment_rolls_out_with_two_pods_away_though_it_may_take_five_and_scales_down_evenly(
    bed: Bed, installed: Installed
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 5}}
    await bed.deployment("web", 9, strategy=strategy, pod_annotations=SOON)
    await bed.until_ready("web", 9)
    await guard(bed, "web", maxUnavailable=2, nodeSelectorTerm=None)
    bed.audit.restart()
    async with watching(bed, "web", {EVERYWHERE: 7}) as watcher:
        watcher.zones = dict.fromkeys(watcher.zones, EVERYWHERE)  # a new pod need not come up where an old one left
        await bed.new_version(DEPLOYMENTS, "web")
        await eventually(lambda: is_rolled_out(bed, "web", 9), "the rollout ends")
    assert not watcher.violations
    assert count(bed, "pods") == 9, "one patch for each pod"
    # A deployment controller that takes smaller steps than a wave is wide makes more waves than there need be.
    assert count(bed, "topologydisruptionbudgets/status") <= 9 + 2

    await bed.scale(DEPLOYMENTS, "web", 6)
    await bed.until_ready("web", 6)
    assert await bed.ready_by_zone("web") == dict.fromkeys(ZONES, 2)
    await bed.scale(DEPLOYMENTS, "web", 0)
    await eventually(lambda: is_empty(bed, "web"), "an owner that wants no pods loses them all")


async def is_empty(bed: Bed, app: str) -> bool:
    return not await bed.pods(app)


async def is_rolled_out(bed: Bed, name: str, replicas: int) -> bool:
    found = await bed.client.get(DEPLOYMENTS, name, bed.namespace)
    status = found["status"]
    seen = status.get("observedGeneration") == found["metadata"]["generation"]
    return bool(
        seen and status.get("updatedReplicas") == replicas == status.get("availableReplicas") == status["replicas"]
    )


async def test_big_zones_give_first_a_frozen_one_gives_nothing_and_unused_grants_are_revoked(
    bed: Bed, installed: Installed
) -> None:
    await bed.replica_set("web", 6)
    await bed.until_ready("web", 6)
    not_a = {"key": ZONE, "operator": "NotIn", "values": [ZONES[0]]}
    frozen = {"matchExpressions": [*EACH_ZONE["matchExpressions"], not_a]}
    await guard(bed, "web", maxUnavailable=0, nodeSelectorTerm=frozen)
    await bed.scale(REPLICA_SETS, "web", 3)
    await eventually(
        lambda: has_only(bed, "web", {ZONES[1]: 2, ZONES[2]: 2}), "zone-a gives all it has, the others nothing"
    )

    thaw = {"spec": {"maxUnavailable": 1, "nodeSelectorTerm": EACH_ZONE}}
    await bed.client.patch(BUDGETS, "web", MergePatch(thaw), bed.namespace)
    await bed.until_ready("web", 3)
    assert sorted((await bed.ready_by_zone("web")).values()) == [1, 2]

    unused = (await bed.pods("web"))[0]
    grant = Apply(
        {"metadata": {"uid": unused.metadata.uid, "annotations": {GRANTED: unused.metadata.uid}}},
        DISRUPTION_FIELD_MANAGER,
    )

    async def revoked() -> bool:
        seen: Pod = await bed.client.get(PODS, unused.metadata.name, bed.namespace)
        return GRANTED not in seen.metadata.annotations

    await bed.client.patch(PODS, unused.metadata.name, grant, bed.namespace)
    await eventually(revoked, "nobody has to go, so nobody may")
    await bed.client.patch(BUDGETS, "web", MergePatch({"spec": {"applyTo": ["Evictions"]}}), bed.namespace)
    await bed.client.patch(PODS, unused.metadata.name, grant, bed.namespace)
    await eventually(revoked, "its controller need not ask any more")


async def has_only(bed: Bed, app: str, expected: dict[str, int]) -> bool:
    return await bed.ready_by_zone(app) == expected


async def test_a_replication_controller_is_held_and_keeps_the_spread(bed: Bed, installed: Installed) -> None:
    await bed.replication_controller("web", 6)
    await bed.until_ready("web", 6)
    await guard(bed, "web", maxUnavailable=0)
    bed.audit.restart()
    await bed.scale(REPLICATION_CONTROLLERS, "web", 3)
    await eventually(lambda: is_refused(bed, "replication-controller"), "a freeze holds it")
    assert await bed.ready_by_zone("web") == dict.fromkeys(ZONES, 2)
    await bed.client.patch(BUDGETS, "web", MergePatch({"spec": {"maxUnavailable": 1}}), bed.namespace)
    await bed.until_ready("web", 3)
    assert await bed.ready_by_zone("web") == dict.fromkeys(ZONES, 1)


def is_refused(bed: Bed, controller: str) -> bool:
    return any(
        (call.verb, call.code) == ("delete", 403) for call in bed.audit.calls(user=controller, namespace=bed.namespace)
    )


async def test_a_stateful_set_gives_its_highest_ordinals_and_the_status_says_so(bed: Bed, installed: Installed) -> None:
    await bed.stateful_set("db", 9)
    await bed.until_ready("db", 9)
    await guard(bed, "db", maxUnavailable=0)
    await bed.scale(STATEFUL_SETS, "db", 6)

    async def fixed_order_is_told() -> bool:
        conditions = (await budget_status(bed, "db"))["conditions"]
        return any(known["type"] == "ScaleDownOrderFixed" and known["status"] == "True" for known in conditions)

    await eventually(fixed_order_is_told)
    await bed.client.patch(BUDGETS, "db", MergePatch({"spec": {"maxUnavailable": 1}}), bed.namespace)
    pods = await bed.until_ready("db", 6)
    assert sorted(pod.metadata.name for pod in pods) == [f"db-{number}" for number in range(6)]

    rolling = {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}
    await bed.client.patch(STATEFUL_SETS, "db", MergePatch(rolling), bed.namespace)
    await bed.new_version(STATEFUL_SETS, "db")
    await eventually(lambda: is_updated(bed, "db", 6), "stock's own update goes on, one grant at a time")


async def is_updated(bed: Bed, name: str, replicas: int) -> bool:
    status = (await bed.client.get(STATEFUL_SETS, name, bed.namespace))["status"]
    return bool(status.get("updatedReplicas") == replicas == status.get("readyReplicas"))
