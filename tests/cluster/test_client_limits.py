"""Client limits: 429 with Retry-After, the client-side rate limit, and lease-guarded writes."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import yaml
from prometheus_client import REGISTRY

from support.kube.fault_proxy import FaultProxy
from support.lab.whoami import whoami
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import DeadlineExceeded, Gone, NotFound, TooManyRequests
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import CONFIG_MAPS, NAMESPACES, PODS, Metadata, Resource, View

POD = {
    "metadata": {"name": "p", "labels": {"app": "it"}},
    "spec": {"schedulerName": "nobody", "containers": [{"name": "c", "image": "i"}]},
}
BUDGET = {"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "it"}}}}


class BudgetStatus(View, frozen=True):
    observed_generation: int = 0
    current_healthy: int = 0


class Budget(View, frozen=True):
    metadata: Metadata = Metadata()
    status: BudgetStatus = BudgetStatus()


BUDGETS = Resource(view=Budget, kind="PodDisruptionBudget", plural="poddisruptionbudgets", group="policy")
FLOW = {"group": "flowcontrol.apiserver.k8s.io", "namespaced": False}
LEVELS = Resource(dict[str, Any], "PriorityLevelConfiguration", "prioritylevelconfigurations", **FLOW)  # type: ignore[arg-type]
SCHEMAS = Resource(dict[str, Any], "FlowSchema", "flowschemas", **FLOW)  # type: ignore[arg-type]


async def run_pod(client: Client, namespace: str) -> str:
    """Create a pod with status Running and Ready, without a node. Returns its uid."""
    created = await client.create(PODS, POD, namespace)
    ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    await client.patch(PODS, "p", MergePatch({"status": ready}), namespace, subresource="status")
    return created.metadata.uid


async def test_denial_by_a_budget_is_not_retried(client: Client, namespace: str) -> None:
    await run_pod(client, namespace)
    await client.create(BUDGETS, BUDGET, namespace)

    async def is_counted() -> bool:
        return (await client.get(BUDGETS, "b", namespace)).status.current_healthy == 1

    await eventually(is_counted)
    for dry_run in (True, False):
        with pytest.raises(
            TooManyRequests, match=f"^too many requests: evict of pods/eviction {namespace}/p: "
        ) as raised:
            await client.evict("p", namespace, dry_run=dry_run)
        assert [cause.reason for cause in raised.value.causes] == ["DisruptionBudget"]

    await client.patch(BUDGETS, "b", MergePatch({"spec": {"minAvailable": 0}}), namespace)

    async def is_evicted() -> bool:
        try:
            await client.evict("p", namespace)
            await client.get(PODS, "p", namespace)
        except TooManyRequests:
            return False
        except NotFound:
            return True
        return False

    await eventually(is_evicted)


async def test_eviction_honours_uid_and_dry_run(client: Client, namespace: str) -> None:
    uid = await run_pod(client, namespace)
    with pytest.raises(Exception, match=r"(?i)uid"):
        await client.evict("p", namespace, uid="another")
    await client.evict("p", namespace, uid=uid, dry_run=True)
    await client.get(PODS, "p", namespace)
    await client.evict("p", namespace, uid=uid, grace_seconds=0)
    with pytest.raises(NotFound):
        await client.get(PODS, "p", namespace)


async def test_eviction_under_an_unpublished_budget_gets_retry_after(
    private_cluster: Callable[..., ControlPlane],
) -> None:
    plane = await asyncio.to_thread(private_cluster)
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        await client.create(NAMESPACES, {"metadata": {"name": "n"}})
        await client.request("POST", "/api/v1/namespaces/n/serviceaccounts", body=b'{"metadata":{"name":"default"}}')
        await run_pod(client, "n")
        await client.create(BUDGETS, BUDGET, "n")
        with pytest.raises(TooManyRequests) as raised:
            await client.evict("p", "n")
        assert raised.value.retry_after_seconds == 10


@pytest.fixture
async def crowded(client: Client, cluster: ControlPlane, namespace: str, tmp_path: Any) -> AsyncIterator[Client]:
    """Client whose user has one seat in API priority and fairness; further requests are rejected."""
    user = f"crowd-{namespace}"
    limited = {"nominalConcurrencyShares": 0, "borrowingLimitPercent": 0, "limitResponse": {"type": "Reject"}}
    await client.create(LEVELS, {"metadata": {"name": user}, "spec": {"type": "Limited", "limited": limited}})
    rule = {
        "subjects": [{"kind": "User", "user": {"name": user}}],
        "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
        "resourceRules": [
            {"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"], "namespaces": ["*"], "clusterScope": True}
        ],
    }
    spec = {"matchingPrecedence": 500, "priorityLevelConfiguration": {"name": user}, "rules": [rule]}
    await client.create(SCHEMAS, {"metadata": {"name": user}, "spec": spec})
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["users"][0]["user"]["as"] = user
    (tmp_path / "config").write_text(yaml.safe_dump(document))
    async with await Client.connect(tmp_path / "config") as crowded:
        yield crowded
    await client.delete(SCHEMAS, user)
    await client.delete(LEVELS, user)


async def test_flow_control_rejections_are_retried(crowded: Client, namespace: str) -> None:
    busy = crowded.limited(f"busy-{namespace}", qps=1000, burst=1000)

    async def crowd() -> bool:
        """Concurrent reads and writes; all succeed, retried or not."""
        reads = [busy.request("GET", "/openapi/v2", deadline_seconds=120) for _ in range(6)]
        *documents, me = await asyncio.gather(*reads, whoami(busy, deadline_seconds=120))
        assert all(b"swagger" in document for document in documents)
        assert me.username == f"crowd-{namespace}"  # type: ignore[attr-defined] # gather's type is that of the first ones
        return counted("zonewise_kube_requests_total", purpose=f"busy-{namespace}", code="429") > 0

    await eventually(crowd)


async def test_short_deadline_raises_with_retry_after(crowded: Client) -> None:
    async def is_rejected() -> bool:
        calls = [crowded.request("GET", "/openapi/v2", deadline_seconds=1) for _ in range(6)]
        results = await asyncio.gather(*calls, return_exceptions=True)
        refused = [result for result in results if isinstance(result, TooManyRequests)]
        return bool(refused) and all(error.retry_after_seconds >= 1 for error in refused)

    await eventually(is_rejected)


def counted(name: str, **labels: str) -> float:
    """Sum over all labels that are not given."""
    return sum(
        sample.value
        for family in REGISTRY.collect()
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


async def test_limited_client_has_its_own_rate_and_metrics(client: Client, namespace: str) -> None:
    purpose = f"slow-{namespace}"
    slow = client.limited(purpose, qps=10, burst=2)
    started = time.monotonic()
    await asyncio.gather(*(slow.list(CONFIG_MAPS, namespace) for _ in range(7)))
    assert time.monotonic() - started >= 0.5

    labels = {"purpose": purpose, "verb": "list", "resource": "configmaps"}
    assert counted("zonewise_kube_requests_total", **labels, code="200") == 7
    assert counted("zonewise_kube_request_seconds_count", **labels) == 7
    assert 0 < counted("zonewise_kube_rate_limit_seconds_sum", purpose=purpose) < 1.6  # 0.1 + ... + 0.5

    with pytest.raises(NotFound):
        await slow.get(CONFIG_MAPS, "none", namespace)
    assert counted("zonewise_kube_requests_total", purpose=purpose, code="404") == 1


async def test_deadline_holds_while_waiting_for_the_rate_limit(client: Client) -> None:
    slow = client.limited("crawling", qps=0.01, burst=1)
    await slow.version()
    with pytest.raises(DeadlineExceeded):
        await slow.request("GET", "/version", deadline_seconds=0.2)


async def test_concurrent_calls_share_a_bounded_pool(cluster: ControlPlane, namespace: str, tmp_path: Any) -> None:
    async with (
        FaultProxy(cluster.server) as proxy,
        await Client.connect(proxy.kubeconfig(cluster.kubeconfig, tmp_path)) as client,
    ):
        await asyncio.gather(*(client.version() for _ in range(300)))
        assert proxy.accepted <= 64


# Guards.


class NotLeaderError(Exception):
    pass


class Lease:
    """Guard that returns `seconds` for the first `grants` calls, then raises."""

    def __init__(self, grants: int, seconds: float = 30) -> None:
        self.grants = grants
        self.seconds = seconds

    def remaining_seconds(self) -> float:
        self.grants -= 1
        if self.grants < 0:
            raise NotLeaderError
        return self.seconds


async def test_guarded_client_writes_while_leading(client: Client, namespace: str) -> None:
    leader = client.guarded(Lease(grants=100))
    assert (await leader.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)).metadata.name == "x"
    await leader.delete(CONFIG_MAPS, "x", namespace)


@pytest.mark.parametrize("grants", [pytest.param(0, id="before"), pytest.param(1, id="while the connection is made")])
async def test_guarded_client_sends_no_write_without_the_lease(
    cluster: ControlPlane, client: Client, namespace: str, grants: int
) -> None:
    async with Client(kubeconfig.load(cluster.kubeconfig)) as fresh:
        with pytest.raises(NotLeaderError):
            await fresh.guarded(Lease(grants)).create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)
        with pytest.raises(NotLeaderError):
            await fresh.guarded(Lease(grants)).create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)
        with pytest.raises(NotFound):
            await fresh.get(CONFIG_MAPS, "x", namespace)


async def test_guarded_client_reads_without_the_lease(client: Client, namespace: str) -> None:
    await client.guarded(Lease(grants=0)).list(CONFIG_MAPS, namespace)


async def test_guarded_write_ends_with_the_lease(cluster: ControlPlane, namespace: str, tmp_path: Any) -> None:
    async with (
        FaultProxy(cluster.server) as proxy,
        await Client.connect(proxy.kubeconfig(cluster.kubeconfig, tmp_path)) as client,
    ):
        await client.version()
        proxy.go_silent()
        leader = client.guarded(Lease(grants=100, seconds=0.3))
        with pytest.raises(DeadlineExceeded, match=r"the guard allowed only 0.300 s"):
            await leader.create(CONFIG_MAPS, {"metadata": {"name": "x"}}, namespace)


# Compacted versions.


async def test_compacted_versions_raise_gone(private_cluster: Callable[..., ControlPlane]) -> None:
    plane = await asyncio.to_thread(private_cluster)
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        for number in range(4):
            await client.create(NAMESPACES, {"metadata": {"name": f"n{number}"}})
        old = (await client.list(NAMESPACES)).resource_version
        pages = client.pages(NAMESPACES, page_size=2)
        await anext(pages)
        crawling = client.limited("crawling-list", qps=0.25, burst=1)
        listing = asyncio.create_task(crawling.list(NAMESPACES, page_size=2, deadline_seconds=120))
        await eventually(lambda: counted("zonewise_kube_requests_total", purpose="crawling-list", code="200") == 1)
        await client.create(NAMESPACES, {"metadata": {"name": "later"}})
        await asyncio.to_thread(plane.forget_history)

        with pytest.raises(Gone, match=r"^gone: watch of namespaces: "):
            await anext(client.watch(NAMESPACES, resource_version=old))
        with pytest.raises(Gone, match=r"^gone: list of namespaces: "):
            await anext(pages)
        names = {item.metadata.name for item in (await listing).items}
        assert {"n0", "n1", "n2", "n3", "later"} <= names
