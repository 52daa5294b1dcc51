"""Network namespaces: enter, list, processes inside, remove.

Resources are found by name: everything of a lab carries the lab's name, so that a later command finds all of it after a crash.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from zonewise.errors import ZonewiseError
from zonewise.lab.decide.addresses import namespace_of

T = TypeVar("T")

_NAMED = Path("/run/netns")
_CLONE_NEWNET = 0x40000000
_ENDED_WITHIN_SECONDS = 10.0
# Else a tool of a killed `up` could still make namespaces after `down` has listed them.
_DIES_WITH_US = ("setpriv", "--pdeathsig", "KILL", "--")
_libc = ctypes.CDLL(None, use_errno=True)


class NetworkError(ZonewiseError):
    """The kernel or a tool refused; the message holds the command and its words."""


def path(namespace: str) -> Path:
    return _NAMED / namespace


def enter(namespace: str) -> None:
    """Move the calling thread, and what it starts from now on, into the namespace for good."""
    with path(namespace).open("rb") as handle:
        if _libc.setns(handle.fileno(), _CLONE_NEWNET) != 0:
            code = ctypes.get_errno()
            raise NetworkError(f"can't enter network namespace {namespace}: {os.strerror(code)}")


def inside(namespace: str, act: Callable[[], T]) -> T:
    """What `act` returns when called inside the namespace, on a separate thread; sockets it opens stay there."""

    def enter_and_act() -> T:
        enter(namespace)
        return act()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(enter_and_act).result()


def command(namespace: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs argv inside; unlike `ip netns exec` it keeps the mounts, so inner `ip netns add` works."""
    return ["nsenter", f"--net={path(namespace)}", "--", *argv]


def links(namespace: str) -> set[str]:
    """The names of its network interfaces. (/sys/class/net shows those of the namespace it was mounted in.)"""
    return {name for _, name in inside(namespace, socket.if_nameindex)}


def of_lab(lab: str) -> list[str]:
    """The lab's namespaces."""
    router = namespace_of(lab)
    names = [entry.name for entry in _NAMED.iterdir()] if _NAMED.is_dir() else []
    return sorted(name for name in names if name == router or name.startswith(f"{router}."))


def pids_in(namespaces: Iterable[str]) -> list[int]:
    """Every process inside any of them, found in one walk over /proc."""
    inodes = {identity for namespace in namespaces if (identity := _identity(path(namespace))) is not None}
    processes = (entry for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return [int(process.name) for process in processes if _identity(process / "ns/net") in inodes]


def kill_inside(namespaces: Sequence[str]) -> None:
    """SIGKILL everything inside, until nothing is left: a process may fork while it is being looked for."""
    deadline = time.monotonic() + _ENDED_WITHIN_SECONDS
    while pids := pids_in(namespaces):
        if time.monotonic() > deadline:
            raise NetworkError(f"processes {pids} in {', '.join(namespaces)} do not end after SIGKILL")
        for pid in pids:
            _kill(pid)
        time.sleep(0.01)


def remove(namespaces: Sequence[str]) -> None:
    """Kill what runs inside and take the namespaces away, with every interface in them."""
    kill_inside(namespaces)
    ip([f"netns del {namespace}" for namespace in namespaces if path(namespace).exists()])


def sysctl(namespace: str, settings: dict[str, int]) -> None:
    def write() -> None:
        for name, value in settings.items():
            Path("/proc/sys", *name.split(".")).write_text(str(value))

    inside(namespace, write)


def ip(lines: Sequence[str], namespace: str = "", *, family: str = "") -> None:
    """Run lines of `ip` in one process; the first that fails stops it and is named. Rules need the family, "-4" or "-6"."""
    if lines:
        options = [*(["-n", namespace] if namespace else []), *([family] if family else [])]
        run(["ip", *options, "-batch", "-"], "\n".join(lines) + "\n")


def run(argv: Sequence[str], stdin: str = "") -> str:
    """Run a tool to its end; what it says on failure becomes the error."""
    done = subprocess.run([*_DIES_WITH_US, *argv], input=stdin, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        raise NetworkError(f"`{' '.join(argv)}` failed: {done.stderr.strip()}{_failed_line(done.stderr, stdin)}")
    return done.stdout


def _failed_line(stderr: str, stdin: str) -> str:
    """`ip -batch` names the line's number ("Command failed -:3"); people want the line."""
    number = stderr.rpartition("Command failed -:")[2].strip()
    lines = stdin.splitlines()
    return f" ({lines[int(number) - 1]})" if number.isdigit() and int(number) <= len(lines) else ""


def _identity(handle: Path) -> tuple[int, int] | None:
    try:
        status = handle.stat()
    except OSError:  # it has ended
        return None
    return status.st_dev, status.st_ino


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    try:
        os.waitpid(pid, os.WNOHANG)  # reap it if it is ours, or it stays in the namespace as a zombie
    except ChildProcessError:
        return
