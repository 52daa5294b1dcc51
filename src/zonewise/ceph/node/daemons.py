"""Processes that carry a mounted volume and must outlive us: the storage daemon of an image, the client of a file system.

Each has a directory of its own with a lock that it inherits and holds as long as it lives: whoever comes later, a restarted
node plugin too, knows by that lock whether it runs, without trusting a pid. The pid beside it is right while the lock is held.
A container runtime ends everything in a container's cgroup, so a daemon can be put into another one.
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

from zonewise.ceph.crash_points import CrashPoint, reach
from zonewise.ceph.node import host_command
from zonewise.errors import ZonewiseError

_LOCK, _PID, _LOG = "lock", "pid", "log"
_HELD_AS = 3  # the descriptor under which a daemon has its lock
# $1 is the cgroup or empty. Without its pid written, nobody could end the daemon: then it does not start.
_BEGIN = 'echo $$ >pid && { test -z "$1" || echo $$ >"$1/cgroup.procs"; } && shift && exec "$@"'
_POLL_SECONDS = 0.01
_children: set[int] = set()


class DaemonError(ZonewiseError):
    pass


def start(
    directory: Path,
    argv: Sequence[str],
    ready: Callable[[], bool],
    *,
    cgroup: Path | None = None,
    timeout_seconds: float = host_command.TIMEOUT_SECONDS,
) -> None:
    """Have it running and ready; one that runs already is waited for instead."""
    deadline = time.monotonic() + timeout_seconds
    spawned = _spawn(directory, argv, cgroup)
    reach(CrashPoint.STAGE_SPAWNED)
    while not ready():
        if not running(directory):
            if not spawned:  # what held the lock was on its way out, or only looked
                spawned = _spawn(directory, argv, cgroup)
                continue
            raise DaemonError(f"{argv[0]} ended at once: {_last_words(directory) or 'it said nothing'}")
        if time.monotonic() > deadline:
            raise DaemonError(
                f"{argv[0]} was not ready within {timeout_seconds:g} s: is the Ceph cluster reachable from this node?"
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
    """Whether it has ended in time."""
    deadline = time.monotonic() + timeout_seconds
    while running(directory):
        if time.monotonic() > deadline:
            return False
        time.sleep(_POLL_SECONDS)
    _reap()
    return True


def end(directory: Path) -> None:
    """Ask it to, if it runs: it may take its time to put away what it holds."""
    _signal(directory, signal.SIGTERM, 0)


def kill(directory: Path, timeout_seconds: float = 10.0) -> None:
    """End it the hard way, if it runs."""
    _signal(directory, signal.SIGKILL, timeout_seconds)
    if not wait(directory, timeout_seconds):
        raise DaemonError(f"the process of {directory} does not end after SIGKILL: look at its state in /proc")


def pid(directory: Path) -> int | None:
    """Of the running daemon."""
    try:
        number = int((directory / _PID).read_text())
    except (FileNotFoundError, ValueError):
        return None
    return number if running(directory) else None


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
    number = pid(directory)
    if number is None:
        return None
    try:
        handle = os.pidfd_open(number)
    except ProcessLookupError:
        return None
    if running(directory):  # still: so the handle is of the daemon and not of who got its number
        return handle
    os.close(handle)
    return None


def _spawn(directory: Path, argv: Sequence[str], cgroup: Path | None) -> bool:
    """Whether there was anything to start."""
    _reap()
    lock = os.open(directory / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False  # it runs, started by a predecessor of this process perhaps
        (directory / _PID).unlink(missing_ok=True)
        if cgroup is not None:
            cgroup.mkdir(parents=True, exist_ok=True)
        _children.add(
            os.posix_spawn(
                "/bin/sh",
                ["sh", "-c", f'cd "$0" && {_BEGIN}', str(directory), str(cgroup or ""), *argv],
                host_command.environment(),
                file_actions=[
                    (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                    (os.POSIX_SPAWN_OPEN, 1, str(directory / _LOG), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600),
                    (os.POSIX_SPAWN_DUP2, 1, 2),
                    (os.POSIX_SPAWN_DUP2, lock, _HELD_AS),
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
    """Forget those of our children that have ended."""
    for child in list(_children):
        with contextlib.suppress(ChildProcessError):
            if os.waitpid(child, os.WNOHANG) == (0, 0):
                continue
        _children.discard(child)


def _last_words(directory: Path) -> str:
    try:
        return host_command.shortened((directory / _LOG).read_text(errors="replace"))
    except FileNotFoundError:
        return ""
