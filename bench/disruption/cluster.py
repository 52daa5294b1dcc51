"""The benchmark's control plane: stock controllers, kwok nodes in three zones, an audit log, and our programs."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane import controlplane
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.nodes import kwok
from zonewise.objects import NODES, Resource

T = TypeVar("T")

ZONES: Final = ("zone-a", "zone-b", "zone-c")
KWOK_NODES: Final = 60
CONTROLLERS: Final = ",".join(
    f"{name}-controller"
    for name in (
        *("deployment", "replicaset", "statefulset", "disruption", "garbage-collector", "namespace"),
        *("serviceaccount", "node-lifecycle"),
    )
)
LEADER, WEBHOOK = "zonewise-leader", "zonewise-webhook"
BUDGETS: Resource[dict[str, Any]] = Resource(
    dict[str, Any], "TopologyDisruptionBudget", "topologydisruptionbudgets", "zonewise.dev", "v1alpha1"
)
_MANIFEST: Final = Path(__file__).parents[2] / "deploy" / "tdb.yaml"
_TIMEOUT_SECONDS: Final = 1800.0
_CONCURRENCY: Final = 32


@dataclass(frozen=True)
class Call:
    user: str
    verb: str
    resource: str
    code: int

    @property
    def is_write(self) -> bool:
        return self.verb not in {"get", "list", "watch"}


@dataclass(frozen=True)
class Cluster:
    plane: ControlPlane
    client: Client
    folder: Path

    @property
    def audit_log(self) -> Path:
        return self.folder / "audit.log"

    def mark(self) -> int:
        """The current end of the audit log."""
        return self.audit_log.stat().st_size

    def calls(self, since: int, namespace: str) -> list[Call]:
        with self.audit_log.open() as log:
            log.seek(since)
            return [call for line in log if (call := _call(line, namespace)) is not None]

    def kubectl(self, *arguments: str) -> None:
        command = [str(self.plane.binaries / "kubectl"), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)

    def user(self, name: str) -> Path:
        path = self.plane.layout.kubeconfig(name)
        return path if path.exists() else self.plane.add_user(name, name, ("system:masters",))

    async def for_each(self, items: Iterable[T], act: Callable[[T], Awaitable[Any]]) -> None:
        remaining = iter(items)

        async def work() -> None:
            for item in remaining:
                await act(item)

        async with asyncio.TaskGroup() as group:
            for _ in range(_CONCURRENCY):
                group.create_task(work())


def _call(line: str, namespace: str) -> Call | None:
    event = json.loads(line) if line.endswith("\n") else {}
    reference = event.get("objectRef")
    if reference is None or reference.get("namespace") != namespace:
        return None
    resource = "/".join(filter(None, (reference["resource"], reference.get("subresource"))))
    verb = "evict" if resource == "pods/eviction" else event["verb"]
    return Call(event["user"]["username"], verb, resource, event.get("responseStatus", {}).get("code", 0))


@asynccontextmanager
async def start_cluster(programs: Sequence[Program] = tuple(Program)) -> AsyncIterator[Cluster]:
    """With an audit log if there are controllers."""
    folder = Path(tempfile.mkdtemp(prefix="bench-disruption-"))
    plane = await asyncio.to_thread(_start, folder, programs)
    try:
        async with Client(kubeconfig.load(plane.kubeconfig)) as client:
            cluster = Cluster(plane, client, folder)
            nodes = kwok.manifests(KWOK_NODES, ZONES, tainted=False)
            await cluster.for_each(nodes, lambda node: client.create(NODES, node))
            await asyncio.to_thread(cluster.kubectl, "apply", "-f", str(_MANIFEST))
            await asyncio.to_thread(
                cluster.kubectl, "wait", "--for=condition=Established", "crd/topologydisruptionbudgets.zonewise.dev"
            )
            yield cluster
    finally:
        controlplane.remove(plane.directory)


def _start(folder: Path, programs: Sequence[Program]) -> ControlPlane:
    if Program.CONTROLLER_MANAGER not in programs:
        return ControlPlane.start(folder / "plane", programs=programs, controllers="")
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy | {"rules": [{"level": "Metadata"}]}))
    audit = (
        f"--audit-policy-file={folder / 'policy.yaml'}",
        f"--audit-log-path={folder / 'audit.log'}",
        "--audit-log-maxsize=100000",
    )
    return ControlPlane.start(
        folder / "plane",
        programs=programs,
        controllers=CONTROLLERS,
        flags={Program.APISERVER: audit},
    )


@contextmanager
def zonewise(cluster: Cluster, webhooks: int) -> Iterator[dict[str, int]]:
    """A leader and `webhooks` webhooks behind one address, all ready. Yields their process IDs."""
    frontend_port, *backend_ports = (_free_port() for _ in range(webhooks + 1))
    programs = [_leader(cluster), *(_webhook(cluster, frontend_port, backend_port) for backend_port in backend_ports)]
    balancer = [sys.executable, "-m", "bench.disruption.balancer", str(frontend_port), *map(str, backend_ports)]
    health = [_free_port() for _ in programs]
    commands = [balancer, *(program(port) for program, port in zip(programs, health, strict=True))]
    with _processes(cluster.folder, commands) as running:
        for port in health:
            _wait_ready(port)
        yield {_name(number): process.pid for number, process in enumerate(running[1:])}


def _name(number: int) -> str:
    return f"webhook {number}" if number else "leader"


def _leader(cluster: Cluster) -> Callable[[int], list[str]]:
    return lambda port: [*_zonewise("controller", cluster.user(LEADER)), f"--health-port={port}"]


def _webhook(cluster: Cluster, frontend_port: int, backend_port: int) -> Callable[[int], list[str]]:
    flags = [f"--url=https://127.0.0.1:{frontend_port}", "--host=127.0.0.1", f"--port={backend_port}"]
    secret = "--secret=kube-system/zonewise-disruption"
    return lambda port: [*_zonewise("webhook", cluster.user(WEBHOOK)), *flags, secret, f"--health-port={port}"]


def _zonewise(command: str, config: Path) -> list[str]:
    program = str(Path(sys.executable).with_name("zonewise"))
    return [program, command, "--parts=disruption", f"--kubeconfig={config}", "--log-level=warning"]


@contextmanager
def _processes(folder: Path, commands: list[list[str]]) -> Iterator[list[subprocess.Popen[bytes]]]:
    running: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with (folder / "programs.log").open("ab") as log:
                running.append(subprocess.Popen(command, stdout=log, stderr=log))
        yield running
    finally:
        for process in running:
            process.terminate()
        for process in running:
            process.wait(30)


def _wait_ready(port: int) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=5):
                return
        except OSError:
            time.sleep(0.1)
    raise TimeoutError(f"nothing is ready at port {port} after two minutes")


async def wait_until(condition: Callable[[], Awaitable[bool]], description: str, pause_seconds: float = 0.2) -> None:
    deadline = time.monotonic() + _TIMEOUT_SECONDS
    while not await condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"not within {_TIMEOUT_SECONDS:g} s: {description}")
        await asyncio.sleep(pause_seconds)


def cpu_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def summary(calls: Iterable[Call]) -> Counter[str]:
    return Counter(f"{call.user.rpartition(':')[2]} {call.verb} {call.resource} {call.code}" for call in calls)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port
