"""Reviews of tokens on a real API server: readers do not wait for strangers."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from support.install.deployed import token_of
from support.kube.held_reviews import gate
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.decide.token_verdicts import CACHE_SECONDS, MAX_PENDING_PER_ADDRESS
from zonewise.kube.server.token_reviewer import TokenReviewer
from zonewise.lab.controlplane.controlplane import ControlPlane

STRANGERS = 600
ATTACKER = "10.0.0.66"
EVERYBODY_MAY = {"nonResourceAttributes": {"path": "/version", "verb": "get"}}


@pytest.fixture
async def tokens(cluster: ControlPlane, namespace: str, client: Client) -> tuple[str, str]:
    cluster.request("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": "viewer"}})
    one, other = [await token_of(client, "viewer", namespace) for _ in range(2)]
    assert one != other
    return one, other


async def test_readers_are_answered_while_600_unknown_tokens_wait(
    cluster: ControlPlane, tokens: tuple[str, str]
) -> None:
    known, new = tokens
    now = 0.0
    async with gate(kubeconfig.load(cluster.kubeconfig), b"stranger") as held, Client(held.access) as client:
        reviewer = TokenReviewer(client, EVERYBODY_MAY, "get /version", clock=lambda: now)
        assert (await reviewer.authorize(known, ATTACKER)).status == 200
        waiting = [asyncio.create_task(reviewer.authorize(f"stranger-{n}", ATTACKER)) for n in range(STRANGERS)]
        await eventually(lambda: held.held == MAX_PENDING_PER_ADDRESS, "as many reviews as one address may have")
        refused = [task for task in waiting if task.done()]
        assert len(refused) == STRANGERS - MAX_PENDING_PER_ADDRESS
        assert {task.result().status for task in refused} == {429}

        assert (await reviewer.authorize(known, ATTACKER)).status == 200, "from the cache"
        now = CACHE_SECONDS + 1
        assert (await reviewer.authorize(known, ATTACKER)).status == 200, "reviewed again"
        assert (await reviewer.authorize(new, "10.0.0.7")).status == 200, "an unknown one of another address"
        assert held.held == MAX_PENDING_PER_ADDRESS
        assert not any(b"stranger" in body for body in held.passed), "all of this came before the first stranger"

        held.opened.set()
        statuses = Counter([(await task).status for task in waiting])
        assert statuses == {429: STRANGERS - MAX_PENDING_PER_ADDRESS, 401: MAX_PENDING_PER_ADDRESS}
        assert (await reviewer.authorize("stranger-again", ATTACKER)).status == 401, "there is room again"


async def test_an_api_server_that_is_away_refuses_and_is_not_remembered(
    cluster: ControlPlane, tokens: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("zonewise.kube.server.token_reviewer.REVIEW_SECONDS", 0.5)
    async with gate(kubeconfig.load(cluster.kubeconfig), tokens[0].encode()) as held, Client(held.access) as client:
        reviewer = TokenReviewer(client, EVERYBODY_MAY, "get /version")
        assert (await reviewer.authorize(tokens[0], ATTACKER)).status == 503
        held.opened.set()

        async def answered() -> bool:
            return (await reviewer.authorize(tokens[0], ATTACKER)).status == 200

        await eventually(answered, "once it is back")
