"""What the design leans on and the stock control plane does not promise: how its controllers take a refused delete.

The refusal is a policy of the test's own, as ours is: a workload controller deletes a ready pod only if an annotation
of the pod names its uid. The audit log says who tried what and when.
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
    Bed,
    Call,
    is_available,
)
from support.kube import admission_server
from support.waiting import eventually
from zonewise.kube.wire.admission_review import AdmissionVerdict
from zonewise.kube.wire.errors import ServerError
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import NAMESPACES, PODS, Resource

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


async def guard(bed: Bed, *, on: bool) -> None:
    body = MergePatch({"metadata": {"labels": {OPTED_IN: bed.namespace if on else None}}})
    await bed.client.patch(NAMESPACES, bed.namespace, body)


@asynccontextmanager
async def guarded(bed: Bed, pod: str) -> AsyncIterator[None]:
    """Returns when a delete of `pod` by a controller is refused."""
    name = bed.namespace
    await bed.client.create(POLICIES, policy(name))
    await bed.client.create(
        BINDINGS, {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    )
    await guard(bed, on=True)
    user = f"--as=system:serviceaccount:kube-system:{CONTROLLERS[0]}"
    try:
        await eventually(lambda: refused(bed, "delete", "pod", pod, "--dry-run=server", user), "the policy is known")
        bed.audit.restart()
        yield
    finally:
        await bed.client.delete(BINDINGS, name)
        await bed.client.delete(POLICIES, name)


async def refused(bed: Bed, *arguments: str) -> bool:
    return "no grant" in await bed.kubectl(*arguments, code=None)


def tries(bed: Bed, controller: str) -> list[Call]:
    found = bed.audit.calls(user=controller, namespace=bed.namespace)
    return [call for call in found if call.verb == "delete" and call.resource == "pods"]


def denied(bed: Bed, controller: str) -> list[Call]:
    return [call for call in tries(bed, controller) if call.code == 403]


def longest_pause(bed: Bed, controller: str) -> float:
    times = [dt.datetime.fromisoformat(call.at) for call in denied(bed, controller)]
    return max(((later - earlier).total_seconds() for earlier, later in itertools.pairwise(times)), default=0.0)


async def annotate(bed: Bed, pod: str, annotations: dict[str, str]) -> None:
    await bed.client.patch(PODS, pod, MergePatch({"metadata": {"annotations": annotations}}), bed.namespace)


async def grant(bed: Bed, pod: str) -> None:
    """One patch, as ours: it also makes the pod the first to go."""
    uid = (await bed.client.get(PODS, pod, bed.namespace)).metadata.uid
    await annotate(bed, pod, {GRANT: uid, COST: "-1000"})


async def names(bed: Bed, app: str) -> set[str]:
    return {pod.metadata.name for pod in await bed.pods(app) if is_available(pod)}


@pytest.mark.parametrize(
    ("resource", "controller"),
    [(REPLICA_SETS, "replicaset-controller"), (REPLICATION_CONTROLLERS, "replication-controller")],
    ids=["ReplicaSet", "ReplicationController"],
)
async def test_a_refused_replica_set_backs_off_and_takes_the_granted_pod_at_once(
    bed: Bed, resource: Resource[Any], controller: str
) -> None:
    await (bed.replica_set("web", 6) if resource is REPLICA_SETS else bed.replication_controller("web", 6))
    before = {pod.metadata.name for pod in await bed.until_ready("web", 6)}
    chosen = sorted(before)[:2]
    async with guarded(bed, chosen[0]):
        await bed.scale(resource, "web", 4)
        await eventually(lambda: longest_pause(bed, controller) > 0.6, "its back-off grows")
        assert len(denied(bed, controller)) < 40, "from 5 ms, doubling, for two pods"
        assert await names(bed, "web") == before
        for name in chosen:
            await grant(bed, name)
        await eventually(lambda: bed.until_ready("web", 4))
        assert await names(bed, "web") == before - set(chosen)
        taken = [call.name for call in tries(bed, controller) if call.code == 200]
        assert sorted(taken) == chosen
        assert await bed.events("FailedDelete")


async def test_the_lowest_cost_goes_first_whatever_else_speaks_against_it(bed: Bed) -> None:
    """Also a pod alone in its zone: zones are never looked at."""
    await bed.replica_set("web", 6)
    await bed.until_ready("web", 6)
    zone_a = set(await bed.in_zone("web", "zone-a"))
    for name in zone_a:
        await annotate(bed, name, {COST: "-1"})
    await bed.scale(REPLICA_SETS, "web", 4)
    await bed.until_ready("web", 4)
    assert await bed.ready_by_zone("web") == {"zone-b": 2, "zone-c": 2}


async def test_a_refused_stateful_set_tries_the_same_ordinal_until_it_is_granted(bed: Bed) -> None:
    await bed.stateful_set("web", 4)
    await bed.until_ready("web", 4)
    async with guarded(bed, "web-0"):
        await bed.scale(STATEFUL_SETS, "web", 2)
        await eventually(lambda: longest_pause(bed, "statefulset-controller") > 0.6, "its back-off grows")
        assert len(denied(bed, "statefulset-controller")) < 40
        assert {call.name for call in denied(bed, "statefulset-controller")} <= {"web-3", "web-2"}
        await grant(bed, "web-3")
        await grant(bed, "web-2")
        await bed.until_ready("web", 2)
        assert await names(bed, "web") == {"web-0", "web-1"}


async def test_a_refused_daemon_set_backs_off_tries_any_old_pod_and_finishes_when_it_may(bed: Bed) -> None:
    await bed.daemon_set("agent", update="RollingUpdate")
    first = {pod.metadata.uid for pod in await bed.until_ready("agent", 6)}
    async with guarded(bed, (await bed.pods("agent"))[0].metadata.name):
        await bed.new_version(DAEMON_SETS, "agent")
        await eventually(lambda: len({call.name for call in denied(bed, "daemon-set-controller")}) > 1, "several pods")
        await eventually(lambda: longest_pause(bed, "daemon-set-controller") > 0.6, "its back-off grows")
        assert len(denied(bed, "daemon-set-controller")) < 40, "from 5 ms, doubling, one pod at a time"
        assert {pod.metadata.uid for pod in await bed.pods("agent")} == first
        await guard(bed, on=False)
        await eventually(lambda: renewed(bed, "agent", first, 6), "all replaced")


async def renewed(bed: Bed, app: str, old: set[str], count: int) -> bool:
    pods = [pod for pod in await bed.pods(app) if is_available(pod)]
    return len(pods) == count and not old & {pod.metadata.uid for pod in pods}


@pytest.mark.parametrize(("surge", "unavailable", "peak"), [(3, 2, 14), (0, 1, 10)])
async def test_a_deployment_whose_deletes_are_refused_overshoots_by_one_step_only(
    bed: Bed, surge: int, unavailable: int, peak: int
) -> None:
    strategy = {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": surge, "maxUnavailable": unavailable}}
    await bed.deployment("web", 9, strategy=strategy)
    old = {pod.metadata.uid for pod in await bed.until_ready("web", 9)}
    async with guarded(bed, (await bed.pods("web"))[0].metadata.name):
        await bed.new_version(DEPLOYMENTS, "web")
        await eventually(lambda: count_is(bed, peak), f"{peak} pods")
        tried = len(denied(bed, "replicaset-controller"))
        await eventually(lambda: len(denied(bed, "replicaset-controller")) >= tried + 3, "it goes on trying")
        assert await count_is(bed, peak), "and does not run away"
        assert old <= {pod.metadata.uid for pod in await bed.pods("web")}, "nothing old has gone"
        await guard(bed, on=False)
        (pod, *_) = await bed.pods("web")
        await annotate(bed, pod.metadata.name, {"test/wake": "up"})
        await eventually(lambda: renewed(bed, "web", old, 9), "the rollout ends")


async def count_is(bed: Bed, count: int) -> bool:
    return len(await bed.pods("web")) == count


EVICTIONS = admission_server.rule("pods/eviction", "CREATE")


async def test_a_drain_waits_for_429_and_gives_up_at_anything_else(bed: Bed) -> None:
    await bed.replica_set("web", 3)
    await bed.until_ready("web", 3)
    async with admission_server.site(bed.client, bed.namespace) as site:
        body = admission_server.configuration(bed.namespace, site.url("judge"), [EVICTIONS])
        async with admission_server.registered(bed.client, body):
            (name, *_) = await bed.in_zone("web", "zone-a")
            await eventually(lambda: is_asked(bed, site, name), "the webhook is known")
            node = (await bed.client.get(PODS, name, bed.namespace)).spec.node_name
            site.judge.verdict = AdmissionVerdict.deny("no", code=403)
            assert "error when evicting" in await bed.drain(node, code=1)
            assert await names(bed, "web") >= {name}
            site.judge.verdict = AdmissionVerdict.deny("later", code=429)
            site.judge.asked.clear()
            draining = asyncio.create_task(bed.drain(node))
            await eventually(lambda: len(site.judge.asked) >= 2, "asked again")
            assert not draining.done()
            site.judge.verdict = AdmissionVerdict.allow()
            assert "will retry after 5s" in await draining
            await bed.until_ready("web", 3)


async def is_asked(bed: Bed, site: admission_server.Site, pod: str) -> bool:
    with suppress(ServerError):  # its certificate is trusted a moment after it is registered
        await bed.client.evict(pod, bed.namespace, dry_run=True)
    return bool(site.judge.asked)


async def test_two_stock_budgets_on_a_pod_answer_500(bed: Bed) -> None:
    await bed.replica_set("web", 3)
    await bed.until_ready("web", 3)
    for name in ("one", "two"):
        await bed.budget(name, resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "web"}}, maxUnavailable=1)
    (name, *_) = await bed.in_zone("web", "zone-a")
    said = await bed.drain((await bed.client.get(PODS, name, bed.namespace)).spec.node_name, code=1)
    assert "more than one PodDisruptionBudget" in said
    codes = Counter(
        call.code for call in bed.audit.calls(user="admin", namespace=bed.namespace) if call.verb == "evict"
    )
    assert set(codes) == {500}
