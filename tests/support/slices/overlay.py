"""A control plane with the stock EndpointSlice controller, for tests of the overlay.

Nodes and pods are only objects: the test writes their status, so that it controls what changes and when.
"""

from __future__ import annotations

import asyncio
import signal
import socket
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.lab.machine import ZONEWISE
from support.process import Program
from support.waiting import eventually
from zonewise.api.names import ROUTING_STATE
from zonewise.kube.client.client import Client
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.nodes import kwok
from zonewise.objects import ENDPOINT_SLICES, NODES, PODS, SERVICES, Endpoint, EndpointSlice, Service
from zonewise.objects.discovery import service_key
from zonewise.routing import RoutingNodes, drained_zones
from zonewise.slices.decide.overlay import overlay

ZONES = ("zone-a", "zone-b", "zone-c")
DUAL_STACK = "--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112"
CONTROLLERS = "endpointslice-controller,serviceaccount-controller"
CONCURRENT = 16
LOOK_SECONDS = 0.3
"""Pause between two reads of hundreds of slices, which are expensive for the API server."""
IDLE_SECONDS = 3.0
"""The stock controller syncs a slice that another writer changed after one second; a write loop shows in this time."""

Json = dict[str, Any]


def ready(is_ready: bool) -> Json:
    return {"conditions": [{"type": "Ready", "status": "True" if is_ready else "False"}]}


@dataclass(frozen=True)
class OverlayNamespace:
    """One namespace of the cluster."""

    client: Client
    namespace: str

    async def pod(self, name: str, group: str, node: str, number: int) -> None:
        """A ready pod with an address of both families."""
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "none"}]}
        body = {"metadata": {"name": name, "labels": {"group": group}}, "spec": spec}
        await self.client.create(PODS, body, self.namespace)
        addresses = [f"10.244.{number // 250}.{number % 250 + 1}", f"fd00:10:244::{number + 1:x}"]
        status = {"phase": "Running", "podIP": addresses[0], "podIPs": [{"ip": ip} for ip in addresses], **ready(True)}
        await self._status(name, status)

    async def set_ready(self, name: str, is_ready: bool) -> None:
        await self._status(name, ready(is_ready))

    async def _status(self, name: str, status: Json) -> None:
        await self.client.patch(PODS, name, MergePatch({"status": status}), self.namespace, subresource="status")

    async def service(self, name: str, group: str, annotations: Mapping[str, str], *, dual: bool = False) -> None:
        families = {"ipFamilyPolicy": "RequireDualStack"} if dual else {}
        spec = {"selector": {"group": group}, "ports": [{"port": 80}], **families}
        metadata = {"name": name, "annotations": dict(annotations)}
        await self.client.create(SERVICES, {"metadata": metadata, "spec": spec}, self.namespace)

    async def annotate(self, service: str, annotations: Mapping[str, str | None]) -> None:
        body = MergePatch({"metadata": {"annotations": dict(annotations)}})
        await self.client.patch(SERVICES, service, body, self.namespace)

    async def allocatable(self, name: str, cpu: str) -> None:
        """Sets the CPU of a node, as if it was resized."""
        body = MergePatch({"status": {"allocatable": {"cpu": cpu}}})
        await self.client.patch(NODES, name, body, subresource="status")

    async def slices(self) -> list[EndpointSlice]:
        return list((await self.client.list(ENDPOINT_SLICES, self.namespace)).items)

    async def versions(self) -> dict[str, str]:
        return {
            endpoint_slice.metadata.name: endpoint_slice.metadata.resource_version
            for endpoint_slice in await self.slices()
        }

    async def services(self) -> list[Service]:
        return list((await self.client.list(SERVICES, self.namespace)).items)

    async def nodes(self) -> RoutingNodes:
        return RoutingNodes.of((await self.client.list(NODES)).items)

    async def slices_of(self, service: str) -> list[EndpointSlice]:
        return [endpoint_slice for endpoint_slice in await self.slices() if service_key(endpoint_slice).name == service]

    async def hinted_zones(self, service: str, expected: Mapping[tuple[str, ...], int]) -> bool:
        """Whether so many endpoints are hinted for these zones; `()` means no hints."""
        slices = await self.slices_of(service)
        return Counter(
            hinted_zones(endpoint) for endpoint_slice in slices for endpoint in endpoint_slice.endpoints or ()
        ) == Counter(expected)

    async def state_of(self, service: str) -> str | None:
        return (await self.client.get(SERVICES, service, self.namespace)).metadata.annotations.get(ROUTING_STATE)

    async def has_no_state(self, service: str) -> bool:
        return await self.state_of(service) is None

    async def is_as_decided(self) -> bool:
        """Whether all hints are as decided from the current objects."""
        nodes, services, slices = await asyncio.gather(self.nodes(), self.services(), self.slices())
        by_service: dict[str, list[EndpointSlice]] = defaultdict(list)
        for endpoint_slice in slices:
            by_service[service_key(endpoint_slice).name].append(endpoint_slice)
        return not any(_is_out_of_date(service, by_service[service.metadata.name], nodes) for service in services)

    async def at_rest(self, webhook: WebhookProcess) -> dict[str, str]:
        """The versions of all slices, once no slice has changed and no review was made for some time."""
        last: Any = None
        since = time.monotonic()

        async def unchanged() -> bool:
            nonlocal last, since
            await asyncio.sleep(LOOK_SECONDS)
            now = await self.versions(), webhook.reviews()
            if now != last:
                last, since = now, time.monotonic()
            return time.monotonic() - since > IDLE_SECONDS

        await eventually(unchanged, f"slices stand still for {IDLE_SECONDS} s")
        versions: dict[str, str] = last[0]
        return versions


def _is_out_of_date(service: Service, slices: Sequence[EndpointSlice], nodes: RoutingNodes) -> bool:
    answer = overlay(service, slices, nodes, drained=drained_zones(service, {}, nodes.node_drains))
    return not answer.is_silent and any(answer.operations_on(endpoint_slice) for endpoint_slice in slices)


def hints_by_address(slices: Iterable[EndpointSlice]) -> dict[str, tuple[str, ...]]:
    """The zones that each ready endpoint is hinted for, by address."""
    return {
        endpoint.addresses[0]: hinted_zones(endpoint)
        for endpoint_slice in slices
        for endpoint in endpoint_slice.endpoints or ()
    }


def hinted_zones(endpoint: Endpoint) -> tuple[str, ...]:
    return tuple(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else ()


class WebhookProcess:
    """`zonewise webhook` as a process, on loopback."""

    def __init__(self, plane: ControlPlane, kubeconfig: Path | None = None, url_port: int = 0) -> None:
        """`url_port` is that of a load balancer before it."""
        self.port = _free_port()
        self._url_port = url_port or self.port
        self._kubeconfig = kubeconfig or plane.kubeconfig
        self.start()

    def start(self) -> None:
        self._program = Program(
            str(ZONEWISE),
            *("webhook", "--kubeconfig", self._kubeconfig, "--url", f"https://127.0.0.1:{self._url_port}"),
            *("--host", "127.0.0.1", "--port", self.port, "--secret", "kube-system/zonewise-webhook"),
            *("--health-port", 0, "--log-format", "json"),
        )
        self._program.wait_ready()

    def reviews(self) -> dict[str, float]:
        """The number of reviews by outcome."""
        return self._counts("zonewise_overlay_reviews_total{")

    def undecided(self) -> float:
        """The number of reviews that failed or were late."""
        by_outcome = self._counts("zonewise_admission_reviews_total{")
        return sum(count for outcome, count in by_outcome.items() if outcome in {"failed", "late", "unreadable"})

    def _counts(self, metric: str) -> dict[str, float]:
        lines = (line.rpartition(" ") for line in self._program.probe("/metrics")[1].splitlines())
        return {
            name.split('outcome="')[1].split('"')[0]: float(value)
            for name, _, value in lines
            if name.startswith(metric)
        }

    def stop(self) -> None:
        """Stops it like a kubelet."""
        self._program.signal(signal.SIGTERM)
        try:
            assert self._program.end() == 0
        finally:
            self._program.remove()


async def make_nodes(client: Client) -> None:
    """Two nodes per zone, all of the same size."""
    for index in range(6):
        body = kwok.manifest(index, ZONES[index % 3], 0, tainted=False)
        await client.create(NODES, body)


def node(index: int) -> str:
    """Node names; nodes of one zone are three apart."""
    return f"kwok-{index % 6:05d}"


async def concurrently(work: Iterable[Any]) -> None:
    """Awaits all of it, a limited number at a time."""
    gate = asyncio.Semaphore(CONCURRENT)

    async def limited(item: Any) -> None:
        async with gate:
            await item

    await asyncio.gather(*(limited(item) for item in work))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
