"""Undocumented behaviour of stock controllers that the design depends on: how they react to a denied delete.

The test's own admission policy denies like ours: a workload controller may delete a ready pod only if an annotation of
the pod holds its uid. The audit log records the attempts.
"""

import asyncio
import datetime as dt
import itertools
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from support.disruption.cluster import (
    DAEMON_SETS,
    DEPLOYMENTS,
    REPLICA_SETS,
    REPLICATION_CONTROLLERS,
    STATEFUL_SETS,
    STOCK_BUDGETS,
    Call,
    DisruptionNamespace,
    is_available,
)
from support.kube import admission_server
from support.waiting import eventually
from zonewise.disruption.decide.pdb import refusal
from zonewise.disruption.decide.pods import PodFacts
from zonewise.kube.wire.admission_review import AdmissionVerdict
from zonewise.kube.wire.errors import ApiError, Conflict, ServerError
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import NAMESPACES, PODS, Resource
from zonewise.objects.policy import POD_DISRUPTION_BUDGETS

pytestmark = pytest.mark.xdist_group("disruption")

GRANT, COST = "test/granted", "controller.kubernetes.io/pod-deletion-cost"
OPTED_IN = "test/guarded"
CONTROLLERS = ("replicaset-controller", "replication-controller", "statefulset-controller", "daemon-set-controller")
POLICIES = Resource(
    dict[str, Any],
    "ValidatingAdmissionPolicy",
    "validatingadmissionpolicies",
    "admissionregistration.k8s.io",
    namespaced=False,
)
BINDINGS = Resource(
    dict[str, Any],
    "ValidatingAdmissionPolicyBinding",
    "validatingadmissionpolicybindings",
    "admissionregistration.k8s.io",
    namespaced=False,
)


def policy(name: str) -> dict[str, Any]:
    users = [f"system:serviceaccount:kube-system:{controller}" for controller in CONTROLLERS]
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
    ready = "oldObject.status.?conditions.orValue([]).exists(c, c.type == 'Ready' && c.status == 'True')"
    granted = f"oldObject.metadata.?annotations['{GRANT}'].orValue('') == oldObject.metadata.uid"
    return {
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {
                "resourceRules": [pods],
                "namespaceSelector": {"matchLabels": {OPTED_IN: name}},
            },
            "matchConditions": [
                {"name": "controllers", "expression": f"request.userInfo.username in {users}"},
                {"name": "ready", "expression": ready},
            ],
            "validations": [{"expression": granted, "message": "no grant", "reason": "Forbidden"}],
        },
    }


async def set_guarded(ns: DisruptionNamespace, *, on: bool) -> None:
    body = MergePatch({"metadata": {"labels": {OPTED_IN: ns.namespace if on else None}}})
    await ns.client.patch(NAMESPACES, ns.namespace, body)


@asynccontextmanager
async def guarded(ns: DisruptionNamespace, pod: str) -> AsyncIterator[None]:
    """Enters when a delete of `pod` by a controller is denied."""
    name = ns.namespace
    await ns.client.create(POLICIES, policy(name))
    await ns.client.create(
        BINDINGS, {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    )
    await set_guarded(ns, on=True)
    user = f"--as=system:serviceaccount:kube-system:{CONTROLLERS[0]}"
    try:
        await eventually(lambda: refused(ns, "delete", "pod", pod, "--dry-run=server", user), "the policy is in force")
        ns.audit.restart()
        yield
    finally:
        await ns.client.delete(BINDINGS, name)
        await ns.client.delete(POLICIES, name)


async def refused(ns: DisruptionNamespace, *arguments: str) -> bool:
    return "no grant" in await ns.kubectl(*arguments, code=None)


def attempts(ns: DisruptionNamespace, controller: str) -> list[Call]:
    calls = ns.audit.calls(user=controller, namespace=ns.namespace)
    return [call for call in calls if call.verb == "delete" and call.resource == "pods"]


def denied(ns: DisruptionNamespace, controller: str) -> list[Call]:
    return [call for call in attempts(ns, controller) if call.code == 403]


def longest_pause(ns: DisruptionNamespace, controller: str) -> float:
    times = [dt.datetime.fromisoformat(call.at) for call in denied(ns, controller)]
    return max(((later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)), default=0.0)


async def annotate(ns: DisruptionNamespace, pod: str, annotations: dict[str, str]) -> None:
    await ns.client.patch(PODS, pod, MergePatch({"metadata": {"annotations": annotations}}), ns.namespace)


async def grant(ns: DisruptionNamespace, pod: str) -> None:
    """One patch, as the leader does it: it also sets the lowest deletion cost."""
    uid = (await ns.client.get(PODS, pod, ns.namespace)).metadata.uid
    await annotate(ns, pod, {GRANT: uid, COST: "-1000"})


async def names(ns: DisruptionNamespace, app: str) -> set[str]:
    return {pod.metadata.name for pod in await ns.pods(app) if is_available(pod)}


@pytest.mark.parametrize(
    ("resource", "controller"),
    [(REPLICA_SETS, "replicaset-controller"), (REPLICATION_CONTROLLERS, "replication-controller")],
    ids=["ReplicaSet", "ReplicationController"],
)
async def test_denied_replica_set_backs_off_then_deletes_the_granted_pod(
    ns: DisruptionNamespace, resource: Resource[Any], controller: str
) -> None:
    await (ns.replica_set("web", 6) if resource is REPLICA_SETS else ns.replication_controller("web", 6))
    before = {pod.metadata.name for pod in await ns.until_ready("web", 6)}
    chosen = sorted(before)[:2]
    async with guarded(ns, chosen[0]):
        await ns.scale(resource, "web", 4)
        await eventually(lambda: longest_pause(ns, controller) > 0.6, "the back-off grows")
        assert len(denied(ns, controller)) < 40, "from 5 ms, doubling, for two pods"
        assert await names(ns, "web") == before
        for name in chosen:
            await grant(ns, name)
        await eventually(lambda: ns.until_ready("web", 4))
        assert await names(ns, "web") == before - set(chosen)
        deleted = [call.name for call in attempts(ns, controller) if call.code == 200]
        assert sorted(deleted) == chosen
        assert await ns.events("FailedDelete")


async def test_pod_with_the_lowest_deletion_cost_is_deleted_first(ns: DisruptionNamespace) -> None:
    """Zones do not matter, even for the last pods of a zone."""
    await ns.replica_set("web", 6)
    await ns.until_ready("web", 6)
    zone_a = set(await ns.in_zone("web", "zone-a"))
    for name in zone_a:
        await annotate(ns, name, {COST: "-1"})
    await ns.scale(REPLICA_SETS, "web", 4)
    await ns.until_ready("web", 4)
    assert await ns.ready_by_zone("web") == {"zone-b": 2, "zone-c": 2}


async def test_denied_stateful_set_retries_its_highest_ordinals(ns: DisruptionNamespace) -> None:
    await ns.stateful_set("web", 4)
    await ns.until_ready("web", 4)
    async with guarded(ns, "web-0"):
        await ns.scale(STATEFUL_SETS, "web", 2)
        await eventually(lambda: longest_pause(ns, "statefulset-controller") > 0.6, "the back-off grows")
        assert len(denied(ns, "statefulset-controller")) < 40
        assert {call.name for call in denied(ns, "statefulset-controller")} <= {"web-3", "web-2"}
        await grant(ns, "web-3")
        await grant(ns, "web-2")
        await ns.until_ready("web", 2)
        assert await names(ns, "web") == {"web-0", "web-1"}


async def test_denied_daemon_set_backs_off_and_finishes_when_allowed(ns: DisruptionNamespace) -> None:
    await ns.daemon_set("agent", update="RollingUpdate")
    first = {pod.metadata.uid for pod in await ns.until_ready("agent", 6)}
    async with guarded(ns, (await ns.pods("agent"))[0].metadata.name):
        await ns.new_version(DAEMON_SETS, "agent")
        await eventually(lambda: len({call.name for call in denied(ns, "daemon-set-controller")}) > 1, "several pods")
        await eventually(lambda: longest_pause(ns, "daemon-set-controller") > 0.6, "the back-off grows")
        assert len(denied(ns, "daemon-set-controller")) < 40, "from 5 ms, doubling, one pod at a time"
        assert {pod.metadata.uid for pod in await ns.pods("agent")} == first
        await set_guarded(ns, on=False)
        await eventually(lambda: all_replaced(ns, "agent", first, 6), "all replaced")


async def all_replaced(ns: DisruptionNamespace, app: str, old: set[str], count: int) -> bool:
    pods = [pod for pod in await ns.pods(app) if is_available(pod)]
    return len(pods) == count and not old & {pod.metadata.uid for pod in pods}


@pytest.mark.parametrize(("surge", "unavailable", "peak"), [(3, 2, 14), (0, 1, 10)])
async def test_denied_deployment_overshoots_by_one_step_only(
    ns: DisruptionNamespace, surge: int, unavailable: int, peak: int
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    await ns.deployment("web", 9, strategy=strategy)
    old = {pod.metadata.uid for pod in await ns.until_ready("web", 9)}
    async with guarded(ns, (await ns.pods("web"))[0].metadata.name):
        await ns.new_version(DEPLOYMENTS, "web")
        await eventually(lambda: count_is(ns, peak), f"{peak} pods")
        attempts_before = len(denied(ns, "replicaset-controller"))
        await eventually(lambda: len(denied(ns, "replicaset-controller")) >= attempts_before + 3, "it keeps trying")
        assert await count_is(ns, peak), "the pod count stays at the peak"
        assert old <= {pod.metadata.uid for pod in await ns.pods("web")}, "no old pod was deleted"
        await set_guarded(ns, on=False)
        (pod, *_) = await ns.pods("web")
        await annotate(ns, pod.metadata.name, {"test/wake": "up"})
        await eventually(lambda: all_replaced(ns, "web", old, 9), "the rollout ends")


async def count_is(ns: DisruptionNamespace, count: int) -> bool:
    return len(await ns.pods("web")) == count


EVICTIONS = admission_server.rule("pods/eviction", "CREATE")


async def test_drain_retries_on_429_and_fails_on_other_codes(ns: DisruptionNamespace) -> None:
    await ns.replica_set("web", 3)
    await ns.until_ready("web", 3)
    async with admission_server.site(ns.client, ns.namespace) as site:
        body = admission_server.configuration(ns.namespace, site.url("judge"), [EVICTIONS])
        async with admission_server.registered(ns.client, body):
            (name, *_) = await ns.in_zone("web", "zone-a")
            await eventually(lambda: is_called(ns, site, name), "the webhook is called")
            node = (await ns.client.get(PODS, name, ns.namespace)).spec.node_name
            site.judge.verdict = AdmissionVerdict.deny("no", code=403)
            assert "error when evicting" in await ns.drain(node, code=1)
            assert await names(ns, "web") >= {name}
            site.judge.verdict = AdmissionVerdict.deny("later", code=429)
            site.judge.requests.clear()
            draining = asyncio.create_task(ns.drain(node))
            await eventually(lambda: len(site.judge.requests) >= 2, "the eviction is retried")
            assert not draining.done()
            site.judge.verdict = AdmissionVerdict.allow()
            assert "will retry after 5s" in await draining
            await ns.until_ready("web", 3)


async def is_called(ns: DisruptionNamespace, site: admission_server.Site, pod: str) -> bool:
    with suppress(ServerError):  # its certificate is trusted shortly after registration
        await ns.client.evict(pod, ns.namespace, dry_run=True)
    return bool(site.judge.requests)


STATUSES: dict[str, dict[str, Any]] = {
    "sync failed": {
        "conditions": [
            {
                "type": "DisruptionAllowed",
                "status": "False",
                "reason": "SyncFailed",
                "message": "no scale",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            }
        ]
    },
    "enough healthy, but none allowed": {"currentHealthy": 3, "desiredHealthy": 1},
    "too few healthy": {"currentHealthy": 2, "desiredHealthy": 2},
    "too many unconfirmed": {
        "disruptionsAllowed": 1,
        "disruptedPods": {f"pod-{number}": "2026-01-01T00:00:00Z" for number in range(2001)},
    },
}


@pytest.mark.parametrize("case", STATUSES)
async def test_predicted_refusal_equals_that_of_the_api_server(ns: DisruptionNamespace, case: str) -> None:
    """The stock controller counts again at once: write and ask until the status was ours before and after."""
    pod = ns.template("web", spread=False, nodeName=ns.node("zone-a", 0))
    pod["metadata"] |= {"name": "web-0"}
    await ns.client.create(PODS, pod, ns.namespace)
    await ns.until_ready("web", 1)
    await ns.budget("stock", resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "web"}}, maxUnavailable=1)
    numbers = {"disruptionsAllowed": 0, "currentHealthy": 1, "desiredHealthy": 1, "expectedPods": 1}
    status = {"observedGeneration": 9, "disruptedPods": None, "conditions": None, **numbers, **STATUSES[case]}
    patch = MergePatch({"status": status})
    pod_facts = PodFacts.of(await ns.client.get(PODS, "web-0", ns.namespace))
    async with asyncio.timeout(60):
        while True:
            await ns.client.patch(STOCK_BUDGETS, "stock", patch, ns.namespace, subresource="status")
            refused = None
            try:
                await ns.client.evict("web-0", ns.namespace, dry_run=True)
            except ApiError as error:
                refused = error
            stored = await ns.client.get(POD_DISRUPTION_BUDGETS, "stock", ns.namespace)
            if refused is not None and stored.status.observed_generation == 9:
                break
    predicted = refusal(pod_facts, [stored])
    assert predicted is not None
    assert (predicted.code, predicted.message) == (refused.status, refused.message)
    assert predicted.cause == next((cause.message for cause in refused.causes), "")


async def test_two_stock_budgets_on_a_pod_return_500(ns: DisruptionNamespace) -> None:
    await ns.replica_set("web", 3)
    await ns.until_ready("web", 3)
    for name in ("one", "two"):
        await ns.budget(name, resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "web"}}, maxUnavailable=1)
    (name, *_) = await ns.in_zone("web", "zone-a")
    output = await ns.drain((await ns.client.get(PODS, name, ns.namespace)).spec.node_name, code=1)
    assert "more than one PodDisruptionBudget" in output
    codes = Counter(call.code for call in ns.audit.calls(user="admin", namespace=ns.namespace) if call.verb == "evict")
    assert set(codes) == {500}


async def test_uid_added_by_admission_keeps_an_eviction_from_a_successor(ns: DisruptionNamespace) -> None:
    """A mutating webhook adds `preconditions.uid`; the API server then answers 409 instead of taking the next pod."""
    await ns.stateful_set("web", 1)
    (old,) = await ns.until_ready("web", 1)
    async with admission_server.site(ns.client, ns.namespace) as site:
        body = admission_server.configuration(ns.namespace, site.url("judge"), [EVICTIONS])
        async with admission_server.registered(ns.client, body, mutating=True):
            await eventually(lambda: is_called(ns, site, "web-0"), "the webhook is called")
            pin = {"op": "add", "path": "/deleteOptions", "value": {"preconditions": {"uid": old.metadata.uid}}}
            site.judge.verdict = AdmissionVerdict.allow(patch=[pin])
            await ns.client.delete(PODS, "web-0", ns.namespace, grace_seconds=0)
            await eventually(lambda: is_replaced(ns, old.metadata.uid), "the name has passed on")
            with pytest.raises(Conflict, match="UID in the precondition"):
                await ns.client.evict("web-0", ns.namespace)
            (new,) = await ns.until_ready("web", 1)
            pin["value"] = {"preconditions": {"uid": new.metadata.uid}}
            await ns.client.evict("web-0", ns.namespace)
            await eventually(lambda: is_replaced(ns, new.metadata.uid), "the pod that was named has gone")


async def is_replaced(ns: DisruptionNamespace, uid: str) -> bool:
    pods = await ns.pods("web")
    return bool(pods) and all(pod.metadata.uid != uid and is_available(pod) for pod in pods)


async def test_api_server_shows_the_webhooks_address_while_it_is_down(ns: DisruptionNamespace) -> None:
    """Whoever may evict learns the path from the error: a secret in it must not live long."""
    await ns.replica_set("web", 1)
    (pod,) = await ns.until_ready("web", 1)
    body = admission_server.configuration(ns.namespace, "https://127.0.0.1:1/judge/secret", [EVICTIONS])
    async with admission_server.registered(ns.client, body):

        async def refused() -> str:
            try:
                await ns.client.evict(pod.metadata.name, ns.namespace, dry_run=True)
            except ServerError as error:
                return error.message
            return ""

        assert "/judge/secret" in await eventually(refused, "the webhook is called")
