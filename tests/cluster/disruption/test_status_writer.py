"""Status writer on a real API server: the numbers follow pods, nodes and scales, with few writes."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from support.disruption.cluster import BUDGETS, DEPLOYMENTS, STOCK_BUDGETS, DisruptionNamespace, charges_in
from support.disruption.processes import install, start_leader, user_kubeconfig
from support.disruption.webhook import (
    allowed,
    charged,
    leading,
    replica,
    set_ready,
    status_of,
    until_allowed,
    until_informed,
    zone_budget,
)
from support.waiting import eventually
from zonewise.disruption.controller.budget_store import BudgetStore
from zonewise.disruption.controller.events import BudgetEvents
from zonewise.disruption.controller.status_writer import StatusWriter
from zonewise.disruption.decide.ledger import (
    GONE_SECONDS,
    OWN_OPEN_SECONDS,
    REQUEST_SECONDS,
    ChargeSource,
    LedgerEntry,
)
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.clock import boot_seconds
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import PODS, Key, Pod, Resource
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")

T = TypeVar("T")

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


class Clock:
    """The machine's clock plus `ahead_seconds`."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def __call__(self) -> float:
        return boot_seconds() + self.ahead_seconds


@asynccontextmanager
async def running_status_writer(
    ns: DisruptionNamespace, clock: Clock, user: str = "publisher", pod_reads: type[Client] = Client
) -> AsyncIterator[StatusWriter]:
    """Run the status writer alone, with the test's clock. It reads single pods through a client of type `pod_reads`."""
    await install(ns.plane)
    config = await asyncio.to_thread(user_kubeconfig, ns.plane, user)
    async with (
        Client(kubeconfig.load(config)) as client,
        pod_reads(kubeconfig.load(config)) as reader,
        Recorder(client, "zonewise.dev/test", "test") as recorder,
    ):
        caches = Caches(client)
        sources = DisruptionInformers(caches)
        workloads = WorkloadInformers(client, caches, sources)
        store = BudgetStore(client, sources.budgets)
        status_writer = StatusWriter(reader, sources, workloads, store, BudgetEvents(client, recorder), clock=clock)
        async with caches:
            await caches.wait_synced()
            tasks = [asyncio.create_task(run()) for run in (workloads.run, status_writer.run)]
            try:
                yield status_writer
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)


def writes(ns: DisruptionNamespace, user: str) -> int:
    calls = ns.audit.calls(user=user, namespace=ns.namespace)
    return sum(call.resource == "topologydisruptionbudgets/status" for call in calls)


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


async def test_status_writes_are_rate_limited_and_stop_when_quiet(ns: DisruptionNamespace) -> None:
    clock = Clock()
    async with running_status_writer(ns, clock, "publisher-few"):
        await ns.deployment("web", 30)
        await ns.until_ready("web", 30)
        await zone_budget(ns, maxUnavailable="50%")
        await until_allowed(ns, dict.fromkeys(ONE_EACH, 5))
        await settled(ns)
        ns.audit.restart()
        started = clock()
        pods = await ns.pods("web")
        for ready in (False, True):
            await asyncio.gather(*(set_ready(ns, pod.metadata.name, ready=ready) for pod in pods[:10]))
        await until_allowed(ns, dict.fromkeys(ONE_EACH, 5))
        await settled(ns)
        seconds = clock() - started
        rises, falls = seconds + 1, 10
        assert writes(ns, "publisher-few") <= rises + falls
        ns.audit.restart()
        for pod in pods[:10]:
            note = MergePatch({"metadata": {"annotations": {"example.com/note": "x"}}})
            await ns.client.patch(PODS, pod.metadata.name, note, ns.namespace)
        await asyncio.sleep(1.5)
        assert ns.audit.calls(user="publisher-few", namespace=ns.namespace) == []


async def settled(ns: DisruptionNamespace) -> None:
    """Wait until the budget's version is unchanged for longer than any write is delayed."""
    version, since = "", 0.0

    async def quiet() -> bool:
        nonlocal version, since
        now = asyncio.get_running_loop().time()
        current = (await ns.client.get(BUDGETS, "budget", ns.namespace))["metadata"]["resourceVersion"]
        if current != version:
            version, since = current, now
        await asyncio.sleep(0.1)
        return now - since > 6.0

    await eventually(quiet)


def reservation(pod: Pod) -> LedgerEntry:
    return LedgerEntry(
        uid=pod.metadata.uid,
        name=pod.metadata.name,
        domain="zone-a",
        source=ChargeSource.ROLLOUT,
        time="2026-01-01T00:00:00Z",
    )


async def test_unused_charge_is_refunded(ns: DisruptionNamespace) -> None:
    clock = Clock()
    await ns.deployment("web", 9)
    await ns.until_ready("web", 9)
    async with running_status_writer(ns, clock) as status_writer:
        await zone_budget(ns)
        await until_allowed(ns, ONE_EACH)
        key = Key(ns.namespace, "budget")
        pods = [await ns.client.get(PODS, name, ns.namespace) for name in await ns.in_zone("web", "zone-a")]
        entries = [reservation(pod) for pod in pods]
        status_writer.hold(key, "test")
        ns.audit.restart()
        assert await status_writer.reserve({key: entries}) == {entries[0].uid}
        assert writes(ns, "publisher") == 1
        assert await charged(ns) == [entries[0].name]
        case = status_writer.fresh(key)
        assert case is not None
        assert case.status.numbers.domains["zone-a"].allowed == 0
        status_writer.give_back({entries[0].uid})
        assert await status_writer.reserve({key: entries[1:]}) == {entries[1].uid}
        assert writes(ns, "publisher") == 2
        assert await charged(ns) == [entries[1].name]
        status_writer.release(key, "test")
        clock.ahead_seconds += OWN_OPEN_SECONDS
        await set_ready(ns, (await ns.in_zone("web", "zone-b"))[0], ready=False)
        await until_allowed(ns, {**ONE_EACH, "zone-a": 0, "zone-b": 0})
        await eventually(lambda: is_closed(ns), "no request may rely on it any more")
        assert await charged(ns) == [entries[1].name]
        ns.audit.restart()
        clock.ahead_seconds += REQUEST_SECONDS + 5.0
        await set_ready(ns, (await ns.in_zone("web", "zone-c"))[0], ready=False)
        await until_allowed(ns, {"zone-a": 1, "zone-b": 0, "zone-c": 0})
        assert await charged(ns) == []
        reads = [call for call in ns.audit.calls(user="publisher", namespace=ns.namespace) if call.verb == "get"]
        assert {(call.resource, call.name) for call in reads} == {("pods", entries[1].name)}
        events = await eventually(lambda: ns.events("NotDeleted"))
        assert entries[1].name in events[0]["note"]


class AheadOfTheWatch(Client):
    """The API server's answer when a pod is gone, before the watch delivers that."""

    async def get(self, resource: Resource[T], name: str, namespace: str = "", **options: Any) -> T:
        raise NotFound(f"{resource.plural} {name!r} not found in {namespace}, {options}")


async def test_charge_of_a_gone_pod_outlives_a_stale_cache(ns: DisruptionNamespace) -> None:
    """The cache still counts the pod as healthy: without the charge, another pod of its zone would be let go."""
    clock = Clock()
    await ns.deployment("web", 9)
    await ns.until_ready("web", 9)
    async with running_status_writer(ns, clock, pod_reads=AheadOfTheWatch) as status_writer:
        await zone_budget(ns)
        await until_allowed(ns, ONE_EACH)
        key = Key(ns.namespace, "budget")
        (name, *_) = await ns.in_zone("web", "zone-a")
        entry = reservation(await ns.client.get(PODS, name, ns.namespace))
        assert await status_writer.reserve({key: [entry]}) == {entry.uid}
        clock.ahead_seconds += OWN_OPEN_SECONDS
        await set_ready(ns, (await ns.in_zone("web", "zone-b"))[0], ready=False)
        await eventually(lambda: is_closed(ns), "no request may rely on it any more")
        clock.ahead_seconds += REQUEST_SECONDS + 5.0
        await set_ready(ns, (await ns.in_zone("web", "zone-c"))[0], ready=False)
        await until_allowed(ns, {"zone-a": 0, "zone-b": 0, "zone-c": 0})
        assert await charged(ns) == [name]
        await ns.client.delete(PODS, name, ns.namespace, grace_seconds=0)
        await eventually(lambda: is_replaced(ns, name), "its successor is there")
        assert await charged(ns) == [name]
        clock.ahead_seconds += GONE_SECONDS
        await set_ready(ns, (await ns.in_zone("web", "zone-b"))[1], ready=False)
        await eventually(lambda: nothing_is_charged(ns), "the charge ends after the watch delivered the deletion")
        assert await ns.events("NotDeleted") == []


async def is_replaced(ns: DisruptionNamespace, name: str) -> bool:
    names = {pod.metadata.name for pod in await ns.pods("web")}
    return len(names) == 9 and name not in names


async def nothing_is_charged(ns: DisruptionNamespace) -> bool:
    return await charged(ns) == []


async def is_closed(ns: DisruptionNamespace) -> bool:
    return all(charge.closed for charge in charges_in(await status_of(ns)))


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
