"""The node proxy under faults: whoever has a healthy endpoint is served, whatever happens to proxy, rules and API server."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import socket
import uuid
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from network.proxy import node as beds
from network.proxy.cluster import LABEL, Running, make_service, make_slice, started, visiting
from network.proxy.node import FAR_PODS, NEAR_PODS, NODE, Bed
from support.kube.fault_proxy import FaultProxy
from support.slices import cluster
from support.waiting import eventually
from unit.proxy.build import endpoint
from zonewise.kube.client.client import Client
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.network import namespaces
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICES

pytestmark = [pytest.mark.xdist_group("proxy-faults"), pytest.mark.timeout(1800)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
KILLS = 100 if LONG else 8
BYSTANDERS = 300 if LONG else 15
CHANGES = 10_000 if LONG else 400
ROUNDS = 40 if LONG else 2
FAR = [four for four, _ in FAR_PODS]
NEAR = [four for four, _ in NEAR_PODS.values()]
PORTS = [{"name": "main", "port": 80}]
ZONE = "topology.kubernetes.io/zone"

Json = dict[str, Any]


@pytest.fixture(scope="module")
def bed() -> Iterator[Bed]:
    with beds.made() as made:
        yield made


@dataclass
class Site:
    """A proxy on the bed's node, node a1 of a real cluster, which it reaches through `link`."""

    bed: Bed
    client: Client
    namespace: str
    link: FaultProxy
    proxy: Running

    async def serve(self, name: str, addresses: Sequence[str], **spec: Any) -> str:
        made = await make_service(self, name, {"ports": PORTS, **spec}, ours=True)
        await make_slice(self, name, _endpoints(addresses), ours=True)
        return str(made["spec"]["clusterIP"])

    async def move(self, name: str, endpoints: Sequence[Json]) -> None:
        patch = MergePatch({"endpoints": list(endpoints)})
        await self.client.patch(ENDPOINT_SLICES, f"{name}-hand", patch, self.namespace)

    async def reaches(self, address: str, *expected: str, port: int = 80) -> None:
        """From outside, all of these and nobody else."""

        async def check() -> bool:
            found = await asyncio.to_thread(self.bed.endpoints, "out", address, port, 24)
            return set(found) == set(expected)

        await eventually(check, f"{address} leads to {expected}: {self.proxy.log.read_text()[-3000:]}")

    def metric(self, name: str) -> float:
        return sum(float(line.rpartition(" ")[2]) for line in self.proxy.metrics() if line.startswith(name))


def _endpoints(addresses: Sequence[str], **conditions: bool) -> list[Json]:
    return [endpoint(address, "a1" if address in NEAR else "b1", **conditions) for address in addresses]


@pytest.fixture
async def site(breakable: ControlPlane, bed: Bed, tmp_path: Path) -> AsyncIterator[Site]:
    await asyncio.to_thread(breakable.wait_ready)
    inside = bed.inside("node")
    async with AsyncExitStack() as stack:
        listen = _listening_in(inside)
        link = await stack.enter_async_context(FaultProxy(breakable.server, listen))
        client = await stack.enter_async_context(cluster.connect(breakable))
        namespace = f"t-{uuid.uuid4().hex[:8]}"
        breakable.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
        await stack.enter_async_context(_node(client))
        config = link.kubeconfig(breakable.kubeconfig, tmp_path)
        running = Running(config, "a1", inside, tmp_path / "proxy.log")
        await stack.enter_async_context(_in_thread(started(running)))
        yield Site(bed, client, namespace, link, running)
        for resource in (SERVICES, ENDPOINT_SLICES):
            await client.delete_collection(resource, namespace)


def _listening_in(namespace: str) -> Callable[[int], socket.socket]:
    return lambda port: namespaces.inside(namespace, lambda: socket.create_server(("127.0.0.1", port)))


@asynccontextmanager
async def _in_thread(entered: Any) -> AsyncIterator[None]:
    """The link between proxy and API server is carried by this loop: nothing may block it."""
    await asyncio.to_thread(entered.__enter__)
    try:
        yield
    finally:
        await asyncio.to_thread(entered.__exit__, None, None, None)


@asynccontextmanager
async def _node(client: Client) -> AsyncIterator[None]:
    status = {"addresses": [{"type": "InternalIP", "address": address} for address in NODE]}
    made = {
        "metadata": {"name": "a1", "labels": {ZONE: "a"}},
        "spec": {"podCIDR": "10.244.1.0/24", "podCIDRs": ["10.244.1.0/24"]},
    }
    await client.create(NODES.whole(), made)
    await client.patch(NODES, "a1", MergePatch({"status": status}), subresource="status")
    try:
        yield
    finally:
        await client.delete(NODES, "a1")


async def test_killed_in_the_middle_of_syncs(site: Site) -> None:
    """While endpoints come and go at two Services and others are many: no connection fails, and all ends as it should."""
    chance = random.Random(3)
    address = await site.serve("web", [*FAR, *NEAR])
    for number in range(BYSTANDERS):
        await site.serve(f"other-{number}", chance.sample(FAR, 2))
    await site.reaches(address, *FAR, *NEAR)
    over = asyncio.Event()
    with visiting(site.bed.inside("out"), address) as visit:
        churning = asyncio.create_task(_churn(site, chance, over))
        for _ in range(KILLS):
            await asyncio.sleep(chance.uniform(0.2, 1.6))  # while it starts, says everything, or follows changes
            await asyncio.to_thread(site.proxy.stop, signal.SIGKILL)
            site.proxy.start()
        over.set()
        await churning
        await site.move("web", _endpoints(FAR[:2]))
        await eventually(site.proxy.adopted, "it adopts")
        await site.reaches(address, *FAR[:2])
    print(f"{KILLS} kills, {len(visit.tries)} connections, {len(visit.failures)} failed")
    assert visit.failures == []
    assert len(visit.tries) > 100


async def _churn(site: Site, chance: random.Random, over: asyncio.Event) -> None:
    while not over.is_set():
        await site.move("web", _endpoints([FAR[0], *chance.sample([*FAR[1:], *NEAR], 2)]))
        await site.move(f"other-{chance.randrange(BYSTANDERS)}", _endpoints(chance.sample(FAR, chance.randrange(3))))
        await asyncio.sleep(0.01)


class Established:
    """A connection through the Service that goes on and on."""

    def __init__(self, bed: Bed, listening: socket.socket, address: str) -> None:
        self._client = namespaces.inside(bed.inside("out"), lambda: socket.create_connection((address, 80), 30))
        self._server, _ = listening.accept()
        self._server.settimeout(30)
        self._client.settimeout(30)

    def works(self) -> bool:
        self._client.sendall(b"ping")
        asked = self._server.recv(4)
        self._server.sendall(asked)
        return self._client.recv(4) == b"ping"

    def close(self) -> None:
        self._client.close()
        self._server.close()


async def test_updates_outages_and_damage_touch_no_connection(site: Site) -> None:
    """Rolling updates, other zones, the API server away, rules said again, another process: traffic goes on."""
    address = await site.serve("web", [*FAR, *NEAR])
    lasting_at = str((await make_service(site, "lasting", {"ports": PORTS}, ours=True))["spec"]["clusterIP"])
    await make_slice(site, "lasting", _endpoints([FAR[0]]), ours=True)
    await site.client.patch(
        ENDPOINT_SLICES, "lasting-hand", MergePatch({"ports": [{"name": "main", "port": 7070}]}), site.namespace
    )
    await site.reaches(address, *FAR, *NEAR)
    listening = namespaces.inside(site.bed.inside("far"), lambda: socket.create_server((FAR[0], 7070)))
    with listening:
        lasting = await eventually(lambda: _established(site.bed, listening, lasting_at), "the lasting connection")
        try:
            with visiting(site.bed.inside("out"), address) as visit:
                for _ in range(ROUNDS):
                    await _roll(site)
                    assert await asyncio.to_thread(lasting.works), "after a rolling update"
                    await _another_zone(site)
                    assert await asyncio.to_thread(lasting.works), "after the node changed its zone"
                    await _outage(site, lasting_at)
                    assert await asyncio.to_thread(lasting.works), "after an outage, and with everything said again"
                await asyncio.to_thread(site.proxy.stop, signal.SIGKILL)
                site.proxy.start()
                await eventually(site.proxy.adopted, "it adopts")
                assert await asyncio.to_thread(lasting.works), "after a restart"
                await site.move("lasting", [])
                await eventually(lambda: site.bed.knock("out", lasting_at) == ["refused"], "no new one any more")
                assert await asyncio.to_thread(lasting.works), "established connections are their endpoint's to end"
        finally:
            lasting.close()
    print(f"{len(visit.tries)} connections, {len(visit.failures)} failed")
    assert visit.failures == []


async def _established(bed: Bed, listening: socket.socket, address: str) -> Established | None:
    try:
        return await asyncio.to_thread(Established, bed, listening, address)
    except ConnectionRefusedError:
        return None


async def _roll(site: Site) -> None:
    """One after the other is replaced: the new one ready first, then the old one terminating, then gone."""
    pods = [*FAR, *NEAR]
    for old, new in zip(pods[:2], pods[3:], strict=True):
        left = [pod for pod in pods[:3] if pod != old]
        await site.move("web", _endpoints([*left, old, new]))
        leaving = _endpoints([old], ready=False, serving=True, terminating=True)
        await site.move("web", [*_endpoints([*left, new]), *leaving])
        await site.move("web", _endpoints([*left, new]))
        await asyncio.sleep(0.05)
    await site.move("web", _endpoints(pods))


async def _another_zone(site: Site) -> None:
    for zone in ("b", "a"):
        await site.client.patch(NODES, "a1", MergePatch({"metadata": {"labels": {ZONE: zone}}}))
        await asyncio.sleep(0.05)


async def _outage(site: Site, address: str) -> None:
    """Without the API server the last rules stay, what others break is repaired from memory, and changes come afterwards."""
    await site.link.refuse()
    site.bed.nft("add", "element", "ip", "zonewise", "cluster-ips", "{ 10.9.9.9 }")
    known = ("list", "set", "ip", "zonewise", "cluster-ips")
    await eventually(lambda: "10.9.9.9" not in site.bed.nft(*known), "a repair")
    assert address in site.bed.nft("list", "map", "ip", "zonewise", "svc")
    await site.move("web", _endpoints([*NEAR, *FAR[:1]]))
    await site.link.heal()
    web = str((await site.client.get(SERVICES, "web", site.namespace)).spec.cluster_ip)
    await site.reaches(web, *NEAR, *FAR[:1])
    await site.move("web", _endpoints([*FAR, *NEAR]))


DAMAGE = {
    "the table is deleted": ["delete", "table", "ip", "zonewise"],
    "all is flushed": ["flush", "ruleset"],
    "a chain is emptied": ["flush", "chain", "ip", "zonewise", "nat-in"],
    "endpoints are removed": ["flush", "map", "ip", "zonewise", "ep"],
    "services are removed": ["flush", "map", "ip", "zonewise", "svc"],
    "a rule stands before ours": ["insert", "rule", "ip", "zonewise", "nat-in", "accept"],
}


async def test_what_others_do_to_the_table_is_undone(site: Site) -> None:
    """Within seconds, counted as a whole transaction, and a change that comes meanwhile is not lost."""
    address = await site.serve("web", FAR)
    await site.reaches(address, *FAR)
    for number, damage in enumerate(DAMAGE.values()):
        expected = [FAR, NEAR][number % 2]
        before = site.metric("zonewise_proxy_commits_total")
        await asyncio.to_thread(site.bed.nft, *damage)
        await site.move("web", _endpoints(expected))
        await site.reaches(address, *expected)
        assert site.metric("zonewise_proxy_commits_total") > before
    assert site.proxy.said("changed by others")


async def test_many_changes_at_once_are_few_transactions(site: Site) -> None:
    """While the proxy is stopped, or just busy, changes gather; then they are taken together."""
    services = {f"web-{number}": FAR[number % 3] for number in range(20)}
    addresses = {name: await site.serve(name, FAR) for name in services}
    await site.reaches(addresses["web-19"], *FAR)
    before = site.metric("zonewise_proxy_sync_seconds_count")
    assert site.proxy.process is not None
    site.proxy.process.send_signal(signal.SIGSTOP)
    try:
        for turn in range(CHANGES // len(services)):
            shown = FAR[turn % 3 :]
            await asyncio.gather(*(site.move(name, _endpoints(shown)) for name in services))
        await asyncio.gather(*(site.move(name, _endpoints([last])) for name, last in services.items()))
    finally:
        site.proxy.process.send_signal(signal.SIGCONT)
    asked = [{"address": addresses[name], "port": 80, "count": 3} for name in services]

    async def settled() -> bool:
        answers = await asyncio.to_thread(site.bed.ask, "out", *asked)
        return [{each.split()[0] for each in found} for found in answers] == [{last} for last in services.values()]

    await eventually(settled, "the last of all changes")
    syncs = site.metric("zonewise_proxy_sync_seconds_count") - before
    print(f"{CHANGES} changes in {syncs:.0f} syncs")
    assert syncs <= CHANGES / 10


async def test_hostile_services_harm_nobody_else(site: Site) -> None:
    """Long names, addresses that are others', the same endpoint again and again, ports without end."""
    address = await site.serve("web", FAR)
    thief = {"ports": PORTS, "externalIPs": [address, "198.51.100.1"]}
    await make_service(site, "thief", thief, ours=True)
    await make_slice(site, "thief", _endpoints(NEAR), ours=True)
    await make_service(site, "also-wants", {"ports": PORTS, "externalIPs": ["198.51.100.1"]}, ours=True)
    await make_slice(site, "also-wants", _endpoints(FAR), ours=True)
    twice = await site.serve("x" * 63, [FAR[0]] * 3 + [FAR[1]])
    many = [{"name": f"p{number}", "port": 1000 + number} for number in range(2000)]
    wide = str((await make_service(site, "wide", {"ports": many}, ours=True))["spec"]["clusterIP"])
    body = {
        "metadata": {"name": "wide-hand", "labels": {"kubernetes.io/service-name": "wide", **LABEL}},
        "addressType": "IPv4",
        "ports": [{"name": port["name"], "port": 8080} for port in many],
        "endpoints": _endpoints([FAR[2]]),
    }
    await site.client.create(ENDPOINT_SLICES.whole(), body, site.namespace)
    await site.reaches(wide, FAR[2], port=1000)
    await site.reaches(wide, FAR[2], port=2999)
    await site.reaches(address, *FAR)
    await site.reaches(twice, *FAR[:2])
    await site.reaches("198.51.100.1", *FAR)
    told = [line for line in site.proxy.log.read_text().splitlines() if "left out" in line and site.namespace in line]
    assert len([line for line in told if "thief" in line and address in line]) == 1, "one line says so"
    assert len([line for line in told if "198.51.100.1" in line]) == 1


def _capabilities(running: Running) -> set[int]:
    """All that it has, and all that it could ever get, as the kernel's numbers: CAP_NET_ADMIN is the twelfth."""
    assert running.process is not None
    status = Path("/proc", str(running.process.pid), "status").read_text().splitlines()
    held = {line.split()[0]: int(line.split()[1], 16) for line in status if line.startswith("Cap")}
    return {held[kind] for kind in ("CapEff:", "CapPrm:", "CapBnd:")}


async def test_it_runs_with_one_capability(site: Site) -> None:
    """And says what is missing without it."""
    assert _capabilities(site.proxy) == {1 << 12}
    address = await site.serve("web", FAR)
    await site.reaches(address, *FAR)
    powerless = ["setpriv", "--bounding-set=-all", "--inh-caps=-all", "--", *site.proxy.command()]
    argv = namespaces.command(site.proxy.namespace, powerless)
    tried = await asyncio.create_subprocess_exec(*argv, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE)
    said, complained = await tried.communicate()
    assert tried.returncode
    assert "CAP_NET_ADMIN" in (said + complained).decode()


async def test_a_zone_that_no_group_is_for_is_served_nevertheless(site: Site) -> None:
    """By the groups of other zones, which it then watches; a hard rule stays hard."""
    addresses = {}
    for strength in ("Prefer", "Require"):
        name, asked = strength.lower(), {"endpointslice.kubernetes.io/same-zone": strength}
        spec = {"ports": PORTS, "selector": {"app": "web"}}
        made = await make_service(site, name, spec, ours=True, annotations=asked)
        addresses[strength] = str(made["spec"]["clusterIP"])
        hinted = [endpoint(address, "b1", zones=["b"]) for address in FAR]
        await make_slice(site, name, hinted, ours=True)
        group = MergePatch({"metadata": {"labels": {"zonewise.dev/consumer": "b"}}})
        await site.client.patch(ENDPOINT_SLICES, f"{name}-hand", group, site.namespace)
    await asyncio.to_thread(site.proxy.stop)
    site.proxy.start()
    await site.reaches(addresses["Prefer"], *FAR)
    require = addresses["Require"]  # its rules may come a sync later
    await eventually(lambda: site.bed.knock("out", require) == ["refused"], "a hard rule stays hard")
