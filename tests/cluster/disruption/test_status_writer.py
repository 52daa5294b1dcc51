"""The leader's numbers on a real API server: they follow pods, nodes and scales, and cost no more writes than they must."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from support.disruption.cluster import BUDGETS, DEPLOYMENTS, Bed
from support.disruption.processes import install, start_leader, user_kubeconfig
from support.disruption.webhook import (
    allowed,
    charged,
    known,
    leading,
    replica,
    set_ready,
    status_of,
    until_allowed,
    zone_budget,
)
from support.waiting import eventually
from zonewise.disruption.controller.budget_store import BudgetStore
from zonewise.disruption.controller.events import BudgetEvents
from zonewise.disruption.controller.status_writer import StatusWriter
from zonewise.disruption.decide.ledger import ChargeSource, LedgerEntry
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import boot_seconds
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import PODS, Key, Pod, Resource
from zonewise.topology import ZONE

pytestmark = pytest.mark.xdist_group("disruption")

ONE_EACH = {"zone-a": 1, "zone-b": 1, "zone-c": 1}
FLEETS: Resource[dict[str, Any]] = Resource(dict[str, Any], "Fleet", "fleets", "example.com")
DEFINITIONS: Resource[dict[str, Any]] = Resource(
    dict[str, Any],
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "apiextensions.k8s.io",
    namespaced=False,
)


class Clock:
    """The machine's, and as much later as a test wants."""

    def __init__(self) -> None:
        self.ahead_seconds = 0.0

    def __call__(self) -> float:
        return boot_seconds() + self.ahead_seconds


@asynccontextmanager
async def publishing(bed: Bed, clock: Clock, user: str = "publisher") -> AsyncIterator[StatusWriter]:
    """The publisher alone, with a clock of the test's."""
    await install(bed.plane)
    config = await asyncio.to_thread(user_kubeconfig, bed.plane, user)
    async with Client(kubeconfig.load(config)) as client, Recorder(client, "zonewise.dev/test", "test") as recorder:
        caches = Caches(client)
        sources = DisruptionInformers(caches)
        workloads = WorkloadInformers(client, caches, sources)
        book = BudgetStore(client, sources.budgets)
        publisher = StatusWriter(sources, workloads, book, BudgetEvents(client, recorder), clock=clock)
        async with caches:
            await caches.wait_synced()
            tasks = [asyncio.create_task(run()) for run in (workloads.run, publisher.run)]
            try:
                yield publisher
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.wait(tasks)


def writes(bed: Bed, user: str) -> int:
    calls = bed.audit.calls(user=user, namespace=bed.namespace)
    return sum(call.resource == "topologydisruptionbudgets/status" for call in calls)


async def test_numbers_follow_the_cluster(bed: Bed) -> None:
    async with leading(bed):
        await bed.deployment("web", 9)
        await bed.until_ready("web", 9)
        await zone_budget(bed)
        await until_allowed(bed, ONE_EACH)
        (lost, *_) = await bed.in_zone("web", "zone-b")
        await bed.set_unready(lost)
        await until_allowed(bed, {**ONE_EACH, "zone-b": 0})
        await bed.client.delete(PODS, lost, bed.namespace, grace_seconds=0)
        await until_allowed(bed, ONE_EACH)
        await bed.scale(DEPLOYMENTS, "web", 12)
        await bed.until_ready("web", 12)
        await eventually_status(bed, expectedPods=12, currentHealthy=12, desiredHealthy=9)
        for number in (0, 1):
            await bed.label_node(bed.node("zone-c", number), {ZONE: "zone-d"})
        await until_allowed(bed, {"zone-a": 1, "zone-b": 1, "zone-d": 1})
        await bed.label_node(bed.node("zone-c", 0), {ZONE: None})
        await bed.label_node(bed.node("zone-c", 1), {ZONE: None})
        await until_allowed(bed, {"zone-a": 1, "zone-b": 1})
        assert (await status_of(bed))["uncoveredPods"] == 4
        await bed.client.patch(BUDGETS, "budget", MergePatch({"spec": {"maxUnavailable": 0}}), bed.namespace)
        await until_allowed(bed, {"zone-a": 0, "zone-b": 0})


async def eventually_status(bed: Bed, **wanted: int) -> None:
    async def reached() -> bool:
        found = await status_of(bed)
        return {name: found.get(name) for name in wanted} == wanted

    await eventually(reached, str(wanted))


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


async def test_an_owner_of_any_kind_is_asked_for_its_scale(bed: Bed) -> None:
    await bed.client.create(DEFINITIONS, fleet_definition())
    await bed.kubectl("wait", "--for=condition=Established", "crd/fleets.example.com")
    body = {"metadata": {"name": "web"}, "spec": {"size": 4}}
    fleet = await bed.client.create(FLEETS, body, bed.namespace)
    owner = {"apiVersion": "example.com/v1", "kind": "Fleet", "name": "web", "controller": True}
    owner["uid"] = fleet["metadata"]["uid"]
    for number in range(3):
        pod = bed.template("web", spread=False, nodeName=bed.node("zone-a", 0))
        pod["metadata"] |= {"name": f"web-{number}", "ownerReferences": [owner]}
        await bed.client.create(PODS, pod, bed.namespace)
    await bed.until_ready("web", 3)
    async with leading(bed, "leader-fleets"):
        await zone_budget(bed, maxUnavailable=2, nodeSelectorTerm=None)
        await eventually_status(bed, expectedPods=4, disruptionsAllowed=1, unmanagedPods=0)
        await bed.client.patch(FLEETS, "web", MergePatch({"spec": {"size": 3}}), bed.namespace)
        await eventually_status(bed, expectedPods=3, disruptionsAllowed=2)
    calls = bed.audit.calls(user="leader-fleets", namespace=bed.namespace)
    assert sum(call.resource == "fleets/scale" for call in calls) <= 3  # met, heard of, changed
    await bed.client.delete(DEFINITIONS, "fleets.example.com")


async def test_writes_are_few_and_a_quiet_cluster_costs_nothing(bed: Bed) -> None:
    clock = Clock()
    async with publishing(bed, clock, "publisher-few"):
        await bed.deployment("web", 30)
        await bed.until_ready("web", 30)
        await zone_budget(bed, maxUnavailable="50%")
        await until_allowed(bed, dict.fromkeys(ONE_EACH, 5))
        await settled(bed)
        bed.audit.restart()
        started = clock()
        pods = await bed.pods("web")
        for ready in (False, True):
            await asyncio.gather(*(set_ready(bed, pod.metadata.name, ready=ready) for pod in pods[:10]))
        await until_allowed(bed, dict.fromkeys(ONE_EACH, 5))
        await settled(bed)
        seconds = clock() - started
        rises, falls = seconds + 1, 10
        assert writes(bed, "publisher-few") <= rises + falls
        bed.audit.restart()
        for pod in pods[:10]:
            note = MergePatch({"metadata": {"annotations": {"example.com/note": "x"}}})
            await bed.client.patch(PODS, pod.metadata.name, note, bed.namespace)
        await asyncio.sleep(1.5)
        assert bed.audit.calls(user="publisher-few", namespace=bed.namespace) == []


async def settled(bed: Bed) -> None:
    """Once its version has stayed for longer than anything waits to be written."""
    version, since = "", 0.0

    async def quiet() -> bool:
        nonlocal version, since
        now = asyncio.get_running_loop().time()
        found = (await bed.client.get(BUDGETS, "budget", bed.namespace))["metadata"]["resourceVersion"]
        if found != version:
            version, since = found, now
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


async def test_a_charge_that_came_to_nothing_is_taken_back(bed: Bed) -> None:
    clock = Clock()
    await bed.deployment("web", 9)
    await bed.until_ready("web", 9)
    async with publishing(bed, clock) as publisher:
        await zone_budget(bed)
        await until_allowed(bed, ONE_EACH)
        key = Key(bed.namespace, "budget")
        pods = [await bed.client.get(PODS, name, bed.namespace) for name in await bed.in_zone("web", "zone-a")]
        entries = [reservation(pod) for pod in pods]
        publisher.hold(key, "test")
        bed.audit.restart()
        assert await publisher.reserve({key: entries}) == {entries[0].uid}
        assert writes(bed, "publisher") == 1
        assert await charged(bed) == [entries[0].name]
        case = publisher.fresh(key)
        assert case is not None
        assert case.status.numbers.domains["zone-a"].allowed == 0
        publisher.give_back({entries[0].uid})
        assert await publisher.reserve({key: entries[1:]}) == {entries[1].uid}
        assert writes(bed, "publisher") == 2
        assert await charged(bed) == [entries[1].name]
        publisher.release(key, "test")
        clock.ahead_seconds += 121.0
        await set_ready(bed, (await bed.in_zone("web", "zone-b"))[0], ready=False)
        await until_allowed(bed, {**ONE_EACH, "zone-b": 0})
        assert await charged(bed) == []
        told = await eventually(lambda: bed.events("NotDeleted"))
        assert entries[1].name in told[0]["note"]


async def test_the_next_leader_goes_on_where_the_last_was_killed(bed: Bed) -> None:
    """A pod of zone-a is gone and its successor can't be placed: that is zone-a's debt, whoever counts."""
    await install(bed.plane)
    config = await asyncio.to_thread(user_kubeconfig, bed.plane, "leader-killed")
    await bed.deployment("web", 9)
    await bed.until_ready("web", 9)
    first = await asyncio.to_thread(start_leader, config)
    try:
        await zone_budget(bed)
        await until_allowed(bed, ONE_EACH)
        for number in (0, 1):
            await bed.kubectl("cordon", bed.node("zone-a", number))
        (gone, *_) = await bed.in_zone("web", "zone-a")
        async with replica(bed) as guard:
            await known(guard, bed, 9)
            assert (await guard.evict(gone)).allowed
        first.signal(signal.SIGKILL)
        await asyncio.to_thread(first.end)
        await bed.client.delete(PODS, gone, bed.namespace, grace_seconds=0)
        assert await allowed(bed) == {**ONE_EACH, "zone-a": 0}
        async with leading(bed, "leader-next"):
            await eventually(lambda: departed(bed), "the debt is written down")
            assert await allowed(bed) == {**ONE_EACH, "zone-a": 0}
            for number in (0, 1):
                await bed.kubectl("uncordon", bed.node("zone-a", number))
            await until_allowed(bed, ONE_EACH)
    finally:
        await asyncio.to_thread(first.remove)


async def departed(bed: Bed) -> bool:
    found = (await status_of(bed))["departures"]
    return [(line["domain"], line["missing"]) for line in found] == [("zone-a", 1)]


async def test_budgets_are_shown_in_metrics(bed: Bed) -> None:
    await install(bed.plane)
    config = await asyncio.to_thread(user_kubeconfig, bed.plane, "leader-metrics")
    await bed.deployment("web", 9)
    await bed.until_ready("web", 9)
    leader = await asyncio.to_thread(start_leader, config)
    try:
        await zone_budget(bed)
        labels = f'{{budget="budget",domain="zone-a",namespace="{bed.namespace}"}}'

        async def shown() -> bool:
            _, text = await asyncio.to_thread(leader.probe, "/metrics")
            return f"zonewise_budget_allowed{labels} 1.0" in text and f"zonewise_budget_desired{labels} 2.0" in text

        await eventually(shown)
        await bed.client.delete(BUDGETS, "budget", bed.namespace)

        async def hidden() -> bool:
            return bed.namespace not in (await asyncio.to_thread(leader.probe, "/metrics"))[1]

        await eventually(hidden)
    finally:
        await asyncio.to_thread(leader.remove)
