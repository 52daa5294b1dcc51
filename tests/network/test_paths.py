"""Pod network over IPv4 and IPv6, and cutting, healing, latency and loss between zones."""

from __future__ import annotations

import asyncio
import socket
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from click.testing import CliRunner

from support.lab.pods import Pods, addresses, condition, connects, eventually
from zonewise.cli.main import cli
from zonewise.lab import labs, status
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.decide.addresses import PlanError
from zonewise.lab.network import namespaces
from zonewise.lab.network.shaping import Shaping
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab
from zonewise.lab.status import LabHealth
from zonewise.objects import NODES


async def test_pod_reaches_another_zone_unless_it_is_cut(shaped_lab: Lab, pods: Pods) -> None:
    near, neighbour, far = await asyncio.gather(
        pods.serve("near", "zone-a-1"), pods.serve("mate", "zone-a-2"), pods.serve("far", "zone-b-1")
    )
    inside = pods.inside(near)
    for address in addresses(far) + addresses(neighbour):
        assert connects(inside, address)
    nodes.cut(shaped_lab, "zone-b")
    for address in addresses(far):
        assert not connects(inside, address, timeout_seconds=1)
        assert not connects(pods.node("zone-c-1").namespace, address, timeout_seconds=1)
    for address in addresses(neighbour):
        assert connects(inside, address)
    nodes.heal(shaped_lab, "zone-b")
    for address in addresses(far):
        assert connects(inside, address)


async def test_host_reaches_pods_and_pods_reach_the_api_server(pods: Pods, lab: Lab) -> None:
    pod = await pods.serve("p", "zone-c-2")
    for address in addresses(pod):
        with socket.create_connection((address, 8080), 30):
            pass
    plane = ControlPlane.attach(lab.directory)
    assert connects(pods.inside(pod), plane.settings.address, plane.layout.port(Program.APISERVER))


async def test_nodes_of_a_cut_zone_become_unready_and_recover(shaped_lab: Lab, pods: Pods) -> None:
    await pods.serve("victim", "zone-c-1")

    async def unready() -> bool:
        return all([await _ready(pods, node) == "Unknown" for node in ("zone-c-1", "zone-c-2")])

    async def recovered() -> bool:
        return all([await _ready(pods, node) == "True" for node in ("zone-c-1", "zone-c-2")])

    nodes.cut(shaped_lab, "zone-c")
    await eventually(unready, "both nodes of zone-c are NotReady")
    assert await _ready(pods, "zone-a-1") == "True"
    lab_status = await asyncio.to_thread(status.of, shaped_lab)
    assert (lab_status.health, lab_status.problem) == (
        LabHealth.DEGRADED,
        "not ready: 2 of 2 nodes in zone-c (cut off)",
    )
    await pods.when(
        "victim", lambda pod: condition(pod, "Ready") == "False", "is declared unready by the control plane"
    )
    nodes.heal(shaped_lab, "zone-c")
    await eventually(recovered, "both nodes of zone-c are Ready again")
    restored = await pods.ready("victim")
    assert restored["status"]["containerStatuses"][0]["restartCount"] == 0


async def _ready(pods: Pods, node: str) -> str:
    node_object = await pods.client.get(NODES, node)
    return next(condition.status for condition in node_object.status.conditions if condition.type == "Ready")


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_packet_loss_matches_the_configured_share(shaped_lab: Lab, family: int) -> None:
    nodes.shape(shaped_lab, "zone-a", "zone-b", 0, 30)
    plan = nodes.plan_of(shaped_lab)
    sender, near, far = plan.node("zone-a-1"), plan.node("zone-c-1"), plan.node("zone-b-1")
    lost = _lost_share(sender.namespace, far.namespace, str(far.address[family]), 4000)
    assert 0.2 < lost < 0.4
    assert _lost_share(sender.namespace, near.namespace, str(near.address[family]), 500) == 0


def _lost_share(source: str, target: str, address: str, count: int) -> float:
    """Share of lost datagrams; received while sending, so that no buffer overflows, and once more at the end."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    receiver = namespaces.inside(target, lambda: socket.socket(family, socket.SOCK_DGRAM))
    sender = namespaces.inside(source, lambda: socket.socket(family, socket.SOCK_DGRAM))
    with receiver, sender:
        receiver.bind((address, 0))
        destination = (address, receiver.getsockname()[1])
        received = 0
        for _ in range(count // 50):
            for _ in range(50):
                sender.sendto(b"x", destination)
            received += _drain(receiver, 0)
        received += _drain(receiver, 1)
    return 1 - received / count


def _drain(receiver: socket.socket, patience_seconds: float) -> int:
    receiver.settimeout(patience_seconds)
    count = 0
    while True:
        try:
            receiver.recv(16)
        except (BlockingIOError, TimeoutError):
            return count
        count += 1


async def test_latency_is_added_each_way_and_removed(shaped_lab: Lab, pods: Pods) -> None:
    near, far, third = await asyncio.gather(
        pods.serve("near", "zone-a-1"), pods.serve("far", "zone-b-2"), pods.serve("other", "zone-c-2")
    )
    inside = pods.inside(near)
    nodes.shape(shaped_lab, "zone-b", "zone-a", 40, 0)
    for address in addresses(far):
        assert _round_trip(inside, address) >= 0.080
    for address in addresses(third):
        assert _round_trip(inside, address) < 0.080
    nodes.shape(shaped_lab, "zone-a", "zone-b", 0, 0)
    for address in addresses(far):
        assert _round_trip(inside, address) < 0.080
    lab_status = status.of(shaped_lab)
    assert lab_status.health is not LabHealth.BROKEN, lab_status.problem
    assert all(process.running for process in lab_status.processes), "a removed delay line is not reported as ended"
    assert labs.up(shaped_lab.name, shaped_lab.options, lambda _step: None) == shaped_lab


def test_concurrent_cuts_are_all_applied(shaped_lab: Lab) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda zone: nodes.cut(shaped_lab, zone), shaped_lab.zones))
        assert nodes.shaped(shaped_lab).cut == set(shaped_lab.zones)
        list(threads.map(lambda zone: nodes.heal(shaped_lab, zone), shaped_lab.zones))
    assert nodes.shaped(shaped_lab) == Shaping()


def _round_trip(namespace: str, address: str) -> float:
    """Fastest of five TCP handshakes, as single ones are slow on a busy machine."""

    def measure() -> float:
        started = time.monotonic()
        socket.create_connection((address, 8080), 30).close()
        return time.monotonic() - started

    return min(namespaces.inside(namespace, measure) for _ in range(5))


def test_each_path_command_prints_one_line(shaped_lab: Lab) -> None:
    expected_output = {
        "cut zone-b": "zone-b is cut off: nothing enters or leaves it\n",
        "cut  zone-b": "zone-b was cut off before\n",
        "heal zone-b": "zone-b is healed: it is no longer cut off\n",
        "heal  zone-b": "zone-b was not cut off\n",
        "latency zone-a zone-b 2.5 --loss 1": "the path between zone-a and zone-b is now 2.5 ms and 1 % loss each way\n",
        "latency zone-a zone-b 0": "the path between zone-a and zone-b is now plain\n",
    }
    for line, expected in expected_output.items():
        result = CliRunner().invoke(cli, ["lab", *line.split(), "--name", shaped_lab.name])
        assert (result.exit_code, result.output) == (0, expected), line


def test_cutting_or_shaping_an_unknown_zone_raises(lab: Lab) -> None:
    with pytest.raises(PlanError, match="no zone 'zone-x'"):
        nodes.cut(lab, "zone-x")
    with pytest.raises(PlanError, match="no zone 'zone-x'"):
        nodes.shape(lab, "zone-a", "zone-x", 1, 0)
