"""`zonewise proxy` as a process on a node of a real cluster, beside kube-proxy."""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from network.proxy.cluster import (
    LABEL,
    RunningProxy,
    connecting,
    create_server_pod,
    create_service,
    proxy_on,
    request_all,
    wait_served,
)
from network.proxy.node import SILENT
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
"""NFT_TABLE_F_OWNER: only the process that created the table may change it."""

HANDOVERS = 3
HOMES = {"here": NODE, "near": "zone-a-2", "far": "zone-b-1"}
PORTS = [{"name": "main", "port": 80, "targetPort": 8080}]


@pytest.fixture
async def backends(pods: Pods) -> dict[str, str]:
    """Pod names by address."""
    created = await asyncio.gather(
        *(create_server_pod(pods, name, node, labels={"app": "x"}) for name, node in HOMES.items())
    )
    return {pod["status"]["podIP"]: name for name, pod in zip(HOMES, created, strict=True)}


@pytest.fixture
async def proxy(lab: Lab, pods: Pods, tmp_path: Path) -> AsyncIterator[RunningProxy]:
    with proxy_on(lab, pods, NODE, tmp_path / "proxy.log", "--measure-traffic") as running:
        yield running


async def _service(pods: Pods, name: str, *, ours: bool = True, annotations: Json | None = None, **more: Any) -> Json:
    spec = {"selector": {"app": "x"}, "ports": PORTS, **more}
    return await create_service(pods, name, spec, ours=ours, annotations=annotations)


def _answering(namespace: str, address: str, backends: dict[str, str], count: int = 24) -> set[str]:
    (tries,) = request_all(namespace, [{"address": address, "port": 80, "count": count}])
    return {backends.get(answer.split()[0], answer) for answer in tries}


async def test_rules_follow_labels_policies_and_the_proxy_name(
    pods: Pods, backends: dict[str, str], proxy: RunningProxy
) -> None:
    node = proxy.namespace

    async def answers_from(address: str, *names: str) -> None:
        async def check() -> bool:
            return await asyncio.to_thread(_answering, node, address, backends) == set(names)

        await eventually(check, f"{address} leads to {names}: {proxy.log.read_text()}")

    required = await _service(pods, "zone", annotations={"endpointslice.kubernetes.io/same-zone": "Require"})
    await answers_from(required["spec"]["clusterIP"], "here", "near")
    keys = json.dumps(["zonewise.example/team"])
    by_label = await _service(pods, "team", annotations={"zonewise.dev/topology-keys": keys})
    await answers_from(by_label["spec"]["clusterIP"], "refused")
    for name in (NODE, "zone-b-1"):
        await _label(pods, name, "red")
    await answers_from(by_label["spec"]["clusterIP"], "here", "far")
    await _label(pods, NODE, "blue")
    await answers_from(by_label["spec"]["clusterIP"], "here")
    for name in (NODE, "zone-b-1"):
        await _label(pods, name, None)
    plain = await _service(pods, "plain", ours=False)
    await answers_from(plain["spec"]["clusterIP"], "here", "near", "far")
    await pods.client.patch(SERVICES, "plain", MergePatch({"metadata": {"labels": LABEL}}), pods.namespace)
    await eventually(lambda: _has(node, plain["spec"]["clusterIP"]), "our proxy serves the newly labelled Service")
    await answers_from(plain["spec"]["clusterIP"], "here", "near", "far")


async def _label(pods: Pods, node: str, value: str | None) -> None:
    await pods.client.patch(NODES, node, MergePatch({"metadata": {"labels": {"zonewise.example/team": value}}}))


async def _has(namespace: str, address: str) -> bool:
    return address in _served(namespace)


def _served(namespace: str) -> str:
    """By the Zonewise proxy."""
    return namespaces.run(namespaces.command(namespace, ["nft", "list", "map", "ip", "zonewise", "svc"]))


async def test_no_connection_fails_when_the_proxy_is_killed_and_restarted(
    pods: Pods, backends: dict[str, str], proxy: RunningProxy
) -> None:
    service = await _service(pods, "web")
    address = service["spec"]["clusterIP"]
    await wait_served(proxy.namespace, address, 80, "the Service")
    with connecting(proxy.namespace, address) as connections:
        for wait_seconds in (0.0, 0.3, 0.6, 0.9, 1.2):
            proxy.stop(signal.SIGKILL)
            proxy.start()
            await asyncio.sleep(wait_seconds)  # kill it at different stages of its start
        await eventually(_async(proxy.adopted), "it adopts")
        assert proxy.stop() == 0
        assert await _has(proxy.namespace, address), "the rules stay when it ends"
    assert len(connections.tries) > 100
    assert connections.failures == []


async def _until_served_by(proxy: RunningProxy, address: str, *, ours: bool) -> None:
    """The other proxy may serve it as well."""
    table = "zonewise" if ours else "kube-proxy"
    named = "svc" if ours else "service-ips"

    async def check() -> bool:
        listed = namespaces.run(namespaces.command(proxy.namespace, ["nft", "list", "map", "ip", table, named]))
        return address in listed

    await eventually(check, f"{table} serves it")


async def test_service_moves_between_the_proxies_by_label(
    pods: Pods, backends: dict[str, str], proxy: RunningProxy
) -> None:
    """New connections never fail for more than a second."""
    service = await _service(pods, "moving", ours=False)
    address = service["spec"]["clusterIP"]
    await wait_served(proxy.namespace, address, 80, "kube-proxy serves it")
    with connecting(proxy.namespace, address) as connections:
        for _ in range(HANDOVERS):
            for label, ours in ((LABEL, True), (dict.fromkeys(LABEL), False)):
                await pods.client.patch(SERVICES, "moving", MergePatch({"metadata": {"labels": label}}), pods.namespace)
                await _until_served_by(proxy, address, ours=ours)
                assert await _has(proxy.namespace, address), "our rules stay until kube-proxy has its own"
                await asyncio.sleep(2)  # until kube-proxy has removed or added it
    await eventually(_async(lambda: address not in _served(proxy.namespace)), "then they go")
    print(
        f"{len(connections.tries)} connections, {len(connections.failures)} failed, for {connections.longest_outage():.3f} s at most"
    )
    assert len(connections.tries) > 100
    assert connections.longest_outage() <= 1.0, connections.failures


async def test_external_ip_takes_no_cluster_ip_from_kube_proxy(
    pods: Pods, backends: dict[str, str], proxy: RunningProxy
) -> None:
    """A tenant's Service claims the cluster IP of a Service that kube-proxy serves. Ours comes before kube-proxy's rules."""
    victim = (await _service(pods, "victim", ours=False))["spec"]["clusterIP"]
    await wait_served(proxy.namespace, victim, 80, "kube-proxy serves it")
    thief = await _service(pods, "thief", selector={"app": "none"}, externalIPs=[victim])
    await eventually(_async(lambda: proxy.logged(victim)), "the claim is refused")
    await _until_rejected(proxy, thief["spec"]["clusterIP"])
    assert _answering(proxy.namespace, victim, backends) == set(HOMES)


async def test_external_ip_takes_no_traffic_of_a_pod(pods: Pods, backends: dict[str, str], proxy: RunningProxy) -> None:
    """Nothing listens on the pod's port 80, so an answer from there is a thief's."""
    victim = next(address for address, name in backends.items() if name == "far")
    thief = await _service(pods, "thief", externalIPs=[victim])
    await eventually(_async(lambda: proxy.logged(f"external address {victim}")), "the claim is refused")
    await wait_served(proxy.namespace, thief["spec"]["clusterIP"], 80, "the Service itself")
    assert _answering(proxy.namespace, victim, backends) == {"refused"}


async def test_external_ip_is_lost_to_a_node_that_joins_later(
    pods: Pods, backends: dict[str, str], proxy: RunningProxy
) -> None:
    """A tenant claims an address of the next node's pods. Neither the Service nor its slices change when the node joins."""
    claimed, joining = "10.250.7.9", f"joining-{pods.namespace}"
    await _service(pods, "early", externalIPs=[claimed])
    await wait_served(proxy.namespace, claimed, 80, "nobody else has the address yet")
    body = {"metadata": {"name": joining}, "spec": {"podCIDR": "10.250.7.0/24", "podCIDRs": ["10.250.7.0/24"]}}
    await pods.client.create(NODES, body)
    try:
        await eventually(_async(lambda: proxy.logged(f"external address {claimed}")), "the claim is refused")
        assert not await _has(proxy.namespace, claimed)
        (tries,) = request_all(proxy.namespace, [{"address": claimed, "port": 80, "count": 8, **SILENT}])
        assert not [answer for answer in tries if " " in answer], "no endpoint of the Service answers"
    finally:
        await pods.client.delete(NODES, joining)
    await wait_served(proxy.namespace, claimed, 80, "the node is gone")


async def _until_rejected(proxy: RunningProxy, address: str) -> None:
    async def check() -> bool:
        return _answering(proxy.namespace, address, {}, count=1) == {"refused"}

    await eventually(check, "our rules are in place")


async def test_deleted_table_is_restored(pods: Pods, backends: dict[str, str], proxy: RunningProxy) -> None:
    service = await _service(pods, "web")
    await wait_served(proxy.namespace, service["spec"]["clusterIP"], 80, "the Service")
    namespaces.run(namespaces.command(proxy.namespace, ["nft", "delete", "table", "ip", "zonewise"]))
    await wait_served(proxy.namespace, service["spec"]["clusterIP"], 80, "the Service again")
    assert proxy.logged("changed by others")


async def test_rejected_first_sync_is_retried(pods: Pods, backends: dict[str, str], proxy: RunningProxy) -> None:
    """The kernel rejects changes to a table owned by another process, until that process ends."""
    service = await _service(pods, "web")
    address = service["spec"]["clusterIP"]
    proxy.stop()
    namespaces.run(namespaces.command(proxy.namespace, ["nft", "delete", "table", "ip", TABLE]))
    with namespaces.inside(proxy.namespace, NftSocket) as other:
        other.commit([Message(MessageType.NEW_TABLE, IPV4.number, text(1, TABLE) + number(2, OWNED), CREATE)])
        proxy.start()
        await eventually(_async(lambda: proxy.logged("no rules could be set")), "a refusal")
    await eventually(_async(proxy.adopted), "rules in place")
    assert await _has(proxy.namespace, address), "of all Services"
    await wait_served(proxy.namespace, address, 80, "the Service")


async def test_health_check_node_port_reports_local_endpoints(
    pods: Pods, backends: dict[str, str], proxy: RunningProxy
) -> None:
    service = await _service(pods, "lb", type="LoadBalancer", externalTrafficPolicy="Local")
    port = service["spec"]["healthCheckNodePort"]

    def answers() -> Json:
        answer: Json = json.loads(fetch(proxy.namespace, f"http://127.0.0.1:{port}/"))
        return answer

    reply = await eventually(_safely(answers), "the port answers with an endpoint")
    assert reply["localEndpoints"] == 1
    assert reply["service"] == {"namespace": pods.namespace, "name": "lb"}


async def test_connections_and_bytes_are_counted_by_zone(
    pods: Pods, backends: dict[str, str], proxy: RunningProxy
) -> None:
    """UDP flows are deleted by hand, as their timeout is minutes."""
    spec = {"ports": [{"name": "main", "port": 53, "targetPort": 8080, "protocol": "UDP"}]}
    service = await _service(pods, "dns", **spec, sessionAffinity="ClientIP")
    address = service["spec"]["clusterIP"]

    async def reachable() -> bool:
        (tries,) = request_all(proxy.namespace, [{"address": address, "port": 53, "count": 5, "protocol": "UDP"}])
        return all(" " in answer for answer in tries)

    await eventually(reachable, "the Service answers")
    namespaces.run(namespaces.command(proxy.namespace, ["conntrack", "-D", "-p", "udp", "-d", address]))

    async def counted() -> str:
        lines = [line for line in proxy.metrics() if 'service="dns"' in line and pods.namespace in line]
        return " ".join(lines) if len(lines) >= 2 else ""

    counted_lines = await eventually(counted, "the flows are counted")
    assert 'client_zone="zone-a"' in counted_lines
    assert 'endpoint_zone="zone-' in counted_lines
    assert "zonewise_proxy_bytes_total" in counted_lines


def _async(holds: Callable[[], bool]) -> Callable[[], Any]:
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
