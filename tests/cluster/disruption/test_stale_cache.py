"""Eviction guard with a stale cache on a real API server: pods, budgets and nodes are read before a pod goes uncharged."""

import pytest

from support.disruption.cluster import BUDGETS, STATEFUL_SETS, DisruptionNamespace, charges_in
from support.disruption.processes import LateApi
from support.disruption.webhook import (
    charged,
    is_published,
    replica,
    set_ready,
    status_of,
    until_healthy,
    until_informed,
    zone_budget,
)
from support.waiting import eventually
from zonewise.disruption.webhook.registration import WORKLOAD_CONTROLLERS
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import PODS, Key
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")

FOR_EVER = 600.0


async def test_stale_pod_cache_lets_no_pod_go_uncharged(ns_with_leader: DisruptionNamespace) -> None:
    """The cache misses a pod that became ready, a replacement of the same name, and a new pod."""
    await ns_with_leader.stateful_set("web", 9)
    await ns_with_leader.until_ready("web", 9)
    await zone_budget(ns_with_leader, maxUnavailable="100%")
    await set_ready(ns_with_leader, "web-3", ready=False)
    async with (
        LateApi(ns_with_leader.plane, 0.0) as late,
        replica(ns_with_leader, config=late.kubeconfig(ns_with_leader.folder), silent_seconds=FOR_EVER) as guard,
    ):
        await until_informed(guard, ns_with_leader, 9)
        late.lag_seconds = FOR_EVER
        old = await ns_with_leader.client.get(PODS, "web-0", ns_with_leader.namespace)
        await set_ready(ns_with_leader, "web-3", ready=True)
        await ns_with_leader.client.delete(PODS, "web-0", ns_with_leader.namespace, grace_seconds=0)
        await ns_with_leader.scale(STATEFUL_SETS, "web", 10)
        await ns_with_leader.until_ready("web", 10)
        await until_healthy(ns_with_leader, 10)
        cached = guard.sources.facts(Key(ns_with_leader.namespace, "web-0"))
        assert cached is not None
        assert cached.uid == old.metadata.uid
        for name in ("web-3", "web-0", "web-9"):
            assert (await guard.evict(name)).allowed
        new = await ns_with_leader.client.get(PODS, "web-0", ns_with_leader.namespace)
        charges = {charge.uid: charge.name for charge in charges_in(await status_of(ns_with_leader))}
        assert set(charges.values()) == {"web-3", "web-0", "web-9"}
        assert charges[new.metadata.uid] == "web-0"
        assert new.metadata.uid != old.metadata.uid
        assert (await guard.evict("web-1", uid="of-another-pod")).allowed  # the API server answers 409
        assert "web-1" not in await charged(ns_with_leader)


async def test_budget_is_read_before_an_uncharged_eviction(ns_with_leader: DisruptionNamespace) -> None:
    """The stale cache says that the budget does not cover the zone."""
    await ns_with_leader.deployment("web", 9)
    await ns_with_leader.until_ready("web", 9)
    elsewhere = {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["zone-a"]}]}
    await zone_budget(ns_with_leader, nodeSelectorTerm=elsewhere)
    async with (
        LateApi(ns_with_leader.plane, 0.0) as late,
        replica(ns_with_leader, config=late.kubeconfig(ns_with_leader.folder), silent_seconds=FOR_EVER) as guard,
    ):
        await until_informed(guard, ns_with_leader, 9)
        (pod, *_) = await ns_with_leader.in_zone("web", "zone-a")
        assert (await guard.evict(pod)).allowed
        late.lag_seconds = FOR_EVER
        frozen = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["zone-a"]}]}
        await ns_with_leader.client.patch(
            BUDGETS,
            "budget",
            MergePatch({"spec": {"nodeSelectorTerm": frozen, "maxUnavailable": 0}}),
            ns_with_leader.namespace,
        )
        await eventually(lambda: is_published(ns_with_leader))
        assert (await guard.evict(pod)).code == 429


async def test_node_is_read_before_an_uncharged_eviction(ns_with_leader: DisruptionNamespace) -> None:
    """The stale cache has the node in an unfrozen zone; pods of `both` also have a budget that allows everything."""
    for app in ("web", "both"):
        await ns_with_leader.deployment(app, 9)
        await ns_with_leader.until_ready(app, 9)
    ready, unready, _ = await ns_with_leader.in_zone("web", "zone-a")
    (covered_twice, *_) = await ns_with_leader.in_zone("both", "zone-a")
    await ns_with_leader.set_unready(unready)
    frozen = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["zone-b"]}]}
    await zone_budget(ns_with_leader, nodeSelectorTerm=frozen, maxUnavailable=0)
    await zone_budget(ns_with_leader, "both", "both", nodeSelectorTerm=frozen, maxUnavailable=0)
    await zone_budget(ns_with_leader, "open", "both", nodeSelectorTerm=None, maxUnavailable="100%")
    async with (
        LateApi(ns_with_leader.plane, 0.0) as late,
        replica(ns_with_leader, config=late.kubeconfig(ns_with_leader.folder), silent_seconds=FOR_EVER) as guard,
    ):
        await until_informed(guard, ns_with_leader, 18, "budget", "both", "open")
        for pod in (ready, unready, covered_twice):
            assert (await guard.evict(pod, dry_run=True)).allowed
        late.lag_seconds = FOR_EVER
        for number in range(2):
            await ns_with_leader.label_node(ns_with_leader.node("zone-a", number), {ZONE: "zone-b"})
        await until_healthy(ns_with_leader, 5)
        await until_healthy(ns_with_leader, 6, "both")
        for pod in (ready, unready, covered_twice):
            assert (await guard.evict(pod)).code == 429, pod
        by_its_controller = await guard.delete(
            await ns_with_leader.client.get(PODS, ready, ns_with_leader.namespace), WORKLOAD_CONTROLLERS[0]
        )
        assert by_its_controller.code == 403
