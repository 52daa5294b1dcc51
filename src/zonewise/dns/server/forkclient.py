"""The watcher's end of the nursery: has processes forked and killed there, hears when they end, replaces it if it dies."""

from __future__ import annotations

import asyncio
import marshal
import os
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Final

from zonewise.dns.server.forkserver import ForkedProcess

UNKNOWN_CODE: Final = -1
_LARGEST_WORD: Final = 1 << 12

Sockets = Mapping[str, Sequence[int]]
"""Descriptors by what the process has them for."""


class ForkClient:
    def __init__(self, born: ForkedProcess | None = None) -> None:
        self._born = born
        self._hears = False
        self._waiting: dict[str, asyncio.Future[int]] = {}

    def fork(self, name: str, role: str, settings: dict[str, Any], sockets: Sockets) -> asyncio.Future[int]:
        """The future has the exit code when the process has ended."""
        control = self._ensured()
        ended = self._waiting[name] = asyncio.get_running_loop().create_future()
        counts = [(use, len(numbers)) for use, numbers in sockets.items()]
        order = marshal.dumps(("fork", name, role, settings, counts))
        try:
            socket.send_fds(control, [order], [number for numbers in sockets.values() for number in numbers])
        except OSError:
            self._lose()
        return ended

    def kill(self, name: str) -> None:
        if self._born is not None:
            with suppress(OSError):
                self._born.control.send(marshal.dumps(("kill", name)))

    def end(self) -> None:
        self._lose()

    def _ensured(self) -> socket.socket:
        """If it has died its children were given up, so that none is left without a parent, and a new one is started."""
        self._born = self._born or _start()
        if not self._hears:
            self._hears = True
            self._born.control.setblocking(False)
            asyncio.get_running_loop().add_reader(self._born.control, self._hear)
        return self._born.control

    def _hear(self) -> None:
        assert self._born is not None
        try:
            data = self._born.control.recv(_LARGEST_WORD)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lose()
            return
        _, name, code = marshal.loads(data)  # noqa: S302 - from our own process only
        self._ended(name, code)

    def _ended(self, name: str, code: int) -> None:
        waiting = self._waiting.pop(name, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(code)

    def _lose(self) -> None:
        """It ends as soon as nobody holds the socket."""
        if self._born is None:
            return
        if self._hears:
            asyncio.get_running_loop().remove_reader(self._born.control)
        self._born.control.close()
        with suppress(ChildProcessError):
            os.waitpid(self._born.pid, 0)
        self._born, self._hears = None, False
        for name in tuple(self._waiting):
            self._ended(name, UNKNOWN_CODE)


def _start() -> ForkedProcess:
    """By now we are too large, and not alone enough, to fork one."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "zonewise.dns.server.forkserver", str(theirs.fileno())]
        started = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
        started.returncode = 0  # waited for by its number, as the one that was forked
    return ForkedProcess(ours, started.pid)
