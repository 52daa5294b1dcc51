"""The dashboard's login under load, on a real API server."""

from __future__ import annotations

import asyncio
import json
from collections import Counter

import aiohttp
from aiohttp.test_utils import TestServer

from support.dashboard.cluster import node
from support.install.deployed import token_of
from support.kube.held_reviews import gate
from support.waiting import eventually
from zonewise.dashboard import from_dump
from zonewise.dashboard.auth import TokenReviewAuthenticator
from zonewise.dashboard.live_state import LiveState
from zonewise.dashboard.server import DashboardServer
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.routing import HintsForm

STRANGERS = 600
VIEWER, ATTACKER = "127.0.0.7", "127.0.0.66"
ROLES = "/apis/rbac.authorization.k8s.io/v1"


async def test_a_viewer_is_answered_while_600_unknown_tokens_are_reviewed(
    cluster: ControlPlane, namespace: str, client: Client
) -> None:
    """Reviews of the strangers' tokens are held back: whoever waits for them waits for ever."""
    token = await _viewer(cluster, client, namespace)
    state = LiveState({})
    dump = from_dump.read_dump(json.dumps({"kind": "List", "items": [node("a-1", "a")]}).encode(), "test")
    snapshot = from_dump.publish_dump(dump, state, HintsForm.STABLE)
    async with gate(kubeconfig.load(cluster.kubeconfig), b"stranger") as held, Client(held.access) as reviewing:
        server = DashboardServer(state, lambda: snapshot, TokenReviewAuthenticator(reviewing))
        async with TestServer(server.application()) as served, _from(VIEWER) as viewer, _from(ATTACKER) as attacker:

            async def status(session: aiohttp.ClientSession, bearer: str) -> int:
                headers = {"Authorization": f"Bearer {bearer}"}
                async with session.get(served.make_url("/simulation/none.svg"), headers=headers) as answer:
                    return answer.status

            async def seen() -> bool:  # there is no such picture, which only viewers learn
                return await status(viewer, token) == 404

            attack = [asyncio.create_task(status(attacker, f"stranger-{at}")) for at in range(STRANGERS)]
            try:
                await eventually(lambda: held.held, "the API server is asked about strangers")
                await eventually(seen, "the viewer is answered")
            finally:
                held.opened.set()
                answers = Counter(await asyncio.gather(*attack))
            assert set(answers) == {401, 429}, answers


def _from(address: str) -> aiohttp.ClientSession:
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0, local_addr=(address, 0)))


async def _viewer(cluster: ControlPlane, client: Client, namespace: str) -> str:
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "viewer"}})
    rule = {"apiGroups": ["zonewise.dev"], "resources": ["dashboards"], "verbs": ["get"]}
    cluster.request("POST", f"{ROLES}/clusterroles", {"metadata": {"name": namespace}, "rules": [rule]})
    binding = {
        "metadata": {"name": namespace},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": namespace},
        "subjects": [{"kind": "ServiceAccount", "name": "viewer", "namespace": namespace}],
    }
    cluster.request("POST", f"{ROLES}/clusterrolebindings", binding)
    return await token_of(client, "viewer", namespace)
