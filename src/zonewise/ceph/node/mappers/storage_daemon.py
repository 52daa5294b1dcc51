"""RBD mapper without kernel support: qemu-storage-daemon exports the image as a file, and a loop device uses the file.

One daemon per image, in the image's directory: `image` is the file, `control` its socket. The key is in a file that is
removed once the daemon has read it. Writes and discards go straight to the OSDs, without a cache.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from zonewise.ceph.node import daemons, host_command, keyfiles, mounts
from zonewise.ceph.node.mappers import MappedImage, MapperClient, MapperError, loop_devices
from zonewise.ceph.node.mappers.qmp import QmpConnection

PROGRAM: Final = "qemu-storage-daemon"
_FILE, _CONTROL, _KEY, _CONFIGURATION = "image", "control", "key", "ceph.conf"
_NODE, _PROBE = "image", "probe"
_EXIT_SECONDS: Final = 30.0
_PATH: Final = host_command.environment()["PATH"]
# Debian and Fedora ship QEMU's rbd driver as a separate module.
_DRIVERS: Final = (
    "/usr/lib/x86_64-linux-gnu/qemu/block-rbd.so",
    "/usr/lib/aarch64-linux-gnu/qemu/block-rbd.so",
    "/usr/lib64/qemu-kvm/block-rbd.so",
    "/usr/lib64/qemu/block-rbd.so",
)


class StorageDaemon:
    name = "storage-daemon"

    def __init__(self, cgroup: Sequence[Path] = ()) -> None:
        self._cgroup = cgroup

    def missing(self) -> str:
        if shutil.which(PROGRAM, path=_PATH) is None:
            return f"{PROGRAM} is not installed (Debian: qemu-system-common)"
        if not any(Path(driver).exists() for driver in _DRIVERS):
            return "QEMU's rbd driver is not installed (Debian: qemu-block-extra)"
        absent = [path for path in ("/dev/fuse", "/dev/loop-control") if not Path(path).exists()]
        return f"this kernel has no {' and no '.join(absent)}" if absent else ""

    def map(self, client: MapperClient, image: MappedImage, directory: Path, *, read_only: bool) -> str:
        existing = self.device(image, directory)
        if existing is not None and _answers(directory):
            keyfiles.remove(directory, _KEY)
            return existing
        if not daemons.running(directory):
            self._remove_leftovers(directory)
        self._start(client, image, directory, read_only=read_only)
        return loop_devices.attach(directory / _FILE, read_only=read_only)

    def device(self, image: MappedImage, directory: Path) -> str | None:  # noqa: ARG002 - the directory is the image's
        return loop_devices.find(directory / _FILE)

    def is_open(self, image: MappedImage, directory: Path) -> bool:  # noqa: ARG002 - the directory is the image's
        return daemons.running(directory)

    def refresh(self, device: str, directory: Path) -> None:
        """Opens the image a second time to get its size, then resizes the export to it.

        QMP has no command to refresh the size, only one to set it, which would also shrink the image: so the size is
        read from the image right before, never taken from a request. A second handle for writing is never used to write;
        one for reading that is closed at once could abort the daemon, see `backend.librbd.reading`.
        """
        with QmpConnection(directory / _CONTROL) as qmp:
            nodes = {node["node-name"]: node for node in qmp.execute("query-named-block-nodes")}
            if _PROBE in nodes:  # left by a killed plugin
                qmp.execute("blockdev-del", {"node-name": _PROBE})
            options = _options_of(nodes[_NODE]["file"])
            qmp.execute(
                "blockdev-add", {**options, "node-name": _PROBE, "read-only": nodes[_NODE]["ro"], "key-secret": _KEY}
            )
            try:
                sizes = {
                    node["node-name"]: int(node["image"]["virtual-size"])
                    for node in qmp.execute("query-named-block-nodes")
                }
                if sizes[_PROBE] > sizes[_NODE]:
                    qmp.execute("block_resize", {"node-name": _NODE, "size": sizes[_PROBE]})
            finally:
                qmp.execute("blockdev-del", {"node-name": _PROBE})
        loop_devices.refresh(device, sizes[_PROBE])

    def unmap(self, image: MappedImage, directory: Path) -> None:  # noqa: ARG002 - the directory is the image's
        loop_devices.detach(directory / _FILE)
        self._stop(directory)
        self._remove_leftovers(directory)

    def problem(self, directory: Path) -> str:
        if not daemons.running(directory):
            return "its storage daemon has exited: reads and writes fail until the volume is unstaged and staged again"
        return "" if _answers(directory) else "its storage daemon runs but does not answer"

    def _start(self, client: MapperClient, image: MappedImage, directory: Path, *, read_only: bool) -> None:
        if not daemons.running(directory):
            (directory / _FILE).touch(mode=0o600)
        keyfiles.write(directory / _CONFIGURATION, client.configuration)
        command = _command(client, image, read_only=read_only)
        try:
            with keyfiles.temporary(directory / _KEY, client.key):
                daemons.start(directory, command, lambda: _answers(directory), cgroup=self._cgroup)
        except daemons.DaemonError as error:
            self._stop(directory)
            raise MapperError(f"opening image {image.specification} failed: {error}") from error

    def _stop(self, directory: Path) -> None:
        if daemons.running(directory):
            try:
                with QmpConnection(directory / _CONTROL) as qmp:
                    qmp.execute("quit")
            except OSError:
                pass  # it does not listen yet, or any more
            if not daemons.wait(directory, _EXIT_SECONDS):
                daemons.kill(directory)

    def _remove_leftovers(self, directory: Path) -> None:
        """Of an exited daemon: its file may still be mounted, and its socket still exists."""
        loop_devices.detach(directory / _FILE)
        mounts.unmount(str(directory / _FILE), lazily=True)
        keyfiles.remove(directory, _FILE, _CONTROL, _KEY, _CONFIGURATION)


def _command(client: MapperClient, image: MappedImage, *, read_only: bool) -> list[str]:
    options = {
        "driver": "rbd",
        "node-name": _NODE,
        "pool": image.pool,
        **({"namespace": image.namespace} if image.namespace else {}),
        "image": image.name,
        "conf": _CONFIGURATION,
        "user": client.user,
        "key-secret": _KEY,
        "cache.direct": "on",
        "discard": "unmap",
        **({"read-only": "on"} if read_only else {}),
    }
    return [
        PROGRAM,
        *("--object", f"secret,id={_KEY},format=base64,file={_KEY}"),
        *("--blockdev", ",".join(f"{name}={_quoted(value)}" for name, value in options.items())),
        *(
            "--export",
            f"type=fuse,id=file,node-name={_NODE},mountpoint={_FILE},writable={'off' if read_only else 'on'}",
        ),
        *("--chardev", f"socket,path={_CONTROL},server=on,wait=off,id=control"),
        *("--monitor", "chardev=control"),
    ]


def _quoted(value: str) -> str:
    return value.replace(",", ",,")


def _options_of(file: str) -> dict[str, object]:
    """The options of an open image, which the daemon reports as `json:{...}`, without the key."""
    options = json.loads(file.removeprefix("json:"))
    return options if isinstance(options, dict) else {}


def _answers(directory: Path) -> bool:
    """The daemon listens once it has opened the image and exported the file."""
    try:
        with QmpConnection(directory / _CONTROL):
            return True
    except OSError:
        return False
