"""RBAC of deploy/disruption.yaml: leader and guard use exactly the rights it grants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from support.disruption import cluster
from support.disruption.cluster import (
    BUDGETS,
    DAEMON_SETS,
    DEPLOYMENTS,
    STATEFUL_SETS,
    STOCK_BUDGETS,
    DisruptionNamespace,
)
from support.disruption.processes import free_port, start_leader, start_webhook
from support.disruption.webhook import set_ready, status_of, until_allowed, zone_budget
from support.install.deployed import STRICT_FLAGS, SYSTEM, Deployed, documents, scopes
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
ONE_PER_ZONE = dict.fromkeys(cluster.ZONES, 1)
BUDGET = ("get", "topologydisruptionbudgets.zonewise.dev")


@asynccontextmanager
async def deployed(
    start: Callable[..., ControlPlane], folder: Path
) -> AsyncIterator[tuple[Deployed, DisruptionNamespace]]:
    """Both manifests applied to a private control plane, with nodes in three zones."""
    settings = cluster.control_plane_settings(folder)
    settings["flags"][Program.APISERVER] = (*settings["flags"][Program.APISERVER], *STRICT_FLAGS)
    plane = await asyncio.to_thread(start, **settings)
    site = Deployed(plane, folder)
    site.apply("tdb.yaml")
    site.apply(MANIFEST)
    async with cluster.disruption_namespace(plane, folder) as ns:
        await ns.make_nodes()
        yield site, ns


@asynccontextmanager
async def leader(site: Deployed, ns: DisruptionNamespace) -> AsyncIterator[Process]:
    config = await site.kubeconfig(ns.client, LEADER)
    program = await asyncio.to_thread(start_leader, config, "--lease-namespace", SYSTEM)
    try:
        await asyncio.to_thread(program.wait_ready)
        yield program
    finally:
        await asyncio.to_thread(program.remove)


@asynccontextmanager
async def guard(site: Deployed, ns: DisruptionNamespace) -> AsyncIterator[Process]:
    """As deployed, but on loopback."""
    port = free_port()
    urls = [
        {
            "op": "replace",
            "path": f"/webhooks/{index}/clientConfig",
            "value": {"url": f"https://127.0.0.1:{port}/{name}"},
        }
        for index, name in enumerate(("evictions", "deletes"))
    ]
    await ns.client.patch(VALIDATING_WEBHOOK_CONFIGURATIONS, LEADER, JsonPatch(urls))
    config = await site.kubeconfig(ns.client, GUARD)
    more = ("--no-register", "--secret", f"{SYSTEM}/{GUARD}", "--lease-namespace", SYSTEM)
    program = await asyncio.to_thread(start_webhook, config, port, port, *more)
    try:
        await asyncio.to_thread(program.wait_ready)
        yield program
    finally:
        await asyncio.to_thread(program.remove)


async def test_leader_and_guard_use_exactly_their_rights(
    private_cluster: Callable[..., ControlPlane], tmp_path: Path
) -> None:
    async with deployed(private_cluster, tmp_path) as (site, ns):
        await ns.deployment("web", 9)
        await ns.stateful_set("db", 3, annotations=EVICT)
        await ns.daemon_set("agent", annotations=EVICT)
        await ns.until_ready("web", 9)
        await ns.until_ready("db", 3)
        await ns.until_ready("agent", 6)
        async with leader(site, ns), guard(site, ns):
            await create_budgets(ns)
            await evict_through_the_guard(ns)
            await roll_out(ns)
            await scale_down(ns)
            await overtake_the_leader(site, ns)
            await eventually(lambda: event_repeats(ns), "an event repeats")
        await clear_certificates(ns)
        async with guard(site, ns):
            pass
        for account in (LEADER, GUARD):
            assert not site.refused(account)
            assert site.used(MANIFEST, account) == scopes(MANIFEST, account)


async def create_budgets(ns: DisruptionNamespace) -> None:
    for app in ("web", "db", "agent"):
        await zone_budget(ns, app, app)
        await until_allowed(ns, ONE_PER_ZONE, app)


async def evict_through_the_guard(ns: DisruptionNamespace) -> None:
    """Evictions that are allowed, denied, of an unready pod, and of a pod whose node is gone."""
    first, second, third = await ns.in_zone("web", "zone-a")
    await eventually(lambda: evicted(ns, first), "the guard is called")
    with pytest.raises(TooManyRequests):
        await ns.client.evict(second, ns.namespace)
    await set_ready(ns, third, ready=False)
    await until_allowed(ns, {**ONE_PER_ZONE, "zone-a": 0}, "web")
    with suppress(TooManyRequests):
        await ns.client.evict(third, ns.namespace, dry_run=True)
    stray = ns.template("web", spread=False, nodeName="no-such-node")
    stray["metadata"]["name"] = "stray"
    await ns.client.create(PODS, stray, ns.namespace)
    running = {"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}}
    await ns.client.patch(PODS, "stray", MergePatch(running), ns.namespace, subresource="status")
    await ns.client.evict("stray", ns.namespace, dry_run=True)
    await ns.client.delete(PODS, "stray", ns.namespace, grace_seconds=0)
    await ns.client.delete(PODS, third, ns.namespace, grace_seconds=0)
    await ns.until_ready("web", 9)
    await ns.budget("stock", resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "db"}}, maxUnavailable=0)
    await eventually(lambda: denied_by_stock_budget(ns, "db-0"), "the stock budget is published")
    await ns.client.delete(STOCK_BUDGETS, "stock", ns.namespace)


async def evicted(ns: DisruptionNamespace, name: str) -> bool:
    try:
        await ns.client.evict(name, ns.namespace)
    except ApiError:  # the API server does not trust the certificate yet
        return False
    return True


async def denied_by_stock_budget(ns: DisruptionNamespace, name: str) -> bool:
    try:
        await ns.client.evict(name, ns.namespace, dry_run=True)
    except TooManyRequests as error:
        return "disruption budget stock" in str(error.causes)
    return False


async def roll_out(ns: DisruptionNamespace) -> None:
    for resource, app, count in ((STATEFUL_SETS, "db", 3), (DAEMON_SETS, "agent", 6)):
        await ns.new_version(resource, app)
        await eventually(lambda app=app, count=count: updated(ns, app, count), f"{app} is updated")

    async def revision_moved() -> bool:
        status: dict[str, Any] = (await ns.client.get(STATEFUL_SETS, "db", ns.namespace))["status"]
        return bool(status["currentRevision"] == status["updateRevision"])

    await eventually(revision_moved)


async def updated(ns: DisruptionNamespace, app: str, count: int) -> bool:
    pods = (await ns.client.list(PODS.whole(), ns.namespace, selector=f"app={app}")).items
    return sum(pod["spec"]["containers"][0]["image"] == "none:2" for pod in pods) == count


async def scale_down(ns: DisruptionNamespace) -> None:
    """Twice for the StatefulSet, whose order is fixed, so that its event repeats."""
    await ns.scale(DEPLOYMENTS, "web", 6)
    await ns.until_ready("web", 6)
    for replicas in (2, 3, 2):
        await ns.scale(STATEFUL_SETS, "db", replicas)
        await ns.until_ready("db", replicas)
        await eventually(lambda replicas=replicas: expects(ns, "db", replicas))


async def expects(ns: DisruptionNamespace, budget: str, pods: int) -> bool:
    status = await status_of(ns, budget)
    return bool(status["expectedPods"] == pods == status["currentHealthy"] and len(status["conditions"]) == 1)


async def overtake_the_leader(site: Deployed, ns: DisruptionNamespace) -> None:
    """Write to the budget concurrently until the leader gets a conflict and reads the budget again."""
    (name, *_) = await ns.in_zone("web", "zone-b")
    for attempt in range(500):
        if BUDGET in site.used_rights(LEADER):
            return
        note = MergePatch({"metadata": {"annotations": {"example.com/turn": str(attempt)}}})
        ready = set_ready(ns, name, ready=bool(attempt % 2))
        notes = (ns.client.patch(BUDGETS, "web", note, ns.namespace) for _ in range(10))
        await asyncio.gather(*notes, ready, return_exceptions=True)
    raise AssertionError("the leader was never overtaken")


async def event_repeats(ns: DisruptionNamespace) -> bool:
    events = (await ns.client.list(EVENTS, ns.namespace)).items
    return any(event.series and event.series.count > 1 and "zonewise" in event.reporting_controller for event in events)


async def clear_certificates(ns: DisruptionNamespace) -> None:
    """Clear the Secret, so that the guard renews its CA in place."""
    await ns.client.patch(SECRETS, GUARD, JsonPatch([{"op": "replace", "path": "/data", "value": {}}]), SYSTEM)


def test_roles_have_no_wildcards() -> None:
    for document in documents(MANIFEST):
        for rule in document.get("rules", []) if document["kind"].endswith("Role") else []:
            assert "*" not in {*rule["verbs"], *rule["resources"], *rule["apiGroups"]}
