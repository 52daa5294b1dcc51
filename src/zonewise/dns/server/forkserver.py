"""Fork server of the DNS workers: a small process that has their modules loaded and forks them on request.

Workers then share the memory of these modules. The controller process becomes large and has threads, so it can't fork
workers itself; the command forks this process before it becomes the controller. Requests arrive on a socket, and the
fork server exits when that is closed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, NoReturn

from zonewise.dns.server import tcp
from zonewise.dns.server.udp import UdpWorker
from zonewise.dns.server.worker import WorkerSockets
from zonewise.dns.wire import ipc
from zonewise.dns.wire.ipc import Exited, Fork, Kill, WorkerRole

MAX_REQUEST_BYTES: Final = 1 << 16
MAX_SOCKETS: Final = 250
"""Per request; Linux passes no more than 253."""

_CRASHED: Final = 70


class ForkedProcess(NamedTuple):
    """A fork server, as its parent holds it."""

    control: socket.socket
    pid: int


class ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._children: dict[int, tuple[str, int]] = {}
        """Names and process ids, by pidfd."""

    def run(self) -> NoReturn:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    self._handle_request()
                else:
                    self._reap(descriptor)

    def _handle_request(self) -> None:
        data, descriptors, _, _ = socket.recv_fds(self._control, MAX_REQUEST_BYTES, MAX_SOCKETS)
        if not data:
            os._exit(0)  # the workers' own sockets are closed, too
        match ipc.decode_message(data):
            case Fork() as request:
                self._fork(request, descriptors)
            case Kill(name=name):
                for child, pid in self._children.values():
                    if child == name:
                        os.kill(pid, signal.SIGKILL)
            case message:
                raise ValueError(f"unexpected message to the fork server: {message!r}")

    def _fork(self, request: Fork, descriptors: Sequence[int]) -> None:
        pid = os.fork()
        if not pid:
            self._run_worker(request, WorkerSockets.received(descriptors, request.udp_sockets))
        for descriptor in descriptors:
            os.close(descriptor)
        pidfd = os.pidfd_open(pid)
        self._children[pidfd] = (request.name, pid)
        self._poll.register(pidfd, select.POLLIN)

    def _run_worker(self, request: Fork, sockets: WorkerSockets) -> NoReturn:
        """In the child: with no sockets but its own."""
        try:
            self._control.close()
            for pidfd in self._children:
                os.close(pidfd)
            _set_process_name(f"dns-{request.name}")
            if request.role is WorkerRole.UDP:
                UdpWorker(request.config, sockets).serve()
            else:
                gc.enable()
                asyncio.run(tcp.serve(request.config, sockets))
        except BaseException:  # noqa: BLE001 - nothing above would report it
            _crash()
        os._exit(0)

    def _reap(self, pidfd: int) -> None:
        name, pid = self._children.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        _, status = os.waitpid(pid, 0)
        self._control.send(ipc.encode_message(Exited(name, os.waitstatus_to_exitcode(status))))


def _set_process_name(name: str) -> None:
    """As `ps` and `top` show it."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def _crash() -> NoReturn:
    traceback.print_exc()
    sys.stderr.flush()
    os._exit(_CRASHED)


def fork() -> ForkedProcess:
    """Call before there are threads. Modules that are loaded by then are shared."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gc.collect()
    gc.freeze()  # a collection would write to shared pages
    pid = os.fork()
    if not pid:
        ours.close()
        os.setsid()
        _set_process_name("dns-forkserver")
        run(theirs)
    theirs.close()
    return ForkedProcess(ours, pid)


def run(control: socket.socket) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the controller ends this process
    gc.collect()
    gc.freeze()
    gc.disable()  # nothing here makes cycles
    try:
        ForkServer(control).run()
    except BaseException:  # noqa: BLE001 - as above
        _crash()


if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
