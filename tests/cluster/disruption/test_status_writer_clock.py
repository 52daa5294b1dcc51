"""Status writer alone, with the test's clock, on a real API server: how often it writes, and when charges end."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import pytest

from support.disruption.cluster import BUDGETS, DisruptionNamespace, charges_in
from support.disruption.processes import install, user_kubeconfig
from support.disruption.webhook import (
    charged,
    set_ready,
    status_of,
    until_allowed,
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

pytestmark = pytest.mark.xdist_group("disruption")

T = TypeVar("T")
ONE_EACH = {"zone-a": 1, "zone-b": 1, "zone-c": 1}


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
