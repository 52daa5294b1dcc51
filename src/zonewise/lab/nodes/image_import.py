"""Import of image archives into the root of a containerd, which runs for that only.

`python -m zonewise.lab.nodes.image_import CONFIG` runs in mount and PID namespaces of its own: containerd's sockets and mounts
are in them, and go with them.
"""

from __future__ import annotations

import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

import zonewise
from zonewise.lab.decide import containerd_config, image_plan
from zonewise.lab.nodes import images, mounts, node_init
from zonewise.lab.nodes.node_init import NodeUnit

_SYSTEM: Final = ("/bin", "/etc", "/lib", "/lib64", "/sbin", "/usr")


class ImageImportConfig(msgspec.Struct, frozen=True):
    runtime: str
    root: str
    """The containerd root to make."""
    archives: tuple[str, ...]


def main(config: ImageImportConfig) -> None:
    _let_go(config)
    mounts.mount("proc", Path("/proc"))
    mounts.mount("tmpfs", Path("/run"), "mode=755")
    runtime, file = Path(config.runtime), Path("/run/containerd.toml")
    file.write_text(containerd_config.import_config_toml(config.root))
    log = f"{config.root}.log"
    containerd = node_init.start(NodeUnit((str(runtime / "containerd"), "--config", str(file)), log))
    node_init.await_containerd(containerd, log)
    for archive in config.archives:
        node_init.run((*images.import_argv(runtime), archive), log)
    node_init.run(images.discard_layers_argv(runtime), log)
    os.kill(containerd, signal.SIGTERM)
    os.waitpid(containerd, 0)


def _let_go(config: ImageImportConfig) -> None:
    """The namespace began with a copy of every mount, which would keep volumes of other programs in use for as long as this runs."""
    python = (sys.prefix, sys.base_prefix, str(Path(zonewise.__file__).parent))
    needed = (config.root, config.runtime, *config.archives, *python, *_SYSTEM)
    for point in image_plan.foreign_mounts(Path("/proc/self/mountinfo").read_text(), needed):
        with suppress(mounts.MountError):  # it went with the one above it
            mounts.detach(Path(point))


if __name__ == "__main__":
    main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ImageImportConfig))
