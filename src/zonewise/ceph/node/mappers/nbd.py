"""RBD images through rbd-nbd: librbd in user space behind the kernel's network block device.

What is mapped is asked of rbd-nbd itself, which looks at running processes; so mappings of a predecessor of this process are
known. It follows an image that grows.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from zonewise.ceph.node import daemons, host_command, keyfiles
from zonewise.ceph.node.mappers import MappedImage, MapperClient, MapperError

PROGRAM = "rbd-nbd"
_MODULE = Path("/sys/module/nbd")
_SEARCHED = host_command.environment()["PATH"]
_CONFIGURATION, _KEYRING, _DEVICE = "ceph.conf", "keyring", "device"


class Nbd:
    name = "rbd-nbd"

    def __init__(self, cgroup: Path | None = None) -> None:
        self._cgroup = cgroup

    def missing(self) -> str:
        if shutil.which(PROGRAM, path=_SEARCHED) is None:
            return f"{PROGRAM} is not installed (Debian: rbd-nbd)"
        if not _MODULE.exists() and not Path("/dev/nbd0").exists():
            return "this kernel has no nbd, or its module is not loaded"
        return ""

    def map(self, client: MapperClient, image: MappedImage, directory: Path, *, read_only: bool) -> str:
        found = self.device(image, directory)
        if found is not None:
            return found
        configuration = f"{client.configuration}\n[client]\nkeyring = {directory / _KEYRING}\n"
        with (
            keyfiles.present(directory / _CONFIGURATION, configuration),
            keyfiles.present(directory / _KEYRING, keyfiles.keyring(client.user, client.key)),
        ):
            try:
                daemons.start(
                    directory,
                    _map_command(client, image, read_only=read_only),
                    lambda: self.device(image, directory) is not None,
                    cgroup=self._cgroup,
                )
            except daemons.DaemonError as error:
                raise MapperError(f"image {image.specification} could not be mapped: {error}") from error
        return self.device(image, directory) or ""

    def device(self, image: MappedImage, directory: Path) -> str | None:
        number = daemons.pid(directory)
        _, output = host_command.run(PROGRAM, "list-mapped", "--format", "json")
        return listed_device(output, image, number)

    def holds(self, image: MappedImage, directory: Path) -> bool:
        return daemons.running(directory) or self.device(image, directory) is not None

    def refresh(self, device: str, directory: Path) -> None:
        """rbd-nbd watches the image."""

    def unmap(self, image: MappedImage, directory: Path) -> None:
        device = self.device(image, directory)
        if device is not None:
            host_command.run(PROGRAM, "unmap", device)
        if not daemons.wait(directory, host_command.TIMEOUT_SECONDS):
            daemons.kill(directory)

    def trouble(self, directory: Path) -> str:
        if daemons.running(directory):
            return ""
        return "rbd-nbd has ended: reads and writes fail until the volume is unstaged and staged again"


def listed_device(listing: str, image: MappedImage, number: int | None) -> str | None:
    """Images of two clusters may have one name: the process that we started decides."""
    for entry in json.loads(listing or "[]"):
        same = (entry["pool"], entry.get("namespace", ""), entry["image"]) == (image.pool, image.namespace, image.name)
        if same and int(entry.get("id", entry.get("pid", -1))) == number:
            return str(entry["device"])
    return None


def _map_command(client: MapperClient, image: MappedImage, *, read_only: bool) -> list[str]:
    return [
        # In the foreground, so that the process that we started is the one that serves the device.
        *(PROGRAM, "map", "--foreground", "--conf", _CONFIGURATION, "--id", client.user),
        *(["--read-only"] if read_only else []),
        image.specification,
    ]
