"""Network programming latency as `zonewise proxy` counts it, beside the kube-proxy of the same node."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from network.proxy.cluster import (
    LABEL,
    RunningProxy,
    create_server_pod,
    create_service,
    proxy_on,
    request_all,
    wait_served,
)
from support.lab.pods import Pods, eventually, fetch
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES

NODE = "zone-a-1"
LATENCY, SYNC = "kubeproxy_network_programming_duration_seconds", "kubeproxy_sync_proxy_rules_duration_seconds"
LONGEST_SECONDS = 60.0
"""Pods become ready within seconds, and a test machine may be busy. Trigger times are whole seconds, rounded down."""


@pytest.fixture
async def proxy(lab: Lab, pods: Pods, tmp_path: Path) -> AsyncIterator[RunningProxy]:
    with proxy_on(lab, pods, NODE, tmp_path / "proxy.log") as running:
        yield running


class Histogram:
    """Of IPv4, as a page shows it."""

    def __init__(self, lines: Iterable[str], name: str) -> None:
        families = text_string_to_metric_families("\n".join([*lines, ""]))
        samples = [sample for family in families for sample in family.samples if sample.name.startswith(name)]
        own = [sample for sample in samples if sample.labels.get("ip_family") == "IPv4"]
        self.labels = {label for sample in own for label in sample.labels}
        self.buckets = {float(sample.labels["le"]): sample.value for sample in own if "le" in sample.labels}
        self.count = self.buckets.get(float("inf"), 0.0)
        self.sum = sum(sample.value for sample in own if sample.name == f"{name}_sum")


def ours(proxy: RunningProxy, name: str = LATENCY) -> Histogram:
    return Histogram(proxy.metrics(), name)


def of_kube_proxy(proxy: RunningProxy, name: str = LATENCY) -> Histogram:
    return Histogram(fetch(proxy.namespace, "http://127.0.0.1:10249/metrics").splitlines(), name)


async def until_alone(pods: Pods) -> None:
    """The proxy counts changes in every namespace, and those of earlier tests may still be on their way out."""
    selector = ",".join(f"{label}={value}" for label, value in LABEL.items())

    async def check() -> bool:
        slices = await pods.client.list(ENDPOINT_SLICES, selector=selector)
        return all(item.metadata.namespace == pods.namespace for item in slices.items)

    await eventually(check, "slices of earlier tests are gone")


async def all_counted(proxy: RunningProxy) -> Histogram:
    """Once no change of a slice is left to count: a pod is served before its slice's last change."""
    last, now = None, ours(proxy)
    while last is None or now.count > last.count:
        await asyncio.sleep(1)
        last, now = now, ours(proxy)
    return now


async def test_scaled_service_is_counted_by_its_proxy(pods: Pods, proxy: RunningProxy) -> None:
    await until_alone(pods)
    ports = [{"name": "main", "port": 80, "targetPort": 8080}]
    services = {
        name: await create_service(pods, name, {"selector": {"app": name}, "ports": ports}, ours=is_ours)
        for name, is_ours in (("web", True), ("plain", False))
    }
    await create_server_pod(pods, "web-1", NODE, labels={"app": "web"})
    await wait_served(proxy.namespace, services["web"]["spec"]["clusterIP"], 80, "the Service")
    before = ours(proxy).count

    await create_server_pod(pods, "web-2", "zone-b-1", labels={"app": "web"})
    await eventually(lambda: _answers(proxy, services["web"]["spec"]["clusterIP"], 2), "both pods serve")
    counted = await all_counted(proxy)
    assert counted.count > before
    assert counted.buckets[LONGEST_SECONDS] == counted.count, "none was late"
    assert 0 <= counted.sum <= LONGEST_SECONDS * counted.count
    assert ours(proxy, SYNC).count > 0

    stock = of_kube_proxy(proxy)
    await create_server_pod(pods, "plain-1", NODE, labels={"app": "plain"})
    await wait_served(proxy.namespace, services["plain"]["spec"]["clusterIP"], 80, "kube-proxy's Service")

    async def kube_proxy_counts() -> bool:
        return of_kube_proxy(proxy).count > stock.count

    await eventually(kube_proxy_counts, "kube-proxy counts its Service")
    assert ours(proxy).count == counted.count, "which is not ours"
    for name in (LATENCY, SYNC):
        mine, its = ours(proxy, name), of_kube_proxy(proxy, name)
        assert (mine.buckets.keys(), mine.labels) == (its.buckets.keys(), its.labels)

    proxy.stop()
    proxy.start()
    await eventually(lambda: _adopted(proxy), "the next process has its rules")
    assert ours(proxy).count == 0, "changes from before its start are none of its"
    assert ours(proxy, SYNC).count > 0


async def _answers(proxy: RunningProxy, address: str, pods: int) -> bool:
    (tries,) = request_all(proxy.namespace, [{"address": address, "port": 80, "count": 24}])
    return len({answer.split()[0] for answer in tries if " " in answer}) == pods


async def _adopted(proxy: RunningProxy) -> bool:
    return proxy.adopted()
