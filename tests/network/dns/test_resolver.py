"""The server as a pod of the lab, asked by glibc's own resolver from pods in three zones, through their search path."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path
from typing import Any

from dns_server import ZONEWISE
from lab_pods import Json, Pods, addresses, eventually
from zonewise.kube.patch import MergePatch
from zonewise.lab import namespaces
from zonewise.objects import NODES, SERVICES

ZONE = "topology.kubernetes.io/zone"
KEYS = "zonewise.dev/topology-keys"
RULES = {"soft": f'["{ZONE}", "*"]', "hard": f'["{ZONE}"]'}
NOT_FOUND = 2
"""What getent says of a name without an address."""


class Resolver:
    """A pod's view of the world: glibc with a resolv.conf of its own, mounted over the machine's."""

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


async def test_pods_resolve_to_their_own_zone_follow_their_node_and_fall_back(pods: Pods, tmp_path: Path) -> None:
    container: dict[str, Any] = {
        "command": ["python", str(ZONEWISE), "dns", "--kubeconfig", str(pods.lab.node_kubeconfig), "--no-forward",
                    "--processes", "1", "--metrics-port", "9153", "--lameduck-seconds", "0"],
        "readinessProbe": {"httpGet": {"path": "/readyz", "port": 9153}, "periodSeconds": 1},
    }  # fmt: skip
    for name, keys in RULES.items():
        body = {
            "metadata": {"name": name, "annotations": {KEYS: keys}},
            "spec": {"clusterIP": "None", "selector": {"app": "db"}, "ports": [{"port": 8080}]},
        }
        await pods.client.create(SERVICES, body, pods.namespace)
    await pods.create("dns", "zone-a-2", container)
    in_a, in_b = [await pods.shop(f"db-{zone}", f"zone-{zone}-1", labels={"app": "db"}) for zone in "ab"]
    server = await pods.ready("dns")
    config = tmp_path / "resolv.conf"
    search = f"{pods.namespace}.svc.cluster.local svc.cluster.local cluster.local"
    config.write_text(f"nameserver {addresses(server)[0]}\nsearch {search}\noptions ndots:5 timeout:10\n")
    for zone in "abc":
        await pods.create(f"client-{zone}", f"zone-{zone}-1", {"command": ["sleep", "3600"]})
    a, b, c = [Resolver(pods, await pods.ready(f"client-{zone}"), config) for zone in "abc"]
    of_a, of_b = {addresses(in_a)[0]}, {addresses(in_b)[0]}

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


async def _label(pods: Pods, node: str, zone: str) -> None:
    await pods.client.patch(NODES, node, MergePatch({"metadata": {"labels": {ZONE: zone}}}))
