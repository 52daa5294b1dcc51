"""A tenant's pod and the proxy's metrics, which name every Service and its bytes."""

from __future__ import annotations

import asyncio
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from network.proxy.cluster import proxy_on
from support.install.deployed import token_of
from support.lab.pods import Pods
from support.process import scrape
from support.waiting import eventually
from zonewise.lab.network import namespaces
from zonewise.lab.state import Lab
from zonewise.objects import SERVICE_ACCOUNTS, Resource

CLUSTER_ROLES: Resource[dict[str, Any]] = Resource(
    dict[str, Any], "ClusterRole", "clusterroles", "rbac.authorization.k8s.io", namespaced=False
)
BINDINGS: Resource[dict[str, Any]] = Resource(
    dict[str, Any], "ClusterRoleBinding", "clusterrolebindings", "rbac.authorization.k8s.io", namespaced=False
)
NODE = "zone-a-1"


def _plain(url: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


@pytest.fixture
async def tokens(pods: Pods) -> dict[str, str]:
    """Of a tenant, and of a reader of metrics."""
    for name in ("tenant", "reader"):
        await pods.client.create(SERVICE_ACCOUNTS, {"metadata": {"name": name}}, pods.namespace)
    role = {"metadata": {"name": pods.namespace}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]}
    await pods.client.create(CLUSTER_ROLES, role)
    binding = {
        "metadata": {"name": pods.namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": pods.namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "reader", "namespace": pods.namespace}],
    }
    await pods.client.create(BINDINGS, binding)
    return {name: await token_of(pods.client, name, pods.namespace) for name in ("tenant", "reader")}


async def test_a_tenants_pod_reads_no_metrics_of_the_proxy(
    lab: Lab, pods: Pods, tokens: dict[str, str], tmp_path: Path
) -> None:
    tenant = pods.inside(await pods.serve("tenant", "zone-b-1"))
    node = pods.node(NODE)
    with proxy_on(lab, pods, NODE, tmp_path / "log", "--measure-traffic", "--metrics-port", "0") as proxy:
        await eventually(lambda: proxy.logged("metrics served"))
        ports = {name: proxy.log.read_text().partition(name)[2].split()[0] for name in ("health_port=", " port=")}
        plain, tls = (
            f"http://{node.address.v4}:{ports['health_port=']}",
            f"https://{node.address.v4}:{ports[' port=']}",
        )

        async def answer(token: str) -> tuple[int, str]:
            return await asyncio.to_thread(namespaces.inside, tenant, lambda: scrape(f"{tls}/metrics", token))

        status, text = await asyncio.to_thread(namespaces.inside, tenant, lambda: _plain(f"{plain}/metrics"))
        assert (status, "zonewise_proxy" in text) == (403, False)
        assert (await asyncio.to_thread(namespaces.inside, tenant, lambda: _plain(f"{plain}/readyz"))) == (200, "ok\n")
        for token, expected in (("", 401), ("wrong", 401), (tokens["tenant"], 403)):
            status, text = await answer(token)
            assert (status, "zonewise_proxy" in text) == (expected, False)

        async def read() -> str:
            """The API server may not have read the binding yet, and refusals are remembered for seconds."""
            status, text = await answer(await token_of(pods.client, "reader", pods.namespace))
            return text if status == 200 else ""

        assert "zonewise_proxy_services" in await eventually(read, "a reader gets them")
        assert any(line.startswith("zonewise_proxy_services") for line in proxy.metrics()), (
            "and so does the node itself"
        )
