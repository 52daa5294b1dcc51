"""Stock kube-proxies, in namespace nodes of three zones, go where our hints say and `build_service_report` tells: connections counted.

One set of pods serves both modes: in `own` the stock EndpointSlice controller is off and ours writes the slices, in
`overlay` it is on and our webhook and controller put hints on what it writes.
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
from zonewise.slices.decide.names import service_key

PODS = {
    "a-1": "zone-a-1",
    "a-2": "zone-a-1",
    "a-3": "zone-a-2",
    "b-1": "zone-b-1",
    "b-2": "zone-b-2",
    "c-1": "zone-c-1",
}
"""Unevenly spread: to keep all traffic at home would overload the one of zone-c."""
ZONES = ("zone-a", "zone-b", "zone-c")
CONNECTIONS = 40
REQUIRE = {SAME_ZONE: "Require"}
PREFER = {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "3", PADDING: "0"}

Seen = dict[str, set[str]]
"""The pods that answered the clients of each zone."""


@pytest.fixture(scope="module")
def namespace(lab: Lab) -> Iterator[str]:
    """With the pods that all tests here share, ready."""
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
        process.signal(signal.SIGTERM)  # it gives its lease to the next one
        assert process.end() == 0
    finally:
        process.remove()


async def test_traffic_reliability_of_require_and_prefer(backends: Pods, mode: str) -> None:
    """Every zone reaches the endpoints that are for it and no others; without any, it reaches them all."""
    required = await _service(backends, f"{mode}-require", REQUIRE)
    preferred = await _service(backends, f"{mode}-prefer", PREFER)
    at_home = {zone: {pod for pod, node in PODS.items() if node.startswith(zone)} for zone in ZONES}
    await _reaches(backends, required, lambda seen: seen == at_home)
    await _reaches(backends, preferred, _shared_out_evenly)
    assert await _hinted(backends, f"{mode}-prefer") == await _seen(backends, preferred)
    await _an_endpoint_less(backends, required, preferred)


async def test_no_packet_goes_to_a_drained_zone(backends: Pods, mode: str) -> None:
    """From no zone, with a policy or without one, until the drain ends."""
    drained = {DRAIN_ZONE: "zone-a"}
    names = {f"{mode}-plain": {}, f"{mode}-hard": REQUIRE, f"{mode}-soft": PREFER}
    services = {name: await _service(backends, name, said | drained) for name, said in names.items()}
    elsewhere = {pod for pod, node in PODS.items() if not node.startswith("zone-a")}
    for address in services.values():
        await _reaches(backends, address, lambda seen: all(seen.values()) and set.union(*seen.values()) == elsewhere)
    for name, address in services.items():
        patch = MergePatch({"metadata": {"annotations": {DRAIN_ZONE: None}}})
        await backends.client.patch(SERVICES, name, patch, backends.namespace)
        await _reaches(backends, address, lambda seen: set.union(*seen.values()) == set(PODS))


def _shared_out_evenly(seen: Seen) -> bool:
    """Two for every zone, its own first, and nobody without clients."""
    return (
        [len(seen[zone]) for zone in ZONES] == [2, 2, 2]
        and {"b-1", "b-2"} == seen["zone-b"]
        and "c-1" in seen["zone-c"]
        and set.union(*seen.values()) == set(PODS)
    )


async def _an_endpoint_less(backends: Pods, required: str, preferred: str) -> None:
    """The only one of a zone: hints can't wall clients off, so stock proxies send those of that zone everywhere."""
    await backends.delete("c-1", grace_seconds=0)
    left = set(PODS) - {"c-1"}
    await _reaches(backends, required, lambda seen: seen["zone-c"] == left and len(seen["zone-a"]) == 3)
    await _reaches(backends, preferred, lambda seen: all(seen.values()) and set.union(*seen.values()) == left)
    await backends.gone("c-1")
    await backends.shop("c-1", PODS["c-1"], labels={"app": "back"})


async def _service(backends: Pods, name: str, annotations: dict[str, str]) -> str:
    """Its address."""
    spec = {"selector": {"app": "back"}, "ports": [{"port": 80, "targetPort": SHOP_PORT}]}
    body = {"metadata": {"name": name, "annotations": annotations}, "spec": spec}
    return (await backends.client.create(SERVICES, body, backends.namespace)).spec.cluster_ip


async def _reaches(backends: Pods, address: str, expected: Callable[[Seen], bool]) -> None:
    """And `explain service` names them."""
    seen: Seen = {}

    async def holds() -> bool:
        seen.update(await _seen(backends, address))
        return expected(seen) and await _explained(backends, address) == seen

    try:
        await eventually(holds, f"clients of every zone reach at {address} what they should")
    except AssertionError as error:
        raise AssertionError(f"{error}: {seen}") from None


async def _seen(backends: Pods, address: str) -> Seen:
    """Whom connections from a node of each zone reach; nobody where the proxy does not serve the address yet."""
    counted = {zone: Counter(_answers(backends.node(f"{zone}-2").namespace, address)) for zone in ZONES}
    return {zone: set(counts) for zone, counts in counted.items()}


async def _explained(backends: Pods, address: str) -> Seen:
    """Whom `explain service` says that kube-proxy gives to clients on the same nodes, by the slices as they are."""
    nodes = (await backends.client.list(NODES)).items
    services = (await backends.client.list(SERVICES, backends.namespace)).items
    slices = (await backends.client.list(ENDPOINT_SLICES, backends.namespace)).items
    (service,) = [each for each in services if each.spec.cluster_ip == address]
    own = [each for each in slices if service_key(each) == key_of(service)]
    pods = {each.addresses[0]: each.target_ref for found in own for each in found.endpoints or ()}
    explained: Seen = {}
    for zone in ZONES:
        told = build_service_report(service, own, nodes, client="here", node=f"{zone}-2")
        assert told.carrier is DataPlane.KUBE_PROXY
        (client,) = told.fronts[0].clients
        explained[zone] = {target.name for share in client.shares if (target := pods[share.address])}
    return explained


def _answers(inside: str, address: str) -> Iterator[str]:
    for _ in range(CONNECTIONS):
        try:
            yield fetch(inside, f"http://{address}/")["pod"]
        except OSError:
            return


async def _hinted(backends: Pods, service: str) -> Seen:
    """The pods that are hinted for each zone."""
    hinted: Seen = {zone: set() for zone in ZONES}
    for found in (await backends.client.list(ENDPOINT_SLICES, backends.namespace)).items:
        for each in (found.endpoints or ()) if service_key(found).name == service else ():
            for hint in each.hints.for_zones if each.hints else ():
                assert each.target_ref is not None
                hinted[hint.name].add(each.target_ref.name)
    return hinted
