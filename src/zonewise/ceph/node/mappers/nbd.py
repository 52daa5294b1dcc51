"""RBD mapper with rbd-nbd: librbd in user space behind the kernel's network block device.

Mappings are listed by rbd-nbd, from running processes, so those of earlier processes are known. It notices by itself
when an image has grown.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from zonewise.ceph.node import daemons, host_command, keyfiles
from zonewise.ceph.node.mappers import MappedImage, MapperClient, MapperError

PROGRAM: Final = "rbd-nbd"
_MODULE: Final = Path("/sys/module/nbd")
_PATH: Final = host_command.environment()["PATH"]
_CONFIGURATION, _KEYRING, _DEVICE = "ceph.conf", "keyring", "device"


class Nbd:
    name = "rbd-nbd"

    def __init__(self, cgroup: Sequence[Path] = ()) -> None:
        self._cgroup = cgroup

    def missing(self) -> str:
        if shutil.which(PROGRAM, path=_PATH) is None:
            return f"{PROGRAM} is not installed (Debian: rbd-nbd)"
        if not _MODULE.exists() and not Path("/dev/nbd0").exists():
            return "this kernel has no nbd, or its module is not loaded"
        return ""

    def map(self, client: MapperClient, image: MappedImage, directory: Path, *, read_only: bool) -> str:
        existing = self.device(image, directory)
        if existing is not None:
            return existing
        configuration = f"{client.configuration}\n[client]\nkeyring = {directory / _KEYRING}\n"
        with (
            keyfiles.temporary(directory / _CONFIGURATION, configuration),
            keyfiles.temporary(directory / _KEYRING, keyfiles.keyring(client.user, client.key)),
        ):
            try:
                daemons.start(
                    directory,
                    _map_command(client, image, read_only=read_only),
                    lambda: self.device(image, directory) is not None,
                    cgroup=self._cgroup,
                )
            except daemons.DaemonError as error:
                raise MapperError(f"mapping image {image.specification} failed: {error}") from error
        return self.device(image, directory) or ""

    def device(self, image: MappedImage, directory: Path) -> str | None:
        process_id = daemons.pid(directory)
        _, output = host_command.run(PROGRAM, "list-mapped", "--format", "json")
        return listed_device(output, image, process_id)

    def is_open(self, image: MappedImage, directory: Path) -> bool:
        return daemons.running(directory) or self.device(image, directory) is not None

    def refresh(self, device: str, directory: Path) -> None:
        """rbd-nbd watches the image."""

    def unmap(self, image: MappedImage, directory: Path) -> None:
        device = self.device(image, directory)
        if device is not None:
            host_command.run(PROGRAM, "unmap", device)
        if not daemons.wait(directory, host_command.TIMEOUT_SECONDS):
            daemons.kill(directory)

    def problem(self, directory: Path) -> str:
        if daemons.running(directory):
            return ""
        return "rbd-nbd has exited: reads and writes fail until the volume is unstaged and staged again"


def listed_device(listing: str, image: MappedImage, process_id: int | None) -> str | None:
    """Images of two clusters may have the same name: the process id of our rbd-nbd decides."""
    for entry in json.loads(listing or "[]"):
        pool = image.pool or entry["pool"]
        same = (entry["pool"], entry.get("namespace", ""), entry["image"]) == (pool, image.namespace, image.name)
        if same and int(entry.get("id", entry.get("pid", -1))) == process_id:
            return str(entry["device"])
    return None


def _map_command(client: MapperClient, image: MappedImage, *, read_only: bool) -> list[str]:
    return [
        # In the foreground, so that the started process is the one that serves the device.
        *(PROGRAM, "map", "--foreground", "--conf", _CONFIGURATION, "--id", client.user),
        *(["--read-only"] if read_only else []),
        image.specification,
    ]
