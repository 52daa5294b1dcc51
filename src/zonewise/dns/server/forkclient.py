"""Client of the fork server: requests forks and kills, reports exits, and starts a new fork server if it dies."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import sys
from contextlib import suppress
from typing import Final

from zonewise.dns.server.forkserver import ForkedProcess
from zonewise.dns.server.worker import WorkerSockets
from zonewise.dns.wire import ipc
from zonewise.dns.wire.ipc import Exited, Fork, Kill, WorkerConfig, WorkerRole

UNKNOWN_CODE: Final = -1
_MAX_MESSAGE_BYTES: Final = 1 << 12


class ForkClient:
    def __init__(self, server: ForkedProcess | None = None) -> None:
        self.server = server
        self._reading = False
        self._exits: dict[str, asyncio.Future[int]] = {}

    def fork(self, name: str, role: WorkerRole, config: WorkerConfig, sockets: WorkerSockets) -> asyncio.Future[int]:
        """The future gets the exit code of the worker."""
        control = self._connect()
        exited = self._exits[name] = asyncio.get_running_loop().create_future()
        request = ipc.encode_message(Fork(name, role, config, len(sockets.udp)))
        try:
            socket.send_fds(control, [request], sockets.descriptors)
        except OSError:
            self.close()
        return exited

    def kill(self, name: str) -> None:
        if self.server is not None:
            with suppress(OSError):
                self.server.control.send(ipc.encode_message(Kill(name)))

    def close(self) -> None:
        """The fork server exits when its socket is closed, and the supervisor closes those of its workers."""
        if self.server is None:
            return
        if self._reading:
            asyncio.get_running_loop().remove_reader(self.server.control)
        self.server.control.close()
        with suppress(ChildProcessError):
            os.waitpid(self.server.pid, 0)
        self.server, self._reading = None, False
        for name in tuple(self._exits):
            self._resolve(name, UNKNOWN_CODE)

    def _connect(self) -> socket.socket:
        self.server = self.server or start_fork_server()
        if not self._reading:
            self._reading = True
            self.server.control.setblocking(False)
            asyncio.get_running_loop().add_reader(self.server.control, self._read)
        return self.server.control

    def _read(self) -> None:
        assert self.server is not None
        try:
            data = self.server.control.recv(_MAX_MESSAGE_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        message = ipc.decode_message(data)
        assert isinstance(message, Exited)
        self._resolve(message.name, message.code)

    def _resolve(self, name: str, code: int) -> None:
        exited = self._exits.pop(name, None)
        if exited is not None and not exited.done():
            exited.set_result(code)


def start_fork_server() -> ForkedProcess:
    """As a new program: the controller is large and has threads by now."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "zonewise.dns.server.forkserver", str(theirs.fileno())]
        process = subprocess.Popen(command, pass_fds=(theirs.fileno(),), start_new_session=True)
        process.returncode = 0  # `close` waits for it by its pid, as for a forked one
    return ForkedProcess(ours, process.pid)
