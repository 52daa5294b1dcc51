"""Stock kube-proxy on the nodes of a lab: a ClusterIP reaches every endpoint from pods and nodes of every zone."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from support.lab.pods import PORT, Pods, connects, eventually, fetch
from zonewise.objects import SERVICES

BACKENDS = {"back-a": "zone-a-1", "back-b": "zone-b-1", "back-c": "zone-c-2"}


@pytest.fixture
async def address(pods: Pods) -> str:
    """ClusterIP of a Service with an endpoint in every zone."""
    spec = {"selector": {"app": "back"}, "ports": [{"port": 80, "targetPort": PORT}]}
    service = await pods.client.create(SERVICES, {"metadata": {"name": "back"}, "spec": spec}, pods.namespace)
    await asyncio.gather(*(pods.serve(name, node, labels={"app": "back"}) for name, node in BACKENDS.items()))
    return service.spec.cluster_ip


async def test_cluster_ip_reaches_every_endpoint_from_every_zone(pods: Pods, address: str) -> None:
    client = await pods.serve("client", "zone-a-2")
    for namespace in (pods.inside(client), pods.node("zone-b-2").namespace, pods.node("zone-c-2").namespace):

        async def served(inside: str = namespace) -> bool:
            return connects(inside, address, 80, timeout_seconds=2)

        await eventually(served, f"the proxy of {namespace} serves {address}")
        await eventually(
            lambda inside=namespace: _all_endpoints_respond(inside, address), f"all endpoints answer {namespace}"
        )


async def _all_endpoints_respond(namespace: str, address: str) -> bool:
    """Whether every endpoint gets some of 60 connections and none gets nearly all."""
    counts = Counter(fetch(namespace, f"http://{address}/") for _ in range(60))
    return set(counts) == set(BACKENDS) and max(counts.values()) < 45
