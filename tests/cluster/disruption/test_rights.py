"""RBAC of deploy/disruption.yaml: leader and guard use exactly the rights it grants."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.disruption import cluster
from support.disruption.cluster import (
    BUDGETS,
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    STATEFUL_SETS,
    STOCK_BUDGETS,
    DisruptionNamespace,
)
from support.disruption.processes import free_port, start_leader, start_webhook
from support.disruption.webhook import set_ready, status_of, until_allowed, zone_budget
from support.install.deployed import STRICT_FLAGS, SYSTEM, Deployed, documents, scopes, token_in
from support.process import Program as Process
from support.waiting import eventually
from zonewise.api.names import GRANTED
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, Conflict, Forbidden, TooManyRequests
from zonewise.kube.wire.patch import JsonPatch, MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import EVENTS, PODS, SECRETS
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS

pytestmark = pytest.mark.xdist_group("disruption")

MANIFEST = "disruption.yaml"
LEADER, GUARD = "zonewise-disruption", "zonewise-guard"
EVICT = {"zonewise.dev/update": "Evict"}
ONE_PER_ZONE = dict.fromkeys(cluster.ZONES, 1)
CONFIGURATIONS = {MUTATING_WEBHOOK_CONFIGURATIONS: "evictions", VALIDATING_WEBHOOK_CONFIGURATIONS: "deletes"}
POD = ("get", "pods")
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
    more = ("--lease-namespace", SYSTEM, "--apiserver-request-timeout", 1, "--metrics-port", 0)
    program = await asyncio.to_thread(start_leader, config, *more)
    try:
        await asyncio.to_thread(program.wait_ready)
        assert (await asyncio.to_thread(program.scrape, token_in(config)))[0] == 403
        yield program
    finally:
        await asyncio.to_thread(program.remove)


@asynccontextmanager
async def guard(site: Deployed, ns: DisruptionNamespace) -> AsyncIterator[Process]:
    """As deployed, but on loopback."""
    port = free_port()
    for resource, name in CONFIGURATIONS.items():
        url = {"url": f"https://127.0.0.1:{port}/{name}"}
        patch = JsonPatch([{"op": "replace", "path": "/webhooks/0/clientConfig", "value": url}])
        await ns.client.patch(resource, LEADER, patch)
    config = await site.kubeconfig(ns.client, GUARD)
    more = ("--no-register", "--secret", f"{SYSTEM}/{GUARD}", "--lease-namespace", SYSTEM, "--metrics-port", 0)
    program = await asyncio.to_thread(start_webhook, config, port, port, *more)
    try:
        await asyncio.to_thread(program.wait_ready)
        assert (await asyncio.to_thread(program.scrape, token_in(config)))[0] == 403
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
            await leave_a_charge_unused(site, ns)
            await overtake_the_leader(site, ns)
            await eventually(lambda: event_repeats(ns), "an event repeats")
        await clear_certificates(ns)
        async with guard(site, ns):
            pass
        for account in (LEADER, GUARD):
            assert not site.refused(account)
            assert site.used(MANIFEST, account) == scopes(MANIFEST, account)


async def test_tenant_cannot_pass_a_frozen_budget_with_a_forged_grant(
    private_cluster: Callable[..., ControlPlane], tmp_path: Path
) -> None:
    """The tenant has the rules of the stock role `edit`: it may scale its workloads, and annotate its pods."""
    async with deployed(private_cluster, tmp_path) as (site, ns), tenant(site, ns) as client:
        await ns.replica_set("web", 3)
        pods = await ns.until_ready("web", 3)
        await ns.budget("web", selector={"matchLabels": {"app": "web"}}, maxUnavailable=0)

        async def forge() -> int:
            grants = [(pod.metadata.name, pod.metadata.uid) for pod in pods]
            results = await asyncio.gather(
                *(client.patch(PODS, name, grant(uid), ns.namespace) for name, uid in grants), return_exceptions=True
            )
            return sum(isinstance(result, Forbidden) and "zonewise.dev/granted" in result.message for result in results)

        await eventually(lambda: denied(ns, pods[0].metadata.name), "the budget is in force")
        assert await eventually(forge, "the role is in force") == 3
        ns.audit.restart()
        await client.patch(REPLICA_SETS, "web", MergePatch({"spec": {"replicas": 0}}), ns.namespace)
        await eventually(lambda: refusals(ns) >= 3, "its controller is refused")
        assert len(await ns.until_ready("web", 3)) == 3


def grant(uid: str) -> MergePatch:
    return MergePatch({"metadata": {"annotations": {GRANTED: uid}}})


def refusals(ns: DisruptionNamespace) -> int:
    calls = ns.audit.calls(user="replicaset-controller", namespace=ns.namespace)
    return sum((call.verb, call.code) == ("delete", 403) for call in calls)


async def denied(ns: DisruptionNamespace, name: str) -> bool:
    """A delete as the ReplicaSet controller, in a dry run."""
    access = kubeconfig.load(ns.plane.kubeconfig)
    user = (("Impersonate-User", "system:serviceaccount:kube-system:replicaset-controller"),)
    async with Client(replace(access, impersonation=user)) as controller:
        try:
            await controller.delete(PODS, name, ns.namespace, dry_run=True)
        except Forbidden:
            return True
    return False


@asynccontextmanager
async def tenant(site: Deployed, ns: DisruptionNamespace) -> AsyncIterator[Client]:
    config = await asyncio.to_thread(site.plane.add_user, "jane", "jane")
    await ns.kubectl("create", "rolebinding", "jane", "--clusterrole=system:aggregate-to-edit", "--user=jane")
    async with Client(kubeconfig.load(config)) as client:
        yield client


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


async def leave_a_charge_unused(site: Deployed, ns: DisruptionNamespace) -> None:
    """The leader reads the pod before it gives the charge up."""
    name = (await ns.in_zone("web", "zone-c"))[0]
    uid = (await ns.client.get(PODS, name, ns.namespace)).metadata.uid
    async with Client(kubeconfig.load(await site.kubeconfig(ns.client, LEADER))) as as_leader:

        async def charge() -> bool:
            budget = await as_leader.get(BUDGETS, "web", ns.namespace)
            budget["status"]["charges"] = f"{uid} {name} zone-c - t Eviction\n"
            with suppress(Conflict):
                await as_leader.update(BUDGETS, budget, ns.namespace, subresource="status")
                return True
            return False

        await eventually(charge, "a charge is written")
    await eventually(lambda: POD in site.used_rights(LEADER), "the pod is read")


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
