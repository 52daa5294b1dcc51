"""Stock kube-proxies, in namespace nodes of three zones, go where our hints say and `build_service_report` tells: connections counted.

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
from support.lab.pods import SHOP_PORT, Pods, eventually, fetch
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
from zonewise.planning.data_plane import DataPlane
from zonewise.routing import DRAIN_ZONE
from zonewise.slices.decide.body import service_key

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
"""The pods that answered the clients of each zone."""


@pytest.fixture(scope="module")
def namespace(lab: Lab) -> Iterator[str]:
    """With ready pods that all tests here share."""
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
        await asyncio.gather(*(pods.shop(name, node, labels={"app": "back"}) for name, node in PODS.items()))


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
    """Every zone reaches its endpoints and no others; without any, it reaches all."""
    required = await _service(backends, f"{mode}-require", REQUIRE)
    preferred = await _service(backends, f"{mode}-prefer", PREFER)
    at_home = {zone: {pod for pod, node in PODS.items() if node.startswith(zone)} for zone in ZONES}
    await _reaches(backends, required, lambda answers: answers == at_home)
    await _reaches(backends, preferred, _is_shared_evenly)
    assert await _hinted(backends, f"{mode}-prefer") == await _count_answers(backends, preferred)
    await _delete_an_endpoint(backends, required, preferred)


async def test_no_packet_goes_to_a_drained_zone(backends: Pods, mode: str) -> None:
    """From no zone, with a policy or without one, until the drain ends."""
    drained = {DRAIN_ZONE: "zone-a"}
    names = {f"{mode}-plain": {}, f"{mode}-hard": REQUIRE, f"{mode}-soft": PREFER}
    services = {name: await _service(backends, name, annotations | drained) for name, annotations in names.items()}
    elsewhere = {pod for pod, node in PODS.items() if not node.startswith("zone-a")}
    for address in services.values():
        await _reaches(
            backends, address, lambda answers: all(answers.values()) and set.union(*answers.values()) == elsewhere
        )
    for name, address in services.items():
        patch = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: None}}})
        await backends.client.patch(SERVICES, name, patch, backends.namespace)
        await _reaches(backends, address, lambda answers: set.union(*answers.values()) == set(PODS))


def _is_shared_evenly(answers: PodsByZone) -> bool:
    """Two for every zone, its own first, and every endpoint has clients."""
    return (
        [len(answers[zone]) for zone in ZONES] == [2, 2, 2]
        and {"b-1", "b-2"} == answers["zone-b"]
        and "c-1" in answers["zone-c"]
        and set.union(*answers.values()) == set(PODS)
    )


async def _delete_an_endpoint(backends: Pods, required: str, preferred: str) -> None:
    """Deletes the only endpoint of a zone: hints have no walls, so stock proxies send its clients everywhere."""
    await backends.delete("c-1", grace_seconds=0)
    remaining = set(PODS) - {"c-1"}
    await _reaches(backends, required, lambda answers: answers["zone-c"] == remaining and len(answers["zone-a"]) == 3)
    await _reaches(
        backends, preferred, lambda answers: all(answers.values()) and set.union(*answers.values()) == remaining
    )
    await backends.gone("c-1")
    await backends.shop("c-1", PODS["c-1"], labels={"app": "back"})


async def _service(backends: Pods, name: str, annotations: dict[str, str]) -> str:
    """Its address."""
    spec = {"selector": {"app": "back"}, "ports": [{"port": 80, "targetPort": SHOP_PORT}]}
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
    return (await backends.client.create(SERVICES, body, backends.namespace)).spec.cluster_ip


async def _reaches(backends: Pods, address: str, expected: Callable[[PodsByZone], bool]) -> None:
    """Waits until clients reach the expected pods and `explain service` names the same."""
    answers: PodsByZone = {}

    async def holds() -> bool:
        answers.update(await _count_answers(backends, address))
        return expected(answers) and await _explained(backends, address) == answers

    try:
        await eventually(holds, f"clients of every zone reach at {address} what they should")
    except AssertionError as error:
        raise AssertionError(f"{error}: {answers}") from None


async def _count_answers(backends: Pods, address: str) -> PodsByZone:
    """The pods that connections from a node of each zone reach; empty if the proxy does not serve the address yet."""
    counted = {zone: Counter(_answers(backends.node(f"{zone}-2").namespace, address)) for zone in ZONES}
    return {zone: set(counts) for zone, counts in counted.items()}


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


def _answers(inside: str, address: str) -> Iterator[str]:
    for _ in range(CONNECTIONS):
        try:
            yield fetch(inside, f"http://{address}/")["pod"]
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
