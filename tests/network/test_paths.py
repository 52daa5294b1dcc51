"""Pods reach each other by address, in both IP versions; paths between zones can be cut, healed, slowed and thinned."""

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


async def test_a_pod_reaches_another_zone_unless_it_is_cut(whole_lab: Lab, pods: Pods) -> None:
    near, mate, far = await asyncio.gather(
        pods.shop("near", "zone-a-1"), pods.shop("mate", "zone-a-2"), pods.shop("far", "zone-b-1")
    )
    inside = pods.inside(near)
    for address in addresses(far) + addresses(mate):
        assert connects(inside, address)
    nodes.cut(whole_lab, "zone-b")
    for address in addresses(far):
        assert not connects(inside, address, timeout_seconds=1)
        assert not connects(pods.node("zone-c-1").namespace, address, timeout_seconds=1)
    for address in addresses(mate):
        assert connects(inside, address)
    nodes.heal(whole_lab, "zone-b")
    for address in addresses(far):
        assert connects(inside, address)


async def test_this_machine_reaches_pods_and_pods_the_api_server(pods: Pods, lab: Lab) -> None:
    pod = await pods.shop("p", "zone-c-2")
    for address in addresses(pod):
        with socket.create_connection((address, 8080), 30):
            pass
    plane = ControlPlane.attach(lab.directory)
    assert connects(pods.inside(pod), plane.settings.address, plane.layout.port(Program.APISERVER))


async def test_nodes_of_a_cut_zone_become_unready_and_recover(whole_lab: Lab, pods: Pods) -> None:
    await pods.shop("victim", "zone-c-1")

    async def unready() -> bool:
        return all([await _ready(pods, node) == "Unknown" for node in ("zone-c-1", "zone-c-2")])

    async def recovered() -> bool:
        return all([await _ready(pods, node) == "True" for node in ("zone-c-1", "zone-c-2")])

    nodes.cut(whole_lab, "zone-c")
    await eventually(unready, "both nodes of zone-c are NotReady")
    assert await _ready(pods, "zone-a-1") == "True"
    seen = await asyncio.to_thread(status.of, whole_lab)
    assert (seen.health, seen.problem) == (LabHealth.DEGRADED, "not ready: 2 of 2 nodes in zone-c (cut off)")
    await pods.when(
        "victim", lambda pod: condition(pod, "Ready") == "False", "is declared unready by the control plane"
    )
    nodes.heal(whole_lab, "zone-c")
    await eventually(recovered, "both nodes of zone-c are Ready again")
    restored = await pods.ready("victim")
    assert restored["status"]["containerStatuses"][0]["restartCount"] == 0


async def _ready(pods: Pods, node: str) -> str:
    found = await pods.client.get(NODES, node)
    return next(condition.status for condition in found.status.conditions if condition.type == "Ready")


@pytest.mark.parametrize("family", [0, 1], ids=["IPv4", "IPv6"])
def test_loss_is_the_share_that_was_asked_for(whole_lab: Lab, family: int) -> None:
    nodes.shape(whole_lab, "zone-a", "zone-b", 0, 30)
    plan = nodes.plan_of(whole_lab)
    sender, near, far = plan.node("zone-a-1"), plan.node("zone-c-1"), plan.node("zone-b-1")
    lost = _lost_share(sender.namespace, far.namespace, str(far.address[family]), 4000)
    assert 0.2 < lost < 0.4
    assert _lost_share(sender.namespace, near.namespace, str(near.address[family]), 500) == 0


def _lost_share(source: str, target: str, address: str, count: int) -> float:
    """Of so many datagrams; read while they are sent, so that no buffer runs over, and once more at leisure."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    receiver = namespaces.inside(target, lambda: socket.socket(family, socket.SOCK_DGRAM))
    sender = namespaces.inside(source, lambda: socket.socket(family, socket.SOCK_DGRAM))
    with receiver, sender:
        receiver.bind((address, 0))
        place = (address, receiver.getsockname()[1])
        received = 0
        for _ in range(count // 50):
            for _ in range(50):
                sender.sendto(b"x", place)
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


async def test_latency_is_added_each_way_and_taken_away_again(whole_lab: Lab, pods: Pods) -> None:
    near, far, other = await asyncio.gather(
        pods.shop("near", "zone-a-1"), pods.shop("far", "zone-b-2"), pods.shop("other", "zone-c-2")
    )
    inside = pods.inside(near)
    nodes.shape(whole_lab, "zone-b", "zone-a", 40, 0)
    for address in addresses(far):
        assert _round_trip(inside, address) >= 0.080
    for address in addresses(other):
        assert _round_trip(inside, address) < 0.080
    nodes.shape(whole_lab, "zone-a", "zone-b", 0, 0)
    for address in addresses(far):
        assert _round_trip(inside, address) < 0.080
    seen = status.of(whole_lab)
    assert seen.health is not LabHealth.BROKEN, seen.problem
    assert all(process.running for process in seen.processes), "a delay line that is no longer wanted is not missed"
    assert labs.up(whole_lab.name, whole_lab.options, lambda _step: None) == whole_lab


def test_concurrent_cuts_are_all_applied(whole_lab: Lab) -> None:
    with ThreadPoolExecutor() as threads:
        list(threads.map(lambda zone: nodes.cut(whole_lab, zone), whole_lab.zones))
        assert nodes.shaped(whole_lab).cut == set(whole_lab.zones)
        list(threads.map(lambda zone: nodes.heal(whole_lab, zone), whole_lab.zones))
    assert nodes.shaped(whole_lab) == Shaping()


def _round_trip(namespace: str, address: str) -> float:
    """The best of some TCP handshakes: a busy machine makes single ones slow."""

    def measure() -> float:
        begun = time.monotonic()
        socket.create_connection((address, 8080), 30).close()
        return time.monotonic() - begun

    return min(namespaces.inside(namespace, measure) for _ in range(5))


def test_each_change_is_one_line(whole_lab: Lab) -> None:
    said = {
        "cut zone-b": "zone-b is cut off: nothing enters or leaves it\n",
        "cut  zone-b": "zone-b was cut off before\n",
        "heal zone-b": "zone-b is healed: it is no longer cut off\n",
        "heal  zone-b": "zone-b was not cut off\n",
        "latency zone-a zone-b 2.5 --loss 1": "the path between zone-a and zone-b is now 2.5 ms and 1 % loss each way\n",
        "latency zone-a zone-b 0": "the path between zone-a and zone-b is now plain\n",
    }
    for line, expected in said.items():
        done = CliRunner().invoke(cli, ["lab", *line.split(), "--name", whole_lab.name])
        assert (done.exit_code, done.output) == (0, expected), line


def test_what_is_not_there_can_not_be_cut_or_shaped(lab: Lab) -> None:
    with pytest.raises(PlanError, match="no zone 'zone-x'"):
        nodes.cut(lab, "zone-x")
    with pytest.raises(PlanError, match="no zone 'zone-x'"):
        nodes.shape(lab, "zone-a", "zone-x", 1, 0)
