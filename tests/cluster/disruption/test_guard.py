"""Eviction guard on a real API server: verdicts, charges, and denial messages."""

import asyncio
from datetime import UTC, datetime

import pytest

from support.disruption.cluster import BUDGETS, STOCK_BUDGETS, DisruptionNamespace, charges_in
from support.disruption.kwok import GONE_AFTER
from support.disruption.processes import zonewise
from support.disruption.webhook import (
    Replica,
    charged,
    leading,
    replica,
    status_of,
    until_allowed,
    until_healthy,
    until_informed,
    zone_budget,
)
from support.waiting import eventually
from zonewise.disruption.webhook.registration import WORKLOAD_CONTROLLERS
from zonewise.kube.wire.admission_review import AdmissionVerdict
from zonewise.kube.wire.errors import ApiError, TooManyRequests
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import PODS, Key

pytestmark = pytest.mark.xdist_group("disruption")

ONE_EACH = {"zone-a": 1, "zone-b": 1, "zone-c": 1}


def evict_as_v1beta1(ns: DisruptionNamespace, name: str) -> bytes:
    return (
        b'{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"%s"},"deleteOptions":{"dryRun":["All"]}}'
        % name.encode()
    )


async def test_evictions_through_the_api_server_get_201_or_429(ns: DisruptionNamespace) -> None:
    """End to end: registration, calls, and 201 or 429 for the client; a dry run charges nothing."""
    await ns.deployment("web", 9)
    await ns.until_ready("web", 9)
    async with zonewise(ns.client, ns.plane, webhooks=2) as running:
        await zone_budget(ns)
        first, second, third = await ns.in_zone("web", "zone-a")
        before = await ns.client.get(BUDGETS, "budget", ns.namespace)
        await ns.client.evict(first, ns.namespace, dry_run=True)
        path = PODS.path(ns.namespace, first, "eviction")
        await ns.client.request("POST", path, body=evict_as_v1beta1(ns, first))
        assert await ns.client.get(BUDGETS, "budget", ns.namespace) == before
        await ns.client.evict(first, ns.namespace, grace_seconds=0)  # beside delete options of its own
        assert await charged(ns) == [first]
        with pytest.raises(TooManyRequests) as refused:
            await ns.client.evict(second, ns.namespace, dry_run=True)
        denial = refused.value
        assert (denial.status, denial.reason, denial.retry_after_seconds) == (429, "TooManyRequests", 0)
        (cause,) = denial.causes
        assert cause.reason == "DisruptionBudget"
        assert f"{ns.namespace}/budget in domain zone-a needs 2 healthy pods and has 2 currently" in cause.message
        assert "relax maxUnavailable 1" in denial.message
        assert await charged(ns) == [first]
        await running.stop()
        with pytest.raises(ApiError) as closed:
            await ns.client.evict(third, ns.namespace)
        assert closed.value.status == 500
        await ns.client.delete(PODS, third, ns.namespace)


async def test_fifty_evictions_over_three_replicas_charge_three(ns_with_leader: DisruptionNamespace) -> None:
    await ns_with_leader.deployment("web", 48)
    pods = await ns_with_leader.until_ready("web", 48)
    async with (
        replica(ns_with_leader, "guard-0") as first,
        replica(ns_with_leader, "guard-1") as second,
        replica(ns_with_leader, "guard-2") as third,
    ):
        await zone_budget(ns_with_leader)
        await until_allowed(ns_with_leader, ONE_EACH)
        replicas = (first, second, third)
        for guard in replicas:
            await until_informed(guard, ns_with_leader, 48)
        names = [pod.metadata.name for pod in pods] + [pods[0].metadata.name, pods[1].metadata.name]
        verdicts = await asyncio.gather(*(replicas[index % 3].evict(name) for index, name in enumerate(names)))
        passed = {name for name, verdict in zip(names, verdicts, strict=True) if verdict.allowed}
        assert len(passed) == 3
        assert {verdict.code for verdict in verdicts if not verdict.allowed} == {429}
        ledger = charges_in(await status_of(ns_with_leader))
        assert {charge.name for charge in ledger} == passed
        assert {charge.domain for charge in ledger} == set(ONE_EACH)


async def test_concurrent_evictions_are_batched_into_few_writes(ns_with_leader: DisruptionNamespace) -> None:
    await ns_with_leader.deployment("web", 30)
    pods = await ns_with_leader.until_ready("web", 30)
    async with replica(ns_with_leader, "guard-batch") as guard:
        await zone_budget(ns_with_leader, maxUnavailable="100%")
        await until_allowed(ns_with_leader, dict.fromkeys(ONE_EACH, 10))
        await until_informed(guard, ns_with_leader, 30)
        ns_with_leader.audit.restart()
        verdicts = await asyncio.gather(*(guard.evict(pod.metadata.name) for pod in pods))
        assert all(verdict.allowed for verdict in verdicts)
        assert len(await charged(ns_with_leader)) == 30
        calls = [
            call.verb for call in ns_with_leader.audit.calls(user="guard-batch", namespace=ns_with_leader.namespace)
        ]
        assert calls.count("get") == 30  # every pod once, and no budget
        assert set(calls) == {"get", "update"}
        assert calls.count("update") <= 3
        again = await asyncio.gather(*(guard.evict(pod.metadata.name) for pod in pods))
        assert all(verdict.allowed for verdict in again)
        verbs = [
            call.verb for call in ns_with_leader.audit.calls(user="guard-batch", namespace=ns_with_leader.namespace)
        ]
        # Two requests share a charge now, so neither may refund it: recorded in few writes for all pods.
        assert verbs.count("update") <= calls.count("update") + 10
        assert len(await charged(ns_with_leader)) == 30


async def test_eviction_charges_all_budgets_or_none(ns_with_leader: DisruptionNamespace) -> None:
    """`first` allows both pods, `second` one: of two evictions one passes, and the other's charge is refunded."""
    await ns_with_leader.deployment("web", 9)
    await ns_with_leader.until_ready("web", 9)
    async with replica(ns_with_leader) as guard:
        await zone_budget(ns_with_leader, "first", maxUnavailable=2)
        await zone_budget(ns_with_leader, "second", nodeSelectorTerm=None)
        await zone_budget(ns_with_leader, "third", maxUnavailable=2)
        await until_allowed(ns_with_leader, {"all": 1}, "second")
        await until_informed(guard, ns_with_leader, 9, "first", "second", "third")
        first, second, _ = await ns_with_leader.in_zone("web", "zone-a")
        verdicts = await asyncio.gather(guard.evict(first), guard.evict(second))
        passed, denied = (first, second) if verdicts[0].allowed else (second, first)
        for budget in ("first", "second", "third"):
            assert await charged(ns_with_leader, budget) == [passed]
        (refused,) = [verdict for verdict in verdicts if not verdict.allowed]
        assert [cause.message for cause in refused.causes] == [
            f"budget {ns_with_leader.namespace}/second needs 8 healthy pods and has 8 currently"
        ]
        assert not (await guard.evict(denied)).allowed  # now decided before anything is charged
        assert await charged(ns_with_leader, "first") == [passed]


async def test_denial_by_a_stock_budget_charges_nothing(ns_with_leader: DisruptionNamespace) -> None:
    await ns_with_leader.deployment("web", 9)
    await ns_with_leader.until_ready("web", 9)
    await ns_with_leader.budget(
        "stock", resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "web"}}, maxUnavailable=0
    )

    async def counts() -> bool:
        budget = await ns_with_leader.client.get(STOCK_BUDGETS, "stock", ns_with_leader.namespace)
        return budget["status"].get("expectedPods") == 9

    await eventually(counts)
    async with replica(ns_with_leader) as guard:
        await zone_budget(ns_with_leader)
        await until_informed(guard, ns_with_leader, 9)
        (pod, *_) = await ns_with_leader.in_zone("web", "zone-a")
        verdict = await guard.evict(pod)
        assert (verdict.allowed, verdict.code) == (False, 429)
        assert [cause.message for cause in verdict.causes] == [
            "The disruption budget stock needs 9 healthy pods and has 9 currently"
        ]
        await ns_with_leader.budget("other", resource=STOCK_BUDGETS, selector={}, minAvailable=1)
        await eventually(lambda: len(list(guard.sources.pdbs)) > 1)
        assert (await guard.evict(pod)).code == 500  # as the API server answers to two stock budgets
        assert await charged(ns_with_leader) == []


async def test_evictions_are_denied_without_a_leader(ns: DisruptionNamespace) -> None:
    async with leading(ns):
        await ns.deployment("web", 9)
        await ns.until_ready("web", 9)
        await zone_budget(ns)
        await until_allowed(ns, ONE_EACH)
    async with replica(ns, silent_seconds=0.5) as guard:
        await until_informed(guard, ns, 9)
        (pod, *_) = await ns.in_zone("web", "zone-a")

        async def refused() -> bool:
            verdict = await guard.evict(pod, dry_run=True)
            return not verdict.allowed and "budget controller is not running" in verdict.message

        await eventually(refused)
        verdict = await guard.evict(pod)
        assert (verdict.code, verdict.retry_after_seconds) == (429, 10)
        assert await charged(ns) == []
        async with leading(ns):

            async def passes() -> bool:
                return (await guard.evict(pod, dry_run=True)).allowed

            await eventually(passes)


async def test_verdict_never_applies_to_a_successor_of_the_same_name(ns_with_leader: DisruptionNamespace) -> None:
    """An eviction by name gets the uid of the pod that was judged, whether that leaves, waits or runs."""
    await ns_with_leader.stateful_set("web", 3, pod_annotations={GONE_AFTER: "600s"})
    await ns_with_leader.until_ready("web", 3)
    await zone_budget(ns_with_leader)
    leaving = await ns_with_leader.client.get(PODS, "web-0", ns_with_leader.namespace)
    await ns_with_leader.client.delete(PODS, "web-0", ns_with_leader.namespace)
    async with replica(ns_with_leader) as guard:
        await eventually(lambda: is_terminating(guard, Key(ns_with_leader.namespace, "web-0")))
        assert pinned(await guard.evict("web-0")) == leaving.metadata.uid
        verdict = await guard.evict("web-0", uid=leaving.metadata.uid)
        assert (verdict.allowed, verdict.patch) == (True, ())
        await ns_with_leader.cordon()
        await ns_with_leader.client.delete(PODS, "web-1", ns_with_leader.namespace, grace_seconds=0)
        await eventually(lambda: is_waiting(ns_with_leader, "web-1"))
        waiting = await ns_with_leader.client.get(PODS, "web-1", ns_with_leader.namespace)
        assert pinned(await guard.evict("web-1")) == waiting.metadata.uid
        verdict = await guard.evict("web-9")
        assert (verdict.allowed, verdict.code, verdict.message) == (False, 404, 'pods "web-9" not found')
        assert await charged(ns_with_leader) == []
        running = await ns_with_leader.client.get(PODS, "web-2", ns_with_leader.namespace)
        assert pinned(await guard.evict("web-2")) == running.metadata.uid
        assert await charged(ns_with_leader) == ["web-2"]


def pinned(verdict: AdmissionVerdict) -> str:
    """The uid that the verdict adds to an eviction without delete options."""
    assert verdict.allowed
    (operation,) = verdict.patch
    assert (operation["op"], operation["path"]) == ("add", "/deleteOptions")
    uid: str = operation["value"]["preconditions"]["uid"]
    return uid


async def is_waiting(ns: DisruptionNamespace, name: str) -> bool:
    return any(pod.metadata.name == name and not pod.spec.node_name for pod in await ns.pods("web"))


def is_terminating(guard: Replica, pod: Key) -> bool:
    facts = guard.sources.facts(pod)
    return facts is not None and facts.terminating


async def test_clock_jumps_change_no_verdict(ns_with_leader: DisruptionNamespace) -> None:
    """Timestamps that the webhook writes are informational."""
    await ns_with_leader.deployment("web", 9)
    await ns_with_leader.until_ready("web", 9)
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    async with replica(ns_with_leader, wall=lambda: clock[0]) as guard:
        await zone_budget(ns_with_leader)
        await until_allowed(ns_with_leader, ONE_EACH)
        await until_informed(guard, ns_with_leader, 9)
        for zone, year in (("zone-a", 1970), ("zone-b", 2199), ("zone-c", 2026)):
            first, second, _ = await ns_with_leader.in_zone("web", zone)
            clock[0] = datetime(year, 1, 1, tzinfo=UTC)
            assert (await guard.evict(first)).allowed
            assert (await guard.evict(second)).code == 429
            assert (await guard.evict(first)).allowed, "already charged"
        before = charges_in(await status_of(ns_with_leader))
        assert [charge.time[:4] for charge in before] == ["1970", "2199", "2026"]
        await ns_with_leader.set_unready(second)
        await until_healthy(ns_with_leader, 5)  # a new count was published
        assert charges_in(await status_of(ns_with_leader)) == before


async def test_delete_verdict_depends_on_user_and_apply_to(ns_with_leader: DisruptionNamespace) -> None:
    """Without admission policies: workload controllers are checked, the system never, users and operators with `Deletes`."""
    await ns_with_leader.deployment("web", 9)
    await ns_with_leader.until_ready("web", 9)
    controller, operator = WORKLOAD_CONTROLLERS[0], "system:serviceaccount:shop:cassandra-operator"
    async with replica(ns_with_leader) as guard:
        await zone_budget(ns_with_leader)
        await until_allowed(ns_with_leader, ONE_EACH)
        await until_informed(guard, ns_with_leader, 9)
        pods = [
            await ns_with_leader.client.get(PODS, name, ns_with_leader.namespace)
            for name in await ns_with_leader.in_zone("web", "zone-a")
        ]
        assert (await guard.delete(pods[0], controller)).allowed
        assert await charged(ns_with_leader) == [pods[0].metadata.name]
        refused = await guard.delete(pods[1], controller)
        assert (refused.code, refused.retry_after_seconds) == (403, 0)
        for name in ("generic-garbage-collector", "namespace-controller", "job-controller", "node-controller"):
            assert (await guard.delete(pods[1], f"system:serviceaccount:kube-system:{name}")).allowed
        assert (await guard.delete(pods[1], "system:node:n", "system:nodes")).allowed
        assert (await guard.delete(pods[1], "system:kube-scheduler")).allowed
        for user in ("jane", operator):
            assert (await guard.delete(pods[1], user)).allowed
        spec = {"applyTo": ["Evictions", "ControllerDeletes", "Deletes"]}
        await ns_with_leader.client.patch(BUDGETS, "budget", MergePatch({"spec": spec}), ns_with_leader.namespace)

        async def refuses(user: str) -> bool:
            verdict = await guard.delete(pods[1], user)
            return not verdict.allowed and "needs 2 healthy pods" in verdict.message

        await eventually(lambda: refuses("jane"))
        assert await refuses(operator)

        async def passes() -> bool:
            return (await guard.evict(pods[1].metadata.name)).allowed

        assert not await passes()
        for enforcement in ("DryRun", "Off"):
            await ns_with_leader.client.patch(
                BUDGETS, "budget", MergePatch({"spec": {"enforcement": enforcement}}), ns_with_leader.namespace
            )
            await eventually(passes, f"{enforcement} denies nothing")
            await ns_with_leader.client.patch(
                BUDGETS, "budget", MergePatch({"spec": {"enforcement": "Enforce"}}), ns_with_leader.namespace
            )
            await eventually(lambda: refused_again(guard, pods[1].metadata.name))
        assert await charged(ns_with_leader) == [pods[0].metadata.name]


async def refused_again(guard: Replica, pod: str) -> bool:
    return "needs 2 healthy pods" in (await guard.evict(pod)).message
