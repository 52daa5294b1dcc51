"""Stock kube-proxy follows our hints as `build_service_report` predicts, measured by connections in three zones.

One set of pods serves both modes: in `own` the stock EndpointSlice controller is off and ours writes the slices, in
`overlay` it is on and our webhook and controller add hints to its slices.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager

import msgspec
import pytest

from support.lab.machine import ZONEWISE
from support.lab.pods import PORT, Pods, eventually, fetch
from support.process import Program as Process
from support.slices.overlay import WebhookProcess
from zonewise.api.names import PADDING, SAME_ZONE, STARTING_THRESHOLD
from zonewise.diagnostics.decide.explain.service import build_service_report
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICES, key_of
from zonewise.objects.discovery import service_key
from zonewise.planning.data_plane import DataPlane
from zonewise.routing import DRAIN_ZONE

PODS = {
    "a-1": "zone-a-1",
    "a-2": "zone-a-1",
    "a-3": "zone-a-2",
    "b-1": "zone-b-1",
    "b-2": "zone-b-2",
    "c-1": "zone-c-1",
}
"""Unevenly spread: keeping all traffic in its zone would overload the one in zone-c."""
ZONES = ("zone-a", "zone-b", "zone-c")
CONNECTIONS = 40
REQUIRE = {SAME_ZONE: "Require"}
PREFER = {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "3", PADDING: "0"}

PodsByZone = dict[str, set[str]]
"""Pods that answered the clients of each zone."""


@pytest.fixture(scope="module")
def namespace(lab: Lab) -> Iterator[str]:
    """Namespace with ready pods, shared by all tests of this file."""
    plane = ControlPlane.attach(lab.directory)
    name = f"t-{uuid.uuid4().hex[:10]}"
    plane.request("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
    plane.wait_service_account(name)
    asyncio.run(_start_pods(lab, name))
    yield name
    plane.request("DELETE", f"/api/v1/namespaces/{name}")


async def _start_pods(lab: Lab, namespace: str) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        pods = Pods(lab, client, namespace)
        await asyncio.gather(*(pods.serve(name, node, labels={"app": "back"}) for name, node in PODS.items()))


@pytest.fixture
async def backends(lab: Lab, namespace: str) -> AsyncIterator[Pods]:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        yield Pods(lab, client, namespace)


@pytest.fixture(scope="module", params=["own", "overlay"])
def mode(lab: Lab, request: pytest.FixtureRequest) -> Iterator[str]:
    plane = ControlPlane.attach(lab.directory)
    with ExitStack() as running:
        if request.param == "own":
            running.enter_context(_without_stock_controller(plane))
        else:
            running.callback(WebhookProcess(plane).stop)
        running.enter_context(_controller(plane, request.param))
        yield request.param


@contextmanager
def _without_stock_controller(plane: ControlPlane) -> Iterator[None]:
    stock = plane.settings
    plane.settings = msgspec.structs.replace(stock, controllers=f"{stock.controllers},-endpointslice-controller")
    plane.restart(Program.CONTROLLER_MANAGER)
    yield
    plane.settings = stock
    plane.restart(Program.CONTROLLER_MANAGER)


@contextmanager
def _controller(plane: ControlPlane, mode: str) -> Iterator[None]:
    options = ("--mode", mode, "--kubeconfig", plane.kubeconfig, "--health-port", 0, "--log-format", "json")
    process = Process(str(ZONEWISE), "controller", *options)
    try:
        process.wait_ready()
        yield
        process.signal(signal.SIGTERM)  # releases its lease for the next controller
        assert process.end() == 0
    finally:
        process.remove()


async def test_traffic_follows_require_and_prefer(backends: Pods, mode: str) -> None:
    """Every zone reaches only its own endpoints; a zone without endpoints reaches all."""
    required = await _service(backends, f"{mode}-require", REQUIRE)
    preferred = await _service(backends, f"{mode}-prefer", PREFER)
    in_zone = {zone: {pod for pod, node in PODS.items() if node.startswith(zone)} for zone in ZONES}
    await _reaches(backends, required, lambda reached: reached == in_zone)
    await _reaches(backends, preferred, _is_shared_evenly)
    assert await _hinted(backends, f"{mode}-prefer") == await _reached_pods(backends, preferred)
    await _delete_an_endpoint(backends, required, preferred)


async def test_no_packet_goes_to_a_drained_zone(backends: Pods, mode: str) -> None:
    """From all zones, with and without a policy, until the drain ends."""
    drained = {DRAIN_ZONE: "zone-a"}
    names = {f"{mode}-plain": {}, f"{mode}-hard": REQUIRE, f"{mode}-soft": PREFER}
    services = {name: await _service(backends, name, annotations | drained) for name, annotations in names.items()}
    elsewhere = {pod for pod, node in PODS.items() if not node.startswith("zone-a")}
    for address in services.values():
        await _reaches(
            backends, address, lambda reached: all(reached.values()) and set.union(*reached.values()) == elsewhere
        )
    for name, address in services.items():
        patch = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: None}}})
        await backends.client.patch(SERVICES, name, patch, backends.namespace)
        await _reaches(backends, address, lambda reached: set.union(*reached.values()) == set(PODS))


def _is_shared_evenly(reached: PodsByZone) -> bool:
    """Two endpoints per zone, its own first, and every endpoint has clients."""
    return (
        [len(reached[zone]) for zone in ZONES] == [2, 2, 2]
        and {"b-1", "b-2"} == reached["zone-b"]
        and "c-1" in reached["zone-c"]
        and set.union(*reached.values()) == set(PODS)
    )


async def _delete_an_endpoint(backends: Pods, required: str, preferred: str) -> None:
    """Delete the only endpoint of a zone: stock proxies then send its clients to all endpoints."""
    await backends.delete("c-1", grace_seconds=0)
    remaining = set(PODS) - {"c-1"}
    await _reaches(backends, required, lambda reached: reached["zone-c"] == remaining and len(reached["zone-a"]) == 3)
    await _reaches(
        backends, preferred, lambda reached: all(reached.values()) and set.union(*reached.values()) == remaining
    )
    await backends.gone("c-1")
    await backends.serve("c-1", PODS["c-1"], labels={"app": "back"})


async def _service(backends: Pods, name: str, annotations: dict[str, str]) -> str:
    """Create a Service and return its ClusterIP."""
    spec = {"selector": {"app": "back"}, "ports": [{"port": 80, "targetPort": PORT}]}
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
    return (await backends.client.create(SERVICES, body, backends.namespace)).spec.cluster_ip


async def _reaches(backends: Pods, address: str, expected: Callable[[PodsByZone], bool]) -> None:
    """Waits until clients reach the expected pods and `explain service` names the same."""
    reached: PodsByZone = {}

    async def holds() -> bool:
        reached.update(await _reached_pods(backends, address))
        return expected(reached) and await _explained(backends, address) == reached

    try:
        await eventually(holds, f"clients of every zone reach the expected pods at {address}")
    except AssertionError as error:
        raise AssertionError(f"{error}: {reached}") from None


async def _reached_pods(backends: Pods, address: str) -> PodsByZone:
    """The pods that connections from a node of each zone reach; empty if the proxy does not serve the address yet."""
    counters = {zone: Counter(_responding_pods(backends.node(f"{zone}-2").namespace, address)) for zone in ZONES}
    return {zone: set(counts) for zone, counts in counters.items()}


async def _explained(backends: Pods, address: str) -> PodsByZone:
    """The pods that `explain service` predicts for clients on the same nodes, from the current slices."""
    nodes = (await backends.client.list(NODES)).items
    services = (await backends.client.list(SERVICES, backends.namespace)).items
    slices = (await backends.client.list(ENDPOINT_SLICES, backends.namespace)).items
    (service,) = [candidate for candidate in services if candidate.spec.cluster_ip == address]
    own = [endpoint_slice for endpoint_slice in slices if service_key(endpoint_slice) == key_of(service)]
    pods = {
        endpoint.addresses[0]: endpoint.target_ref
        for endpoint_slice in own
        for endpoint in endpoint_slice.endpoints or ()
    }
    explained: PodsByZone = {}
    for zone in ZONES:
        report = build_service_report(service, own, nodes, client="here", node=f"{zone}-2")
        assert report.carrier is DataPlane.KUBE_PROXY
        (client,) = report.fronts[0].clients
        explained[zone] = {target.name for share in client.shares if (target := pods[share.address])}
    return explained


def _responding_pods(inside: str, address: str) -> Iterator[str]:
    for _ in range(CONNECTIONS):
        try:
            yield fetch(inside, f"http://{address}/")
        except OSError:
            return


async def _hinted(backends: Pods, service: str) -> PodsByZone:
    """The pods that are hinted for each zone."""
    hinted: PodsByZone = {zone: set() for zone in ZONES}
    for endpoint_slice in (await backends.client.list(ENDPOINT_SLICES, backends.namespace)).items:
        for endpoint in (endpoint_slice.endpoints or ()) if service_key(endpoint_slice).name == service else ():
            for hint in endpoint.hints.for_zones if endpoint.hints else ():
                assert endpoint.target_ref is not None
                hinted[hint.name].add(endpoint.target_ref.name)
    return hinted
