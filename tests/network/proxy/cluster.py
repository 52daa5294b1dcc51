"""A node proxy of ours on one node of a lab, pods that answer, and Services with slices made by hand."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from network.proxy.node import KNOCK
from support.lab.pods import Json, Pods, eventually
from support.process import wait_for
from zonewise.kube.client.client import Client
from zonewise.lab.network import namespaces
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES, SERVICES

LABEL = {"service.kubernetes.io/service-proxy-name": "zonewise"}
PORT = 8080
_WITH_LITTLE_POWER = ["setpriv", "--bounding-set=-all,+net_admin", "--inh-caps=-all", "--no-new-privs", "--"]
"""The only capability it should need."""
COMMAND = [sys.executable, "-c", "from zonewise.cli.main import main; main()", "proxy"]


def ask(namespace: str, requests: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """What came of each try of each request, all made at once from inside the namespace."""
    argv = namespaces.command(namespace, [sys.executable, str(KNOCK), "ask"])
    body = json.dumps(list(requests))
    done = subprocess.run(argv, input=body, capture_output=True, text=True, check=True, timeout=240)
    answers: list[list[str]] = json.loads(done.stdout)
    return answers


@dataclass
class Visit:
    """New connections all the time, when each began and what came of it."""

    tries: list[tuple[float, str]] = field(default_factory=list)

    @property
    def failures(self) -> list[tuple[float, str]]:
        return [(began, outcome) for began, outcome in self.tries if " " not in outcome]

    def longest_outage(self) -> float:
        """The longest time in which every new connection failed, in seconds: from the first to the next that did not."""
        longest, since = 0.0, None
        for began, outcome in self.tries:
            if since is not None:
                longest = max(longest, began - since)
            since = None if " " in outcome else since or began
        return longest


@contextmanager
def visiting(namespace: str, address: str, port: int = 80) -> Iterator[Visit]:
    """From inside the namespace, for as long as the block lasts; the visit is told after it."""
    argv = namespaces.command(namespace, [sys.executable, str(KNOCK), "visit", address, str(port)])
    visit = Visit()
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as visitor:
        try:
            yield visit
        finally:
            told, _ = visitor.communicate("", timeout=120)
    visit.tries = [(began, outcome) for began, outcome in json.loads(told)]


@dataclass
class Running:
    """A `zonewise proxy` inside a node; it may be killed and started again."""

    kubeconfig: Path
    node: str
    namespace: str
    log: Path
    more: tuple[str, ...] = ()
    process: subprocess.Popen[bytes] | None = field(default=None)

    def command(self) -> list[str]:
        flags = ["--node-name", self.node, "--kubeconfig", str(self.kubeconfig), "--health-port", "0"]
        return [*COMMAND, *flags, *self.more]

    def start(self) -> None:
        with self.log.open("ab") as log:
            command = namespaces.command(self.namespace, [*_WITH_LITTLE_POWER, *self.command()])
            self.process = subprocess.Popen(command, stderr=log, stdout=log)

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)

    def adopted(self) -> bool:
        """Whether the present process has its rules in place."""
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

    def said(self, words: str) -> bool:
        return words in self.log.read_text()


@contextmanager
def proxy_on(lab: Lab, pods: Pods, node: str, log: Path, *more: str) -> Iterator[Running]:
    with started(Running(lab.node_kubeconfig, node, pods.node(node).namespace, log, more)) as running:
        yield running


@contextmanager
def started(running: Running) -> Iterator[Running]:
    running.start()
    try:
        wait_for(running.adopted)
        yield running
    finally:
        if running.process is not None and running.process.poll() is None:
            running.stop()
        argv = [*COMMAND, "--cleanup"]
        namespaces.run(namespaces.command(running.namespace, argv))


async def answering(pods: Pods, name: str, node: str, **more: Any) -> Json:
    """A pod that answers on PORT, TCP and UDP."""
    env = [{"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}]
    ready = {"readinessProbe": {"tcpSocket": {"port": PORT}, "periodSeconds": 1}}
    command = ["python", str(KNOCK), "serve", f":{PORT}"]
    await pods.create(name, node, {"command": command, "env": env, **ready}, **more)
    return await pods.ready(name)


class Corner(Protocol):
    """Where a test makes its objects."""

    @property
    def client(self) -> Client: ...
    @property
    def namespace(self) -> str: ...


async def make_service(pods: Corner, name: str, spec: Json, *, ours: bool, annotations: Json | None = None) -> Json:
    vips = spec.get("vips", [])
    body = {
        "metadata": {"name": name, "labels": LABEL if ours else {}, "annotations": annotations or {}},
        "spec": {key: value for key, value in spec.items() if key != "vips"},
    }
    made = await pods.client.create(SERVICES.whole(), body, pods.namespace)
    if vips:
        made["status"] = {"loadBalancer": {"ingress": [{"ip": vip, "ipMode": "VIP"} for vip in vips]}}
        made = await pods.client.update(SERVICES.whole(), made, pods.namespace, subresource="status")
    return made


async def make_slice(
    pods: Corner, service: str, endpoints: Sequence[Json], *, ours: bool, protocol: str = "TCP"
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


async def served(namespace: str, address: str, port: int, what: str) -> None:
    async def check() -> bool:
        (tries,) = ask(namespace, [{"address": address, "port": port}])
        return tries[0] not in {"refused", "silence"} and " " in tries[0]

    await eventually(check, what)
