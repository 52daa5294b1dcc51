"""Images of nodes: `pause` and `busybox` made from programs of this machine, and archives that people load."""

from __future__ import annotations

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from zonewise.errors import UsageError, ZonewiseError
from zonewise.lab.decide import oci_image
from zonewise.lab.decide.containerd_config import SOCKET
from zonewise.lab.decide.oci_image import ImageFiles
from zonewise.lab.records import write_private

PAUSE: Final = "localhost/lab-pause:1"
BUSYBOX: Final = "docker.io/library/busybox:1"
"""`image: busybox:1`. Any tag but `latest` is not pulled where it is there."""
NAMESPACE: Final = "k8s.io"
"""containerd's own, for images and containers of the kubelet."""
_ARCHITECTURES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_AT_ONCE: Final = 2
_LOADED_WITHIN_SECONDS: Final = 600
_UNPACKED: Final = re.compile(r"^unpacking (\S+)", re.MULTILINE)
"""What ctr prints of each image."""


def write(directory: Path, runtime: Path) -> list[Path]:
    """Archives of the images that every node starts with."""
    directory.mkdir(exist_ok=True)
    pause, shell = {"Entrypoint": ["/pause"], "User": "65535:65535"}, {"Cmd": ["sh"], "Env": ["PATH=/bin"]}
    made = {
        "pause.tar": oci_image.archive(PAUSE, _pause(runtime), pause, architecture()),
        "busybox.tar": oci_image.archive(BUSYBOX, busybox(), shell, architecture()),
    }
    for name, archive in made.items():
        write_private(directory / name, archive)
    return [directory / name for name in made]


def load(runtime: Path, roots: Sequence[Path], archive: Path) -> list[str]:
    """Load an archive into the containerd of every node, each known by its root; returns the names of the images in it."""
    if not archive.is_file():
        raise UsageError(f"{archive} is no file: give an image archive, as `docker save` or `buildah push` write it")
    with ThreadPoolExecutor(_AT_ONCE) as threads:
        loaded = list(threads.map(lambda root: _load(runtime, root, archive), roots))
    return loaded[0] if loaded else []


def import_argv(runtime: Path, socket: str = SOCKET) -> list[str]:
    return [*_ctr(runtime, socket), "images", "import", "--local"]


def discard_layers_argv(runtime: Path) -> list[str]:
    """Layers that are unpacked are needed for nothing else."""
    return [*_ctr(runtime, SOCKET), "content", "prune", "references"]


def _ctr(runtime: Path, socket: str) -> list[str]:
    return [str(runtime / "ctr"), "--address", socket, "--namespace", NAMESPACE]


def _load(runtime: Path, root: Path, archive: Path) -> list[str]:
    """Through the node's root in /proc: a socket's path is short."""
    done = subprocess.run(
        [*import_argv(runtime, f"{root}{SOCKET}"), str(archive)],
        capture_output=True,
        text=True,
        check=False,
        timeout=_LOADED_WITHIN_SECONDS,
    )
    if done.returncode != 0:
        raise ZonewiseError(f"{archive} could not be loaded: {done.stderr.strip()}")
    return _UNPACKED.findall(done.stdout)


def architecture() -> str:
    """Of this machine, as images name it."""
    machine = platform.machine()
    return _ARCHITECTURES.get(machine, machine)


def _pause(runtime: Path) -> ImageFiles:
    return ImageFiles(programs={"pause": (runtime / "pause").read_bytes()})


def busybox() -> ImageFiles:
    program = shutil.which("busybox")
    if program is None:
        raise ZonewiseError("the image busybox is made from a static busybox: install the package busybox-static")
    names = subprocess.check_output([program, "--list"], text=True).split()
    return ImageFiles(
        programs={"bin/busybox": Path(program).read_bytes()},
        texts={
            "etc/passwd": "root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
            "etc/group": "root:x:0:\n",
        },
        links={f"bin/{name}": "busybox" for name in names if name != "busybox"},
        directories={"bin": 0o755, "etc": 0o755, "root": 0o700, "tmp": 0o1777, "var": 0o755, "var/tmp": 0o1777},
    )
