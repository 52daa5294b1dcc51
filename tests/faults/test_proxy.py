"""The node proxy under faults: Services with a healthy endpoint stay reachable without proxy, rules or API server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
from pathlib import Path

import pytest

from faults.proxy_setup import FAR, NEAR, PORTS, ZONE, ProxySetup, endpoints_at
from network.proxy.cluster import LABEL, RunningProxy, connecting, create_service, create_slice
from network.proxy.node import NodeNet
from support.fault_report import Report
from support.waiting import eventually
from unit.proxy.build import endpoint
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.network import namespaces
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICES

pytestmark = [pytest.mark.xdist_group("proxy-faults"), pytest.mark.timeout(1800)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
KILLS = 100 if LONG else 8
BYSTANDERS = 300 if LONG else 15
CHANGES = 10_000 if LONG else 400
ROUNDS = 40 if LONG else 2


async def test_no_connection_fails_when_killed_during_syncs(setup: ProxySetup, report: Report) -> None:
    """While endpoints of two Services change, among many others; the final state is correct."""
    rng = random.Random(3)
    address = await setup.serve("web", [*FAR, *NEAR])
    for number in range(BYSTANDERS):
        await setup.serve(f"other-{number}", rng.sample(FAR, 2))
    await setup.reaches(address, *FAR, *NEAR)
    stopped = asyncio.Event()
    with connecting(setup.node_net.netns("out"), address) as connections:
        churn_task = asyncio.create_task(_churn(setup, rng, stopped))
        for _ in range(KILLS):
            await asyncio.sleep(rng.uniform(0.2, 1.6))  # during start, full sync or updates
            await asyncio.to_thread(setup.proxy.stop, signal.SIGKILL)
            setup.proxy.start()
        stopped.set()
        await churn_task
        await setup.set_endpoints("web", endpoints_at(FAR[:2]))
        await eventually(setup.proxy.adopted, "the restarted proxy is in sync")
        await setup.reaches(address, *FAR[:2])
    report(**connections.outcome("killed during syncs", KILLS))
    assert connections.failures == []
    assert len(connections.tries) > 100


async def _churn(setup: ProxySetup, rng: random.Random, stopped: asyncio.Event) -> None:
    while not stopped.is_set():
        await setup.set_endpoints("web", endpoints_at([FAR[0], *rng.sample([*FAR[1:], *NEAR], 2)]))
        await setup.set_endpoints(f"other-{rng.randrange(BYSTANDERS)}", endpoints_at(rng.sample(FAR, rng.randrange(3))))
        await asyncio.sleep(0.01)


class Established:
    """A long-lived connection through the Service."""

    def __init__(self, node_net: NodeNet, listener: socket.socket, address: str) -> None:
        self._client = namespaces.inside(node_net.netns("out"), lambda: socket.create_connection((address, 80), 30))
        self._server, _ = listener.accept()
        self._server.settimeout(30)
        self._client.settimeout(30)

    def works(self) -> bool:
        self._client.sendall(b"ping")
        received = self._server.recv(4)
        self._server.sendall(received)
        return self._client.recv(4) == b"ping"

    def close(self) -> None:
        self._client.close()
        self._server.close()


async def test_updates_outages_and_damage_break_no_connection(setup: ProxySetup, report: Report) -> None:
    """Rolling updates, zone changes, API server outages, full syncs, restarts."""
    address = await setup.serve("web", [*FAR, *NEAR])
    established_at = str((await create_service(setup, "long-lived", {"ports": PORTS}, ours=True))["spec"]["clusterIP"])
    await create_slice(setup, "long-lived", endpoints_at([FAR[0]]), ours=True)
    await setup.client.patch(
        ENDPOINT_SLICES, "long-lived-hand", MergePatch({"ports": [{"name": "main", "port": 7070}]}), setup.namespace
    )
    await setup.reaches(address, *FAR, *NEAR)
    listener = namespaces.inside(setup.node_net.netns("far"), lambda: socket.create_server((FAR[0], 7070)))
    with listener:
        established = await eventually(
            lambda: _established(setup.node_net, listener, established_at), "the established connection"
        )
        try:
            with connecting(setup.node_net.netns("out"), address) as connections:
                for _ in range(ROUNDS):
                    await _roll(setup)
                    assert await asyncio.to_thread(established.works), "after a rolling update"
                    await _another_zone(setup)
                    assert await asyncio.to_thread(established.works), "after the node changed its zone"
                    await _outage(setup, established_at)
                    assert await asyncio.to_thread(established.works), "after an outage and a full sync"
                await asyncio.to_thread(setup.proxy.stop, signal.SIGKILL)
                setup.proxy.start()
                await eventually(setup.proxy.adopted, "the restarted proxy is in sync")
                assert await asyncio.to_thread(established.works), "after a restart"
                await setup.set_endpoints("long-lived", [])
                await eventually(
                    lambda: setup.node_net.connect("out", established_at) == ["refused"], "no new connections"
                )
                assert await asyncio.to_thread(established.works), "only the endpoint ends an established connection"
        finally:
            established.close()
    report(**connections.outcome("rolling update, zone change, API server away, table changed, killed", ROUNDS))
    assert connections.failures == []


async def _established(node_net: NodeNet, listener: socket.socket, address: str) -> Established | None:
    try:
        return await asyncio.to_thread(Established, node_net, listener, address)
    except ConnectionRefusedError:
        return None


async def _roll(setup: ProxySetup) -> None:
    """Replace one endpoint after the other: the new one is ready, then the old one terminates, then it is deleted."""
    pods = [*FAR, *NEAR]
    for old, new in zip(pods[:2], pods[3:], strict=True):
        left = [pod for pod in pods[:3] if pod != old]
        await setup.set_endpoints("web", endpoints_at([*left, old, new]))
        leaving = endpoints_at([old], ready=False, serving=True, terminating=True)
        await setup.set_endpoints("web", [*endpoints_at([*left, new]), *leaving])
        await setup.set_endpoints("web", endpoints_at([*left, new]))
        await asyncio.sleep(0.05)
    await setup.set_endpoints("web", endpoints_at(pods))


async def _another_zone(setup: ProxySetup) -> None:
    for zone in ("b", "a"):
        await setup.client.patch(NODES, "a1", MergePatch({"metadata": {"labels": {ZONE: zone}}}))
        await asyncio.sleep(0.05)


async def _outage(setup: ProxySetup, address: str) -> None:
    """Without the API server the rules stay, foreign changes are repaired from memory, and updates follow later."""
    await setup.link.refuse()
    setup.node_net.nft("add", "element", "ip", "zonewise", "cluster-ips", "{ 10.9.9.9 }")
    list_cluster_ips = ("list", "set", "ip", "zonewise", "cluster-ips")
    await eventually(lambda: "10.9.9.9" not in setup.node_net.nft(*list_cluster_ips), "a repair")
    assert address in setup.node_net.nft("list", "map", "ip", "zonewise", "svc")
    await setup.set_endpoints("web", endpoints_at([*NEAR, *FAR[:1]]))
    await setup.link.heal()
    web = str((await setup.client.get(SERVICES, "web", setup.namespace)).spec.cluster_ip)
    await setup.reaches(web, *NEAR, *FAR[:1])
    await setup.set_endpoints("web", endpoints_at([*FAR, *NEAR]))


DAMAGE = {
    "table deleted": ["delete", "table", "ip", "zonewise"],
    "ruleset flushed": ["flush", "ruleset"],
    "chain flushed": ["flush", "chain", "ip", "zonewise", "nat-in"],
    "endpoints flushed": ["flush", "map", "ip", "zonewise", "ep"],
    "services flushed": ["flush", "map", "ip", "zonewise", "svc"],
    "rule inserted before ours": ["insert", "rule", "ip", "zonewise", "nat-in", "accept"],
}


async def test_foreign_changes_to_the_table_are_repaired(setup: ProxySetup, report: Report) -> None:
    """By a counted full sync; an update at the same time is not lost."""
    address = await setup.serve("web", FAR)
    await setup.reaches(address, *FAR)
    for number, damage in enumerate(DAMAGE.values()):
        expected = [FAR, NEAR][number % 2]
        before = setup.metric("zonewise_proxy_commits_total")
        await asyncio.to_thread(setup.node_net.nft, *damage)
        await setup.set_endpoints("web", endpoints_at(expected))
        await setup.reaches(address, *expected)
        assert setup.metric("zonewise_proxy_commits_total") > before
    assert setup.proxy.logged("changed by others")
    repairs = {"requests": len(DAMAGE), "what": "repairs"}
    report(component="proxy", fault="table changed, flushed or deleted by others", rounds=len(DAMAGE), **repairs)


async def test_many_changes_are_applied_in_few_syncs(setup: ProxySetup, report: Report) -> None:
    """Changes that arrive while the proxy is stopped or busy are applied together."""
    services = {f"web-{number}": FAR[number % 3] for number in range(20)}
    addresses = {name: await setup.serve(name, FAR) for name in services}
    await setup.reaches(addresses["web-19"], *FAR)
    before = setup.metric("zonewise_proxy_sync_seconds_count")
    assert setup.proxy.process is not None
    setup.proxy.process.send_signal(signal.SIGSTOP)
    try:
        for turn in range(CHANGES // len(services)):
            shown = FAR[turn % 3 :]
            await asyncio.gather(*(setup.set_endpoints(name, endpoints_at(shown)) for name in services))
        await asyncio.gather(*(setup.set_endpoints(name, endpoints_at([last])) for name, last in services.items()))
    finally:
        setup.proxy.process.send_signal(signal.SIGCONT)
    requests = [{"address": addresses[name], "port": 80, "count": 3} for name in services]

    async def settled() -> bool:
        answers = await asyncio.to_thread(setup.node_net.request, "out", *requests)
        return [{answer.split()[0] for answer in tries} for tries in answers] == [{last} for last in services.values()]

    await eventually(settled, "the last of all changes")
    syncs = setup.metric("zonewise_proxy_sync_seconds_count") - before
    assert syncs <= CHANGES / 10
    changes = (CHANGES // len(services) + 1) * len(services)
    report(component="proxy", fault="stopped while endpoints change", rounds=1, requests=changes, what="changes")


async def test_hostile_services_do_not_affect_others(setup: ProxySetup, report: Report) -> None:
    """Long names, addresses of other Services, duplicate endpoints, thousands of ports."""
    address = await setup.serve("web", FAR)
    claimant = {"ports": PORTS, "externalIPs": [address, "198.51.100.1"]}
    await create_service(setup, "claimant", claimant, ours=True)
    await create_slice(setup, "claimant", endpoints_at(NEAR), ours=True)
    await create_service(setup, "also-wants", {"ports": PORTS, "externalIPs": ["198.51.100.1"]}, ours=True)
    await create_slice(setup, "also-wants", endpoints_at(FAR), ours=True)
    twice = await setup.serve("x" * 63, [FAR[0]] * 3 + [FAR[1]])
    many = [{"name": f"p{number}", "port": 1000 + number} for number in range(2000)]
    wide = str((await create_service(setup, "wide", {"ports": many}, ours=True))["spec"]["clusterIP"])
    body = {
        "metadata": {"name": "wide-hand", "labels": {"kubernetes.io/service-name": "wide", **LABEL}},
        "addressType": "IPv4",
        "ports": [{"name": port["name"], "port": 8080} for port in many],
        "endpoints": endpoints_at([FAR[2]]),
    }
    await setup.client.create(ENDPOINT_SLICES.whole(), body, setup.namespace)
    await setup.reaches(wide, FAR[2], port=1000)
    await setup.reaches(wide, FAR[2], port=2999)
    await setup.reaches(address, *FAR)
    await setup.reaches(twice, *FAR[:2])
    await setup.reaches("198.51.100.1", *FAR)
    left_out = [
        line for line in setup.proxy.log.read_text().splitlines() if "left out" in line and setup.namespace in line
    ]
    assert len([line for line in left_out if "claimant" in line and address in line]) == 1, "logged once"
    assert len([line for line in left_out if "198.51.100.1" in line]) == 1
    services = len((await setup.client.list(SERVICES, setup.namespace)).items)
    report(component="proxy", fault="hostile Services", rounds=1, requests=services, what="Services")


def _capabilities(running: RunningProxy) -> set[int]:
    """The effective, permitted and bounding sets as bit masks; CAP_NET_ADMIN is bit 12."""
    assert running.process is not None
    status = Path("/proc", str(running.process.pid), "status").read_text().splitlines()
    masks = {line.split()[0]: int(line.split()[1], 16) for line in status if line.startswith("Cap")}
    return {masks[kind] for kind in ("CapEff:", "CapPrm:", "CapBnd:")}


async def test_proxy_needs_only_net_admin(setup: ProxySetup) -> None:
    """The error without it names the capability."""
    assert _capabilities(setup.proxy) == {1 << 12}
    address = await setup.serve("web", FAR)
    await setup.reaches(address, *FAR)
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", *setup.proxy.command()]
    argv = namespaces.command(setup.proxy.namespace, powerless)
    tried = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    output, errors = await tried.communicate()
    assert tried.returncode
    assert "CAP_NET_ADMIN" in (output + errors).decode()


async def test_zone_without_a_slice_group_is_served(setup: ProxySetup) -> None:
    """The proxy then watches the groups of other zones; a hard rule stays hard."""
    addresses = {}
    for strength in ("Prefer", "Require"):
        name, annotations = strength.lower(), {"endpointslice.kubernetes.io/same-zone": strength}
        spec = {"ports": PORTS, "selector": {"app": "web"}}
        service = await create_service(setup, name, spec, ours=True, annotations=annotations)
        addresses[strength] = str(service["spec"]["clusterIP"])
        hinted = [endpoint(address, "b1", zones=["b"]) for address in FAR]
        await create_slice(setup, name, hinted, ours=True)
        group = MergePatch({"metadata": {"labels": {"zonewise.dev/consumer": "b"}}})
        await setup.client.patch(ENDPOINT_SLICES, f"{name}-hand", group, setup.namespace)
    await asyncio.to_thread(setup.proxy.stop)
    setup.proxy.start()
    await setup.reaches(addresses["Prefer"], *FAR)
    require = addresses["Require"]  # its rules may come one sync later
    await eventually(lambda: setup.node_net.connect("out", require) == ["refused"], "a hard rule stays hard")
