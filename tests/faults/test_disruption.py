"""Budgets under faults: whoever dies, lags or lies, no zone ever has less than promised, and what was begun ends."""

import asyncio
import os
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import AsyncExitStack, suppress
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pytest

from support.disruption import cluster
from support.disruption.cluster import (
    BUDGETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    STOCK_BUDGETS,
    ZONES,
    Bed,
    Json,
    charges_in,
    is_available,
)
from support.disruption.kwok import GONE_AFTER, READY_AFTER
from support.disruption.processes import LateApi, Zonewise, install, zonewise
from support.disruption.violations import watching
from support.lab import shared_cluster
from support.waiting import eventually
from zonewise.kube.wire.errors import ApiError, Conflict, ServerError, TooManyRequests
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import PODS

pytestmark = [pytest.mark.xdist_group("disruption-faults"), pytest.mark.timeout(7200)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
SEED = int(os.environ.get("ZONEWISE_SEED", "1"))
BURSTS = 20 if LONG else 1
ROUNDS = 100 if LONG else 2
GRANT_ROUNDS = 20 if LONG else 2
NAMES_TAKEN = 60 if LONG else 6
KILLS_PER_ROUND = 3 if LONG else 2
MOST_LAG_SECONDS = 5.0

EVICT = {"zonewise.dev/update": "Evict"}
ONE_PER_ZONE = {
    "maxUnavailable": 1,
    "nodeSelectorTerm": {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("disruption-faults")


@pytest.fixture(scope="module")
def plane(run_directory: shared_cluster.Run, folder: Path) -> Iterator[ControlPlane]:
    plane = run_directory.private(**cluster.control_plane_settings(folder))
    asyncio.run(install(plane))
    yield plane
    run_directory.remove(plane)


@pytest.fixture
async def bed(plane: ControlPlane, folder: Path) -> AsyncIterator[Bed]:
    async with cluster.bed(plane, folder) as made:
        await made.make_nodes()
        yield made


async def guard(bed: Bed, app: str, **spec: Any) -> None:
    """One per zone."""
    await bed.budget(app, selector={"matchLabels": {"app": app}}, **{**ONE_PER_ZONE, **spec})


async def status(bed: Bed, app: str) -> Json:
    budget = await bed.client.get(BUDGETS, app, bed.namespace)
    found: Json = budget.get("status", {})
    return found


async def allows(bed: Bed, app: str, allowed: int) -> bool:
    return bool((await status(bed, app)).get("disruptionsAllowed") == allowed)


async def evict(bed: Bed, pod: str) -> str:
    """What became of it: "gone", the code and reason of a refusal."""
    try:
        await bed.client.evict(pod, bed.namespace)
    except TooManyRequests as error:
        return "429 budget" if any(cause.reason == "DisruptionBudget" for cause in error.causes) else "429 other"
    except ApiError as error:
        return f"{error.status} {error.message}"
    return "gone"


async def test_fifty_evictions_at_once_through_webhooks_that_are_behind(bed: Bed) -> None:
    """Their caches tell them of changes up to five seconds late, each in its own time."""
    random = Random(SEED)
    async with AsyncExitStack() as stack:
        apis = [await stack.enter_async_context(LateApi(bed.plane, lag)) for lag in (0.0, 2.0, MOST_LAG_SECONDS)]
        late = {number: api.kubeconfig(bed.folder) for number, api in enumerate(apis)}
        apps = [f"web{number}" for number in range(BURSTS)]
        for place in product(ZONES, range(2, 2 + BURSTS // 5)):  # room for them all
            await bed.make_node(*place)
        for app in apps:
            await bed.replica_set(app, 54, pod_annotations={GONE_AFTER: "600s"})
            await guard(bed, app)
            await bed.until_ready(app, 54)
        await bed.cordon()
        await stack.enter_async_context(zonewise(bed.client, bed.plane, webhooks=3, late=late))
        for app in apps:
            await eventually(lambda app=app: allows(bed, app, 3), "counted")
            for api in apis:
                api.lag_seconds = random.uniform(0, MOST_LAG_SECONDS)
            pods = random.sample([pod.metadata.name for pod in await bed.pods(app)], 50)
            gone: set[str] = set()
            await eventually(lambda gone=gone, pods=pods: ask_all(bed, pods, gone), "three pass")
            assert len(gone) == 3
            terminating = [pod.metadata.uid for pod in await bed.pods(app) if pod.metadata.deletion_timestamp]
            charged = [charge.uid for charge in charges_in(await status(bed, app))]
            assert sorted(charged) == sorted(terminating)
            assert len(set(charged)) == 3


async def ask_all(bed: Bed, pods: Sequence[str], gone: set[str]) -> bool:
    """All at once who are not gone. A busy machine may tell some to come again: then they do, as a drain does."""
    asked = [name for name in pods if name not in gone]
    answers = dict(zip(asked, await asyncio.gather(*(evict(bed, name) for name in asked)), strict=True))
    assert set(answers.values()) <= {"gone", "429 budget"}
    gone |= {name for name, answer in answers.items() if answer == "gone"}
    return len(gone) >= 3


async def drained(bed: Bed, node: str) -> None:
    """As an operator does it: a drain that was turned away by a webhook that just died is started again."""
    while True:
        command = bed.kubectl_command("drain", node, "--ignore-daemonsets", "--force", "--timeout=20s")
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        await asyncio.sleep(0.5)


async def is_updated(bed: Bed, app: str, image: str) -> bool:
    await asyncio.sleep(0.2)
    pods = (await bed.client.list(PODS.whole(), bed.namespace, selector=f"app={app}")).items
    ready = sum(is_available(pod) for pod in await bed.pods(app))
    return ready == 9 and [pod["spec"]["containers"][0]["image"] for pod in pods] == [image] * 9


async def harass(running: Zonewise, random: Random, kills: int) -> None:
    """Kills any of the processes, and starts it again a moment later."""
    for _ in range(kills):
        await asyncio.sleep(random.uniform(0.2, 2.5))
        group, start = random.choice(
            [(running.leaders, running.start_leader), (running.webhooks, running.start_webhook)]
        )
        number = random.choice(sorted(group))
        await running.kill(group[number])
        await asyncio.sleep(random.uniform(0, 1))
        await start(number)


async def test_killed_at_any_moment_while_two_nodes_are_drained(bed: Bed) -> None:
    random = Random(SEED)
    await bed.stateful_set("db", 9, annotations=EVICT, pod_annotations={READY_AFTER: "300ms", GONE_AFTER: "200ms"})
    await bed.until_ready("db", 9)
    await guard(bed, "db")
    async with zonewise(bed.client, bed.plane, leaders=2, webhooks=2) as running:
        await eventually(lambda: allows(bed, "db", 3), "counted")
        for number in range(ROUNDS):
            image = f"none:{number + 2}"
            nodes = [bed.node(zone, number % 2) for zone in random.sample(ZONES, 2)]
            async with watching(bed, "db", dict.fromkeys(ZONES, 2)) as watcher:
                await bed.new_version(STATEFUL_SETS, "db", image)
                async with asyncio.timeout(600), asyncio.TaskGroup() as group:
                    group.create_task(harass(running, random, KILLS_PER_ROUND))
                    for node in nodes:
                        group.create_task(drained(bed, node))
                await eventually(lambda image=image: is_updated(bed, "db", image), f"round {number} ends")
            assert watcher.events > 18
            assert not watcher.violations, f"round {number}, seed {SEED}: {watcher.violations}"
            await bed.kubectl("uncordon", *nodes)


async def leader_killed(running: Zonewise, after_seconds: float) -> None:
    """What it was doing is for the one that is started at once."""
    await asyncio.sleep(after_seconds)
    await running.kill(running.leaders[0])
    await running.start_leader(0)


async def test_killed_at_any_moment_while_a_deployment_rolls_out_and_scales_down(bed: Bed) -> None:
    """Between a charge, its grant, and the delete by the Deployment's own controller."""
    random = Random(SEED)
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 5}}
    soon = {READY_AFTER: "300ms", GONE_AFTER: "200ms"}
    (even,) = bed.template("web")["spec"]["topologySpreadConstraints"]
    spread = [even | {"matchLabelKeys": ["pod-template-hash"]}]  # else the new ones fill what the old ones leave
    await bed.deployment("web", 9, strategy=strategy, pod_annotations=soon, pod_topologySpreadConstraints=spread)
    await bed.until_ready("web", 9)
    await guard(bed, "web")
    async with zonewise(bed.client, bed.plane) as running:
        await eventually(lambda: allows(bed, "web", 3), "counted")
        (pod, *_) = await bed.in_zone("web", ZONES[0])
        await eventually(lambda: policy_holds(bed, pod), "the API server knows the policy")
        for number in range(GRANT_ROUNDS):
            image = f"none:{number + 2}"
            async with watching(bed, "web", dict.fromkeys(ZONES, 2)) as watcher:
                await bed.new_version(DEPLOYMENTS, "web", image)
                await leader_killed(running, random.uniform(0, 3))
                await eventually(lambda image=image: is_updated(bed, "web", image), f"rollout {number} ends")
                await bed.scale(DEPLOYMENTS, "web", 6)
                await leader_killed(running, random.uniform(0, 0.5))
                await bed.until_ready("web", 6)
                assert await bed.ready_by_zone("web") == dict.fromkeys(ZONES, 2)
                await bed.scale(DEPLOYMENTS, "web", 9)
                await bed.until_ready("web", 9)
            assert watcher.events > 18
            assert not watcher.violations, f"round {number}, seed {SEED}: {watcher.violations}"


async def test_webhooks_away_and_then_the_leader(bed: Bed) -> None:
    """Evictions are refused, everything else goes on; without a leader the refusal says so."""
    await bed.replica_set("web", 9)
    await bed.until_ready("web", 9)
    await guard(bed, "web")
    async with zonewise(bed.client, bed.plane) as running:
        await eventually(lambda: allows(bed, "web", 3), "counted")
        (pod, *_) = await bed.in_zone("web", "zone-a")
        await eventually(lambda: policy_holds(bed, pod), "the API server knows the policy")
        await running.kill(running.webhooks[0])
        with pytest.raises(ServerError):
            await bed.client.evict(pod, bed.namespace)
        await bed.client.delete(PODS, pod, bed.namespace)
        await bed.until_ready("web", 9)
        await bed.scale(REPLICA_SETS, "web", 12)
        await bed.until_ready("web", 12)
        await bed.scale(REPLICA_SETS, "web", 9)
        await bed.until_ready("web", 9)
        assert await bed.ready_by_zone("web") == dict.fromkeys(ZONES, 3)

        await running.kill(running.leaders[0])
        webhook = await running.start_webhook()
        await asyncio.to_thread(webhook.wait_ready)
        (pod, *_) = await bed.in_zone("web", "zone-a")
        await eventually(lambda: says_no_leader(bed, pod), "the refusal says what is missing")
        await running.start_leader()
        await eventually(lambda: is_evicted(bed, "zone-b"), "evictions pass again")


async def policy_holds(bed: Bed, pod: str) -> bool:
    """API servers learn of a policy a moment after it is stored."""
    user = "--as=system:serviceaccount:kube-system:replicaset-controller"
    return "guarded by" in await bed.kubectl("delete", "pod", pod, "--dry-run=server", user, code=None)


async def says_no_leader(bed: Bed, pod: str) -> bool:
    await asyncio.sleep(1)
    try:
        await bed.client.evict(pod, bed.namespace, dry_run=True)
    except TooManyRequests as error:
        return "budget controller is not running" in error.message
    return False


async def is_evicted(bed: Bed, zone: str) -> bool:
    (pod, *_) = await bed.in_zone("web", zone)
    await asyncio.sleep(0.5)
    return await evict(bed, pod) == "gone"


async def test_a_stock_budget_that_refuses_after_our_charge(bed: Bed) -> None:
    """The webhook hears of the stock budget's change too late. Who asks again is not charged twice; who gives up is refunded."""
    await bed.replica_set("web", 9)
    await bed.until_ready("web", 9)
    await guard(bed, "web")
    await bed.budget("stock", resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "web"}}, maxUnavailable=1)
    async with LateApi(bed.plane, 0) as api:
        late = {0: api.kubeconfig(bed.folder)}
        async with zonewise(bed.client, bed.plane, late=late):
            await eventually(lambda: allows(bed, "web", 3), "counted")
            api.lag_seconds = 60
            await set_stock(bed, 0)
            (pod, *_) = await bed.in_zone("web", "zone-a")
            assert await evict(bed, pod) == "429 budget"
            charged = [charge.name for charge in charges_in(await status(bed, "web"))]
            assert charged == [pod]
            assert await evict(bed, pod) == "429 budget"
            assert len(charges_in(await status(bed, "web"))) == 1
            if LONG:
                await until_refunded(bed)
            await set_stock(bed, 1)
            assert await evict(bed, pod) == "gone"


async def set_stock(bed: Bed, most: int) -> None:
    """And waits until its own controller has counted."""
    await bed.client.patch(STOCK_BUDGETS, "stock", MergePatch({"spec": {"maxUnavailable": most}}), bed.namespace)

    async def counted() -> bool:
        found = (await bed.client.get(STOCK_BUDGETS, "stock", bed.namespace))["status"]
        return bool(found["disruptionsAllowed"] == most)

    await eventually(counted, "the stock budget is counted")


async def until_refunded(bed: Bed) -> None:
    with suppress(AssertionError):  # it takes two minutes: longer than one waits for anything else
        await eventually(lambda: allows(bed, "web", 3), "")
    await eventually(lambda: allows(bed, "web", 3), "the charge came back")
    assert not charges_in(await status(bed, "web"))


async def test_times_in_the_ledger_from_1970_and_2199(bed: Bed) -> None:
    """They are for people: nothing ages by them. `test_guard` has a webhook whose clock jumps."""
    await bed.replica_set("web", 9)
    await bed.until_ready("web", 9)
    await bed.cordon()
    await guard(bed, "web")
    async with zonewise(bed.client, bed.plane):
        await eventually(lambda: allows(bed, "web", 3), "counted")
        first, second, _ = await bed.in_zone("web", "zone-a")
        assert await evict(bed, first) == "gone"
        for time in ("1970-01-01T00:00:00.000000Z", "2199-01-01T00:00:00.000000Z"):
            await eventually(lambda time=time: rewrite_times(bed, time), "rewritten")
            await asyncio.sleep(1.5)
            assert len(charges_in(await status(bed, "web"))) == 1
            assert await evict(bed, second) == "429 budget"


async def rewrite_times(bed: Bed, time: str) -> bool:
    found = await bed.client.get(BUDGETS, "web", bed.namespace)
    ledger = [msgspec.structs.replace(charge, time=time) for charge in charges_in(found["status"])]
    version = {"resourceVersion": found["metadata"]["resourceVersion"]}
    patch = MergePatch({"metadata": version, "status": {"charges": "".join(f"{charge}\n" for charge in ledger)}})
    with suppress(Conflict):
        await bed.client.patch(BUDGETS, "web", patch, bed.namespace, subresource="status")
        return bool(ledger)
    return False


async def test_names_that_come_back(bed: Bed) -> None:
    """A webhook that is behind takes the next pod of a name for the one before it, unless it looks."""
    await bed.stateful_set("db", 9, pod_annotations={READY_AFTER: "100ms", GONE_AFTER: "300ms"})
    await bed.until_ready("db", 9)
    await guard(bed, "db")
    async with LateApi(bed.plane, 0) as api, zonewise(bed.client, bed.plane, late={0: api.kubeconfig(bed.folder)}):
        await eventually(lambda: allows(bed, "db", 3), "counted")
        names = await bed.in_zone("db", "zone-a")
        api.lag_seconds = MOST_LAG_SECONDS
        answers: Counter[str] = Counter()
        async with watching(bed, "db", dict.fromkeys(ZONES, 2)) as watcher:
            while answers["gone"] < NAMES_TAKEN:
                answers.update(await asyncio.gather(*(evict(bed, name) for name in names)))
            await bed.until_ready("db", 9)
        assert not watcher.violations
        assert {answer for answer in answers if "not found" not in answer} <= {"gone", "429 budget"}
