"""The eviction guard on a real API server: what it lets pass, what it charges, and what it says when it refuses."""

import asyncio
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest

from support.disruption.cluster import BUDGETS, STATEFUL_SETS, STOCK_BUDGETS, Bed, charges_in
from support.disruption.kwok import GONE_AFTER
from support.disruption.processes import LateApi, zonewise
from support.disruption.webhook import (
    Replica,
    charged,
    counted,
    known,
    leading,
    replica,
    set_ready,
    status_of,
    until_allowed,
    zone_budget,
)
from support.waiting import eventually
from zonewise.disruption.webhook.registration import WORKLOAD_CONTROLLERS
from zonewise.kube.wire.errors import ApiError, TooManyRequests
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import PODS, Key

pytestmark = pytest.mark.xdist_group("disruption")

ONE_EACH = {"zone-a": 1, "zone-b": 1, "zone-c": 1}
FOR_EVER = 600.0
ZONE = "topology.kubernetes.io/zone"


@pytest.fixture
async def led(bed: Bed) -> AsyncIterator[Bed]:
    async with leading(bed):
        yield bed


def evict_as_v1beta1(bed: Bed, name: str) -> bytes:
    return (
        b'{"apiVersion":"policy/v1beta1","kind":"Eviction","metadata":{"name":"%s"},"deleteOptions":{"dryRun":["All"]}}'
        % name.encode()
    )


async def test_evictions_through_the_api_server(bed: Bed) -> None:
    """The whole way: registered, called, 201 or 429 as a client sees it; a dry run leaves nothing behind."""
    await bed.deployment("web", 9)
    await bed.until_ready("web", 9)
    async with zonewise(bed.client, bed.plane, webhooks=2) as running:
        await zone_budget(bed)
        first, second, third = await bed.in_zone("web", "zone-a")
        before = await bed.client.get(BUDGETS, "budget", bed.namespace)
        await bed.client.evict(first, bed.namespace, dry_run=True)
        path = PODS.path(bed.namespace, first, "eviction")
        await bed.client.request("POST", path, body=evict_as_v1beta1(bed, first))
        assert await bed.client.get(BUDGETS, "budget", bed.namespace) == before
        await bed.client.evict(first, bed.namespace)
        assert await charged(bed) == [first]
        with pytest.raises(TooManyRequests) as refused:
            await bed.client.evict(second, bed.namespace, dry_run=True)
        told = refused.value
        assert (told.status, told.reason, told.retry_after_seconds) == (429, "TooManyRequests", 0)
        (cause,) = told.causes
        assert cause.reason == "DisruptionBudget"
        assert f"{bed.namespace}/budget in domain zone-a needs 2 healthy pods and has 2 currently" in cause.message
        assert "relax maxUnavailable 1" in told.message
        assert await charged(bed) == [first]
        await running.stop()
        with pytest.raises(ApiError) as closed:
            await bed.client.evict(third, bed.namespace)
        assert closed.value.status == 500
        await bed.client.delete(PODS, third, bed.namespace)


async def test_fifty_at_once_over_three_replicas(led: Bed) -> None:
    await led.deployment("web", 48)
    pods = await led.until_ready("web", 48)
    async with replica(led, "guard-0") as one, replica(led, "guard-1") as two, replica(led, "guard-2") as three:
        await zone_budget(led)
        await until_allowed(led, ONE_EACH)
        replicas = (one, two, three)
        for each in replicas:
            await known(each, led, 48)
        names = [pod.metadata.name for pod in pods] + [pods[0].metadata.name, pods[1].metadata.name]
        verdicts = await asyncio.gather(*(replicas[at % 3].evict(name) for at, name in enumerate(names)))
        passed = {name for name, verdict in zip(names, verdicts, strict=True) if verdict.allowed}
        assert len(passed) == 3
        assert {verdict.code for verdict in verdicts if not verdict.allowed} == {429}
        ledger = charges_in(await status_of(led))
        assert {charge.name for charge in ledger} == passed
        assert {charge.domain for charge in ledger} == set(ONE_EACH)


async def test_many_at_once_are_one_write(led: Bed) -> None:
    await led.deployment("web", 30)
    pods = await led.until_ready("web", 30)
    async with replica(led, "guard-batch") as guard:
        await zone_budget(led, maxUnavailable="100%")
        await until_allowed(led, dict.fromkeys(ONE_EACH, 10))
        await known(guard, led, 30)
        led.audit.restart()
        verdicts = await asyncio.gather(*(guard.evict(pod.metadata.name) for pod in pods))
        assert all(verdict.allowed for verdict in verdicts)
        assert len(await charged(led)) == 30
        calls = [call.verb for call in led.audit.calls(user="guard-batch", namespace=led.namespace)]
        assert set(calls) == {"update"}  # the watch is enough, so nothing is read
        assert len(calls) <= 3
        again = await asyncio.gather(*(guard.evict(pod.metadata.name) for pod in pods))
        assert all(verdict.allowed for verdict in again)
        verbs = [call.verb for call in led.audit.calls(user="guard-batch", namespace=led.namespace)]
        # Two requests rely on one charge now, so that neither may take it back: said in one write for all.
        assert verbs.count("update") <= len(calls) + 1
        assert len(await charged(led)) == 30


async def test_all_budgets_or_none(led: Bed) -> None:
    """`first` lets all go, `second` one: of two pods at once one passes, and the other's charge is taken back."""
    await led.deployment("web", 9)
    await led.until_ready("web", 9)
    async with replica(led) as guard:
        await zone_budget(led, "first", maxUnavailable=2)
        await zone_budget(led, "second", nodeSelectorTerm=None)
        await zone_budget(led, "third", maxUnavailable=2)
        await until_allowed(led, {"all": 1}, "second")
        await known(guard, led, 9, "first", "second", "third")
        one, two, _ = await led.in_zone("web", "zone-a")
        verdicts = await asyncio.gather(guard.evict(one), guard.evict(two))
        (passed,) = [name for name, verdict in zip((one, two), verdicts, strict=True) if verdict.allowed]
        for budget in ("first", "second", "third"):
            assert await charged(led, budget) == [passed]
        (refused,) = [verdict for verdict in verdicts if not verdict.allowed]
        assert [cause.message for cause in refused.causes] == [
            f"budget {led.namespace}/second needs 8 healthy pods and has 8 currently"
        ]
        assert not (await guard.evict(two)).allowed  # now seen before anything is charged
        assert await charged(led, "first") == [passed]


async def test_a_stock_budget_that_refuses_costs_nothing(led: Bed) -> None:
    await led.deployment("web", 9)
    await led.until_ready("web", 9)
    await led.budget("stock", resource=STOCK_BUDGETS, selector={"matchLabels": {"app": "web"}}, maxUnavailable=0)

    async def counts() -> bool:
        found = await led.client.get(STOCK_BUDGETS, "stock", led.namespace)
        return found["status"].get("expectedPods") == 9

    await eventually(counts)
    async with replica(led) as guard:
        await zone_budget(led)
        await known(guard, led, 9)
        (pod, *_) = await led.in_zone("web", "zone-a")
        verdict = await guard.evict(pod)
        assert (verdict.allowed, verdict.code) == (False, 429)
        assert [cause.message for cause in verdict.causes] == [
            "The disruption budget stock needs 9 healthy pods and has 9 currently"
        ]
        await led.budget("other", resource=STOCK_BUDGETS, selector={}, minAvailable=1)
        await eventually(lambda: len(list(guard.sources.pdbs)) > 1)
        assert (await guard.evict(pod)).code == 500  # as the API server says to two of them
        assert await charged(led) == []


async def test_without_a_leader_nothing_is_promised(bed: Bed) -> None:
    async with leading(bed):
        await bed.deployment("web", 9)
        await bed.until_ready("web", 9)
        await zone_budget(bed)
        await until_allowed(bed, ONE_EACH)
    async with replica(bed, silent_seconds=0.5) as guard:
        await known(guard, bed, 9)
        (pod, *_) = await bed.in_zone("web", "zone-a")

        async def refused() -> bool:
            verdict = await guard.evict(pod, dry_run=True)
            return not verdict.allowed and "budget controller is not running" in verdict.message

        await eventually(refused)
        verdict = await guard.evict(pod)
        assert (verdict.code, verdict.retry_after_seconds) == (429, 10)
        assert await charged(bed) == []
        async with leading(bed):

            async def passes() -> bool:
                return (await guard.evict(pod, dry_run=True)).allowed

            await eventually(passes)


async def test_old_news_of_a_pod_let_nothing_go_uncharged(led: Bed) -> None:
    """A guard that hears no news any more: of a pod that was not ready, of another of the same name, of a new one."""
    await led.stateful_set("web", 9)
    await led.until_ready("web", 9)
    await zone_budget(led, maxUnavailable="100%")
    await set_ready(led, "web-3", ready=False)
    async with (
        LateApi(led.plane, 0.0) as late,
        replica(led, config=late.kubeconfig(led.folder), silent_seconds=FOR_EVER) as guard,
    ):
        await known(guard, led, 9)
        late.lag_seconds = FOR_EVER
        old = await led.client.get(PODS, "web-0", led.namespace)
        await set_ready(led, "web-3", ready=True)
        await led.client.delete(PODS, "web-0", led.namespace, grace_seconds=0)
        await led.scale(STATEFUL_SETS, "web", 10)
        await led.until_ready("web", 10)
        await until_healthy(led, 10)
        still = guard.sources.facts(Key(led.namespace, "web-0"))
        assert still is not None
        assert still.uid == old.metadata.uid
        for name in ("web-3", "web-0", "web-9"):
            assert (await guard.evict(name)).allowed
        new = await led.client.get(PODS, "web-0", led.namespace)
        charges = {charge.uid: charge.name for charge in charges_in(await status_of(led))}
        assert set(charges.values()) == {"web-3", "web-0", "web-9"}
        assert charges[new.metadata.uid] == "web-0"
        assert new.metadata.uid != old.metadata.uid
        assert (await guard.evict("web-1", uid="of-another-pod")).allowed  # the API server says 409 to it
        assert "web-1" not in await charged(led)


async def test_a_name_that_the_next_pod_will_have(led: Bed) -> None:
    """What is said of a pod that leaves must not be carried out on its successor."""
    await led.stateful_set("web", 3, pod_annotations={GONE_AFTER: "600s"})
    await led.until_ready("web", 3)
    await zone_budget(led)
    leaving = await led.client.get(PODS, "web-0", led.namespace)
    await led.client.delete(PODS, "web-0", led.namespace)
    async with replica(led) as guard:
        await eventually(lambda: is_terminating(guard, Key(led.namespace, "web-0")))
        verdict = await guard.evict("web-0")
        assert (verdict.allowed, verdict.code, verdict.retry_after_seconds) == (False, 429, 1)
        assert "is leaving already" in verdict.message
        assert (await guard.evict("web-0", uid=leaving.metadata.uid)).allowed
        await led.cordon()
        await led.client.delete(PODS, "web-1", led.namespace, grace_seconds=0)
        await eventually(lambda: is_waiting(led, "web-1"))
        verdict = await guard.evict("web-1")
        assert (verdict.allowed, verdict.code) == (False, 429)
        assert "has no node yet" in verdict.message
        verdict = await guard.evict("web-9")
        assert (verdict.allowed, verdict.code, verdict.message) == (False, 404, 'pods "web-9" not found')


async def is_waiting(bed: Bed, name: str) -> bool:
    return any(pod.metadata.name == name and not pod.spec.node_name for pod in await bed.pods("web"))


def is_terminating(guard: Replica, pod: Key) -> bool:
    known = guard.sources.facts(pod)
    return known is not None and known.terminating


async def test_an_edited_budget_is_read_before_it_lets_a_pod_go_uncharged(led: Bed) -> None:
    """The watch still says that the zone is none of its own."""
    await led.deployment("web", 9)
    await led.until_ready("web", 9)
    elsewhere = {"matchExpressions": [{"key": ZONE, "operator": "NotIn", "values": ["zone-a"]}]}
    await zone_budget(led, nodeSelectorTerm=elsewhere)
    async with (
        LateApi(led.plane, 0.0) as late,
        replica(led, config=late.kubeconfig(led.folder), silent_seconds=FOR_EVER) as guard,
    ):
        await known(guard, led, 9)
        (pod, *_) = await led.in_zone("web", "zone-a")
        assert (await guard.evict(pod)).allowed
        late.lag_seconds = FOR_EVER
        frozen = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["zone-a"]}]}
        await led.client.patch(
            BUDGETS, "budget", MergePatch({"spec": {"nodeSelectorTerm": frozen, "maxUnavailable": 0}}), led.namespace
        )
        await eventually(lambda: counted(led))
        assert (await guard.evict(pod)).code == 429


async def test_a_node_is_read_before_a_budget_that_did_not_cover_it_lets_a_pod_go_uncharged(led: Bed) -> None:
    """The watch still says that it is in a zone that is not frozen; `both` has a budget besides that lets all go."""
    for app in ("web", "both"):
        await led.deployment(app, 9)
        await led.until_ready(app, 9)
    ready, unready, _ = await led.in_zone("web", "zone-a")
    (other, *_) = await led.in_zone("both", "zone-a")
    await led.set_unready(unready)
    frozen = {"matchExpressions": [{"key": ZONE, "operator": "In", "values": ["zone-b"]}]}
    await zone_budget(led, nodeSelectorTerm=frozen, maxUnavailable=0)
    await zone_budget(led, "both", "both", nodeSelectorTerm=frozen, maxUnavailable=0)
    await zone_budget(led, "open", "both", nodeSelectorTerm=None, maxUnavailable="100%")
    async with (
        LateApi(led.plane, 0.0) as late,
        replica(led, config=late.kubeconfig(led.folder), silent_seconds=FOR_EVER) as guard,
    ):
        await known(guard, led, 18, "budget", "both", "open")
        for pod in (ready, unready, other):
            assert (await guard.evict(pod, dry_run=True)).allowed
        late.lag_seconds = FOR_EVER
        for number in range(2):
            await led.label_node(led.node("zone-a", number), {ZONE: "zone-b"})
        await until_healthy(led, 5)
        await until_healthy(led, 6, "both")
        for pod in (ready, unready, other):
            assert (await guard.evict(pod)).code == 429, pod
        by_its_controller = await guard.delete(
            await led.client.get(PODS, ready, led.namespace), WORKLOAD_CONTROLLERS[0]
        )
        assert by_its_controller.code == 403


async def test_a_clock_that_jumps_changes_nothing(led: Bed) -> None:
    """Of the webhook: the times that it writes are for people, nobody counts by them."""
    await led.deployment("web", 9)
    await led.until_ready("web", 9)
    clock = [datetime(2026, 1, 1, tzinfo=UTC)]
    async with replica(led, wall=lambda: clock[0]) as guard:
        await zone_budget(led)
        await until_allowed(led, ONE_EACH)
        await known(guard, led, 9)
        for zone, year in (("zone-a", 1970), ("zone-b", 2199), ("zone-c", 2026)):
            first, second, _ = await led.in_zone("web", zone)
            clock[0] = datetime(year, 1, 1, tzinfo=UTC)
            assert (await guard.evict(first)).allowed
            assert (await guard.evict(second)).code == 429
            assert (await guard.evict(first)).allowed, "it is charged already"
        before = charges_in(await status_of(led))
        assert [charge.time[:4] for charge in before] == ["1970", "2199", "2026"]
        await led.set_unready(second)
        await until_healthy(led, 5)  # counted anew since
        assert charges_in(await status_of(led)) == before


async def until_healthy(bed: Bed, pods: int, name: str = "budget") -> None:
    async def healthy() -> bool:
        return bool((await status_of(bed, name))["currentHealthy"] == pods)

    await eventually(healthy)


async def test_deletes_by_whom(led: Bed) -> None:
    """Where API servers have no policies: workload controllers are judged, the system never, people and operators where it is said."""
    await led.deployment("web", 9)
    await led.until_ready("web", 9)
    controller, operator = WORKLOAD_CONTROLLERS[0], "system:serviceaccount:shop:cassandra-operator"
    async with replica(led) as guard:
        await zone_budget(led)
        await until_allowed(led, ONE_EACH)
        await known(guard, led, 9)
        pods = [await led.client.get(PODS, name, led.namespace) for name in await led.in_zone("web", "zone-a")]
        assert (await guard.delete(pods[0], controller)).allowed
        assert await charged(led) == [pods[0].metadata.name]
        refused = await guard.delete(pods[1], controller)
        assert (refused.code, refused.retry_after_seconds) == (403, 0)
        for name in ("generic-garbage-collector", "namespace-controller", "job-controller", "node-controller"):
            assert (await guard.delete(pods[1], f"system:serviceaccount:kube-system:{name}")).allowed
        assert (await guard.delete(pods[1], "system:node:n", "system:nodes")).allowed
        assert (await guard.delete(pods[1], "system:kube-scheduler")).allowed
        for who in ("jane", operator):
            assert (await guard.delete(pods[1], who)).allowed
        reach = {"applyTo": ["Evictions", "ControllerDeletes", "Deletes"]}
        await led.client.patch(BUDGETS, "budget", MergePatch({"spec": reach}), led.namespace)

        async def refuses(who: str) -> bool:
            verdict = await guard.delete(pods[1], who)
            return not verdict.allowed and "needs 2 healthy pods" in verdict.message

        await eventually(lambda: refuses("jane"))
        assert await refuses(operator)

        async def passes() -> bool:
            return (await guard.evict(pods[1].metadata.name)).allowed

        assert not await passes()
        for enforcement in ("DryRun", "Off"):
            await led.client.patch(BUDGETS, "budget", MergePatch({"spec": {"enforcement": enforcement}}), led.namespace)
            await eventually(passes, f"{enforcement} refuses nothing")
            await led.client.patch(BUDGETS, "budget", MergePatch({"spec": {"enforcement": "Enforce"}}), led.namespace)
            await eventually(lambda: refused_again(guard, pods[1].metadata.name))
        assert await charged(led) == [pods[0].metadata.name]


async def refused_again(guard: Replica, pod: str) -> bool:
    return "needs 2 healthy pods" in (await guard.evict(pod)).message
