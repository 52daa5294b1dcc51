"""Pods of a lab for tests: create, wait, connect. Real containers, packets and API objects."""

from __future__ import annotations

import asyncio
import socket
import time
import urllib.request
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import NotFound
from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab
from zonewise.objects import PODS

Json = dict[str, Any]
DEADLINE_SECONDS = 120.0
IMAGE = "busybox:1"
PORT = 8080
SLEEPER: Json = {"command": ["sleep", "3600"]}
SERVER: Json = {
    "command": ["sh", "-c", f"mkdir /www; echo $POD >/www/index.html; echo serving; exec httpd -f -p {PORT} -h /www"],
    "env": [{"name": "POD", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}],
    "readinessProbe": {"httpGet": {"path": "/", "port": PORT}, "periodSeconds": 1},
}
"""Answers with the pod's name."""
_GRACE_SECONDS = 1
"""What runs as process 1 of a container without a handler for SIGTERM ignores it."""
_NODE = "/node"


async def eventually(check: Callable[[], Awaitable[Any]], description: str) -> Any:
    """First true value of `check`, polled; fails with the last value after the deadline."""
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not (value := await check()):
        assert time.monotonic() < deadline, f"not within {DEADLINE_SECONDS} s: {description} (last value: {value!r})"
        await asyncio.sleep(0.1)
    return value


@dataclass(frozen=True, slots=True)
class Pods:
    """The pods of one test, in its namespace."""

    lab: Lab
    client: Client
    namespace: str

    async def create(self, name: str, node: str, container: Json, *, labels: Json | None = None, **spec: Any) -> Json:
        main = {"name": "main", "image": IMAGE, **container}
        body = {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": _GRACE_SECONDS,
                "containers": [main],
                **spec,
            },
        }
        return await self.client.create(PODS.whole(), body, self.namespace)

    async def serve(self, name: str, node: str, **more: Any) -> Json:
        """Create a pod that serves HTTP and wait until it is ready."""
        await self.create(name, node, SERVER, **more)
        return await self.ready(name)

    async def run(self, name: str, node: str, argv: Sequence[str], container: Json, **more: Any) -> Json:
        """Create a pod that runs a program of this machine, in the file system of its node, and wait until it is ready."""
        mount = {"name": "node", "mountPath": _NODE}
        program = {"command": ["chroot", _NODE, *argv], "volumeMounts": [mount], **container}
        await self.create(name, node, program, volumes=[{"name": "node", "hostPath": {"path": "/"}}], **more)
        return await self.ready(name)

    async def get(self, name: str) -> Json:
        return await self.client.get(PODS.whole(), name, self.namespace)

    async def when(self, name: str, holds: Callable[[Json], Any], description: str) -> Json:
        async def check() -> Json | None:
            pod = await self.get(name)
            return pod if holds(pod) else None

        return await eventually(check, f"pod {name} {description}")

    async def ready(self, name: str) -> Json:
        return await self.when(name, lambda pod: condition(pod, "Ready") == "True", "is ready")

    async def gone(self, name: str) -> None:
        async def check() -> bool:
            try:
                await self.get(name)
            except NotFound:
                return True
            return False

        await eventually(check, f"pod {name} is gone")

    async def delete(self, name: str, grace_seconds: int | None = None) -> None:
        await self.client.delete(PODS, name, self.namespace, grace_seconds=grace_seconds)

    def node(self, name: str) -> NodePlan:
        return nodes.plan_of(self.lab).node(name)

    def inside(self, pod: Json) -> str:
        """The pod's network namespace, by the process that holds it: `namespaces` takes a path in the place of a name."""
        metadata = pod["metadata"]
        for process in Path("/proc").glob("[0-9]*"):
            try:
                holds = (process / "comm").read_text() == "pause\n"
                if holds and f"/pod{metadata['uid']}/" in (process / "cgroup").read_text():
                    return str(process / "ns/net")
            except OSError:  # it has ended
                continue
        raise AssertionError(f"pod {metadata['name']} does not run")


def condition(pod: Json, kind: str) -> str:
    return next((c["status"] for c in pod["status"].get("conditions", ()) if c["type"] == kind), "absent")


def main_status(pod: Json) -> Json:
    status: Json = pod["status"]["containerStatuses"][0]
    return status


def addresses(pod: Json) -> list[str]:
    return [entry["ip"] for entry in pod["status"]["podIPs"]]


def connects(namespace: str, address: str, port: int = PORT, timeout_seconds: float = 30.0) -> bool:
    """Whether a TCP connection from inside the namespace is accepted."""

    def attempt() -> bool:
        try:
            socket.create_connection((address, port), timeout_seconds).close()
        except OSError:
            return False
        return True

    return namespaces.inside(namespace, attempt)


def fetch(namespace: str, url: str) -> str:
    """Response to a GET from inside the namespace."""

    def get() -> str:
        with urllib.request.urlopen(url, timeout=30) as response:
            text: str = response.read().decode()
        return text.strip()

    return namespaces.inside(namespace, get)
