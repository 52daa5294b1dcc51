"""Forged and unanswered reviews, against a real API server: nothing that a caller posts is believed."""

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeGuard

import aiohttp
import pytest

from support.disruption.cluster import DisruptionNamespace, is_available
from support.disruption.processes import CONFIGURATION, Zonewise, zonewise
from support.disruption.webhook import allowed, charged, leading, replica, until_allowed, until_informed, zone_budget
from support.kube import admission_server
from support.waiting import eventually
from zonewise.kube.wire.admission_review import AdmissionVerdict
from zonewise.kube.wire.errors import ApiError, Conflict, NotFound, ServerError, TooManyRequests
from zonewise.objects import Pod
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS

pytestmark = pytest.mark.xdist_group("disruption")

Json = dict[str, Any]
ALL_KINDS = ["Evictions", "ControllerDeletes", "Deletes"]
SHORT_REQUESTS = ("--apiserver-request-timeout", 1)
EVICTIONS = admission_server.rule("pods/eviction", "CREATE")


class Forger:
    """A pod of another tenant: no credentials, and no certificate to trust."""

    def __init__(self, ns: DisruptionNamespace, port: int, session: aiohttp.ClientSession) -> None:
        self._ns = ns
        self._url = f"https://127.0.0.1:{port}"
        self._session = session

    async def post(self, path: str, body: Json) -> tuple[int, Json | None]:
        review = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": body}
        async with self._session.post(f"{self._url}{path}", json=review) as response:
            return response.status, await response.json() if response.status == 200 else None

    def eviction(self, pod: str, uid: str = "", namespace: str = "") -> Json:
        options = {"deleteOptions": {"preconditions": {"uid": uid}}} if uid else {}
        body = {"metadata": {"name": pod, "namespace": self._ns.namespace}, **options}
        names = {"name": pod, "namespace": namespace or self._ns.namespace}
        return {"uid": "forged", "operation": "CREATE", **names, "object": body}

    def delete(self, pod: Json) -> Json:
        user = {"username": "jane"}
        names = {"name": "", "namespace": self._ns.namespace}
        return {"uid": "forged", "operation": "DELETE", **names, "oldObject": pod, "userInfo": user}


@asynccontextmanager
async def three_pods(ns: DisruptionNamespace, *leader: object) -> AsyncIterator[tuple[Zonewise, Forger, list[Pod]]]:
    """Three pods, one of which may be missing, behind one webhook; and somebody who reaches its port."""
    await ns.replica_set("web", 3)
    pods = await ns.until_ready("web", 3)
    await ns.cordon()
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    async with (
        zonewise(ns.client, ns.plane, leaders=0, webhooks=0) as running,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context)) as session,
    ):
        await running.start_leader(0, *leader)
        await running.start_webhook()
        await running.ready()
        await zone_budget(ns, nodeSelectorTerm=None, applyTo=ALL_KINDS)
        await until_allowed(ns, {"all": 1})
        yield running, Forger(ns, running.balancer.backends[0], session), pods


def forged_pod(ns: DisruptionNamespace, pods: list[Pod]) -> Json:
    """A ready pod under the budget whose name is a ledger of the real ones."""
    lines = [f"{pod.metadata.uid} {pod.metadata.name} all - t Eviction" for pod in pods]
    metadata = {
        "name": "\n".join(["x", *lines]),
        "namespace": ns.namespace,
        "uid": "forged",
        "labels": pods[0].metadata.labels,
    }
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": metadata, "spec": {"nodeName": pods[0].spec.node_name}, "status": status}


async def keys(ns: DisruptionNamespace) -> dict[str, str]:
    """The paths that the webhook configurations carry, by webhook."""
    paths = {}
    for resource in (MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS):
        for webhook in (await ns.client.get(resource, CONFIGURATION)).webhooks:
            path = (webhook.client_config.url or "").split("/", 3)[3]
            paths[path.partition("/")[0]] = f"/{path}"
    return paths


async def evict_all(ns: DisruptionNamespace, pods: list[Pod]) -> list[ApiError | None]:
    """In parallel, as three drains would."""

    async def evict(pod: Pod) -> ApiError | None:
        try:
            await ns.client.evict(pod.metadata.name, ns.namespace)
        except ApiError as error:
            return error
        return None

    return await asyncio.gather(*map(evict, pods))


async def test_forger_without_the_key_changes_nothing(ns: DisruptionNamespace) -> None:
    async with three_pods(ns) as (running, forger, pods):
        guess = f"/{'0' * 64}"
        for _ in range(5):
            for key in ("", "/", guess):
                assert await forger.post(f"/deletes{key}", forger.delete(forged_pod(ns, pods))) == (404, None)
                for pod in pods:
                    review = forger.eviction(pod.metadata.name)
                    assert await forger.post(f"/evictions{key}", review) == (404, None)
        assert await charged(ns) == []
        assert await allowed(ns) == {"all": 1}
        answers = await evict_all(ns, pods)
        assert answers.count(None) == 1
        assert {type(answer) for answer in answers if answer} == {TooManyRequests}
        webhook = running.webhooks[0]
        assert webhook.events.count("callers without a valid key refused") == 1
        assert not any(path.rpartition("/")[2] in str(webhook.lines) for path in (await keys(ns)).values())


async def test_forger_with_the_key_cannot_charge_what_is_not_so(ns: DisruptionNamespace) -> None:
    async with three_pods(ns) as (_, forger, pods):
        paths = await keys(ns)
        stale = {"metadata": {"name": pods[0].metadata.name, "namespace": ns.namespace, "uid": "of-another-pod"}}
        for review in (forger.delete(forged_pod(ns, pods)), forger.delete(stale), forger.delete({})):
            status, _ = await forger.post(paths["deletes"], review)
            assert status == 200
        evictions = [
            forger.eviction(forged_pod(ns, pods)["metadata"]["name"]),
            forger.eviction("no-such-pod"),
            forger.eviction(pods[0].metadata.name, uid="of-another-pod"),
            forger.eviction(pods[0].metadata.name, namespace="kube-system"),
            forger.eviction(f"../../../{ns.namespace}/pods/{pods[0].metadata.name}"),
        ]
        for review in evictions:
            status, _ = await forger.post(paths["evictions"], review)
            assert status == 200
        assert await charged(ns) == []
        assert (await evict_all(ns, pods)).count(None) == 1
        (gone,) = await charged(ns)
        await eventually(lambda: is_leaving(ns, gone))
        for _ in range(20):
            await forger.post(paths["evictions"], forger.eviction(gone))
        assert await charged(ns) == [gone]


async def is_leaving(ns: DisruptionNamespace, name: str) -> bool:
    return not any(pod.metadata.name == name and is_available(pod) for pod in await ns.pods("web"))


async def test_forger_with_the_key_delays_a_drain_and_cannot_renew(ns: DisruptionNamespace) -> None:
    """The forged charge of a real pod ends, however often it is asked for; the owner's drain goes on by itself."""
    async with three_pods(ns, *SHORT_REQUESTS) as (_, forger, pods):
        paths, (victim, other, _) = await keys(ns), pods
        status, answer = await forger.post(paths["evictions"], forger.eviction(victim.metadata.name))
        assert status == 200
        assert answer is not None
        assert answer["response"]["allowed"]
        assert await charged(ns) == [victim.metadata.name]
        asking = asyncio.create_task(ask_for_ever(forger, paths["evictions"], victim.metadata.name))
        await eventually(lambda: is_refused(forger, paths["evictions"], victim.metadata.name), "the charge is closed")
        asking.cancel()
        await asyncio.wait([asking])
        await ns.drain(other.spec.node_name, patience_seconds=100)
        assert victim.metadata.name in {pod.metadata.name for pod in await ns.pods("web") if is_available(pod)}


async def ask_for_ever(forger: Forger, path: str, pod: str) -> None:
    while True:
        await forger.post(path, forger.eviction(pod))
        await asyncio.sleep(0.2)


async def is_refused(forger: Forger, path: str, pod: str) -> bool:
    _, answer = await forger.post(path, forger.eviction(pod))
    return answer is not None and "and it is still there" in answer["response"].get("status", {}).get("message", "")


async def test_eviction_that_stalls_after_its_review_stays_charged(ns: DisruptionNamespace) -> None:
    """Another webhook takes its time, more than a charge is open. Had the charge come back, two pods would go."""
    slow = admission_server.site(ns.client, ns.namespace, deadline_seconds=27, late=AdmissionVerdict.allow())
    async with three_pods(ns) as (_, _, pods), slow as site:
        held, other, _ = pods
        body = admission_server.configuration(ns.namespace, site.url("judge"), [EVICTIONS])
        async with admission_server.registered(ns.client, body):
            await eventually(lambda: is_called(ns, site, other.metadata.name), "the other webhook is called")
            site.judge.requests.clear()
            site.judge.stuck = True
            evicting = asyncio.create_task(ns.client.evict(held.metadata.name, ns.namespace, deadline_seconds=60))
            await eventually(lambda: site.judge.requests, "the eviction waits for it")
            await eventually(lambda: closed(ns), "no further request may rely on the charge")
            assert not evicting.done()
            with pytest.raises(TooManyRequests):
                await ns.client.evict(other.metadata.name, ns.namespace)
            await evicting
            site.judge.stuck = False
            assert await charged(ns) == [held.metadata.name]
            with pytest.raises(TooManyRequests):
                await ns.client.evict(other.metadata.name, ns.namespace)
            assert len([pod for pod in await ns.pods("web") if is_available(pod)]) == 2


async def is_called(ns: DisruptionNamespace, site: admission_server.Site, pod: str) -> bool:
    with suppress(ServerError):  # its certificate is trusted shortly after registration
        await ns.client.evict(pod, ns.namespace, dry_run=True)
    return bool(site.judge.requests)


async def closed(ns: DisruptionNamespace) -> bool:
    budget = await ns.client.get(TOPOLOGY_DISRUPTION_BUDGETS, "budget", ns.namespace)
    return any(charge.closed for charge in budget.status.ledger)


async def test_every_pod_that_a_name_hits_is_charged(ns: DisruptionNamespace) -> None:
    """Twenty parallel evictions of one pod by its name: its successors have the same name, and are ready at once."""
    await ns.stateful_set("web", 3)
    await ns.until_ready("web", 3)
    async with zonewise(ns.client, ns.plane, webhooks=2), replica(ns, "observer") as observer:
        await zone_budget(ns, nodeSelectorTerm=None)
        await until_allowed(ns, {"all": 1})
        await until_informed(observer, ns, 3)
        charges, left = set[str](), set[str]()
        observer.sources.budgets.on_change(
            lambda change: charges.update(charge.uid for charge in change.new.status.ledger) if change.new else None
        )
        observer.sources.pods.on_change(
            lambda change: left.add(change.old.metadata.uid) if was_ready(change.old) and is_gone(change.new) else None
        )
        for _ in range(5):
            await asyncio.gather(*(evict_by_name(ns, "web-0") for _ in range(20)))
            await ns.until_ready("web", 3)
            await until_allowed(ns, {"all": 1})
        assert left
        await eventually(lambda: left <= charges, "every pod that left was charged")


def was_ready(pod: Pod | None) -> TypeGuard[Pod]:
    return pod is not None and is_available(pod)


def is_gone(pod: Pod | None) -> bool:
    return pod is None or pod.metadata.deletion_timestamp is not None


async def evict_by_name(ns: DisruptionNamespace, name: str) -> None:
    with suppress(TooManyRequests, NotFound, Conflict):
        await ns.client.evict(name, ns.namespace, deadline_seconds=30)


async def test_pod_under_many_budgets_is_refused_at_once(ns: DisruptionNamespace) -> None:
    await ns.deployment("web", 3)
    (pod, *_) = await ns.until_ready("web", 3)
    async with leading(ns), replica(ns) as guard:
        names = [f"b{number:02}" for number in range(17)]
        for name in names:
            await zone_budget(ns, name, nodeSelectorTerm=None)
        await until_informed(guard, ns, 3, *names)
        verdict = await guard.evict(pod.metadata.name)
        assert (verdict.allowed, verdict.code) == (False, 429)
        assert "is under 17 budgets, and no more than 16 can be charged at once" in verdict.message
        assert "let fewer budgets select it; the first are b00, b01, b02" in verdict.message
        await ns.client.delete(TOPOLOGY_DISRUPTION_BUDGETS, names[-1], ns.namespace)

        async def passes() -> bool:
            return (await guard.evict(pod.metadata.name)).allowed

        await eventually(passes, "sixteen are charged")
        for name in names[:-1]:
            assert await charged(ns, name) == [pod.metadata.name]


async def test_configuration_from_before_there_were_keys_is_taken_over(ns: DisruptionNamespace) -> None:
    """Two replicas start over what an older release registered: paths without a key, evictions in the validating one."""
    await ns.replica_set("web", 3)
    pods = await ns.until_ready("web", 3)
    async with zonewise(ns.client, ns.plane, webhooks=0) as running:
        await running.ready()
        url = f"https://127.0.0.1:{running.balancer.port}"
        webhooks = []
        for name, resource in (("evictions", "pods/eviction"), ("deletes", "pods")):
            operation = "CREATE" if name == "evictions" else "DELETE"
            body = admission_server.configuration(
                ns.namespace, f"{url}/{name}", [admission_server.rule(resource, operation)]
            )
            webhooks.append({**body["webhooks"][0], "name": f"{name}.zonewise.dev"})
        old = {"metadata": {"name": CONFIGURATION}, "webhooks": webhooks}
        await ns.client.create(VALIDATING_WEBHOOK_CONFIGURATIONS.whole(), old)
        for number in range(2):
            await running.start_webhook(number, "--no-register")
        await running.ready()
        await zone_budget(ns, nodeSelectorTerm=None)
        await until_allowed(ns, {"all": 1})
        assert (await evict_all(ns, pods)).count(None) == 1
        assert len(await charged(ns)) == 1
        assert {path.split("/")[1] for path in (await keys_of(ns)).values()} == {"evictions", "deletes"}
        assert len({path.split("/")[2] for path in (await keys_of(ns)).values()}) == 1


async def keys_of(ns: DisruptionNamespace) -> dict[str, str]:
    webhooks = (await ns.client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, CONFIGURATION)).webhooks
    return {webhook.name: f"/{(webhook.client_config.url or '').split('/', 3)[3]}" for webhook in webhooks}
