"""`zonewise dns` against a real API server, queried by dnspython from any loopback address.

Pod ranges of the nodes are within 127.0.0.0/8, so that a client in any zone is a socket bound to such an address.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import dns.message
import dns.query
import dns.rcode

from support.dns.cluster import answer_texts
from support.process import Program, wait_for
from zonewise.lab.controlplane.controlplane import ControlPlane

Json = dict[str, Any]
ZONEWISE = Path(sys.executable).with_name("zonewise")
PATIENCE_SECONDS = 60.0
IN_ZONE = {"zone-a": "127.11.0.9", "zone-b": "127.21.0.9", "zone-c": "127.31.0.9"}
NOWHERE = "127.99.0.9"


class Server:
    def __init__(
        self,
        plane: ControlPlane,
        *options: str,
        port: int = 0,
        descriptors: int = 0,
        environ: Mapping[str, str] = {},
    ) -> None:
        """`descriptors` is how many files it may have open."""
        limited: tuple[object, ...] = ("limited.py", descriptors) if descriptors else ()
        self.program = Program(
            *limited, str(ZONEWISE), "dns", "--kubeconfig", plane.kubeconfig, "--listen", "127.0.0.1", "--port", port,
            "--processes", 2, "--health-port", 0, "--lameduck-seconds", 0, "--log-format", "json", *options, environ=environ,
        )  # fmt: skip
        try:
            self.port: int = self.program.line("listening")["port"]
            self.program.wait_ready()
        except BaseException:
            self.program.remove()
            raise

    def ask(
        self,
        name: str,
        kind: str = "A",
        *,
        client: str = "127.0.0.1",
        tcp: bool = False,
        timeout: float = PATIENCE_SECONDS,
        **more: Any,
    ) -> dns.message.Message:
        query = dns.message.make_query(name, kind, **more)
        send = dns.query.tcp if tcp else dns.query.udp
        return send(query, "127.0.0.1", port=self.port, source=client, timeout=timeout)

    def answer_texts(self, name: str, kind: str = "A", client: str = "127.0.0.1") -> list[str]:
        return answer_texts(self.ask(name, kind, client=client))

    def until(self, name: str, expected: list[str], *, kind: str = "A", client: str = "127.0.0.1") -> None:
        """Several times in a row: each worker receives a change on its own, and any of them may answer."""
        deadline = time.monotonic() + PATIENCE_SECONDS
        in_a_row = 0
        while in_a_row < 8:
            records = self.answer_texts(name, kind, client)
            in_a_row = in_a_row + 1 if records == expected else 0
            assert time.monotonic() < deadline, f"{name} from {client}: {records}, expected {expected}"
            time.sleep(0 if in_a_row else 0.02)

    def rcode(self, name: str, kind: str = "A") -> str:
        return dns.rcode.to_text(self.ask(name, kind).rcode())

    def metric(self, name: str) -> float:
        """The sum over all labels."""
        lines = self.program.probe("/metrics")[1].splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if line.startswith(name))

    def until_metric(self, name: str, holds: Callable[[float], bool]) -> None:
        wait_for(lambda: holds(self.metric(name)))

    def processes(self) -> dict[str, int]:
        """Process ids of the workers, by name: the children of the fork server, the command's only child."""
        parents: dict[int, int] = {}
        names: dict[int, str] = {}
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                name, _, fields = directory.joinpath("stat").read_text().partition("(")[2].rpartition(")")
            except (FileNotFoundError, ProcessLookupError):
                continue
            names[int(directory.name)] = name
            parents[int(directory.name)] = int(fields.split()[1])
        ours = self.program.process.pid
        return {names[pid]: pid for pid, parent in parents.items() if parents.get(parent) == ours}

    def stop(self) -> int:
        self.program.process.terminate()
        return self.program.end()

    def remove(self) -> None:
        self.program.remove()


def node(name: str, zone: str, pods: str) -> Json:
    labels = {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": zone}
    return {"metadata": {"name": name, "labels": labels}, "spec": {"podCIDR": pods, "podCIDRs": [pods]}}


def create_nodes(plane: ControlPlane) -> None:
    for z, zone in enumerate("abc", 1):
        for n in (1, 2):
            body = node(f"zone-{zone}-{n}", f"zone-{zone}", f"127.{z}{n}.0.0/24")
            plane.request("POST", "/api/v1/nodes", body)


def create_service(
    plane: ControlPlane, namespace: str, name: str, annotations: Json | None = None, **spec: Any
) -> None:
    body = {"metadata": {"name": name, "annotations": annotations or {}}, "spec": spec}
    plane.request("POST", f"/api/v1/namespaces/{namespace}/services", body)


def slice_body(name: str, endpoints: list[Json], ports: list[Json] | None = None, family: str = "IPv4") -> Json:
    labels = {"kubernetes.io/service-name": name, "endpointslice.kubernetes.io/managed-by": "tests"}
    return {
        "metadata": {"name": f"{name}-{family.lower()}", "labels": labels},
        "addressType": family,
        "endpoints": endpoints,
        "ports": ports or [{"name": "http", "protocol": "TCP", "port": 8080}],
    }


def slices_path(namespace: str, name: str = "") -> str:
    return f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices{'/' if name else ''}{name}"
