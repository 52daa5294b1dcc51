"""Kubernetes' integration tests of evictions and disruption budgets, written anew for a cluster with our guard.

Each runs with stock budgets before Zonewise is there and beside the guard, where nothing may change, and with a
TopologyDisruptionBudget in the budget's place, where the same numbers hold. Pods run on kwok's nodes, not on none.
"""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from http import HTTPStatus
from typing import Any

import pytest

from support.disruption.cluster import BUDGETS, STOCK_BUDGETS, DisruptionNamespace, charges_in
from support.disruption.kwok import GONE_AFTER, READY_AFTER, STAY_UNREADY
from support.waiting import eventually
from zonewise.kube.wire.errors import ApiError, Conflict, NotFound, TooManyRequests
from zonewise.kube.wire.patch import MergePatch, StrategicPatch
from zonewise.objects import PODS, Resource

pytestmark = pytest.mark.xdist_group("disruption")

Json = dict[str, Any]
NAME, APP = "test-budget", "test-evictions"
SELECTOR = {"matchLabels": {"app": APP}}
ANY = {"minAvailable": 0, "selector": SELECTOR}
RAW_PODS = PODS.whole()
CRDS: Resource[Json] = Resource(
    dict[str, Any],
    "CustomResourceDefinition",
    "customresourcedefinitions",
    "apiextensions.k8s.io",
    namespaced=False,
)
SCALABLE: Resource[Json] = Resource(dict[str, Any], "Scalable", "scalables", "upstream.example.com")
STALE_SECONDS = 600  # the controller waits for 120


@pytest.fixture(scope="module", params=["stock", "beside the guard", "ours"])
def budgets(request: pytest.FixtureRequest) -> Resource[Json]:
    """The kind of budget. In order: once Zonewise is installed, it stays to the end of the file."""
    if request.param != "stock":
        request.getfixturevalue("installed")
    return BUDGETS if request.param == "ours" else STOCK_BUDGETS


async def make_pod(
    ns: DisruptionNamespace,
    name: str = "pod",
    *,
    labels: Mapping[str, str] = SELECTOR["matchLabels"],
    annotations: Mapping[str, str] = {},
    ready: bool = True,
    **metadata: Any,
) -> Json:
    """A pod without a controller, that runs."""
    unready = {} if ready else {READY_AFTER: "10ms", STAY_UNREADY: "yes"}
    body = {
        "metadata": {"name": name, "labels": dict(labels), "annotations": {**annotations, **unready}, **metadata},
        "spec": {
            "containers": [{"name": "main", "image": "none:1"}],
            "nodeName": ns.node("zone-a"),
            "terminationGracePeriodSeconds": 1,
        },
    }
    await ns.client.create(RAW_PODS, body, ns.namespace)

    async def runs() -> Json | None:
        pod = await ns.client.get(RAW_PODS, name, ns.namespace)
        conditions = {condition["type"]: condition["status"] for condition in pod["status"].get("conditions", ())}
        is_expected = conditions.get("Ready") == str(ready) and pod["status"]["phase"] == "Running"
        return pod if is_expected else None

    return await eventually(runs, f"pod {name} runs")  # type: ignore[return-value]


async def make_budget(ns: DisruptionNamespace, kind: Resource[Json], **spec: Any) -> Json:
    return await ns.budget(NAME, resource=kind, **spec)


async def until_counted(ns: DisruptionNamespace, kind: Resource[Json], **expected: int) -> Json:
    """The budget's status, once it has these numbers."""

    async def counted() -> Json | None:
        status: Json = (await ns.client.get(kind, NAME, ns.namespace)).get("status", {})
        is_expected = status.get("observedGeneration") and expected.items() <= status.items()
        return status if is_expected else None

    return await eventually(counted, f"{kind.kind} counts {expected}")  # type: ignore[return-value]


def eviction(name: str, version: str = "policy/v1", **options: Any) -> Json:
    typed = {"apiVersion": version, "kind": "Eviction"} if version else {}
    return {**typed, "metadata": {"name": name}, "deleteOptions": options}


async def evict(ns: DisruptionNamespace, body: Json) -> Json:
    path = PODS.path(ns.namespace, body["metadata"]["name"], "eviction")
    reply: Json = json.loads(await ns.client.request("POST", path, body=json.dumps(body).encode()))
    return reply


async def evict_until_allowed(ns: DisruptionNamespace, name: str) -> None:
    """Again after 429; any other answer is an error."""

    async def allowed() -> bool:
        try:
            await evict(ns, eviction(name))
        except TooManyRequests:
            return False
        return True

    await eventually(allowed, f"{name} is evicted")


async def until_gone(ns: DisruptionNamespace, *names: str) -> None:
    async def gone() -> bool:
        return not {pod.metadata.name for pod in await ns.pods()} & set(names)

    await eventually(gone, f"{names} are gone")


def condition_of(pod: Json) -> Json | None:
    return next((one for one in pod["status"]["conditions"] if one["type"] == "DisruptionTarget"), None)


async def test_ten_evictions_at_once_all_pass_without_conflict(
    ns: DisruptionNamespace, budgets: Resource[Json]
) -> None:
    """TestConcurrentEvictionRequests."""
    names = [f"test-pod-{number}" for number in range(10)]
    await asyncio.gather(*(make_pod(ns, name) for name in names))
    await make_budget(ns, budgets, **ANY)
    await until_counted(ns, budgets, currentHealthy=10)
    await asyncio.gather(*(evict_until_allowed(ns, name) for name in names))
    await until_gone(ns, *names)


async def test_pod_that_ended_is_evicted_whatever_the_budget_says(
    ns: DisruptionNamespace, budgets: Resource[Json]
) -> None:
    """TestTerminalPodEviction, and with a budget that allows nothing."""
    await make_pod(ns)
    await make_budget(ns, budgets, maxUnavailable=0, selector=SELECTOR)
    await until_counted(ns, budgets, currentHealthy=1, disruptionsAllowed=0)
    with pytest.raises(TooManyRequests):
        await ns.client.evict("pod", ns.namespace)
    ended = StrategicPatch({"status": {"phase": "Succeeded"}})
    await ns.client.patch(RAW_PODS, "pod", ended, ns.namespace, subresource="status")
    before = (await ns.client.get(budgets, NAME, ns.namespace))["status"]["observedGeneration"]
    await evict_until_allowed(ns, "pod")
    status = (await ns.client.get(budgets, NAME, ns.namespace))["status"]
    assert status["observedGeneration"] == before
    assert not status.get("disruptedPods")
    assert not charges_in(status)


async def test_eviction_endpoint_accepts_every_version_and_no_other_verb(
    ns: DisruptionNamespace, budgets: Resource[Json]
) -> None:
    """TestEvictionVersions."""
    await make_pod(ns)
    await make_budget(ns, budgets, **ANY)
    await until_counted(ns, budgets, currentHealthy=1)
    path = PODS.path(ns.namespace, "pod", "eviction")
    types = ("json-patch+json", "merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml")
    for verb, content_type in (("GET", "json"), *(("PATCH", type_) for type_ in types)):
        with pytest.raises(ApiError) as refused:
            await ns.client.request(verb, path, content_type=f"application/{content_type}")
        assert refused.value.status == HTTPStatus.METHOD_NOT_ALLOWED
    for version in ("", "policy/v1beta1", "policy/v1"):
        reply = await evict(ns, eviction("pod", version, dryRun=["All"]))
        assert (reply["apiVersion"], reply["kind"], reply["status"]) == ("v1", "Status", "Success")
    with pytest.raises(ApiError, match="policy/v2"):
        await evict(ns, eviction("pod", "policy/v2"))
    await ns.client.get(PODS, "pod", ns.namespace)


@pytest.mark.parametrize(
    ("phase", "is_dry_run"),
    [("Succeeded", False), ("Running", False), ("Running", True)],
    ids=["ended", "running", "dry run"],
)
async def test_evicted_pod_with_a_finalizer_has_its_condition(
    ns: DisruptionNamespace, budgets: Resource[Json], phase: str, *, is_dry_run: bool
) -> None:
    """TestEvictionWithFinalizers."""
    await make_pod(ns, finalizers=["test.example.com/finalizer"])
    await make_budget(ns, budgets, **ANY)
    await until_counted(ns, budgets, currentHealthy=1)
    if phase != "Running":
        ended = StrategicPatch({"status": {"phase": phase}})
        await ns.client.patch(RAW_PODS, "pod", ended, ns.namespace, subresource="status")
    try:
        await evict(ns, eviction("pod", **({"dryRun": ["All"]} if is_dry_run else {})))
        pod = await ns.client.get(RAW_PODS, "pod", ns.namespace)
        assert (condition_of(pod) is None) == is_dry_run
        assert ("deletionTimestamp" in pod["metadata"]) != is_dry_run
    finally:
        await ns.client.patch(RAW_PODS, "pod", MergePatch({"metadata": {"finalizers": None}}), ns.namespace)


@pytest.mark.parametrize(
    ("policy", "is_ready"),
    [(None, True), ("IfHealthyBudget", True), ("AlwaysAllow", True), ("AlwaysAllow", False)],
)
async def test_policy_for_unhealthy_pods_lets_the_first_request_pass(
    ns: DisruptionNamespace, budgets: Resource[Json], policy: str | None, *, is_ready: bool
) -> None:
    """TestEvictionWithUnhealthyPodEvictionPolicy."""
    await make_pod(ns, ready=is_ready)
    await make_budget(ns, budgets, **ANY, **({"unhealthyPodEvictionPolicy": policy} if policy else {}))
    await until_counted(ns, budgets, expectedPods=1, currentHealthy=int(is_ready))
    ns.audit.restart()
    await evict(ns, eviction("pod"))
    await until_gone(ns, "pod")
    await until_counted(ns, budgets, currentHealthy=0)
    assert [call.verb for call in ns.audit.calls(namespace=ns.namespace)].count("evict") == 1


@pytest.mark.parametrize(
    ("fields", "wrong"),
    [
        (("resourceVersion",), ""),
        (("uid",), ""),
        (("uid", "resourceVersion"), ""),
        (("resourceVersion",), "resourceVersion"),
        (("uid",), "uid"),
    ],
    ids=["version", "uid", "both", "wrong version", "wrong uid"],
)
async def test_eviction_passes_only_if_its_preconditions_hold(
    ns: DisruptionNamespace, budgets: Resource[Json], fields: tuple[str, ...], wrong: str
) -> None:
    """TestEvictionWithPrecondition."""
    old = await make_pod(ns)
    await make_budget(ns, budgets, **ANY)
    await until_counted(ns, budgets, currentHealthy=1)
    label = MergePatch({"metadata": {"labels": {"changed": "yes"}}})
    new = await ns.client.patch(RAW_PODS, "pod", label, ns.namespace)
    mistaken = {"resourceVersion": old["metadata"]["resourceVersion"], "uid": "0a1b2c3d-0000-4000-8000-000000000000"}
    preconditions = {field: mistaken[field] if field == wrong else new["metadata"][field] for field in fields}
    ns.audit.restart()
    if wrong:
        with pytest.raises(Conflict):
            await evict(ns, eviction("pod", preconditions=preconditions))
        await ns.client.get(PODS, "pod", ns.namespace)
    else:
        await evict(ns, eviction("pod", preconditions=preconditions))
        await until_gone(ns, "pod")
    assert [call.verb for call in ns.audit.calls(namespace=ns.namespace)].count("evict") == 1


def scalable_definition() -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    scale = {"specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas"}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "metadata": {"name": f"{SCALABLE.plural}.{SCALABLE.group}"},
        "spec": {
            "group": SCALABLE.group,
            "names": {"plural": SCALABLE.plural, "singular": "scalable", "kind": SCALABLE.kind},
            "scope": "Namespaced",
            "versions": [{**version, "subresources": {"scale": scale}}],
        },
    }


@asynccontextmanager
async def changing(ns: DisruptionNamespace, budgets: Resource[Json]) -> AsyncIterator[None]:
    """Change the budget each second: the stock controller learns new kinds every 30 s, and does not try again by itself."""

    async def change() -> None:
        for number in itertools.count():
            label = MergePatch({"metadata": {"labels": {"changed": str(number)}}})
            await ns.client.patch(budgets, NAME, label, ns.namespace)
            await asyncio.sleep(1)

    task = asyncio.create_task(change())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def test_budget_counts_by_a_custom_resources_scale(ns: DisruptionNamespace, budgets: Resource[Json]) -> None:
    """TestPDBWithScaleSubresource."""
    definition = scalable_definition()
    await ns.client.create(CRDS, definition)
    try:
        body = {"metadata": {"name": "resource"}, "spec": {"replicas": 4}}

        async def created() -> Json | None:
            try:
                return await ns.client.create(SCALABLE, body, ns.namespace)
            except NotFound:  # not served yet
                return None

        owner = await eventually(created, "the custom resource is served")
        assert owner is not None
        reference = {
            "apiVersion": f"{SCALABLE.group}/v1",
            "kind": SCALABLE.kind,
            "name": "resource",
            "uid": owner["metadata"]["uid"],
            "controller": True,
        }
        await asyncio.gather(*(make_pod(ns, f"pod-{number}", ownerReferences=[reference]) for number in range(4)))
        await make_budget(ns, budgets, maxUnavailable=2, selector=SELECTOR)
        async with changing(ns, budgets):
            await until_counted(ns, budgets, currentHealthy=4, expectedPods=4, desiredHealthy=2, disruptionsAllowed=2)
    finally:
        await ns.client.delete(CRDS, definition["metadata"]["name"])


async def test_empty_selector_selects_every_pod(ns: DisruptionNamespace, budgets: Resource[Json]) -> None:
    """TestEmptySelector: policy/v1. Its budget of policy/v1beta1 can be written past the API server only."""
    await asyncio.gather(*(make_pod(ns, f"pod-{number}") for number in range(4)))
    await make_budget(ns, budgets, minAvailable=2, selector={})
    await until_counted(ns, budgets, currentHealthy=4, disruptionsAllowed=2)


@pytest.mark.parametrize(
    "selector",
    [{}, {"matchExpressions": [{"key": "DoesNotExist", "operator": "DoesNotExist"}]}],
    ids=["empty", "no key"],
)
async def test_pod_without_labels_can_be_selected(
    ns: DisruptionNamespace, budgets: Resource[Json], selector: Json
) -> None:
    """TestSelectorsForPodsWithoutLabels: policy/v1."""
    await make_budget(ns, budgets, minAvailable=1, selector=selector)
    await until_counted(ns, budgets, currentHealthy=0)
    await make_pod(ns, labels={})
    await until_counted(ns, budgets, currentHealthy=1)


PATCHED = {"matchLabels": {"patchmatch": "true"}, "matchExpressions": [{"key": "p", "operator": "In", "values": ["x"]}]}


@pytest.mark.parametrize("kind", ["strategic-merge-patch+json", "merge-patch+json", "apply-patch+yaml"])
async def test_patches_replace_the_selector_and_merges_extend_it(
    ns: DisruptionNamespace, budgets: Resource[Json], kind: str
) -> None:
    """TestPatchCompatibility."""
    base = {"matchLabels": {"basematch": "true"}, "matchExpressions": [{"key": "b", "operator": "In", "values": ["x"]}]}
    await make_budget(ns, budgets, maxUnavailable=2, selector=base)
    version = "zonewise.dev/v1alpha1" if budgets is BUDGETS else "policy/v1"
    body = json.dumps({"apiVersion": version, "kind": budgets.kind, "spec": {"selector": PATCHED}}).encode()
    params = {"force": "true", "fieldManager": "test"} if kind.startswith("apply") else {}

    async def patch() -> Json:
        path = budgets.path(ns.namespace, NAME)
        reply = await ns.client.request("PATCH", path, params=params, body=body, content_type=f"application/{kind}")
        selector: Json = json.loads(reply)["spec"]["selector"]
        return selector

    if budgets is BUDGETS and kind.startswith("strategic"):
        with pytest.raises(ApiError) as refused:  # of any custom resource
            await patch()
        assert refused.value.status == HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        return
    merged = {"matchLabels": {"basematch": "true", "patchmatch": "true"}} if kind.startswith("merge") else {}
    assert await patch() == {**PATCHED, **merged}


async def set_disruption_target(ns: DisruptionNamespace, name: str, phase: str, reason: str = "") -> None:
    """As of ten minutes ago."""
    then = (datetime.now(UTC) - timedelta(seconds=STALE_SECONDS)).strftime("%Y-%m-%dT%H:%M:%SZ")
    condition = {"type": "DisruptionTarget", "status": "True", "reason": reason, "lastTransitionTime": then}
    patch = StrategicPatch({"status": {"phase": phase, "conditions": [condition]}})
    await ns.client.patch(RAW_PODS, name, patch, ns.namespace, subresource="status")


async def test_only_a_running_pods_stale_disruption_target_is_withdrawn(
    ns: DisruptionNamespace, budgets: Resource[Json]
) -> None:
    """TestStalePodDisruption."""
    for name in ("stale", "deleted", "by-kubelet", "failed"):
        await make_pod(ns, name, annotations={GONE_AFTER: "600s"} if name == "deleted" else {})
    await make_budget(ns, budgets, **ANY)
    await until_counted(ns, budgets, currentHealthy=4)
    await ns.client.delete(PODS, "deleted", ns.namespace, grace_seconds=600)
    await set_disruption_target(ns, "deleted", "Running")
    await set_disruption_target(ns, "by-kubelet", "Failed", "TerminationByKubelet")
    await set_disruption_target(ns, "failed", "Failed")
    await set_disruption_target(ns, "stale", "Running")

    async def status_of(name: str) -> tuple[str, str]:
        condition = condition_of(await ns.client.get(RAW_PODS, name, ns.namespace))
        assert condition is not None
        return condition["status"], condition.get("reason", "")

    async def withdrawn() -> bool:
        return await status_of("stale") == ("False", "")

    await eventually(withdrawn, "the condition is withdrawn")
    assert await status_of("deleted") == ("True", "")
    assert await status_of("by-kubelet") == ("True", "TerminationByKubelet")
    assert await status_of("failed") == ("True", "")
