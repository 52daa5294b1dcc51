"""Slice webhook: how many decisions the reviews of a large Service cost, and that others need not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

import msgspec
from prometheus_client import REGISTRY

from zonewise.api.names import MANAGED_BY, SAME_ZONE, SERVICE_NAME, STOCK_MANAGER
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.admission_review import AdmissionVerdict, Operation, Review
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, NODES, SERVICES, EndpointSlice, Resource
from zonewise.slices.decide.overlay import overlay
from zonewise.slices.informers import SliceInformers, SlicesMode
from zonewise.slices.webhook import LARGE, SliceWebhook
from zonewise.topology import ZONE

Json = dict[str, Any]

NOBODY: Any = None
ZONES = ("a", "b", "c")
SLICES, EACH = 50, 12
"""More endpoints than are decided on the event loop."""


def metadata(name: str, version: int = 1, **fields: Any) -> Json:
    return {"name": name, "namespace": "shop", "uid": f"uid-{name}", "resourceVersion": str(version), **fields}


def service(name: str, version: int = 1) -> Json:
    return {
        "metadata": metadata(name, version, annotations={SAME_ZONE: "Require"}),
        "spec": {"selector": {"app": name}},
    }


def slice_of(name: str, number: int, version: int = 1, *, first: int = 0, count: int = EACH) -> Json:
    """As the stock controller writes it: without hints."""
    labels = {MANAGED_BY: STOCK_MANAGER, SERVICE_NAME: name}
    owner = {"apiVersion": "v1", "kind": "Service", "name": name, "uid": f"uid-{name}", "controller": True}
    endpoints = [
        {"addresses": [f"10.0.{number}.{host}"], "conditions": {"ready": True}, "nodeName": ZONES[host % 3]}
        for host in range(first, first + count)
    ]
    body = {"addressType": "IPv4", "endpoints": endpoints}
    return {"metadata": metadata(f"{name}-{number}", version, labels=labels, ownerReferences=[owner]), **body}


def node(name: str, zone: str) -> Json:
    return {
        "metadata": {"name": name, "labels": {ZONE: zone}, "resourceVersion": "1"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


def feed(cache: Cache[Any], resource: Resource[Any], bodies: Iterable[Json]) -> None:
    reflector = cache._reflector
    reflector.page([msgspec.convert(body, resource.view) for body in bodies], 0.0)
    cache.publish(reflector.listed("1"))


class WatchedCluster:
    """A Service of 600 endpoints and one of three, as watches tell of them."""

    def __init__(self) -> None:
        self.informers = SliceInformers(Caches(NOBODY), SlicesMode.OVERLAY)
        self.webhook = SliceWebhook(NOBODY, self.informers)
        self.slices = {number: slice_of("big", number) for number in range(SLICES)}
        feed(self.informers.nodes, NODES, [node(zone, zone) for zone in ZONES])
        feed(self.informers.namespaces, NAMESPACES, [])
        feed(self.informers.services, SERVICES, [service("big"), service("small")])
        self.publish()

    def publish(self) -> None:
        feed(self.informers.slices, ENDPOINT_SLICES, [*self.slices.values(), slice_of("small", 0, count=3)])

    async def review(self, body: Json) -> AdmissionVerdict:
        reviewed = msgspec.convert(body, EndpointSlice)
        review = Review(uid="r", operation=Operation.UPDATE, namespace="shop", object=reviewed)
        return await self.webhook.review(review)

    async def write(self, number: int, body: Json) -> None:
        """A review, and the stored slice in the cache."""
        verdict = await self.review(body)
        for operation in verdict.patch:
            body["endpoints"][int(operation["path"].split("/")[2])]["hints"] = operation["value"]
        self.slices[number] = body
        self.publish()

    def hinted(self) -> Iterable[bool]:
        return (bool(endpoint.get("hints")) for body in self.slices.values() for endpoint in body["endpoints"])


def decisions() -> float:
    return REGISTRY.get_sample_value("zonewise_overlay_decisions_total") or 0.0


def test_large_service_is_large() -> None:
    assert SLICES * EACH >= LARGE


async def test_rewritten_slices_of_a_service_share_one_decision() -> None:
    watched, before = WatchedCluster(), decisions()
    for number in range(SLICES):
        await watched.write(number, slice_of("big", number, version=2))
    assert decisions() - before == 1
    assert all(watched.hinted())
    for number in range(SLICES):
        await watched.write(number, slice_of("big", number, version=3))
    assert decisions() - before == 1, "the hints are those of the decision"
    (big,) = [service for service in watched.informers.services if service.metadata.name == "big"]
    slices = [msgspec.convert(body, EndpointSlice) for body in watched.slices.values()]
    answer = overlay(big, slices, watched.informers.cluster())
    assert not any(answer.operations_on(endpoint_slice) for endpoint_slice in slices), "a fresh decision agrees"


async def test_slices_reviewed_at_once_share_one_decision() -> None:
    watched, before = WatchedCluster(), decisions()
    verdicts = await asyncio.gather(*(watched.review(slice_of("big", number, version=2)) for number in range(SLICES)))
    assert decisions() - before == 1
    assert [len(verdict.patch) for verdict in verdicts] == [EACH] * SLICES


async def test_small_service_does_not_wait_for_a_large_one() -> None:
    watched = WatchedCluster()
    large = asyncio.create_task(watched.review(slice_of("big", 0, version=2)))
    await asyncio.sleep(0)
    verdict = await watched.review(slice_of("small", 0, version=2, count=3))
    assert len(verdict.patch) == 3
    assert not large.done()
    assert len((await large).patch) == EACH


async def test_changes_of_endpoints_service_and_nodes_are_decided_anew() -> None:
    watched, before = WatchedCluster(), decisions()
    await watched.write(0, slice_of("big", 0, version=2))
    await watched.write(1, slice_of("big", 1, version=2, first=1))
    assert decisions() - before == 2, "another endpoint"
    feed(watched.informers.services, SERVICES, [service("big", version=2), service("small")])
    await watched.write(2, slice_of("big", 2, version=2))
    assert decisions() - before == 3, "another version of the Service"
    feed(watched.informers.nodes, NODES, [node(zone, zone) for zone in (*ZONES, "d")])
    await watched.write(3, slice_of("big", 3, version=2))
    assert decisions() - before == 4, "another node"
    del watched.slices[49]
    watched.publish()
    await watched.write(4, slice_of("big", 4, version=2))
    assert decisions() - before == 5, "a slice less"


async def test_late_review_leaves_its_decision_to_the_next() -> None:
    watched, before = WatchedCluster(), decisions()
    late = asyncio.create_task(watched.review(slice_of("big", 0, version=2)))
    await asyncio.sleep(0)
    late.cancel()
    await asyncio.wait([late])
    assert late.cancelled()
    verdict = await watched.review(slice_of("big", 1, version=2))
    assert len(verdict.patch) == EACH
    assert decisions() - before == 1
