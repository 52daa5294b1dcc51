"""`zonewise proxy` as a process on a node of a real cluster, beside kube-proxy."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from network.proxy.cluster import LABEL, Running, answering, ask, make_service, proxy_on, served, visiting
from support.lab.pods import Json, Pods, eventually, fetch
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.network import namespaces
from zonewise.lab.state import Lab
from zonewise.objects import NODES, SERVICES
from zonewise.proxy.nft_socket import NftSocket
from zonewise.proxy.wire.family import IPV4
from zonewise.proxy.wire.layout import TABLE
from zonewise.proxy.wire.netlink import CREATE, Message, MessageType, number, text

NODE = "zone-a-1"
OWNED = 2
"""The kernel's flag for a table that its maker alone may change."""

MOVES = 3
HOMES = {"here": NODE, "near": "zone-a-2", "far": "zone-b-1"}
PORTS = [{"name": "main", "port": 80, "targetPort": 8080}]


@pytest.fixture
async def backends(pods: Pods) -> dict[str, str]:
    """Pods by the addresses that they answer under."""
    made = await asyncio.gather(*(answering(pods, name, node, labels={"app": "x"}) for name, node in HOMES.items()))
    return {pod["status"]["podIP"]: name for name, pod in zip(HOMES, made, strict=True)}


@pytest.fixture
async def proxy(lab: Lab, pods: Pods, tmp_path: Path) -> AsyncIterator[Running]:
    with proxy_on(lab, pods, NODE, tmp_path / "proxy.log", "--measure-traffic") as running:
        yield running


async def _service(pods: Pods, name: str, *, ours: bool = True, annotations: Json | None = None, **more: Any) -> Json:
    spec = {"selector": {"app": "x"}, "ports": PORTS, **more}
    return await make_service(pods, name, spec, ours=ours, annotations=annotations)


def _seen(namespace: str, address: str, backends: dict[str, str], count: int = 24) -> set[str]:
    (tries,) = ask(namespace, [{"address": address, "port": 80, "count": count}])
    return {backends.get(each.split()[0], each) for each in tries}


async def test_rules_follow_labels_policies_and_the_proxy_s_name(
    pods: Pods, backends: dict[str, str], proxy: Running
) -> None:
    node = proxy.namespace

    async def sees(address: str, *names: str) -> None:
        async def check() -> bool:
            return await asyncio.to_thread(_seen, node, address, backends) == set(names)

        await eventually(check, f"{address} leads to {names}: {proxy.log.read_text()}")

    required = await _service(pods, "zone", annotations={"endpointslice.kubernetes.io/same-zone": "Require"})
    await sees(required["spec"]["clusterIP"], "here", "near")
    keys = json.dumps(["zonewise.example/team"])
    by_label = await _service(pods, "team", annotations={"zonewise.dev/topology-keys": keys})
    await sees(by_label["spec"]["clusterIP"], "refused")
    for name in (NODE, "zone-b-1"):
        await _label(pods, name, "red")
    await sees(by_label["spec"]["clusterIP"], "here", "far")
    await _label(pods, NODE, "blue")
    await sees(by_label["spec"]["clusterIP"], "here")
    for name in (NODE, "zone-b-1"):
        await _label(pods, name, None)
    plain = await _service(pods, "plain", ours=False)
    await sees(plain["spec"]["clusterIP"], "here", "near", "far")
    await pods.client.patch(SERVICES, "plain", MergePatch({"metadata": {"labels": LABEL}}), pods.namespace)
    await eventually(lambda: _has(node, plain["spec"]["clusterIP"]), "ours serves the Service that got the label")
    await sees(plain["spec"]["clusterIP"], "here", "near", "far")


async def _label(pods: Pods, node: str, value: str | None) -> None:
    await pods.client.patch(NODES, node, MergePatch({"metadata": {"labels": {"zonewise.example/team": value}}}))


async def _has(namespace: str, address: str) -> bool:
    listed = namespaces.run(namespaces.command(namespace, ["nft", "list", "map", "ip", "zonewise", "svc"]))
    return address in listed


async def test_no_connection_fails_when_the_proxy_is_killed_and_started_again(
    pods: Pods, backends: dict[str, str], proxy: Running
) -> None:
    service = await _service(pods, "web")
    address = service["spec"]["clusterIP"]
    await served(proxy.namespace, address, 80, "the Service")
    with visiting(proxy.namespace, address) as visit:
        for wait_seconds in (0.0, 0.3, 0.6, 0.9, 1.2):
            proxy.stop(signal.SIGKILL)
            proxy.start()
            await asyncio.sleep(wait_seconds)  # killed at different moments of its start
        await eventually(_word(proxy.adopted), "it adopts")
        assert proxy.stop() == 0
        assert await _has(proxy.namespace, address), "the rules stay when it ends"
    assert len(visit.tries) > 100
    assert visit.failures == []


async def _until_served_by(proxy: Running, address: str, *, ours: bool) -> None:
    """Whoever else serves it, too."""
    table = "zonewise" if ours else "kube-proxy"
    named = "svc" if ours else "service-ips"

    async def check() -> bool:
        listed = namespaces.run(namespaces.command(proxy.namespace, ["nft", "list", "map", "ip", table, named]))
        return address in listed

    await eventually(check, f"{table} serves it")


async def test_a_service_moves_between_the_proxies_and_back(
    pods: Pods, backends: dict[str, str], proxy: Running
) -> None:
    """By its label alone, while others come and go: at no time do new connections fail for more than a second."""
    service = await _service(pods, "moving", ours=False)
    address = service["spec"]["clusterIP"]
    await served(proxy.namespace, address, 80, "kube-proxy serves it")
    with visiting(proxy.namespace, address) as visit:
        for _ in range(MOVES):
            for label, ours in ((LABEL, True), (dict.fromkeys(LABEL), False)):
                await pods.client.patch(SERVICES, "moving", MergePatch({"metadata": {"labels": label}}), pods.namespace)
                await _until_served_by(proxy, address, ours=ours)
                await asyncio.sleep(2)  # until kube-proxy has let go, or taken over
    print(f"{len(visit.tries)} connections, {len(visit.failures)} failed, for {visit.longest_outage():.3f} s at most")
    assert len(visit.tries) > 100
    assert visit.longest_outage() <= 1.0, visit.failures


async def test_a_deleted_table_comes_back(pods: Pods, backends: dict[str, str], proxy: Running) -> None:
    service = await _service(pods, "web")
    await served(proxy.namespace, service["spec"]["clusterIP"], 80, "the Service")
    namespaces.run(namespaces.command(proxy.namespace, ["nft", "delete", "table", "ip", "zonewise"]))
    await served(proxy.namespace, service["spec"]["clusterIP"], 80, "the Service again")
    assert proxy.said("changed by others")


async def test_what_the_kernel_refuses_at_the_start_is_said_again(
    pods: Pods, backends: dict[str, str], proxy: Running
) -> None:
    """A table that belongs to another process can't be changed by us until that is gone, and the table with it."""
    service = await _service(pods, "web")
    address = service["spec"]["clusterIP"]
    proxy.stop()
    namespaces.run(namespaces.command(proxy.namespace, ["nft", "delete", "table", "ip", TABLE]))
    with namespaces.inside(proxy.namespace, NftSocket) as other:
        other.commit([Message(MessageType.NEW_TABLE, IPV4.number, text(1, TABLE) + number(2, OWNED), CREATE)])
        proxy.start()
        await eventually(_word(lambda: proxy.said("no rules could be set")), "a refusal")
    await eventually(_word(proxy.adopted), "rules in place")
    assert await _has(proxy.namespace, address), "of all Services"
    await served(proxy.namespace, address, 80, "the Service")


async def test_health_check_node_ports_tell_of_local_endpoints(
    pods: Pods, backends: dict[str, str], proxy: Running
) -> None:
    made = await _service(pods, "lb", type="LoadBalancer", externalTrafficPolicy="Local")
    port = made["spec"]["healthCheckNodePort"]

    def answers() -> Json:
        return fetch(proxy.namespace, f"http://127.0.0.1:{port}/")

    said = await eventually(_safely(answers), "the port answers with an endpoint")
    assert said["localEndpoints"] == 1
    assert said["service"] == {"namespace": pods.namespace, "name": "lb"}


async def test_connections_and_bytes_are_counted_by_zone(pods: Pods, backends: dict[str, str], proxy: Running) -> None:
    """UDP flows end when the kernel is told to forget them, not minutes later."""
    spec = {"ports": [{"name": "main", "port": 53, "targetPort": 8080, "protocol": "UDP"}]}
    made = await _service(pods, "dns", **spec, sessionAffinity="ClientIP")
    address = made["spec"]["clusterIP"]

    async def asked() -> bool:
        (tries,) = ask(proxy.namespace, [{"address": address, "port": 53, "count": 5, "protocol": "UDP"}])
        return all(" " in each for each in tries)

    await eventually(asked, "the Service answers")
    namespaces.run(namespaces.command(proxy.namespace, ["conntrack", "-D", "-p", "udp", "-d", address]))

    async def counted() -> str:
        lines = [line for line in proxy.metrics() if 'service="dns"' in line and pods.namespace in line]
        return " ".join(lines) if len(lines) >= 2 else ""

    found = await eventually(counted, "the flows are counted")
    assert 'client_zone="zone-a"' in found
    assert 'endpoint_zone="zone-' in found
    assert "zonewise_proxy_bytes_total" in found


def _word(holds: Callable[[], bool]) -> Callable[[], Any]:
    async def check() -> bool:
        return holds()

    return check


def _safely(get: Callable[[], Json]) -> Callable[[], Any]:
    async def attempt() -> Json | None:
        try:
            return await asyncio.to_thread(get)
        except OSError:
            return None

    return attempt
