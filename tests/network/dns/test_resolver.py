"""The server as pods of the lab, queried by glibc's resolver from pods in three zones, through their search path.

Once behind a Service, as a replacement of CoreDNS, and once on every node, behind a Service with local traffic policy.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from support.lab.pods import SLEEPER, Json, Pods, addresses, eventually
from zonewise.kube.wire.patch import MergePatch
from zonewise.lab.network import namespaces
from zonewise.objects import NODES, SERVICES

ZONE = "topology.kubernetes.io/zone"
KEYS = "zonewise.dev/topology-keys"
RULES = {"soft": f'["{ZONE}", "*"]', "hard": f'["{ZONE}"]'}
NOT_FOUND = 2
"""Exit code of getent for a name without an address."""


class Resolver:
    """glibc in a pod's network namespace, with its own resolv.conf mounted over the machine's."""

    def __init__(self, pods: Pods, pod: Json, config: Path) -> None:
        self._namespace = pods.inside(pod)
        self._config = config

    async def ask(self, name: str) -> set[str]:
        script = f"mount --bind {self._config} /etc/resolv.conf && exec getent ahostsv4 {name}"
        command = namespaces.command(self._namespace, ["unshare", "--mount", "sh", "-c", script])
        done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=120)
        assert done.returncode in {0, NOT_FOUND}, done.stderr
        return {line.split()[0] for line in done.stdout.splitlines()}

    async def until(self, name: str, expected: set[str]) -> None:
        async def check() -> bool:
            return await self.ask(name) == expected

        await eventually(check, f"{name} is {expected}")


def command(pods: Pods) -> list[str]:
    run = "from zonewise.cli.main import main; main()"
    options = ["--no-forward", "--processes", "1", "--health-port", "9153", "--lameduck-seconds", "0"]
    return [sys.executable, "-c", run, "dns", "--kubeconfig", str(pods.lab.node_kubeconfig), *options]


async def serve(pods: Pods, nodes: list[str], **service: Any) -> str:
    """Servers on these nodes behind one Service; its cluster IP."""
    ports = [{"name": kind.lower(), "protocol": kind, "port": 53} for kind in ("UDP", "TCP")]
    body = {"metadata": {"name": "dns"}, "spec": {"selector": {"app": "dns"}, "ports": ports, **service}}
    created = await pods.client.create(SERVICES, body, pods.namespace)
    ready = {"readinessProbe": {"httpGet": {"path": "/readyz", "port": 9153}, "periodSeconds": 1}}
    for node in nodes:
        await pods.run(f"dns-{node}", node, command(pods), ready, labels={"app": "dns"})
    return created.spec.cluster_ip


async def databases(pods: Pods) -> tuple[set[str], set[str]]:
    """Headless Services with a soft and a hard rule, and their endpoints in zone-a and zone-b."""
    for name, keys in RULES.items():
        body = {
            "metadata": {"name": name, "annotations": {KEYS: keys}},
            "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 8080}]},
        }
        await pods.client.create(SERVICES, body, pods.namespace)
    a, b = [await pods.serve(f"db-{zone}", f"zone-{zone}-1", labels={"app": "db"}) for zone in "ab"]
    return {addresses(a)[0]}, {addresses(b)[0]}


async def resolvers(pods: Pods, server: str, directory: Path, zones: str) -> list[Resolver]:
    config = directory / "resolv.conf"
    search = f"{pods.namespace}.svc.cluster.local svc.cluster.local cluster.local"
    config.write_text(f"nameserver {server}\nsearch {search}\noptions ndots:5 timeout:10\n")
    for zone in zones:
        await pods.create(f"client-{zone}", f"zone-{zone}-1", SLEEPER)
    return [Resolver(pods, await pods.ready(f"client-{zone}"), config) for zone in zones]


async def test_pods_resolve_by_zone_follow_relabelled_nodes_and_fall_back(pods: Pods, tmp_path: Path) -> None:
    server = await serve(pods, ["zone-a-2"])
    of_a, of_b = await databases(pods)
    a, b, c = await resolvers(pods, server, tmp_path, "abc")

    for name, from_c in (("soft", of_a | of_b), ("hard", set[str]())):
        await c.until(name, from_c)
        await a.until(name, of_a)
        await b.until(name, of_b)
    assert await c.ask(f"soft.{pods.namespace}.svc.cluster.local.") == of_a | of_b

    await _label(pods, "zone-c-1", "zone-b")
    try:
        await c.until("hard", of_b)
        await c.until("soft", of_b)
    finally:
        await _label(pods, "zone-c-1", "zone-c")
    await pods.delete("db-b", grace_seconds=0)
    await b.until("soft", of_a)
    await b.until("hard", set())


async def test_with_a_server_per_node_clients_use_their_own(pods: Pods, tmp_path: Path) -> None:
    server = await serve(pods, ["zone-a-1", "zone-b-1"], internalTrafficPolicy="Local")
    of_a, of_b = await databases(pods)
    a, b = await resolvers(pods, server, tmp_path, "ab")
    for name in RULES:
        await a.until(name, of_a)
        await b.until(name, of_b)
    for zone in "ab":
        zones = await eventually(
            lambda zone=zone: _zones_with_queries(pods, f"dns-zone-{zone}-1"), "queries are counted"
        )
        assert zones == {f"zone-{zone}"}, "no client of another node queries this server"


async def _zones_with_queries(pods: Pods, name: str) -> set[str]:
    """Zones of a server's clients, from its metrics."""
    pod = await pods.get(name)

    def get() -> str:
        with urllib.request.urlopen("http://127.0.0.1:9153/metrics", timeout=30) as response:
            return str(response.read().decode())

    text = await asyncio.to_thread(namespaces.inside, pods.inside(pod), get)
    lines = [line for line in text.splitlines() if line.startswith("zonewise_dns_queries_total{")]
    return {line.split('"')[1] for line in lines if float(line.rsplit(" ", 1)[1]) > 0}


async def _label(pods: Pods, node: str, zone: str) -> None:
    await pods.client.patch(NODES, node, MergePatch({"metadata": {"labels": {ZONE: zone}}}))
