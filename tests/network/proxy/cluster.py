"""A `zonewise proxy` on one lab node, server pods, and Services with handwritten slices."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, Protocol

from network.proxy.node import CONNECT
from support.lab.pods import PORT, Json, Pods, eventually
from support.process import wait_for
from zonewise.kube.client.client import Client
from zonewise.lab.network import namespaces
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES, SERVICES

LABEL = {"service.kubernetes.io/service-proxy-name": "zonewise"}
_NET_ADMIN_ONLY = ["setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs", "--"]
"""CAP_NET_ADMIN is the only capability that the proxy needs."""
COMMAND = [sys.executable, "-c", "from zonewise.cli.main import main; main()", "proxy"]


def request_all(namespace: str, requests: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """The outcome of each attempt of each request, all sent at once from the namespace."""
    argv = namespaces.command(namespace, [sys.executable, str(CONNECT), "ask"])
    body = json.dumps(list(requests))
    done = subprocess.run(argv, input=body, capture_output=True, text=True, check=True, timeout=240)
    answers: list[list[str]] = json.loads(done.stdout)
    return answers


@dataclass
class ConnectionLog:
    """Continuous new connections: the start time and outcome of each."""

    tries: list[tuple[float, str]] = field(default_factory=list)

    @property
    def failures(self) -> list[tuple[float, str]]:
        return [(began, outcome) for began, outcome in self.tries if " " not in outcome]

    def longest_outage(self) -> float:
        """The longest period without a successful connection, in seconds."""
        longest, since = 0.0, None
        for began, outcome in self.tries:
            if since is not None:
                longest = max(longest, began - since)
            since = None if " " in outcome else since or began
        return longest

    def outcome(self, fault: str, rounds: int) -> dict[str, Any]:
        """A row of the report of faults."""
        worked = [began for began, outcome in self.tries if " " in outcome]
        gap = max((later - before for before, later in pairwise(worked)), default=0.0)
        lost = len(self.failures)
        facts = {"requests": len(self.tries), "what": "connections", "lost": lost, "gap_seconds": gap}
        return {"component": "proxy", "fault": fault, "rounds": rounds, **facts}


@contextmanager
def connecting(namespace: str, address: str, port: int = 80) -> Iterator[ConnectionLog]:
    """Connect from the namespace for the duration of the block; the log is filled at its end."""
    argv = namespaces.command(namespace, [sys.executable, str(CONNECT), "visit", address, str(port)])
    connections = ConnectionLog()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as program:
        try:
            yield connections
        finally:
            output, _ = program.communicate("", timeout=120)
    connections.tries = [(began, outcome) for began, outcome in json.loads(output)]


@dataclass
class RunningProxy:
    """A `zonewise proxy` process in a node's namespace, which can be killed and restarted."""

    kubeconfig: Path
    node: str
    namespace: str
    log: Path
    flags: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None)

    def command(self) -> list[str]:
        flags = ["--node-name", self.node, "--kubeconfig", str(self.kubeconfig), "--health-port", "0"]
        return [*COMMAND, *flags, *self.flags]

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = namespaces.command(self.namespace, [*_NET_ADMIN_ONLY, *self.command()])
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def adopted(self) -> bool:
        """Whether the current process has its rules in place."""
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        _, started, since = self.log.read_text().rpartition(f"pid={self.process.pid} ")
        return bool(started) and "rules in place" in since

    def metrics(self) -> list[str]:
        port = self.log.read_text().rpartition("health_port=")[2].split()[0]

        def get() -> str:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                text: str = answer.read().decode()
            return text

        return [line for line in namespaces.inside(self.namespace, get).splitlines() if not line.startswith("#")]

    def logged(self, text: str) -> bool:
        return text in self.log.read_text()


@contextmanager
def proxy_on(lab: Lab, pods: Pods, node: str, log: Path, *flags: str) -> Iterator[RunningProxy]:
    with started(RunningProxy(lab.node_kubeconfig, node, pods.node(node).namespace, log, flags)) as running:
        yield running


@contextmanager
def started(running: RunningProxy) -> Iterator[RunningProxy]:
    running.start()
    try:
        wait_for(running.adopted)
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.stop()
        argv = [*COMMAND, "--cleanup"]
        namespaces.run(namespaces.command(running.namespace, argv))


async def create_server_pod(pods: Pods, name: str, node: str, **flags: Any) -> Json:
    """A pod that serves on PORT, TCP and UDP."""
    argv = [sys.executable, "-c", CONNECT.read_text(), "serve", f":{PORT}"]  # the node may not have the file
    container = {
        "env": [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}],
        "readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1},
    }
    return await pods.run(name, node, argv, container, **flags)


class HasNamespace(Protocol):
    """A client with the namespace of a test."""

    @property
    def client(self) -> Client: ...
    @property
    def namespace(self) -> str: ...


async def create_service(
    pods: HasNamespace, name: str, spec: Json, *, ours: bool, annotations: Json | None = None
) -> Json:
    vips = spec.get("vips", [])
    body = {
        "metadata": {"name": name, "labels": LABEL if ours else {}, "annotations": annotations or {}},
        "spec": {key: value for key, value in spec.items() if key != "vips"},
    }
    created = await pods.client.create(SERVICES.whole(), body, pods.namespace)
    if vips:
        created["status"] = {"loadBalancer": {"ingress": [{"ip": vip, "ipMode": "VIP"} for vip in vips]}}
        created = await pods.client.update(SERVICES.whole(), created, pods.namespace, subresource="status")
    return created


async def create_slice(
    pods: HasNamespace, service: str, endpoints: Sequence[Json], *, ours: bool, protocol: str = "TCP"
) -> None:
    body = {
        "metadata": {
            "name": f"{service}-hand",
            "labels": {"kubernetes.io/service-name": service, **(LABEL if ours else {})},
        },
        "addressType": "IPv4",
        "ports": [{"name": "main", "port": PORT, "protocol": protocol}],
        "endpoints": list(endpoints),
    }
    await pods.client.create(ENDPOINT_SLICES.whole(), body, pods.namespace)


async def wait_served(namespace: str, address: str, port: int, description: str) -> None:
    async def check() -> bool:
        (tries,) = request_all(namespace, [{"address": address, "port": port}])
        return tries[0] not in {"refused", "silence"} and " " in tries[0]

    await eventually(check, description)
