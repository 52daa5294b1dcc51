"""The serving processes: has them forked, tells all of them every update, hears their reports, and replaces those that end.

Each has a socket pair of its own with the watcher (see `nursery` for their parent). A process that does not read what it is told is ended: the one
that follows is told everything afresh.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final

from zonewise import log
from zonewise.dns import metrics
from zonewise.dns.decide.table import Update
from zonewise.dns.server.forkclient import ForkClient, Sockets
from zonewise.dns.server.forkserver import ForkedProcess
from zonewise.dns.server.sockets import ListenSockets
from zonewise.dns.wire import ipc

DRAIN_SECONDS: Final = 10.0
RESTART_SECONDS: Final = 0.2
TELL_SECONDS: Final = 0.005
"""What changes within it is told together: whoever answers is interrupted once."""
SILENCE_SECONDS, MOST_SILENCES = 5.0, 4
"""A process that serves reports every second; one that says nothing for so long, and so often, hangs."""
MOST_UNREAD_BYTES: Final = 256 << 20

_log = log.get_logger(__name__)

Snapshot = Callable[[], Iterable[Update]]


@dataclass(frozen=True, slots=True)
class Orders:
    """What all processes are told when they are forked."""

    domain: bytes
    upstreams: tuple[str, ...] = ()
    forwarders: tuple[str, ...] = ()
    queries_per_second: int = 0
    cache_seconds: int = 30
    stale_seconds: int = 3600
    logs_queries: bool = False

    def settings(self) -> dict[str, Any]:
        return {
            "domain": self.domain.hex(),
            "recursive": bool(self.upstreams),
            "upstreams": self.upstreams,
            "forwarders": self.forwarders,
            "queries_per_second": self.queries_per_second,
            "cache_seconds": self.cache_seconds,
            "stale_seconds": self.stale_seconds,
            "logs_queries": self.logs_queries,
        }


@dataclass(slots=True)
class WorkerSlot:
    """A place in the fleet; the process in it may change."""

    name: str
    role: str
    settings: dict[str, Any]
    sockets: Sockets
    ended: asyncio.Future[int] | None = None
    """Of the process that is there now: its exit code."""
    writer: asyncio.StreamWriter | None = None
    serves: bool = False


class Supervisor:
    def __init__(
        self,
        doors: ListenSockets,
        orders: Orders,
        snapshot: Snapshot,
        take_report: Callable[[Any], None],
        born: ForkedProcess | None = None,
    ) -> None:
        """`born` is the nursery to begin with."""
        self._snapshot = snapshot
        self._take_report = take_report
        self._draining = False
        self._untold: list[Update] = []
        self._handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._handover[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self.members = [self._udp(orders, index, each) for index, each in enumerate(doors.udp)]
        self.members.append(self._streams(orders, doors))
        self._parent = ForkClient(born)

    def _udp(self, orders: Orders, index: int, sockets: tuple[socket.socket, ...]) -> WorkerSlot:
        given = {"sockets": _numbers(sockets), "handover": _numbers(self._handover[:1])}
        return WorkerSlot(f"udp-{index + 1}", "udp", {**orders.settings(), "partial": True}, given)

    def _streams(self, orders: Orders, doors: ListenSockets) -> WorkerSlot:
        given = {
            "sockets": _numbers(doors.udp[0]),
            "listeners": _numbers(doors.tcp),
            "handover": _numbers(self._handover[1:]),
        }
        return WorkerSlot("streams", "streams", {**orders.settings(), "partial": False}, given)

    @property
    def trouble(self) -> str | None:
        missing = [member.name for member in self.members if not member.serves]
        return f"not serving yet: {', '.join(missing)}" if missing else None

    async def run(self) -> None:
        """Until cancelled: then the processes answer what waits, and end."""
        keepers = [asyncio.create_task(self._keep(member), name=member.name) for member in self.members]
        try:
            await asyncio.wait(keepers, return_when=asyncio.FIRST_EXCEPTION)  # unlike gather it leaves them alone
        finally:
            await self._drain(keepers)
            self._parent.end()
            for each in self._handover:
                each.close()

    def tell(self, updates: Iterable[Update]) -> None:
        """Soon, together with what else comes."""
        if not self._untold:
            asyncio.get_running_loop().call_later(TELL_SECONDS, self._tell_now)
        self._untold += updates

    def _tell_now(self) -> None:
        data = b"".join(map(ipc.encode, self._untold))
        self._untold.clear()
        for member in self.members:
            if member.writer is not None and data:
                member.writer.write(data)
                if member.writer.transport.get_write_buffer_size() > MOST_UNREAD_BYTES:
                    _log.error("a serving process does not read what it is told and is replaced", process=member.name)
                    self._end(member)

    async def _keep(self, member: WorkerSlot) -> None:
        while not self._draining:
            try:
                await self._live(member)
            finally:
                self._end(member)
            if not self._draining:
                metrics.RESTARTS.inc()
                _log.warning("a serving process ended and is started again", process=member.name, code=_code(member))
                await asyncio.sleep(RESTART_SECONDS)

    async def _live(self, member: WorkerSlot) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            sockets = {**member.sockets, "feed": [theirs.fileno()]}
            member.ended = self._parent.fork(member.name, member.role, member.settings, sockets)
        reader, writer = await asyncio.open_connection(sock=ours)
        _close_when(member.ended, writer)
        self._tell_now()  # to the others: this one is told everything
        for update in self._snapshot():
            writer.write(ipc.encode(update))
        writer.write(ipc.encode(("begin",)))
        member.writer = writer
        decoder = ipc.UpdateDecoder()
        try:
            while data := await self._said(member, reader):
                for message in decoder.feed(data):
                    self._hear(member, message)
        except ConnectionError:
            pass
        except TimeoutError:
            _log.error("a serving process hangs and is replaced", process=member.name)
            self._end(member)
        await asyncio.shield(member.ended)

    async def _said(self, member: WorkerSlot, reader: asyncio.StreamReader) -> bytes:
        """What the process says next. Silence counts once however long it was: it may have been us who hung."""
        silences = 0
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    return await reader.read(1 << 16)
            except TimeoutError:
                silences += member.serves
                if silences >= MOST_SILENCES:
                    raise

    def _hear(self, member: WorkerSlot, message: tuple[Any, ...]) -> None:
        match message:
            case ("report", report):
                self._take_report(report)
            case ("begun",):
                member.serves = True
            case _:
                raise ValueError(f"{member.name} said {message!r}")

    def _end(self, member: WorkerSlot) -> None:
        if member.ended is not None and not member.ended.done():
            self._parent.kill(member.name)
        if member.writer is not None:
            member.writer.close()
        member.writer, member.serves = None, False

    async def _drain(self, keepers: list[asyncio.Task[None]]) -> None:
        self._draining = True
        self.tell([("drain",)])
        self._tell_now()
        alive = [member.ended for member in self.members if member.ended and member.writer]
        if alive:
            await asyncio.wait(alive, timeout=DRAIN_SECONDS)
        for task in keepers:
            task.cancel()
        ended = await asyncio.gather(*keepers, return_exceptions=True)
        for member in self.members:
            self._end(member)
        for error in ended:
            if isinstance(error, Exception):
                raise error


def _numbers(sockets: Iterable[socket.socket]) -> list[int]:
    return [each.fileno() for each in sockets]


def _close_when(ended: asyncio.Future[int], writer: asyncio.StreamWriter) -> None:
    """A while after a process has ended, or its parent: what it said last is read, and a child without parent is let go."""
    loop = asyncio.get_running_loop()
    ended.add_done_callback(lambda _: loop.call_later(RESTART_SECONDS, writer.close))


def _code(member: WorkerSlot) -> int | None:
    return member.ended.result() if member.ended and member.ended.done() else None
