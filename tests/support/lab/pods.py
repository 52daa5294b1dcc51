"""Pods on namespace nodes for tests: create, wait, connect. Real processes, packets and API objects."""

from __future__ import annotations

import asyncio
import json
import socket
import time
import urllib.request
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import NotFound
from zonewise.lab.decide.addresses import NodePlan, pod_namespace_of
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab
from zonewise.objects import PODS

Json = dict[str, Any]
DEADLINE_SECONDS = 120.0
SHOP = ["python", "-m", "zonewise.lab.demo.shop"]
SHOP_PORT = 8080


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
        body = {
            "metadata": {"name": name, "labels": labels or {}},
            "spec": {"nodeName": node, "containers": [{"name": "main", "image": "none", **container}], **spec},
        }
        return await self.client.create(PODS.whole(), body, self.namespace)

    async def shop(self, name: str, node: str, container: Json | None = None, **more: Any) -> Json:
        """Create a pod that serves HTTP and wait until it is ready."""
        ready = {"readinessProbe": {"httpGet": {"path": "/healthz", "port": SHOP_PORT}, "periodSeconds": 1}}
        fields = {
            "POD": "metadata.name",
            "NODE": "spec.nodeName",
            "ZONE": "metadata.labels['topology.kubernetes.io/zone']",
        }
        env = [{"name": key, "valueFrom": {"fieldRef": {"fieldPath": path}}} for key, path in fields.items()]
        await self.create(name, node, {"command": SHOP, "env": env, **ready, **(container or {})}, **more)
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

    async def released(self, pod: Json) -> None:
        """Wait until the pod's network namespace, and every process in it, is gone from its node."""

        async def check() -> bool:
            return not namespaces.path(self.inside(pod)).exists()

        await eventually(check, f"the network of pod {pod['metadata']['name']} is removed")

    async def delete(self, name: str, grace_seconds: int | None = None) -> None:
        await self.client.delete(PODS, name, self.namespace, grace_seconds=grace_seconds)

    def log(self, name: str) -> str:
        path = nodes.log_path(self.lab, f"{self.namespace}/{name}")
        return path.read_text() if path.exists() else ""

    async def logged(self, name: str, text: str) -> None:
        async def check() -> bool:
            return text in self.log(name)

        await eventually(check, f"pod {name} says {text!r}")

    def node(self, name: str) -> NodePlan:
        return nodes.plan_of(self.lab).node(name)

    def inside(self, pod: Json) -> str:
        return pod_namespace_of(self.lab.name, pod["metadata"]["uid"])


def condition(pod: Json, kind: str) -> str:
    return next((c["status"] for c in pod["status"].get("conditions", ()) if c["type"] == kind), "absent")


def main_status(pod: Json) -> Json:
    statuses: list[Json] = pod["status"].get("containerStatuses", [])
    return statuses[0] if statuses else {"state": {}, "restartCount": 0}


def addresses(pod: Json) -> list[str]:
    return [entry["ip"] for entry in pod["status"]["podIPs"]]


def connects(namespace: str, address: str, port: int = SHOP_PORT, timeout_seconds: float = 30.0) -> bool:
    """Whether a TCP connection from inside the namespace is accepted."""

    def attempt() -> bool:
        try:
            socket.create_connection((address, port), timeout_seconds).close()
        except OSError:
            return False
        return True

    return namespaces.inside(namespace, attempt)


def fetch(namespace: str, url: str) -> Json:
    """JSON response to a GET from inside the namespace."""

    def get() -> Json:
        with urllib.request.urlopen(url, timeout=30) as response:
            value: Json = json.load(response)
        return value

    return namespaces.inside(namespace, get)
