"""First process of a node: makes its root, starts its programs and restarts them, reaps orphans.

`python -m zonewise.lab.nodes.node_init CONFIG` is process 1 of the node's PID namespace. Its end ends every process of the
node, containers too. A program that ends is started again after a second, as by a machine's service manager; containers
go on meanwhile.
"""

from __future__ import annotations

import fcntl
import os
import signal
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from zonewise.errors import ZonewiseError
from zonewise.lab.decide.containerd_config import SOCKET
from zonewise.lab.nodes import cgroups, node_root

HOLDS: Final = "holds-image-store"
"""File in the node's directory, made once its first process holds the store."""
_RESTART_SECONDS: Final = 1.0
_STARTED_WITHIN_SECONDS: Final = 60.0


class NodeUnit(msgspec.Struct, frozen=True):
    argv: tuple[str, ...]
    log: str


class NodeInitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A file of JSON, named on the command line."""

    node: str
    directory: str
    """The node's own, below the lab's."""
    lab_directory: str
    readable: tuple[str, ...]
    """Directories with programs that the node runs."""
    cgroups: tuple[str, ...]
    etc: dict[str, str]
    path: str
    containerd: NodeUnit
    others: tuple[NodeUnit, ...]
    """Started once containerd runs."""
    image_store_lock: str
    """Of the store with containerd's images, which must stay as long as the node runs."""


def main(config: NodeInitConfig) -> None:
    hold(config.image_store_lock)
    Path(config.directory, HOLDS).touch()
    cgroups.join([Path(cgroup) for cgroup in config.cgroups])
    node_root.enter(Path(config.directory), config.etc, Path(config.lab_directory), list(map(Path, config.readable)))
    node_root.host_name(config.node)
    os.environ["PATH"] = config.path
    containerd = start(config.containerd)
    await_containerd(containerd, config.containerd.log)
    supervise({containerd: config.containerd, **{start(unit): unit for unit in config.others}})


def hold(lock: str) -> None:
    """Until this process ends. Those that it starts do not inherit the descriptor."""
    descriptor = os.open(lock, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
    fcntl.flock(descriptor, fcntl.LOCK_SH)


def start(unit: NodeUnit) -> int:
    return os.posix_spawnp(
        unit.argv[0],
        unit.argv,
        os.environ,
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, unit.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
        setsigmask=[],
        setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE],
    )


def supervise(units: dict[int, NodeUnit]) -> None:
    """Until killed. Every orphan of the node becomes a child of process 1, and is reaped here."""
    while True:
        pid, status = os.wait()
        unit = units.pop(pid, None)
        if unit is not None:
            code = os.waitstatus_to_exitcode(status)
            print(f"{Path(unit.argv[0]).name} ended with {code}, starting it again", flush=True)  # noqa: T201 - its log
            time.sleep(_RESTART_SECONDS)
            units[start(unit)] = unit


def await_containerd(pid: int, log: str) -> None:
    deadline = time.monotonic() + _STARTED_WITHIN_SECONDS
    while not _accepts(SOCKET):
        ended, _ = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() > deadline:
            raise ZonewiseError(f"containerd did not start: see {log}")
        time.sleep(0.02)


def _accepts(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(path)
        except OSError:
            return False
    return True


def run(argv: Sequence[str], log: str) -> None:
    _, status = os.waitpid(start(NodeUnit(tuple(argv), log)), 0)
    if status != 0:
        raise ZonewiseError(f"`{' '.join(argv)}` failed: see {log}")


if __name__ == "__main__":
    main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=NodeInitConfig))
