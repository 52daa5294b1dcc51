"""Three ways to create and delete an image in a zone's pool: the controller over its socket, librbd in one process, the rbd command."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import grpc

from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.lab.ceph.cluster import LabCeph

OURS, LIBRBD, CLI = "ours", "librbd", "rbd"
SIZE_BYTES = 1 << 30
ZONE_KEY = "topology.ceph.zonewise.dev/zone"
_START_SECONDS = 120.0


class Contestant(Protocol):
    """`create` returns what `delete` needs."""

    name: str

    def create(self, name: str, zone: str) -> str: ...

    def delete(self, made: str, zone: str) -> None: ...


@dataclass
class Ours:
    channel: grpc.Channel
    ceph: LabCeph
    pid: int
    name: str = OURS

    def create(self, name: str, zone: str) -> str:
        zones = [zone, *(other for other in self.ceph.zones if other != zone)]
        terms = [csi.Topology(segments={ZONE_KEY: name}) for name in zones]
        request = csi.CreateVolumeRequest(
            name=name,
            secrets=self.ceph.secrets,
            parameters={"clusterID": "lab"},
            capacity_range={"required_bytes": SIZE_BYTES},
            volume_capabilities=[{"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}],
            accessibility_requirements=csi.TopologyRequirement(requisite=terms, preferred=terms),
        )
        return str(self._call("CreateVolume", request, csi.CreateVolumeResponse).volume.volume_id)

    def delete(self, made: str, zone: str) -> None:  # noqa: ARG002 - the id has the pool
        request = csi.DeleteVolumeRequest(volume_id=made, secrets=self.ceph.secrets)
        self._call("DeleteVolume", request, csi.DeleteVolumeResponse)

    def listed(self) -> int:
        """Number of volumes in all pages of ListVolumes."""
        count, token = 0, ""
        while True:
            request = csi.ListVolumesRequest(starting_token=token)
            page = self._call("ListVolumes", request, csi.ListVolumesResponse)
            count += len(page.entries)
            token = page.next_token
            if not token:
                return count

    def resident_mib(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _call(self, name: str, request: Any, response: Any) -> Any:
        send = self.channel.unary_unary(
            f"/csi.v1.Controller/{name}", lambda message: message.SerializeToString(), response.FromString
        )
        return send(request, timeout=120, wait_for_ready=True)


@contextmanager
def ours(ceph: LabCeph, folder: Path, config: Path) -> Iterator[Ours]:
    """The deployed controller, without Kubernetes."""
    socket = folder / "csi.sock"
    command = [str(Path(sys.executable).with_name("zonewise")), "csi", "controller", "--orchestrator", "none"]
    more = ["--config", str(config), "--endpoint", f"unix://{socket}", "--health-port", "0", "--log-level", "error"]
    process = subprocess.Popen([*command, *more])
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not socket.exists():
            assert process.poll() is None, "the controller exited"
            assert time.monotonic() < deadline, "the controller does not start"
            time.sleep(0.05)
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            yield Ours(channel, ceph, process.pid)
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Librbd:
    """The lower bound: librbd with open connections and the driver's own options."""

    ceph: LabCeph
    config: Path
    name: str = LIBRBD
    clusters: Any = None
    contexts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        from zonewise.ceph.backend.cluster import CephClusters
        from zonewise.ceph.config import CsiConfigFile

        self.clusters = CephClusters(CsiConfigFile(self.config))
        connected = self.clusters.own("lab")
        self.contexts = {zone: connected.ioctx(self.ceph.pool(zone)) for zone in self.ceph.zones}

    def create(self, name: str, zone: str) -> str:
        import rbd

        rbd.RBD().create(self.contexts[zone], name, SIZE_BYTES)
        return name

    def delete(self, made: str, zone: str) -> None:
        import rbd

        rbd.RBD().remove(self.contexts[zone], made)

    def close(self) -> None:
        self.clusters.close()


@dataclass
class CommandLine:
    ceph: LabCeph
    name: str = CLI

    def create(self, name: str, zone: str) -> str:
        self._rbd("create", "--size", f"{SIZE_BYTES}B", f"{self.ceph.pool(zone)}/{name}")
        return name

    def delete(self, made: str, zone: str) -> None:
        self._rbd("rm", "--no-progress", f"{self.ceph.pool(zone)}/{made}")

    def _rbd(self, *arguments: str) -> None:
        environ = {**os.environ, "CEPH_CONF": str(self.ceph.conf)}
        subprocess.run(["rbd", *arguments], check=True, env=environ, stdout=subprocess.DEVNULL, timeout=120)


@dataclass(frozen=True)
class Timed:
    """One batch of calls: wall milliseconds per call, and the 99th percentile of calls."""

    each_ms: float
    p99_ms: float


def timed(calls: list[Callable[[], Any]], parallel: int) -> tuple[Timed, list[Any]]:
    def one(call: Callable[[], Any]) -> tuple[float, Any]:
        began = time.perf_counter()
        answer = call()
        return time.perf_counter() - began, answer

    with ThreadPoolExecutor(parallel) as pool:
        began = time.perf_counter()
        done = list(pool.map(one, calls))
        whole = time.perf_counter() - began
    slowest = sorted(seconds for seconds, _ in done)[int(len(done) * 0.99)]
    return Timed(whole / len(calls) * 1000, slowest * 1000), [answer for _, answer in done]
