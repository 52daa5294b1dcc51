"""Metrics over TLS on a real API server: who may read them, and who may not."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncIterator

import pytest
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils
from structlog.testing import capture_logs

from support.install.deployed import token_of
from support.process import scrape
from support.waiting import eventually
from zonewise.api.names import METRICS_AUDIENCE, METRICS_TOKEN_HEADER
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.server import metrics_server
from zonewise.kube.server.metrics_server import MetricsListen
from zonewise.lab.controlplane.controlplane import ControlPlane

ROLES = "/apis/rbac.authorization.k8s.io/v1"
READER = "reader"
TENANT = "tenant"


@pytest.fixture
async def url(cluster: ControlPlane) -> AsyncIterator[str]:
    """Of a server with the rights of an administrator."""
    listen = MetricsListen(access=kubeconfig.load(cluster.kubeconfig), port=0, host="127.0.0.1")
    with capture_logs() as lines:
        serving = asyncio.create_task(metrics_server.serve(listen))
        try:
            started = await eventually(lambda: [line for line in lines if line["event"] == "metrics served"])
            yield f"https://127.0.0.1:{started[0]['port']}/metrics"
        finally:
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)


@pytest.fixture
def accounts(cluster: ControlPlane, namespace: str) -> str:
    """The namespace of two service accounts, of which one may read metrics."""
    for name in (READER, TENANT):
        cluster.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
    role = {"metadata": {"name": namespace}, "rules": [{"nonResourceURLs": ["/metrics"], "verbs": ["get"]}]}
    cluster.request("POST", f"{ROLES}/clusterroles", role)
    binding = {
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": READER, "namespace": namespace}],
    }
    cluster.request("POST", f"{ROLES}/clusterrolebindings", binding)
    return namespace


def expired(token: str, cluster: ControlPlane) -> str:
    """The same token, signed by the same API server's key, whose time is over."""
    head, payload, _ = token.split(".")
    claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
    now = int(time.time())
    claims |= {"iat": now - 7200, "nbf": now - 7200, "exp": now - 3600}
    key = serialization.load_pem_private_key((cluster.directory / "pki/sa.key").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    signed = f"{head}.{_encoded(json.dumps(claims).encode())}"
    numbers = utils.decode_dss_signature(key.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_encoded(b''.join(number.to_bytes(32, 'big') for number in numbers))}"


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).decode().rstrip("=")


async def test_only_authorized_readers_get_metrics(
    url: str, accounts: str, cluster: ControlPlane, client: Client
) -> None:
    tenant, reader = await token_of(client, TENANT, accounts), await token_of(client, READER, accounts)
    ours = await token_of(client, READER, accounts, audiences=[METRICS_AUDIENCE])
    foreign = await token_of(client, READER, accounts, audiences=["vault"])
    answers = {
        "none": ("", 401),
        "wrong": ("abc", 401),
        "forged": (reader[:-8] + "AAAAAAAA", 401),
        "expired": (expired(reader, cluster), 401),
        "for another audience": (foreign, 401),
        "of a tenant": (tenant, 403),
        "of a tenant, for metrics": (await token_of(client, TENANT, accounts, audiences=[METRICS_AUDIENCE]), 403),
        "of a reader": (reader, 200),
        "of a reader, for metrics": (ours, 200),
    }

    async def settled() -> bool:
        return (await asyncio.to_thread(scrape, url, await token_of(client, READER, accounts)))[0] == 200

    await eventually(settled, "the API server has read the binding")
    for name, (token, status) in answers.items():
        got, text = await asyncio.to_thread(scrape, url, token)
        assert got == status, f"{name}: {text}"
        assert ("python_info" in text) == (status == 200), name
    forwarded = await asyncio.to_thread(scrape, url, ours, METRICS_TOKEN_HEADER)
    assert forwarded[0] == 200
    assert (await asyncio.to_thread(scrape, url.replace("/metrics", "/livez"), ours))[0] == 404


async def test_a_token_of_a_deleted_account_is_refused_within_a_minute(
    url: str, accounts: str, cluster: ControlPlane, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zonewise.kube.decide.token_verdicts.CACHE_SECONDS", 0.0)
    token = await token_of(client, READER, accounts)

    async def until(status: int) -> None:
        async def answered() -> bool:
            return (await asyncio.to_thread(scrape, url, token))[0] == status

        await eventually(answered, f"{status}")

    await until(200)
    cluster.request("DELETE", f"/api/v1/namespaces/{accounts}/serviceaccounts/{READER}")
    await until(401)
