"""Status writer on a real API server: the numbers follow pods, nodes and scales."""

import asyncio
import signal
from typing import Any

import pytest

from support.disruption.cluster import BUDGETS, DEPLOYMENTS, STOCK_BUDGETS, DisruptionNamespace
from support.disruption.processes import install, start_leader, user_kubeconfig
from support.disruption.webhook import (
    allowed,
    leading,
    replica,
    status_of,
    until_allowed,
    until_informed,
    zone_budget,
)
from support.waiting import eventually
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import PODS, Resource
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")


ONE_EACH = {"zone-a": 1, "zone-b": 1, "zone-c": 1}
CONFIG_MAPS: Resource[dict[str, Any]] = Resource(dict[str, Any], "ConfigMap", "configmaps")
FLEETS: Resource[dict[str, Any]] = Resource(dict[str, Any], "Fleet", "fleets", "example.com")
DEFINITIONS: Resource[dict[str, Any]] = Resource(
    dict[str, Any],
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "apiextensions.k8s.io",
    namespaced=False,
)


async def test_status_follows_pods_nodes_and_scale(ns: DisruptionNamespace) -> None:
    async with leading(ns):
        await ns.deployment("web", 9)
        await ns.until_ready("web", 9)
        await zone_budget(ns)
        await until_allowed(ns, ONE_EACH)
        (unready, *_) = await ns.in_zone("web", "zone-b")
        await ns.set_unready(unready)
        await until_allowed(ns, {**ONE_EACH, "zone-b": 0})
        await ns.client.delete(PODS, unready, ns.namespace, grace_seconds=0)
        await until_allowed(ns, ONE_EACH)
        await ns.scale(DEPLOYMENTS, "web", 12)
        await ns.until_ready("web", 12)
        await eventually_status(ns, expectedPods=12, currentHealthy=12, desiredHealthy=9)
        for number in (0, 1):
            await ns.label_node(ns.node("zone-c", number), {ZONE: "zone-d"})
        await until_allowed(ns, {"zone-a": 1, "zone-b": 1, "zone-d": 1})
        await ns.label_node(ns.node("zone-c", 0), {ZONE: None})
        await ns.label_node(ns.node("zone-c", 1), {ZONE: None})
        await until_allowed(ns, {"zone-a": 1, "zone-b": 1})
        assert (await status_of(ns))["uncoveredPods"] == 4
        await ns.client.patch(BUDGETS, "budget", MergePatch({"spec": {"maxUnavailable": 0}}), ns.namespace)
        await until_allowed(ns, {"zone-a": 0, "zone-b": 0})


async def eventually_status(ns: DisruptionNamespace, **expected: int) -> None:
    async def reached() -> bool:
        status = await status_of(ns)
        return {name: status.get(name) for name in expected} == expected

    await eventually(reached, str(expected))


def fleet_definition() -> dict[str, Any]:
    number = {"type": "integer"}
    schema = {"type": "object", "properties": {"spec": {"type": "object", "properties": {"size": number}}}}
    version = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {"scale": {"specReplicasPath": ".spec.size", "statusReplicasPath": ".status.size"}},
    }
    names = {"kind": "Fleet", "plural": "fleets", "singular": "fleet"}
    spec = {"group": "example.com", "scope": "Namespaced", "names": names, "versions": [version]}
    return {"metadata": {"name": "fleets.example.com"}, "spec": spec}


async def test_custom_owner_is_read_through_its_scale_subresource(ns: DisruptionNamespace) -> None:
    await ns.client.create(DEFINITIONS, fleet_definition())
    await ns.kubectl("wait", "--for=condition=Established", "crd/fleets.example.com")
    body = {"metadata": {"name": "web"}, "spec": {"size": 4}}
    fleet = await ns.client.create(FLEETS, body, ns.namespace)
    owner = {"apiVersion": "example.com/v1", "kind": "Fleet", "name": "web", "controller": True}
    owner["uid"] = fleet["metadata"]["uid"]
    for number in range(3):
        pod = ns.template("web", spread=False, nodeName=ns.node("zone-a", 0))
        pod["metadata"] |= {"name": f"web-{number}", "ownerReferences": [owner]}
        await ns.client.create(PODS, pod, ns.namespace)
    await ns.until_ready("web", 3)
    async with leading(ns, "leader-fleets"):
        await zone_budget(ns, maxUnavailable=2, nodeSelectorTerm=None)
        await eventually_status(ns, expectedPods=4, disruptionsAllowed=1, unmanagedPods=0)
        await ns.client.patch(FLEETS, "web", MergePatch({"spec": {"size": 3}}), ns.namespace)
        await eventually_status(ns, expectedPods=3, disruptionsAllowed=2)
    calls = ns.audit.calls(user="leader-fleets", namespace=ns.namespace)
    assert (
        sum(call.resource == "fleets/scale" for call in calls) <= 3
    )  # on discovery, on the first watch event, on change
    await ns.client.delete(DEFINITIONS, "fleets.example.com")


async def test_pods_without_a_known_scale_stop_the_budget_as_stock(ns: DisruptionNamespace) -> None:
    """A Deployment of 3 beside 3 pods whose controller has no scale: how many there should be is not known."""
    settings = await ns.client.create(CONFIG_MAPS, {"metadata": {"name": "web"}}, ns.namespace)
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "web", "controller": True}
    owner["uid"] = settings["metadata"]["uid"]
    for number in range(3):
        pod = ns.template("web", spread=False, nodeName=ns.node("zone-a", 0))
        pod["metadata"] |= {"name": f"unscaled-{number}", "ownerReferences": [owner]}
        await ns.client.create(PODS, pod, ns.namespace)
    await ns.deployment("web", 3)
    await ns.until_ready("web", 6)
    async with leading(ns, "leader-unscaled"):
        await zone_budget(ns, maxUnavailable=1, nodeSelectorTerm=None)
        await ns.budget("stock", resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "web"}}, maxUnavailable=1)
        for resource, name in ((BUDGETS, "budget"), (STOCK_BUDGETS, "stock")):

            async def failed(resource: Resource[dict[str, Any]] = resource, name: str = name) -> bool:
                stored = await ns.client.get(resource, name, ns.namespace)
                conditions = stored.get("status", {}).get("conditions", [])
                return any(condition["reason"] == "SyncFailed" for condition in conditions)

            await eventually(failed, f"the sync of {name} fails")
        await eventually_status(ns, disruptionsAllowed=0)
        for number in range(3):
            await ns.client.delete(PODS, f"unscaled-{number}", ns.namespace)
        await eventually_status(ns, expectedPods=3, disruptionsAllowed=1)


async def test_next_leader_keeps_a_killed_leaders_departures(ns: DisruptionNamespace) -> None:
    """A pod of zone-a is gone and its successor can't be scheduled: every leader counts it as missing in zone-a."""
    await install(ns.plane)
    config = await asyncio.to_thread(user_kubeconfig, ns.plane, "leader-killed")
    await ns.deployment("web", 9)
    await ns.until_ready("web", 9)
    first = await asyncio.to_thread(start_leader, config)
    try:
        await zone_budget(ns)
        await until_allowed(ns, ONE_EACH)
        for number in (0, 1):
            await ns.kubectl("cordon", ns.node("zone-a", number))
        (evicted, *_) = await ns.in_zone("web", "zone-a")
        async with replica(ns) as guard:
            await until_informed(guard, ns, 9)
            assert (await guard.evict(evicted)).allowed
        first.signal(signal.SIGKILL)
        await asyncio.to_thread(first.end)
        await ns.client.delete(PODS, evicted, ns.namespace, grace_seconds=0)
        assert await allowed(ns) == {**ONE_EACH, "zone-a": 0}
        async with leading(ns, "leader-next"):
            await eventually(lambda: departure_recorded(ns), "the departure is in the status")
            assert await allowed(ns) == {**ONE_EACH, "zone-a": 0}
            for number in (0, 1):
                await ns.kubectl("uncordon", ns.node("zone-a", number))
            await until_allowed(ns, ONE_EACH)
    finally:
        await asyncio.to_thread(first.remove)


async def departure_recorded(ns: DisruptionNamespace) -> bool:
    departures = (await status_of(ns))["departures"]
    return [(departure["domain"], departure["missing"]) for departure in departures] == [("zone-a", 1)]


async def test_budgets_appear_in_metrics(ns: DisruptionNamespace) -> None:
    await install(ns.plane)
    config = await asyncio.to_thread(user_kubeconfig, ns.plane, "leader-metrics")
    await ns.deployment("web", 9)
    await ns.until_ready("web", 9)
    leader = await asyncio.to_thread(start_leader, config)
    try:
        await zone_budget(ns)
        labels = f'{{budget="budget",domain="zone-a",namespace="{ns.namespace}"}}'

        async def shown() -> bool:
            _, text = await asyncio.to_thread(leader.probe, "/metrics")
            return f"zonewise_budget_allowed{labels} 1.0" in text and f"zonewise_budget_desired{labels} 2.0" in text

        await eventually(shown)
        await ns.client.delete(BUDGETS, "budget", ns.namespace)

        async def hidden() -> bool:
            return ns.namespace not in (await asyncio.to_thread(leader.probe, "/metrics"))[1]

        await eventually(hidden)
    finally:
        await asyncio.to_thread(leader.remove)
