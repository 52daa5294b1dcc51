"""Deployment rollouts and scale-downs: stock controllers delete the granted pods, which keeps the spread and the budget.

An admission policy in the API server denies their deletes without a grant on the pod.
"""

import pytest

from support.disruption.cluster import (
    BUDGETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    ZONES,
    DisruptionNamespace,
)
from support.disruption.processes import Installed
from support.disruption.rollout import EACH_ZONE, SOON, budget_status, create_budget, writes
from support.disruption.violations import watching
from support.waiting import eventually
from zonewise.api.names import DISRUPTION_FIELD_MANAGER, GRANTED
from zonewise.disruption.decide.budget import EVERYWHERE
from zonewise.kube.wire.patch import Apply, MergePatch
from zonewise.objects import PODS, Pod
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")


def count(ns: DisruptionNamespace, resource: str) -> int:
    return sum(call.resource == resource and call.code == 200 for call in writes(ns))


async def test_deployment_rolls_out_within_budget_and_scales_down_evenly(
    ns: DisruptionNamespace, installed: Installed
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 5}}
    await ns.deployment("web", 9, strategy=strategy, pod_annotations=SOON)
    await ns.until_ready("web", 9)
    await create_budget(ns, "web", maxUnavailable=2, nodeSelectorTerm=None)
    ns.audit.restart()
    async with watching(ns, "web", {EVERYWHERE: 7}) as watcher:
        watcher.zones = dict.fromkeys(watcher.zones, EVERYWHERE)  # a new pod may start in another zone
        await ns.new_version(DEPLOYMENTS, "web")
        await eventually(lambda: is_rolled_out(ns, "web", 9), "the rollout ends")
    assert not watcher.violations
    assert count(ns, "pods") == 9, "one patch for each pod"
    # A deployment controller whose steps are smaller than a wave causes more waves.
    assert count(ns, "topologydisruptionbudgets/status") <= 9 + 2

    await ns.scale(DEPLOYMENTS, "web", 6)
    await ns.until_ready("web", 6)
    assert await ns.ready_by_zone("web") == dict.fromkeys(ZONES, 2)
    await ns.scale(DEPLOYMENTS, "web", 0)
    await eventually(lambda: is_empty(ns, "web"), "scaling to zero deletes all pods")


async def is_empty(ns: DisruptionNamespace, app: str) -> bool:
    return not await ns.pods(app)


async def is_rolled_out(ns: DisruptionNamespace, name: str, replicas: int) -> bool:
    deployment = await ns.client.get(DEPLOYMENTS, name, ns.namespace)
    status = deployment["status"]
    observed = status.get("observedGeneration") == deployment["metadata"]["generation"]
    return bool(
        observed and status.get("updatedReplicas") == replicas == status.get("availableReplicas") == status["replicas"]
    )


async def test_frozen_zones_keep_their_pods_and_unused_grants_are_revoked(
    ns: DisruptionNamespace, installed: Installed
) -> None:
    await ns.replica_set("web", 6)
    await ns.until_ready("web", 6)
    not_a = {"key": ZONE, "operator": "NotIn", "values": [ZONES[0]]}
    frozen = {"matchExpressions": [*EACH_ZONE["matchExpressions"], not_a]}
    await create_budget(ns, "web", maxUnavailable=0, nodeSelectorTerm=frozen)
    await ns.scale(REPLICA_SETS, "web", 3)
    await eventually(
        lambda: has_only(ns, "web", {ZONES[1]: 2, ZONES[2]: 2}), "zone-a loses all pods, the frozen zones none"
    )

    thaw = {"spec": {"maxUnavailable": 1, "nodeSelectorTerm": EACH_ZONE}}
    await ns.client.patch(BUDGETS, "web", MergePatch(thaw), ns.namespace)
    await ns.until_ready("web", 3)
    assert sorted((await ns.ready_by_zone("web")).values()) == [1, 2]

    unused = (await ns.pods("web"))[0]
    grant = Apply(
        {"metadata": {"uid": unused.metadata.uid, "annotations": {GRANTED: unused.metadata.uid}}},
        DISRUPTION_FIELD_MANAGER,
    )

    async def revoked() -> bool:
        pod: Pod = await ns.client.get(PODS, unused.metadata.name, ns.namespace)
        return GRANTED not in pod.metadata.annotations

    await ns.client.patch(PODS, unused.metadata.name, grant, ns.namespace)
    await eventually(revoked, "no pod has to be deleted, so no grant stays")
    await ns.client.patch(BUDGETS, "web", MergePatch({"spec": {"applyTo": ["Evictions"]}}), ns.namespace)
    await ns.client.patch(PODS, unused.metadata.name, grant, ns.namespace)
    await eventually(revoked, "its controller needs no grant any more")


async def has_only(ns: DisruptionNamespace, app: str, expected: dict[str, int]) -> bool:
    return await ns.ready_by_zone(app) == expected


async def test_replication_controller_waits_for_the_budget_and_keeps_the_spread(
    ns: DisruptionNamespace, installed: Installed
) -> None:
    await ns.replication_controller("web", 6)
    await ns.until_ready("web", 6)
    await create_budget(ns, "web", maxUnavailable=0)
    ns.audit.restart()
    await ns.scale(REPLICATION_CONTROLLERS, "web", 3)
    await eventually(lambda: is_denied(ns, "replication-controller"), "the frozen budget denies it")
    assert await ns.ready_by_zone("web") == dict.fromkeys(ZONES, 2)
    await ns.client.patch(BUDGETS, "web", MergePatch({"spec": {"maxUnavailable": 1}}), ns.namespace)
    await ns.until_ready("web", 3)
    assert await ns.ready_by_zone("web") == dict.fromkeys(ZONES, 1)


def is_denied(ns: DisruptionNamespace, controller: str) -> bool:
    return any(
        (call.verb, call.code) == ("delete", 403) for call in ns.audit.calls(user=controller, namespace=ns.namespace)
    )


async def test_stateful_set_scales_down_in_fixed_order_and_reports_it(
    ns: DisruptionNamespace, installed: Installed
) -> None:
    await ns.stateful_set("db", 9)
    await ns.until_ready("db", 9)
    await create_budget(ns, "db", maxUnavailable=0)
    await ns.scale(STATEFUL_SETS, "db", 6)

    async def fixed_order_is_reported() -> bool:
        conditions = (await budget_status(ns, "db"))["conditions"]
        return any(
            condition["type"] == "ScaleDownOrderFixed" and condition["status"] == "True" for condition in conditions
        )

    await eventually(fixed_order_is_reported)
    await ns.client.patch(BUDGETS, "db", MergePatch({"spec": {"maxUnavailable": 1}}), ns.namespace)
    pods = await ns.until_ready("db", 6)
    assert sorted(pod.metadata.name for pod in pods) == [f"db-{number}" for number in range(6)]

    rolling = {"spec": {"updateStrategy": {"type": "RollingUpdate"}}}
    await ns.client.patch(STATEFUL_SETS, "db", MergePatch(rolling), ns.namespace)
    await ns.new_version(STATEFUL_SETS, "db")
    await eventually(lambda: is_updated(ns, "db", 6), "the stock update continues, one grant at a time")


async def is_updated(ns: DisruptionNamespace, name: str, replicas: int) -> bool:
    status = (await ns.client.get(STATEFUL_SETS, name, ns.namespace))["status"]
    return bool(status.get("updatedReplicas") == replicas == status.get("readyReplicas"))
