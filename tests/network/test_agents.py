"""Node agents and labs: kills and restarts, labs in parallel, complete removal."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

from support.lab.pods import DEADLINE_SECONDS, Pods, addresses, connects, eventually, main_status
from zonewise.lab import labs, processes
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.decide.addresses import link_of, zone_names
from zonewise.lab.demo import app, zone_answers
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import agents, nodes, sandbox
from zonewise.lab.state import Lab, LabOptions
from zonewise.objects import NODES


def kill_agent(lab: Lab, node: str) -> None:
    process = processes.find(lab.directory, agents.process_name(node))
    assert process is not None
    process.signal(signal.SIGKILL)
    assert process.wait(30)


async def test_killed_agent_is_replaced_and_its_pods_keep_running(lab: Lab, pods: Pods) -> None:
    kept, doomed, dying = await asyncio.gather(
        pods.shop("kept", "zone-b-1"),
        pods.shop("doomed", "zone-b-1", terminationGracePeriodSeconds=0),
        pods.shop("dying", "zone-b-1"),
    )
    kill_agent(lab, "zone-b-1")
    assert connects(pods.inside(kept), addresses(doomed)[0]), "pods run without their agent"
    await pods.delete("doomed", grace_seconds=0)
    (pid, *_) = namespaces.pids_in([pods.inside(dying)])
    os.kill(pid, signal.SIGKILL)
    await asyncio.to_thread(nodes.up, lab)
    restarted = await pods.when("dying", lambda pod: main_status(pod)["restartCount"] == 1, "was restarted")
    assert main_status(restarted)["lastState"]["terminated"]["reason"] == "ContainerStatusUnknown"
    await pods.released(doomed)
    again = await pods.ready("kept")
    assert main_status(again)["containerID"] == main_status(kept)["containerID"]
    assert connects(pods.inside(dying), addresses(kept)[0])
    await pods.delete("kept")
    await pods.gone("kept")


async def test_broken_pod_stops_neither_the_agent_nor_other_pods(lab: Lab, pods: Pods) -> None:
    broken, healthy = await asyncio.gather(pods.shop("sick", "zone-b-2"), pods.shop("well", "zone-b-2"))
    kill_agent(lab, "zone-b-2")
    pod_sandbox = sandbox.find(lab.name, lab.directory, nodes.plan_of(lab).nodes, f"{pods.namespace}/sick")
    record = pod_sandbox.directory / processes.RECORDS / pod_sandbox.containers[0]
    original = record.read_text()
    record.write_text("not a process record\n")
    await asyncio.to_thread(nodes.up, lab)
    await pods.shop("new", "zone-b-2")
    assert main_status(await pods.ready("well"))["containerID"] == main_status(healthy)["containerID"]
    log = processes.log_path(lab.directory, agents.process_name("zone-b-2"))
    await eventually(lambda: _log_contains(log, "pod worker failed"), "the agent logs the failure")
    record.write_text(original)
    await pods.delete("sick")
    await pods.gone("sick")
    await pods.released(broken)


async def _log_contains(log: Path, text: str) -> bool:
    return text in await asyncio.to_thread(log.read_text)


async def test_deleted_node_registers_again(lab: Lab, pods: Pods) -> None:
    before = await pods.client.get(NODES, "zone-a-2")
    await pods.client.delete(NODES, "zone-a-2")

    async def registered() -> bool:
        nodes_now = await pods.client.list(NODES)
        return any(n.metadata.name == "zone-a-2" and n.metadata.uid != before.metadata.uid for n in nodes_now.items)

    await eventually(registered, "the node is registered again")
    pod = await pods.shop("p", "zone-a-2")
    assert pod["spec"]["nodeName"] == "zone-a-2"


def _traces(lab: Lab) -> dict[str, list[str]]:
    """Namespaces, links and routes of a lab in the kernel."""
    link = link_of(lab.slot)
    routes = subprocess.run(["ip", "route"], check=True, capture_output=True, text=True).stdout
    routes += subprocess.run(["ip", "-6", "route"], check=True, capture_output=True, text=True).stdout
    return {
        "namespaces": namespaces.of_lab(lab.name),
        "links": [name for _, name in socket.if_nameindex() if name == link],
        "routes": [line for line in routes.splitlines() if f" dev {link} " in f"{line} "],
    }


def test_second_lab_serves_the_demo_and_leaves_no_trace(lab: Lab) -> None:
    name = f"{lab.name}-b"
    second = labs.up(
        name, LabOptions(zones=zone_names(2), nodes_per_zone=1, kube_proxy=True, demo=True), lambda _step: None
    )
    try:
        _until_every_zone_answers_every_zone(second)
        assert nodes.plan_of(lab).host != nodes.plan_of(second).host
        assert all(_traces(second).values()), "all kinds of traces exist"
        inside = namespaces.of_lab(name)
        pids = namespaces.pids_in(inside)
        assert len(inside) == 1 + 2 + 2 + 4
        assert len(pids) >= 4 + 2 + 2, "pods, agents and kube-proxies"
        # Kill every agent that could clean up: only names remain to find the leftovers.
        for node in nodes.plan_of(second).nodes:
            kill_agent(second, node.name)
    finally:
        labs.down(name, lambda _step: None)
    assert _traces(second) == {"namespaces": [], "links": [], "routes": []}
    assert [pid for pid in pids if _is_alive(pid)] == []
    plane = ControlPlane.attach(lab.directory)
    neighbour = nodes.plan_of(lab).node("zone-a-1").namespace
    assert connects(neighbour, plane.settings.address, plane.layout.port(Program.APISERVER))


def _until_every_zone_answers_every_zone(lab: Lab) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while True:
        counted = zone_answers.ask(lab, 40)
        if all(counts.keys() == set(lab.zones) for counts in counted.values()):
            assert {zone: counts.total() for zone, counts in counted.items()} == dict.fromkeys(lab.zones, 40)
            return
        assert time.monotonic() < deadline, f"some zone does not answer all others: {counted}"


def _is_alive(pid: int) -> bool:
    """An ended process stays a zombie until its parent reaps it."""
    try:
        state, _ = processes.start_time(Path(f"/proc/{pid}/stat").read_text())
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_demo_deployments_spread_over_zones() -> None:
    deployments = [m for m in app.manifests(6) if m["kind"] == "Deployment"]
    for deployment in deployments:
        keys = [c["topologyKey"] for c in deployment["spec"]["template"]["spec"]["topologySpreadConstraints"]]
        assert keys == ["topology.kubernetes.io/zone", "kubernetes.io/hostname"]
