"""The parent of the serving processes: has loaded what they run, does nothing itself, and forks one when it is told to.

What processes have loaded in common is then in memory once, not once for each. The watcher, which becomes large and has
threads, could not fork them; so the command forks this process before it becomes the watcher. It hears the watcher
through a socket, and ends when that is closed.
"""

from __future__ import annotations

import asyncio
import gc
import marshal
import os
import select
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple, NoReturn

from zonewise.dns.server import tcp, udp

LARGEST_ORDER: Final = 1 << 16
MOST_SOCKETS: Final = 250
"""Given with one order; Linux passes no more than 253."""

_BROKEN: Final = 70


def _serve_streams(settings: dict[str, Any]) -> None:
    gc.enable()
    asyncio.run(tcp.serve(settings))


ROLES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {"udp": udp.serve, "streams": _serve_streams}


class ForkedProcess(NamedTuple):
    """A nursery, as its parent has it."""

    control: socket.socket
    pid: int


class ForkServer:
    def __init__(self, control: socket.socket) -> None:
        self._control = control
        self._poll = select.poll()
        self._poll.register(control, select.POLLIN)
        self._children: dict[int, tuple[str, int]] = {}
        """Names and process ids, by descriptors that tell when they end."""

    def run(self) -> NoReturn:
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == self._control.fileno():
                    self._obey()
                else:
                    self._bury(descriptor)

    def _obey(self) -> None:
        data, given, _, _ = socket.recv_fds(self._control, LARGEST_ORDER, MOST_SOCKETS)
        if not data:
            os._exit(0)  # the children have noticed, too
        match marshal.loads(data):  # noqa: S302 - from our own watcher only
            case ("fork", name, role, settings, sockets):
                numbers = iter(given)
                self._fork(name, role, settings | {use: [next(numbers) for _ in range(n)] for use, n in sockets}, given)
            case ("kill", name):
                for child, pid in self._children.values():
                    if child == name:
                        os.kill(pid, signal.SIGKILL)
            case order:
                raise ValueError(f"the watcher said {order!r}")

    def _fork(self, name: str, role: str, settings: dict[str, Any], given: Sequence[int]) -> None:
        pid = os.fork()
        if not pid:
            self._become(name, role, settings)
        for each in given:
            os.close(each)
        descriptor = os.pidfd_open(pid)
        self._children[descriptor] = (name, pid)
        self._poll.register(descriptor, select.POLLIN)

    def _become(self, name: str, role: str, settings: dict[str, Any]) -> NoReturn:
        """The child: with its own sockets alone."""
        try:
            self._control.close()
            for descriptor in self._children:
                os.close(descriptor)
            _call_ourselves(f"dns-{name}")
            ROLES[role](settings)
        except BaseException:  # noqa: BLE001 - the last to see it
            traceback.print_exc()
            sys.stderr.flush()
            os._exit(_BROKEN)
        os._exit(0)

    def _bury(self, descriptor: int) -> None:
        name, pid = self._children.pop(descriptor)
        self._poll.unregister(descriptor)
        os.close(descriptor)
        _, status = os.waitpid(pid, 0)
        self._control.send(marshal.dumps(("ended", name, os.waitstatus_to_exitcode(status))))


def _call_ourselves(name: str) -> None:
    """What `ps` and `top` can show."""
    with suppress(OSError):
        Path("/proc/self/comm").write_text(name)


def fork() -> ForkedProcess:
    """To be called before there are threads; what was loaded by then is shared."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    gc.collect()
    gc.freeze()  # a collection would write to what is shared
    pid = os.fork()
    if not pid:
        ours.close()
        os.setsid()
        _call_ourselves("dns-nursery")
        run(theirs)
    theirs.close()
    return ForkedProcess(ours, pid)


def run(control: socket.socket) -> NoReturn:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # it is the watcher who ends us
    gc.collect()
    gc.freeze()
    gc.disable()  # nothing here makes cycles
    try:
        ForkServer(control).run()
    except BaseException:  # noqa: BLE001 - as above
        traceback.print_exc()
        sys.stderr.flush()
        os._exit(_BROKEN)


if __name__ == "__main__":
    run(socket.socket(fileno=int(sys.argv[1])))
