"""Nodes, pods and Services made by a test, with statuses that the test writes, and the slices that result."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.lab.machine import ZONEWISE
from support.process import Program as Process
from support.waiting import eventually
from zonewise.api.names import MANAGED_BY, STOCK_MANAGER
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import AlreadyExists, NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import (
    ENDPOINT_SLICES,
    EVENTS,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_ACCOUNTS,
    SERVICE_NAME,
    SERVICES,
    EndpointSlice,
    Pod,
    Service,
)
from zonewise.routing import DRAIN_ZONE, HintsForm, RoutingNodes, drained_zones
from zonewise.slices.controller import SliceController, SlicesConfig
from zonewise.slices.decide.plan import SlicesPlan, plan_slices
from zonewise.topology import ZONE

ZONES = ("zone-a", "zone-b", "zone-c")
DUAL_STACK = {Program.APISERVER: ("--service-cluster-ip-range=10.96.0.0/16,fd00:10:96::/112",)}
OF_OURS = f"{MANAGED_BY}={STOCK_MANAGER}"
_ADDRESSES = itertools.count(1)


@dataclass
class ClusterNamespace:
    """One namespace of a control plane without another slice controller, and the nodes of the cluster."""

    client: Client
    namespace: str

    @classmethod
    async def create(cls, client: Client, namespace: str) -> "ClusterNamespace":
        """Also creates the default service account, which pods need, if no controller does."""
        await client.create(NAMESPACES, {"metadata": {"name": namespace}})
        with suppress(AlreadyExists):
            await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, namespace)
        return cls(client, namespace)

    async def node(self, name: str, zone: str | None, *, cpu: str = "4", labels: Mapping[str, str] = {}) -> None:
        """A ready node; an existing one gets the labels and CPU."""
        labels = {**labels, "kubernetes.io/hostname": name} | ({ZONE: zone} if zone else {})
        try:
            await self.client.create(NODES, {"metadata": {"name": name, "labels": labels}})
        except AlreadyExists:
            patch = MergePatch({"metadata": {"labels": labels, "annotations": {DRAIN_ZONE: None}}})
            await self.client.patch(NODES, name, patch)
        await self.node_status(name, cpu=cpu)

    async def node_status(self, name: str, *, cpu: str = "4", ready: bool = True) -> None:
        status = {
            "allocatable": {"cpu": cpu, "memory": "8Gi"},
            "capacity": {"cpu": cpu, "memory": "8Gi"},
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
        await self.client.patch(NODES, name, MergePatch({"status": status}), subresource="status")

    async def nodes(self, per_zone: int = 1, zones: Sequence[str] = ZONES) -> None:
        for zone in zones:
            for number in range(per_zone):
                await self.node(f"{zone}-{number}", zone)

    async def pod(
        self,
        name: str,
        labels: Mapping[str, str],
        node: str,
        *,
        ready: bool = True,
        families: Sequence[str] = ("IPv4",),
        ports: Sequence[Mapping[str, Any]] = (),
        spec: Mapping[str, Any] = {},
        **status: Any,
    ) -> list[str]:
        """A running pod with its own addresses, which are returned."""
        container = {"name": "main", "image": "none", "ports": list(ports)}
        body = {
            "metadata": {"name": name, "labels": dict(labels)},
            "spec": {"nodeName": node, "containers": [container], **spec},
        }
        await self.client.create(PODS, body, self.namespace)
        addresses = [_address(family) for family in families]
        await self.pod_status(name, ready=ready, addresses=addresses, **status)
        return addresses

    async def pod_status(
        self, name: str, *, ready: bool, addresses: Sequence[str] | None = None, phase: str = "Running"
    ) -> None:
        condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-11-16T10:00:00Z"}
        status: dict[str, Any] = {"phase": phase, "conditions": [condition]}
        if addresses:
            status |= {"podIP": addresses[0], "podIPs": [{"ip": address} for address in addresses]}
        await self.client.patch(PODS, name, MergePatch({"status": status}), self.namespace, subresource="status")

    async def delete_pod(self, name: str) -> None:
        with suppress(NotFound):
            await self.client.delete(PODS, name, self.namespace, grace_seconds=0)

    async def service(
        self,
        name: str,
        *,
        annotations: Mapping[str, str] = {},
        labels: Mapping[str, str] = {},
        ports: Sequence[Mapping[str, Any]] = ({"name": "http", "port": 80, "targetPort": 8080},),
        **spec: Any,
    ) -> Service:
        """Selects the pods labelled app=NAME unless `selector` says otherwise."""
        body = {
            "metadata": {"name": name, "annotations": dict(annotations), "labels": dict(labels)},
            "spec": {"selector": {"app": name}, "ports": list(ports), **spec},
        }
        return await self.client.create(SERVICES, body, self.namespace)

    async def annotate(self, service: str, annotations: Mapping[str, str | None]) -> None:
        patch = MergePatch({"metadata": {"annotations": annotations}})
        await self.client.patch(SERVICES, service, patch, self.namespace)

    async def spread(self, app: str, counts: Mapping[str, int], **options: Any) -> None:
        """Ready pods by zone, on the first node of each zone."""
        pods = [(zone, number) for zone, count in counts.items() for number in range(count)]
        await asyncio.gather(
            *(self.pod(f"{app}-{zone}-{number}", {"app": app}, f"{zone}-0", **options) for zone, number in pods)
        )

    async def slices(self, service: str) -> list[EndpointSlice]:
        selector = f"{SERVICE_NAME}={service},{OF_OURS}"
        return (await self.client.list(ENDPOINT_SLICES, self.namespace, selector=selector)).items

    async def hints(self, service: str) -> dict[str, tuple[str, ...]]:
        """The zones each endpoint is hinted for, by the name of its pod."""
        return {
            endpoint.target_ref.name: tuple(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else ()
            for endpoint_slice in await self.slices(service)
            for endpoint in endpoint_slice.endpoints or ()
            if endpoint.target_ref
        }

    async def events(self, service: str) -> list[str]:
        events = await self.client.list(EVENTS, self.namespace)
        return [event.reason for event in events.items if event.regarding.name == service]


def _address(family: str) -> str:
    number = next(_ADDRESSES)
    if family == "IPv6":
        return f"fd00::{number:x}"
    return f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}"


@dataclass
class Truth:
    """Everything that slices depend on, read from the API server, and the problems of the slices."""

    services: list[Service]
    pods: list[Pod]
    cluster: RoutingNodes
    slices: list[EndpointSlice]
    hints: HintsForm = HintsForm.STABLE

    @classmethod
    async def read(cls, ns: ClusterNamespace, hints: HintsForm = HintsForm.STABLE) -> "Truth":
        client, namespace = ns.client, ns.namespace
        slices = await client.list(ENDPOINT_SLICES, namespace, selector=OF_OURS)
        services, pods = await client.list(SERVICES, namespace), await client.list(PODS, namespace)
        nodes = await client.list(NODES)
        return cls(services.items, pods.items, RoutingNodes.of(nodes.items), slices.items, hints)

    def problems(self) -> list[str]:
        problems_of_services = [
            problem for service in self.services if service.spec.selector for problem in self._of(service)
        ]
        owners = {service.metadata.uid for service in self.services}
        return problems_of_services + [
            f"{endpoint_slice.metadata.name} is an orphan"
            for endpoint_slice in self.slices
            if not {owner.uid for owner in endpoint_slice.metadata.owner_references} & owners
        ]

    def slices_of(self, service: Service) -> list[EndpointSlice]:
        metadata = service.metadata
        return [
            endpoint_slice
            for endpoint_slice in self.slices
            if endpoint_slice.metadata.namespace == metadata.namespace
            and endpoint_slice.metadata.labels.get(SERVICE_NAME) == metadata.name
        ]

    def pods_of(self, service: Service) -> list[Pod]:
        selector = (service.spec.selector or {}).items()
        return [
            pod
            for pod in self.pods
            if pod.metadata.namespace == service.metadata.namespace and selector <= pod.metadata.labels.items()
        ]

    def plan(self, service: Service) -> SlicesPlan:
        drained = drained_zones(service, {}, self.cluster.node_drains)
        pods, slices = self.pods_of(service), self.slices_of(service)
        return plan_slices(service, pods, self.cluster, slices, hints=self.hints, drained=drained)

    def _of(self, service: Service) -> Iterable[str]:
        """By the plan, and by an independent count."""
        name = service.metadata.name
        if self.plan(service).writes:
            yield f"{name} has other slices than decided"
        yield from self.wrong_endpoints(service)

    def wrong_endpoints(self, service: Service) -> Iterable[str]:
        """Independent of the plan, and so of who writes the slices."""
        name = service.metadata.name
        expected = sorted(
            (address.ip, _is_ready(pod) and pod.metadata.deletion_timestamp is None)
            for pod in self.pods_of(service)
            if pod.status.phase not in {"Succeeded", "Failed"} and pod.spec.node_name in self.cluster.nodes
            for address in pod.status.pod_ips
            if ("IPv6" if ":" in address.ip else "IPv4") in service.spec.ip_families
        )
        actual = sorted(
            (address, endpoint.conditions.ready)
            for endpoint_slice in self.slices_of(service)
            for endpoint in endpoint_slice.endpoints or ()
            for address in endpoint.addresses
        )
        if expected != actual:
            yield f"{name} has the endpoints {actual} instead of {expected}"


def _is_ready(pod: Pod) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)


async def settled(ns: ClusterNamespace, hints: HintsForm = HintsForm.STABLE) -> Truth:
    """Waits until the slices are as planned."""
    problems: list[str] = []

    async def is_right() -> Truth | None:
        nonlocal problems
        truth = await Truth.read(ns, hints)
        problems = truth.problems()
        if problems:
            await asyncio.sleep(0.2)  # reading everything is expensive for a shared server
        return None if problems else truth

    try:
        return await eventually(is_right, "slices as decided")
    except AssertionError:
        raise AssertionError("; ".join(problems[:5])) from None


@asynccontextmanager
async def running(client: Client, settings: SlicesConfig = SlicesConfig()) -> AsyncIterator[SliceController]:  # noqa: B008 - frozen
    """A controller in this process, with its own caches."""
    caches = Caches(client)
    async with Recorder(client, "zonewise.dev/test", "test", repeat_seconds=0.1) as recorder:
        controller = SliceController(client, caches, recorder, settings)
        async with caches, asyncio.TaskGroup() as group:
            await caches.wait_synced()
            work = group.create_task(controller.run())
            yield controller
            work.cancel()


class ControllerProcess(Process):
    """`zonewise controller` as a process, to be killed."""

    def __init__(
        self,
        plane: ControlPlane,
        *arguments: str,
        config: Path | None = None,
        command: Path = ZONEWISE,
        environ: Mapping[str, str] = {},
    ) -> None:
        options = ("--kubeconfig", str(config or plane.kubeconfig), "--health-port", "0", "--log-format", "json")
        super().__init__(str(command), "controller", *options, *arguments, environ=environ)


def connect(plane: ControlPlane) -> Client:
    return Client(kubeconfig.load(plane.kubeconfig))
