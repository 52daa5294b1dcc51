"""The driver under test as an orchestrator sees it: a socket, requests, responses and status codes."""

import functools
import json
import multiprocessing
import signal
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any

import grpc

from support.programs import csi_controller
from zonewise.ceph.backend.cluster import CephCluster, CephClusters
from zonewise.ceph.backend.rbd import RbdBackend
from zonewise.ceph.config import CsiConfigFile
from zonewise.ceph.controller import fsck, journal
from zonewise.ceph.controller.service import ControllerService
from zonewise.ceph.decide.ids import VolumeKind
from zonewise.ceph.decide.model import VolumeBackend
from zonewise.ceph.grpc_server import GrpcServer
from zonewise.ceph.identity import IdentityService
from zonewise.ceph.spec import csi_pb2 as csi
from zonewise.lab.ceph.cluster import LabCeph

PREFIX = "topology.ceph.zonewise.dev/"
GIB, MIB = 1 << 30, 1 << 20
TIMEOUT_SECONDS = 120.0


class RpcFailed(Exception):  # noqa: N818 - an expected response, not a fault of the test
    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code
        self.message = message


class Client:
    """RPCs by their names in the CSI specification: `client.CreateVolume(name=...)`."""

    def __init__(self, socket: Path) -> None:
        self.calls = 0
        """How many were made."""
        self.channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.enable_retries", 0)])
        self._services = {
            method.name: (service.name, getattr(csi, method.input_type.name), getattr(csi, method.output_type.name))
            for service in csi.DESCRIPTOR.services_by_name.values()
            for method in service.methods
        }

    def call(self, name: str, request: Any, timeout: float = TIMEOUT_SECONDS) -> Any:
        self.calls += 1
        service, _, response = self._services[name]
        send = self.channel.unary_unary(
            f"/csi.v1.{service}/{name}", lambda message: message.SerializeToString(), response.FromString
        )
        try:
            return send(request, timeout=timeout, wait_for_ready=True)
        except grpc.RpcError as error:
            raise RpcFailed(error.code().name, error.details()) from None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._services:
            raise AttributeError(name)
        return lambda **fields: self.call(name, self._services[name][1](**fields))


class Driver:
    """Requests with the secrets and parameters of the test's cluster."""

    def __init__(self, client: Client, ceph: LabCeph) -> None:
        self.client = client
        self.ceph = ceph

    def create(
        self,
        name: str,
        *,
        preferred: Sequence[str | Mapping[str, str]] = (),
        requisite: Sequence[str | Mapping[str, str]] = (),
        size: int = 64 * MIB,
        limit: int = 0,
        snapshot: str = "",
        volume: str = "",
        parameters: Mapping[str, str] | None = None,
        **more: Any,
    ) -> csi.Volume:
        request = csi.CreateVolumeRequest(
            name=name,
            secrets=more.pop("secrets", self.ceph.secrets),
            parameters={"clusterID": "lab", **(parameters or {})},
            volume_capabilities=[more.pop("capability", MOUNT)],
        )
        if size or limit:
            request.capacity_range.required_bytes = size
            request.capacity_range.limit_bytes = limit
        for terms, field in (
            (preferred, request.accessibility_requirements.preferred),
            (requisite, request.accessibility_requirements.requisite),
        ):
            for term in terms:
                field.add().segments.update(topology(term))
        if not preferred and not requisite:
            request.ClearField("accessibility_requirements")
        if snapshot:
            request.volume_content_source.snapshot.snapshot_id = snapshot
        if volume:
            request.volume_content_source.volume.volume_id = volume
        return self.client.call("CreateVolume", request).volume

    def delete(self, volume_id: str, tries: int = 1) -> None:
        """As the provisioner does, a call that finds the cluster unavailable is made again."""
        for left in reversed(range(tries)):
            try:
                self.client.DeleteVolume(volume_id=volume_id, secrets=self.ceph.secrets)
            except RpcFailed as error:
                if error.code != "UNAVAILABLE" or not left:
                    raise
            else:
                return

    def snapshot(self, name: str, volume_id: str, **more: Any) -> csi.Snapshot:
        return self.client.CreateSnapshot(
            name=name, source_volume_id=volume_id, secrets=self.ceph.secrets, **more
        ).snapshot

    def delete_snapshot(self, snapshot_id: str) -> None:
        self.client.DeleteSnapshot(snapshot_id=snapshot_id, secrets=self.ceph.secrets)

    def expand(self, volume_id: str, size: int) -> int:
        return self.client.ControllerExpandVolume(
            volume_id=volume_id, capacity_range={"required_bytes": size}, secrets=self.ceph.secrets
        ).capacity_bytes

    def capacity(self, zone: str | Mapping[str, str] | None = None, **parameters: str) -> csi.GetCapacityResponse:
        more = {"accessible_topology": {"segments": topology(zone)}} if zone is not None else {}
        return self.client.GetCapacity(parameters={"clusterID": "lab", **parameters}, **more)


MOUNT = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
BLOCK = csi.VolumeCapability(block={}, access_mode={"mode": "SINGLE_NODE_WRITER"})


def topology(term: str | Mapping[str, str]) -> dict[str, str]:
    """`"zone-a"` for a zone, or a mapping of short names to values."""
    segments = {"zone": term} if isinstance(term, str) else term
    return {f"{PREFIX}{name}": value for name, value in segments.items()}


def config_file(directory: Path, ceph: LabCeph, **changes: Any) -> Path:
    document = ceph.csi_config()
    document["clusters"][0].update(changes)
    path = directory / "config.json"
    path.write_text(json.dumps(document))
    return path


def backends() -> dict[VolumeKind, VolumeBackend]:
    return {VolumeKind.RBD: RbdBackend(patience_seconds=0)}


@contextmanager
def serving(
    directory: Path, config: Path, ceph: LabCeph, *, timeout_seconds: float = 60, **more: Any
) -> Iterator[Driver]:
    """A controller in this process."""
    clusters = CephClusters(CsiConfigFile(config), timeout_seconds)
    socket = directory / f"{uuid.uuid4().hex[:8]}.sock"
    server = GrpcServer(
        f"unix://{socket}",
        {
            "Identity": IdentityService(),
            "Controller": ControllerService(clusters, backends(), abandoned_after_seconds=0, **more),
        },
    )
    server.start()
    client = Client(socket)
    try:
        yield Driver(client, ceph)
    finally:
        client.channel.close()
        server.stop(5)
        clusters.close()


class Process:
    """A controller in a process of its own, which may crash at a crash point."""

    def __init__(self, directory: Path, config: Path, ceph: LabCeph, crash: str = "") -> None:
        self.socket = directory / f"{uuid.uuid4().hex[:8]}.sock"
        self._log = directory / f"{self.socket.stem}.log"
        self._process = _fork_server().Process(
            target=csi_controller.run, args=(self.socket, config, crash, self._log), daemon=True
        )
        self._process.start()
        self._wait_serving()
        self.client = Client(self.socket)
        self.driver = Driver(self.client, ceph)

    def _wait_serving(self) -> None:
        deadline = time.monotonic() + TIMEOUT_SECONDS
        while not self.socket.exists():
            assert self._process.is_alive(), self.output()
            assert time.monotonic() < deadline, "the controller does not start"
            time.sleep(0.02)

    def died(self) -> bool:
        """Waits for its exit; whether it was by SIGKILL."""
        self._process.join(TIMEOUT_SECONDS)
        return self._process.exitcode == -signal.SIGKILL

    def output(self) -> str:
        return self._log.read_text() if self._log.exists() else ""

    def stop(self) -> None:
        self.client.channel.close()
        if self._process.is_alive():
            self._process.terminate()
        self._process.join(TIMEOUT_SECONDS)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
            raise AssertionError(f"the controller does not exit: {self.output()[-2000:]}")
        self._process.close()


@functools.cache
def _fork_server() -> ForkServerContext:
    """A fork server with all modules loaded: importing them takes a second of CPU per process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([csi_controller.__name__])
    return context


def own_cluster(config: Path) -> CephCluster:
    return CephClusters(CsiConfigFile(config), 60).own("lab")


def findings(cluster: CephCluster, older_than_seconds: float = 0) -> list[str]:
    """Findings of fsck, without a minimum age."""
    checker = fsck.Fsck(cluster, backends(), {pool for pool in cluster.pools() if journal.has_journal(cluster, pool)})
    return [f"{finding.code} {finding.what}" for finding in checker.examine(time.time() + 1, older_than_seconds)]


def images(ceph: LabCeph, cluster: CephCluster) -> dict[str, list[str]]:
    """By zone: the images of its pool, and those in the trash."""
    import rbd  # noqa: PLC0415 - a system package

    return {
        zone: sorted(rbd.RBD().list(cluster.ioctx(ceph.pool(zone))))
        + sorted(f"trash:{image['name']}" for image in rbd.RBD().trash_list(cluster.ioctx(ceph.pool(zone))))
        for zone in ceph.zones
    }
