"""Daemons that serve a mounted volume and must outlive the driver: storage daemons of images, ceph-fuse.

Each has a directory with a lock file that it inherits and holds as long as it lives. Later processes, also a restarted
node plugin, know by the lock whether it runs, without trusting a pid. The pid file is valid while the lock is held. A
container runtime kills everything in a container's cgroups, so a daemon can be moved to others, see `cgroups`.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from zonewise.ceph.crash_points import CrashPoint, crash_if_armed
from zonewise.ceph.node import cgroups, host_command
from zonewise.errors import ZonewiseError

_LOCK, _PID, _LOG = "lock", "pid", "log"
_LOCK_FD: Final = 3  # the descriptor of a daemon's lock
# $1 has the files of cgroups to join. The daemon does not start if its pid can't be written, since it could not be
# terminated, nor in the container's cgroup.
_SCRIPT: Final = 'echo $$ >pid && IFS=: && for file in $1; do echo $$ >"$file" || exit 1; done && shift && exec "$@"'
_POLL_SECONDS: Final = 0.01
_children: set[int] = set()


class DaemonError(ZonewiseError):
    pass


def start(
    directory: Path,
    argv: Sequence[str],
    ready: Callable[[], bool],
    *,
    cgroup: Sequence[Path] = (),
    timeout_seconds: float = host_command.TIMEOUT_SECONDS,
) -> None:
    """Start it unless it runs already, and wait until it is ready. `cgroup`: its directory in each hierarchy."""
    deadline = time.monotonic() + timeout_seconds
    spawned = _spawn(directory, argv, cgroup)
    crash_if_armed(CrashPoint.STAGE_SPAWNED)
    while not ready():
        if not running(directory):
            if not spawned:  # the lock was held by an exiting daemon, or by a check
                spawned = _spawn(directory, argv, cgroup)
                continue
            raise DaemonError(f"{argv[0]} exited at once: {_log_tail(directory) or 'no output'}")
        if time.monotonic() > deadline:
            raise DaemonError(
                f"{argv[0]} was not ready within {timeout_seconds:g} s: check that this node reaches the Ceph cluster"
            )
        time.sleep(_POLL_SECONDS)


def running(directory: Path) -> bool:
    try:
        lock = os.open(directory / _LOCK, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(lock)
    return False


def wait(directory: Path, timeout_seconds: float) -> bool:
    """Whether it has exited in time."""
    deadline = time.monotonic() + timeout_seconds
    while running(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    _reap()
    return True


def terminate(directory: Path) -> None:
    """Send SIGTERM, if it runs: it may take a while to flush its data."""
    _signal(directory, signal.SIGTERM, 0)


def kill(directory: Path, timeout_seconds: float = 10.0) -> None:
    """Send SIGKILL, if it runs, and wait."""
    _signal(directory, signal.SIGKILL, timeout_seconds)
    if not wait(directory, timeout_seconds):
        raise DaemonError(f"the daemon of {directory} does not exit after SIGKILL: check its state in /proc")


def pid(directory: Path) -> int | None:
    """Of the running daemon."""
    try:
        value = int((directory / _PID).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return value if running(directory) else None


def _signal(directory: Path, number: signal.Signals, wait_seconds: float) -> None:
    handle = _handle(directory)
    if handle is None:
        return
    try:
        signal.pidfd_send_signal(handle, number)
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        poll.poll(wait_seconds * 1000)
    except ProcessLookupError:
        pass
    finally:
        os.close(handle)


def _handle(directory: Path) -> int | None:
    process_id = pid(directory)
    if process_id is None:
        return None
    try:
        handle = os.pidfd_open(process_id)
    except ProcessLookupError:
        return None
    if running(directory):  # so the pid was not reused before it was opened
        return handle
    os.close(handle)
    return None


def _spawn(directory: Path, argv: Sequence[str], cgroup: Sequence[Path]) -> bool:
    """False if it runs already."""
    _reap()
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False  # maybe started by an earlier process
        (directory / _PID).unlink(missing_ok=True)
        cgroups.create(cgroup)
        joining = ":".join(str(one / cgroups.PROCESSES) for one in cgroup)
        _children.add(
            os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", f'cd "$0" && {_SCRIPT}', str(directory), joining, *argv],
                host_command.environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(directory / _LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    (os.POSIX_SPAWN_DUP2, lock, _LOCK_FD),
                ],
                setsid=True,
                setsigmask=[],
                setsigdef=[signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGHUP],
            )
        )
    finally:
        os.close(lock)
    return True


def _reap() -> None:
    """Reap exited children."""
    for child in list(_children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                continue
        _children.discard(child)


def _log_tail(directory: Path) -> str:
    try:
        return host_command.shortened((directory / _LOG).read_text(errors="replace"))
    except FileNotFoundError:
        return ""
