"""Import of image archives into the root of a containerd, which runs for that only.

`python -m zonewise.lab.nodes.image_import CONFIG` runs in mount and PID namespaces of its own: containerd's sockets and mounts
are in them, and go with them.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import msgspec

import zonewise
from zonewise.lab.decide import containerd_config
from zonewise.lab.nodes import images, mounts, node_init
from zonewise.lab.nodes.node_init import NodeUnit


class ImageImportConfig(msgspec.Struct, frozen=True):
    runtime: str
    root: str
    """The containerd root to make."""
    archives: tuple[str, ...]


def main(config: ImageImportConfig) -> None:
    mounts.detach_foreign(
        [config.root, config.runtime, *config.archives, sys.prefix, sys.base_prefix, zonewise.__file__]
    )
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


if __name__ == "__main__":
    main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=ImageImportConfig))
