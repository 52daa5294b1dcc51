"""Three ways to make and remove an image in a zone's pool: our controller over its socket, librbd in one process, `rbd`."""

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
    """`create` gives back what `delete` takes."""

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
        zones = [zone, *(each for each in self.ceph.zones if each != zone)]
        terms = [csi.Topology(segments={ZONE_KEY: each}) for each in zones]
        request = csi.CreateVolumeRequest(
            name=name,
            secrets=self.ceph.secrets,
            parameters={"clusterID": "lab"},
            capacity_range={"required_bytes": SIZE_BYTES},
            volume_capabilities=[{"mount": {}, "access_mode": {"mode": "SINGLE_NODE_WRITER"}}],
            accessibility_requirements=csi.TopologyRequirement(requisite=terms, preferred=terms),
        )
        return str(self._call("CreateVolume", request, csi.CreateVolumeResponse).volume.volume_id)

    def delete(self, made: str, zone: str) -> None:  # noqa: ARG002 - the id says where it is
        request = csi.DeleteVolumeRequest(volume_id=made, secrets=self.ceph.secrets)
        self._call("DeleteVolume", request, csi.DeleteVolumeResponse)

    def listed(self) -> int:
        """How many volumes all pages of ListVolumes have."""
        found, token = 0, ""
        while True:
            request = csi.ListVolumesRequest(starting_token=token)
            page = self._call("ListVolumes", request, csi.ListVolumesResponse)
            found += len(page.entries)
            token = page.next_token
            if not token:
                return found

    def resident_mib(self) -> float:
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) / 1024
        raise AssertionError("no VmRSS")

    def cpu_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _call(self, name: str, request: Any, answer: Any) -> Any:
        send = self.channel.unary_unary(
            f"/csi.v1.Controller/{name}", lambda message: message.SerializeToString(), answer.FromString
        )
        return send(request, timeout=120, wait_for_ready=True)


@contextmanager
def ours(ceph: LabCeph, folder: Path, config: Path) -> Iterator[Ours]:
    """The controller as it is deployed, without Kubernetes beside it."""
    socket = folder / "csi.sock"
    command = [str(Path(sys.executable).with_name("zonewise")), "csi", "controller", "--orchestrator", "none"]
    more = ["--config", str(config), "--endpoint", f"unix://{socket}", "--health-port", "0", "--log-level", "error"]
    process = subprocess.Popen([*command, *more])
    try:
        deadline = time.monotonic() + _START_SECONDS
        while not socket.exists():
            assert process.poll() is None, "the controller ended"
            assert time.monotonic() < deadline, "the controller does not start"
            time.sleep(0.05)
        with grpc.insecure_channel(f"unix:{socket}") as channel:
            yield Ours(channel, ceph, process.pid)
    finally:
        process.terminate()
        process.wait(60)


@dataclass
class Librbd:
    """The floor: what the library takes, with all that is open kept open, and a connection with the driver's own options."""

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
    """Of one batch of calls: milliseconds of wall per call over all, and of the slowest hundredth."""

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
