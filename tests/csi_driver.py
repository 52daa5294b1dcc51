"""The whole driver as one process of its own, which a test may kill, and a client that calls it over its socket."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import grpc

from zonewise import log
from zonewise.ceph.spec import csi_pb2 as csi

MODES = csi.VolumeCapability.AccessMode
PATIENCE_SECONDS = 90.0


class Driver:
    """Identity, Controller and Node on one socket, on a node in `zone`."""

    def __init__(self, directory: Path, config: Mapping[str, Any], zone: str = "zone-a", node: str = "node-1") -> None:
        self.directory = directory
        self.socket = directory / "csi.sock"
        self.state = directory / "state"
        self.log = directory / "driver.log"
        self._arguments = [str(self.socket), str(directory / "csi.json"), str(self.state), zone, node]
        (directory / "csi.json").write_text(json.dumps(config))
        self.process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as output:
            process = subprocess.Popen([sys.executable, __file__, *self._arguments], stdout=output, stderr=output)
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not _listens(self.socket):
            if process.poll() is not None or time.monotonic() > deadline:
                process.kill()
                raise AssertionError(f"the driver does not listen: {self.log.read_text()[-2000:]}")
            time.sleep(0.02)
        return process

    def kill(self) -> None:
        """As by the kernel: nothing is cleaned up."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def again(self) -> None:
        self.process = self._start()

    def stop(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_SECONDS)
        finally:
            if self.process.poll() is None:
                self.kill()


class Calls:
    """`calls.node("NodeGetInfo")`: the response, or grpc.RpcError."""

    def __init__(self, socket: Path, secrets: Mapping[str, str]) -> None:
        self.secrets = dict(secrets)
        self.channel = grpc.insecure_channel(f"unix:{socket}")

    def close(self) -> None:
        self.channel.close()

    def node(self, method: str, **fields: Any) -> Any:
        return self._call("Node", method, fields)

    def controller(self, method: str, **fields: Any) -> Any:
        return self._call("Controller", method, fields)

    def method(self, service: str, method: str) -> tuple[Callable[..., Any], Any]:
        described = csi.DESCRIPTOR.services_by_name[service].methods_by_name[method]
        request, response = getattr(csi, described.input_type.name), getattr(csi, described.output_type.name)
        stub = self.channel.unary_unary(
            f"/csi.v1.{service}/{method}",
            request_serializer=lambda message: message.SerializeToString(),
            response_deserializer=response.FromString,
        )
        return stub, request

    def _call(self, service: str, method: str, fields: Mapping[str, Any]) -> Any:
        stub, request = self.method(service, method)
        secrets = {"secrets": self.secrets} if "secrets" in request.DESCRIPTOR.fields_by_name else {}
        return stub(request(**secrets | dict(fields)), timeout=PATIENCE_SECONDS, wait_for_ready=True)


def capability(*, block: bool = False, filesystem: str = "", mode: int = MODES.SINGLE_NODE_WRITER) -> Any:
    how = (
        {"block": csi.VolumeCapability.BlockVolume()}
        if block
        else {"mount": csi.VolumeCapability.MountVolume(fs_type=filesystem)}
    )
    return csi.VolumeCapability(access_mode=MODES(mode=mode), **how)


def _listens(path: Path) -> bool:
    import socket  # noqa: PLC0415 - a name of ours, too

    with socket.socket(socket.AF_UNIX) as knock:
        try:
            knock.connect(str(path))
        except OSError:
            return False
    return True


def main() -> None:
    from zonewise.ceph import nodeservice  # noqa: PLC0415 - only in the process of its own
    from zonewise.ceph.cephfs import CephFs  # noqa: PLC0415
    from zonewise.ceph.cluster import Clusters  # noqa: PLC0415
    from zonewise.ceph.config import Configuration  # noqa: PLC0415
    from zonewise.ceph.controller import Controller  # noqa: PLC0415
    from zonewise.ceph.domains import PREFIX  # noqa: PLC0415
    from zonewise.ceph.identity import Identity  # noqa: PLC0415
    from zonewise.ceph.ids import Kind  # noqa: PLC0415
    from zonewise.ceph.rbd import Rbd  # noqa: PLC0415
    from zonewise.ceph.server import Server  # noqa: PLC0415

    endpoint, config, state, zone, node = sys.argv[1:]
    log.configure("json", "info")
    clusters = Clusters(Configuration(Path(config)))
    topology = {f"{PREFIX}zone": zone}
    services = {
        "Identity": Identity(),
        "Controller": Controller(clusters, {Kind.RBD: Rbd(), Kind.CEPHFS: CephFs()}),
        "Node": nodeservice.make(clusters, node, lambda: topology, state_directory=Path(state)),
    }
    server = Server(endpoint, services)
    server.start()
    ended = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: ended.set())
    ended.wait()
    server.stop(5.0)
    os._exit(0)  # threads of Ceph's libraries may still be at work


if __name__ == "__main__":
    main()
