"""RBD mapper with the kernel client (krbd): the fastest, with no process in user space.

Mappings are read from sysfs, so those of earlier processes are known. The kernel notices by itself when an image has
grown.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from zonewise.ceph.node import host_command, keyfiles
from zonewise.ceph.node.mappers import MappedImage, MapperClient, MapperError

_BUS: Final = Path("/sys/bus/rbd")
_PATH: Final = host_command.environment()["PATH"]
_CONFIGURATION, _KEYRING, _CLUSTER = "ceph.conf", "keyring", "fsid"


class KernelRbd:
    name = "krbd"

    def __init__(self, bus: Path = _BUS) -> None:
        self._bus = bus

    def missing(self) -> str:
        if shutil.which("rbd", path=_PATH) is None:
            return "the rbd command is not installed (Debian: ceph-common)"
        if self._bus.exists() or _loads_module("rbd"):
            return ""
        return "this kernel has no rbd module"

    def map(self, client: MapperClient, image: MappedImage, directory: Path, *, read_only: bool) -> str:
        keyfiles.write(directory / _CLUSTER, client.fsid)
        existing = self.device(image, directory)
        if existing is not None:
            return existing
        configuration = f"{client.configuration}\n[client]\nkeyring = {directory / _KEYRING}\n"
        with (
            keyfiles.temporary(directory / _CONFIGURATION, configuration) as conf,
            keyfiles.temporary(directory / _KEYRING, keyfiles.keyring(client.user, client.key)),
        ):
            _, output = host_command.run(*_map_command(client, image, conf, read_only=read_only))
        device = self.device(image, directory)
        if device is None:
            raise MapperError(f"rbd mapped {image.specification}, but the kernel does not list it: {output}")
        return device

    def device(self, image: MappedImage, directory: Path) -> str | None:
        try:
            cluster = (directory / _CLUSTER).read_text()
        except FileNotFoundError:
            return None
        for entry in sorted((self._bus / "devices").glob("*")):
            facts = {name: _read(entry / name) for name in ("pool", "name", "pool_ns", "cluster_fsid", "current_snap")}
            expected = {"pool": image.pool, "name": image.name, "pool_ns": image.namespace, "current_snap": "-"}
            if not image.pool:
                expected["pool"] = facts["pool"]
            if facts == {**expected, "cluster_fsid": cluster}:
                return f"/dev/rbd{entry.name}"
        return None

    def is_open(self, image: MappedImage, directory: Path) -> bool:
        return self.device(image, directory) is not None

    def refresh(self, device: str, directory: Path) -> None:
        """The kernel watches the image."""

    def unmap(self, image: MappedImage, directory: Path) -> None:
        device = self.device(image, directory)
        if device is not None:
            host_command.run("rbd", "device", "unmap", device)
        (directory / _CLUSTER).unlink(missing_ok=True)

    def problem(self, directory: Path) -> str:  # noqa: ARG002 - there is no daemon
        return ""


def _map_command(client: MapperClient, image: MappedImage, conf: Path, *, read_only: bool) -> list[str]:
    return [
        *("rbd", "device", "map", "--conf", str(conf), "--id", client.user),
        *(["--read-only"] if read_only else []),
        image.specification,
    ]


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:
        return ""


def _loads_module(name: str) -> bool:
    if shutil.which("modprobe", path=_PATH) is None:
        return False
    code, _ = host_command.run("modprobe", name, accept=range(256))
    return code == 0
