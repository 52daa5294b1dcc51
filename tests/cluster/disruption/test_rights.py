"""deploy/disruption.yaml: leader and guard do their whole work with exactly the rights it gives, and not with one less."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.disruption import cluster
from support.disruption.cluster import BUDGETS, DAEMON_SETS, DEPLOYMENTS, STATEFUL_SETS, STOCK_BUDGETS, Bed
from support.disruption.processes import free_port, start_leader, start_webhook
from support.disruption.webhook import set_ready, status_of, until_allowed, zone_budget
from support.install.deployed import CAREFUL, SYSTEM, Deployed, documents, scopes
from support.process import Program as Process
from support.waiting import eventually
from zonewise.kube.wire.errors import ApiError, TooManyRequests
from zonewise.kube.wire.patch import JsonPatch, MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import EVENTS, PODS, SECRETS
from zonewise.objects.admissionregistration import VALIDATING_WEBHOOK_CONFIGURATIONS

pytestmark = pytest.mark.xdist_group("disruption")

MANIFEST = "disruption.yaml"
LEADER, GUARD = "zonewise-disruption", "zonewise-guard"
EVICT = {"zonewise.dev/update": "Evict"}
EACH = dict.fromkeys(cluster.ZONES, 1)
BUDGET = ("get", "topologydisruptionbudgets.zonewise.dev")


@asynccontextmanager
async def deployed(start: Callable[..., ControlPlane], folder: Path) -> AsyncIterator[tuple[Deployed, Bed]]:
    """Both files applied to a control plane of the test's own, with nodes in three zones."""
    settings = cluster.control_plane_settings(folder)
    settings["flags"][Program.APISERVER] = (*settings["flags"][Program.APISERVER], *CAREFUL)
    plane = await asyncio.to_thread(start, **settings)
    site = Deployed(plane, folder)
    site.apply("tdb.yaml")
    site.apply(MANIFEST)
    async with cluster.bed(plane, folder) as bed:
        await bed.make_nodes()
        yield site, bed


@asynccontextmanager
async def leader(site: Deployed, bed: Bed) -> AsyncIterator[Process]:
    config = await site.kubeconfig(bed.client, LEADER)
    program = await asyncio.to_thread(start_leader, config, "--lease-namespace", SYSTEM)
    try:
        await asyncio.to_thread(program.wait_ready)
        yield program
    finally:
        await asyncio.to_thread(program.remove)


@asynccontextmanager
async def guard(site: Deployed, bed: Bed) -> AsyncIterator[Process]:
    """As deployed, but reached on loopback."""
    port = free_port()
    where = [
        {"op": "replace", "path": f"/webhooks/{at}/clientConfig", "value": {"url": f"https://127.0.0.1:{port}/{name}"}}
        for at, name in enumerate(("evictions", "deletes"))
    ]
    await bed.client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, LEADER, JsonPatch(where))
    config = await site.kubeconfig(bed.client, GUARD)
    more = ("--no-register", "--secret", f"{SYSTEM}/{GUARD}", "--lease-namespace", SYSTEM)
    program = await asyncio.to_thread(start_webhook, config, port, port, *more)
    try:
        await asyncio.to_thread(program.wait_ready)
        yield program
    finally:
        await asyncio.to_thread(program.remove)


async def test_leader_and_guard_as_deployed(private_cluster: Callable[..., ControlPlane], tmp_path: Path) -> None:
    async with deployed(private_cluster, tmp_path) as (site, bed):
        await bed.deployment("web", 9)
        await bed.stateful_set("db", 3, annotations=EVICT)
        await bed.daemon_set("agent", annotations=EVICT)
        await bed.until_ready("web", 9)
        await bed.until_ready("db", 3)
        await bed.until_ready("agent", 6)
        async with leader(site, bed), guard(site, bed):
            await budgets(bed)
            await ask_the_guard(bed)
            await roll_out(bed)
            await scale_down(bed)
            await write_in_between(site, bed)
            await eventually(lambda: repeats(bed), "an event repeats")
        await forget_authorities(bed)
        async with guard(site, bed):
            pass
        for account in (LEADER, GUARD):
            assert not site.refused(account)
            assert site.used(MANIFEST, account) == scopes(MANIFEST, account)


async def budgets(bed: Bed) -> None:
    for app in ("web", "db", "agent"):
        await zone_budget(bed, app, app)
        await until_allowed(bed, EACH, app)


async def ask_the_guard(bed: Bed) -> None:
    """Evictions that pass, that are refused, of a pod that is not ready, and of one whose node is gone."""
    one, two, three = await bed.in_zone("web", "zone-a")
    await eventually(lambda: evicted(bed, one), "the guard is asked")
    with pytest.raises(TooManyRequests):
        await bed.client.evict(two, bed.namespace)
    await set_ready(bed, three, ready=False)
    await until_allowed(bed, {**EACH, "zone-a": 0}, "web")
    with suppress(TooManyRequests):
        await bed.client.evict(three, bed.namespace, dry_run=True)
    stray = bed.template("web", spread=False, nodeName="no-such-node")
    stray["metadata"]["name"] = "stray"
    await bed.client.create(PODS, stray, bed.namespace)
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await bed.client.patch(PODS, "stray", MergePatch(running), bed.namespace, subresource="status")
    await bed.client.evict("stray", bed.namespace, dry_run=True)
    await bed.client.delete(PODS, "stray", bed.namespace, grace_seconds=0)
    await bed.client.delete(PODS, three, bed.namespace, grace_seconds=0)
    await bed.until_ready("web", 9)
    await bed.budget("stock", resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "db"}}, maxUnavailable=0)
    await eventually(lambda: refused(bed, "db-0"), "the stock budget is counted")
    await bed.client.delete(STOCK_BUDGETS, "stock", bed.namespace)


async def evicted(bed: Bed, name: str) -> bool:
    try:
        await bed.client.evict(name, bed.namespace)
    except ApiError:  # the API server has not heard of the certificate yet
        return False
    return True


async def refused(bed: Bed, name: str) -> bool:
    try:
        await bed.client.evict(name, bed.namespace, dry_run=True)
    except TooManyRequests as error:
        return "disruption budget stock" in str(error.causes)
    return False


async def roll_out(bed: Bed) -> None:
    for resource, app, count in ((STATEFUL_SETS, "db", 3), (DAEMON_SETS, "agent", 6)):
        await bed.new_version(resource, app)
        await eventually(lambda app=app, count=count: updated(bed, app, count), f"{app} is updated")

    async def revision_moved() -> bool:
        status: dict[str, Any] = (await bed.client.get(STATEFUL_SETS, "db", bed.namespace))["status"]
        return bool(status["currentRevision"] == status["updateRevision"])

    await eventually(revision_moved)


async def updated(bed: Bed, app: str, count: int) -> bool:
    pods = (await bed.client.list(PODS.whole(), bed.namespace, selector=f"app={app}")).items
    return sum(pod["spec"]["containers"][0]["image"] == "none:2" for pod in pods) == count


async def scale_down(bed: Bed) -> None:
    """Twice for the StatefulSet, whose order is fixed: the same is said of it again."""
    await bed.scale(DEPLOYMENTS, "web", 6)
    await bed.until_ready("web", 6)
    for replicas in (2, 3, 2):
        await bed.scale(STATEFUL_SETS, "db", replicas)
        await bed.until_ready("db", replicas)
        await eventually(lambda replicas=replicas: expects(bed, "db", replicas))


async def expects(bed: Bed, budget: str, pods: int) -> bool:
    status = await status_of(bed, budget)
    return bool(status["expectedPods"] == pods == status["currentHealthy"] and len(status["conditions"]) == 1)


async def write_in_between(site: Deployed, bed: Bed) -> None:
    """Somebody else writes to the budget while the leader does: it reads before it counts again."""
    (name, *_) = await bed.in_zone("web", "zone-b")
    for turn in range(500):
        if BUDGET in site.done(LEADER):
            return
        note = MergePatch({"metadata": {"annotations": {"example.com/turn": str(turn)}}})
        ready = set_ready(bed, name, ready=bool(turn % 2))
        notes = (bed.client.patch(BUDGETS, "web", note, bed.namespace) for _ in range(10))
        await asyncio.gather(*notes, ready, return_exceptions=True)
    raise AssertionError("the leader was never overtaken")


async def repeats(bed: Bed) -> bool:
    found = (await bed.client.list(EVENTS, bed.namespace)).items
    return any(event.series and event.series.count > 1 and "zonewise" in event.reporting_controller for event in found)


async def forget_authorities(bed: Bed) -> None:
    """An authority that is due is renewed in its place, as one that nobody has."""
    await bed.client.patch(SECRETS, GUARD, JsonPatch([{"op": "replace", "path": "/data", "value": {}}]), SYSTEM)


def test_nothing_is_allowed_everywhere() -> None:
    for document in documents(MANIFEST):
        for rule in document.get("rules", []) if document["kind"].endswith("Role") else []:
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
