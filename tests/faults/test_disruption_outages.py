"""Budgets while parts are away: a leader stopped past its lease, no API server, no etcd, a webhook that does not answer."""

import asyncio
import itertools
import os
import signal
import time
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

import pytest

from support.disruption.cluster import REPLICA_SETS, ZONES, DisruptionNamespace
from support.disruption.faults import (
    allows,
    create_budget,
    create_database,
    evict,
    outcome,
    policy_in_force,
    roll_out_during,
)
from support.disruption.processes import Zonewise, kubectl, zonewise
from support.disruption.violations import watching
from support.fault_report import Report
from support.process import Program as Process
from support.waiting import eventually
from zonewise.lab.controlplane.controlplane import ControlPlane, StatusError
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import PODS

pytestmark = [pytest.mark.xdist_group("disruption-faults"), pytest.mark.timeout(1800)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
SEED = int(os.environ.get("ZONEWISE_SEED", "1"))
AWAY_SECONDS = 12.0 if LONG else 4.0
"""Longer than the lease, and shorter than the time after which pods of a silent node count as unready."""
HOLES = 4 if LONG else 1


@pytest.fixture
def ns(budget_namespace: DisruptionNamespace) -> DisruptionNamespace:
    return budget_namespace


def leads(leader: Process) -> bool:
    return [event for event in leader.events if event.startswith("leadership ")][-1:] == ["leadership gained"]


async def stop_leader_past_its_lease(running: Zonewise, random: Random) -> None:
    """Resumed once the other leader has taken over: it must see that its lease is lost."""
    first, second = sorted(running.leaders.values(), key=leads, reverse=True)
    gained, lost = second.events.count("leadership gained"), first.events.count("leadership lost")
    await asyncio.sleep(random.uniform(0, 1.5))
    first.signal(signal.SIGSTOP)
    try:
        await eventually(lambda: second.events.count("leadership gained") > gained, "the other leader takes over")
    finally:
        first.signal(signal.SIGCONT)
    await eventually(lambda: first.events.count("leadership lost") > lost, "the resumed leader sees that it is none")
    assert leads(second)
    assert not leads(first)


async def kill_api_server(running: Zonewise, random: Random) -> None:
    await asyncio.sleep(random.uniform(0, 1.5))
    await asyncio.to_thread(running.plane.kill, Program.APISERVER)
    await asyncio.sleep(AWAY_SECONDS)
    await asyncio.to_thread(running.plane.spawn, Program.APISERVER)
    await asyncio.to_thread(running.plane.wait_ready)
    await restart_controllers(running.plane)
    await restart_kwok(running)  # else its nodes are silent until their pods count as unready
    await eventually(lambda: asyncio.to_thread(may_delete_pods, running), "pods may be deleted again")
    await restart_kwok(running)  # for the deletes that were refused meanwhile


async def restart_controllers(plane: ControlPlane) -> None:
    """With an elected leader, as clusters run them, they exit when they can't renew their lease for 10 s.

    Without that, the scheduler may exit by itself (a pod's name is on another node), and the controller manager may wait
    up to a minute for news of nodes, and take them for silent.
    """
    for program in (Program.CONTROLLER_MANAGER, Program.SCHEDULER):
        await asyncio.to_thread(plane.kill, program)
        await asyncio.to_thread(plane.spawn, program)


def may_delete_pods(running: Zonewise) -> bool:
    """Not before the restarted server has discovered budgets again. Kubelets retry a refused delete; kwok does not."""
    pod = running.plane.request("GET", "/api/v1/pods?limit=1")["items"][0]["metadata"]
    try:
        running.plane.request("DELETE", f"/api/v1/namespaces/{pod['namespace']}/pods/{pod['name']}?dryRun=All")
    except StatusError as error:
        if "failed to configure policy" not in str(error):
            raise
        return False
    return True


async def restart_kwok(running: Zonewise) -> None:
    """It may not resume its watch of pods. Its successor would wait for the leases of the nodes to expire, over 40 s."""
    await asyncio.to_thread(running.plane.kill, Program.KWOK)
    await kubectl(running.plane, "delete", "leases", "--namespace=kube-node-lease", "--all")
    await asyncio.to_thread(running.plane.spawn, Program.KWOK)


async def stop_etcd(running: Zonewise, random: Random) -> None:
    await asyncio.sleep(random.uniform(0, 1.5))
    running.plane.pause(Program.ETCD)
    try:
        await asyncio.sleep(AWAY_SECONDS)
    finally:
        running.plane.resume(Program.ETCD)
    await asyncio.to_thread(running.plane.wait_ready)


FAULTS: dict[str, tuple[Callable[[Zonewise, Random], Coroutine[Any, Any, None]], int]] = {
    "leader stopped past its lease": (stop_leader_past_its_lease, 8 if LONG else 1),
    f"API server killed, away for {AWAY_SECONDS:g} s": (kill_api_server, 4 if LONG else 0),
    f"etcd stopped for {AWAY_SECONDS:g} s": (stop_etcd, 4 if LONG else 0),
}
"""Each with its rounds. In the short form the fault tests of slices stop etcd and the API server."""


async def test_rollout_and_drain_keep_the_budget_through_outages(ns: DisruptionNamespace, report: Report) -> None:
    """Components lose their watches and their lease, but no charge."""
    random, versions = Random(SEED), itertools.count(2)
    await create_database(ns)
    async with zonewise(ns.client, ns.plane, leaders=2) as running:
        await eventually(lambda: allows(ns, "db", 3), "budget published")
        for name, (fault, rounds) in FAULTS.items():
            changes = 0
            for number in range(rounds):
                node = ns.node(random.choice(ZONES), number % 2)
                outage, image = fault(running, random), f"none:{next(versions)}"
                changes += await roll_out_during(ns, image, [node], outage, through_outages=True)
            if rounds:
                report(**outcome(f"{name}, during a rollout and a drain", rounds, changes, "pod changes"))
        programs = (*running.leaders.values(), *running.webhooks.values())
        assert [program.process.poll() for program in programs] == [None] * 3


async def test_evictions_fail_closed_while_the_webhook_does_not_answer(ns: DisruptionNamespace, report: Report) -> None:
    """Connections are accepted, and nothing comes back. Deletes and scaling go on."""
    await ns.replica_set("web", 9)
    await ns.until_ready("web", 9)
    await create_budget(ns, "web")
    durations: list[float] = []
    async with (
        zonewise(ns.client, ns.plane) as running,
        watching(ns, "web", dict.fromkeys(ZONES, 2)) as watcher,
    ):
        await eventually(lambda: allows(ns, "web", 3), "budget published")
        (pod, *_) = await ns.in_zone("web", ZONES[0])
        await eventually(lambda: policy_in_force(ns, pod), "the policy is in force")
        for _ in range(HOLES):
            running.balancer.go_silent()
            tried = [(await ns.in_zone("web", zone))[0] for zone in ZONES]
            *took, _ = await asyncio.gather(*(fails_closed(ns, pod) for pod in tried), delete_and_scale(ns))
            durations += took
            running.balancer.heal()
            await eventually(lambda: is_evicted(ns), "evictions pass again")
            await ns.scale(REPLICA_SETS, "web", 9)
            await ns.until_ready("web", 9)
    assert watcher.violations == []
    facts = {"refused": len(durations), "gap_seconds": max(durations)}
    report(**outcome("webhook black-holed", HOLES, len(durations), **facts))


async def delete_and_scale(ns: DisruptionNamespace) -> None:
    await ns.client.delete(PODS, (await ns.in_zone("web", ZONES[0]))[-1], ns.namespace)
    await ns.until_ready("web", 9)
    await ns.scale(REPLICA_SETS, "web", 12)
    await ns.until_ready("web", 12)


async def fails_closed(ns: DisruptionNamespace, pod: str) -> float:
    """The API server itself gives up, after the time in the configuration; how long that took."""
    began = time.monotonic()
    result = await evict(ns, pod)
    assert result.startswith("500 "), result
    assert "failed calling webhook" in result
    assert "deadline exceeded" in result or "TLS handshake timeout" in result, result  # on an old or a new connection
    return time.monotonic() - began


async def is_evicted(ns: DisruptionNamespace) -> bool:
    (pod, *_) = await ns.in_zone("web", ZONES[1])
    return await evict(ns, pod) == "gone"
