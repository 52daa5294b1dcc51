"""The process for what takes time: TCP clients, and names that other servers know.

UDP processes hand over what they can't answer at once; it is answered from here, through the same port. Connections
that are idle or too many are closed, the longest idle first, so that slow clients hinder nobody.
"""

from __future__ import annotations

import asyncio
import itertools
import marshal
import resource
import socket
import struct
import time
from typing import Any, Final

from zonewise.dns.decide.forward_cache import CacheHit, ForwardCache, ForwardQuestion
from zonewise.dns.decide.handler import (
    LARGEST,
    OUR_UDP_BYTES,
    ForwardQuery,
    QuerySender,
    failure,
    respond,
    with_others,
)
from zonewise.dns.decide.upstreams import Upstreams, read_upstream
from zonewise.dns.server import priority
from zonewise.dns.server.forwarder import MOST_AT_ONCE, Forwarder
from zonewise.dns.server.worker import Worker, desk_from
from zonewise.dns.wire.message import IN, Rcode
from zonewise.dns.wire.upstream_message import answers_in_full, written

IDLE_SECONDS: Final = 10.0
MOST_CONNECTIONS: Final = 20_000
OTHER_DESCRIPTORS: Final = MOST_AT_ONCE + 100
"""For questions to other servers, and what a process has open anyway."""

MOST_WAITING: Final = 10_000
"""Clients at once that wait for other servers: however many ask the same, each takes memory."""
LARGEST_UNSENT: Final = 1 << 20
MOST_HELD_BYTES: Final = 64 << 20
"""Of all connections together: messages that are not whole yet, and replies that nobody takes."""
DRAIN_SECONDS: Final = 5.0
_BACKLOG: Final = 1024


class TcpWorker:
    def __init__(self, settings: dict[str, Any], most_connections: int = MOST_CONNECTIONS) -> None:
        self.most_connections = most_connections
        self.loop = asyncio.get_running_loop()
        self.office = Worker(
            desk_from(settings),
            socket.socket(fileno=settings["feed"][0]),
            self._drain_soon,
        )
        self.connections: dict[TcpConnection, None] = {}
        self.draining = asyncio.Event()
        self.turns = itertools.count()
        self._answers: set[asyncio.Task[None]] = set()
        self._listeners = [socket.socket(fileno=descriptor) for descriptor in settings["listeners"]]
        self._senders = [socket.socket(fileno=descriptor) for descriptor in settings["sockets"]]
        self._handover = socket.socket(fileno=settings["handover"][0])
        upstreams = tuple(map(read_upstream, settings["upstreams"]))
        cache = ForwardCache(settings["cache_seconds"], settings["stale_seconds"])
        self._forwarder = Forwarder(Upstreams(upstreams), cache) if upstreams else None

    async def serve(self) -> None:
        priority.answer_first()
        self.office.start()
        self._handover.setblocking(False)
        self.loop.add_reader(self._handover, self._take_over)
        for listener in self._listeners:
            await self.loop.create_server(lambda: TcpConnection(self), sock=listener, backlog=_BACKLOG)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._keep_order())
            if self._forwarder:
                group.create_task(self._forwarder.keep_probing())
            await self.draining.wait()
            if self._answers:
                await asyncio.wait(self._answers, timeout=DRAIN_SECONDS)
            self.office.leave()

    def _drain_soon(self) -> None:
        self.loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        for listener in self._listeners:
            self.loop.remove_reader(listener)
            listener.close()
        self.draining.set()

    def sender(self, address: str) -> QuerySender:
        sender = self.office.clients.get(address) or self.office.sender(address)
        sender.queries += 1
        return sender

    def answer(self, packet: bytes, address: str, largest: int) -> bytes | ForwardQuery:
        return respond(self.office.table, packet, self.sender(address), largest, next(self.turns))

    async def ask_others(self, elsewhere: ForwardQuery) -> bytes:
        query = elsewhere.query
        if self._forwarder is None:
            return with_others(elsewhere, 0, b"", 0) if elsewhere.count else failure(query, Rcode.REFUSED)
        dnssec_ok = bool(query.edns and query.edns.dnssec_ok)
        question = elsewhere.name.lower() + struct.pack(">HH", query.type, IN)
        found = await self._forwarder.ask(ForwardQuestion(question, dnssec_ok))
        if found is None:
            return failure(query, Rcode.SERVFAIL)
        return _for_client(elsewhere, found)

    def begin_answer(self, elsewhere: ForwardQuery, send: Any) -> None:
        if len(self._answers) >= MOST_WAITING:
            send(failure(elsewhere.query, Rcode.SERVFAIL))
            return

        async def work() -> None:
            send(await self.ask_others(elsewhere))

        task = self.loop.create_task(work())
        self._answers.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._answers.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.office.errors += 1

    def _take_over(self) -> None:
        """A query from a UDP process: which socket, who asks, and the packet."""
        for _ in range(64):
            try:
                data = self._handover.recv(LARGEST)
            except BlockingIOError:
                return
            index, address, packet = marshal.loads(data)  # noqa: S302 - from our own processes only
            found = self.answer(packet, address[0], OUR_UDP_BYTES)
            if isinstance(found, ForwardQuery):
                self.begin_answer(found, lambda reply, i=index, to=address: self._send(i, reply, to))
            elif found:
                self._send(index, found, address)

    def _send(self, index: int, reply: bytes, address: Any) -> None:
        try:
            self._senders[index].sendto(reply, address)
        except OSError:
            self.office.dropped += 1

    async def _keep_order(self) -> None:
        """The dictionary is in the order of last use, so the first are the longest idle."""
        while True:
            self.office.served_at = time.monotonic()
            await asyncio.sleep(1.0)
            for connection in (*self._idle(time.monotonic() - IDLE_SECONDS), *self._greedy(MOST_HELD_BYTES)):
                connection.close()

    def _greedy(self, most: int) -> list[TcpConnection]:
        """Those that were used least lately of who holds memory, as many as it takes to have no more than `most` held."""
        held = {each: size for each in self.connections if (size := each.held_bytes)}
        over, found = sum(held.values()) - most, []
        for connection, size in held.items():
            if over <= 0:
                break
            found.append(connection)
            over -= size
        return found

    def _idle(self, since: float) -> list[TcpConnection]:
        return list(itertools.takewhile(lambda each: each.used_at < since, self.connections))


def _for_client(elsewhere: ForwardQuery, found: CacheHit) -> bytes:
    if not elsewhere.count:
        return written(found.response, elsewhere.query, elsewhere.room, found.age)
    count, records = answers_in_full(found.response, found.age)
    return with_others(elsewhere, count, records, found.response.rcode)


class TcpConnection(asyncio.Protocol):
    """A TCP client: messages with two bytes of length before each (RFC 7766), several at once if it likes."""

    __slots__ = ("_address", "_streams", "_transport", "_waiting", "used_at")

    def __init__(self, streams: TcpWorker) -> None:
        self._streams = streams
        self._waiting = b""
        self._address = ""
        self._transport: asyncio.Transport | None = None
        self.used_at = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if peer else ""
        connections = self._streams.connections
        connections[self] = None
        if len(connections) > self._streams.most_connections:
            next(iter(connections)).close()

    @property
    def held_bytes(self) -> int:
        return len(self._waiting) + (self._transport.get_write_buffer_size() if self._transport else 0)

    def pause_writing(self) -> None:
        """Who does not read is not read from."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._streams.connections.pop(self, None)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        waiting, begin = self._waiting + data, 0
        while len(waiting) >= begin + 2:
            end = begin + 2 + int.from_bytes(waiting[begin : begin + 2])
            if len(waiting) < end:
                break
            self._use()
            if not self._answer(waiting[begin + 2 : end]):
                self.close()  # not a client of DNS
                return
            begin = end
        self._waiting = waiting[begin:]

    def _answer(self, packet: bytes) -> bool:
        found = self._streams.answer(packet, self._address, LARGEST)
        if isinstance(found, ForwardQuery):
            self._streams.begin_answer(found, self.send)
        elif found:
            self.send(found)
        return bool(found)

    def send(self, reply: bytes) -> None:
        if self._transport is None:
            return
        self._transport.write(struct.pack(">H", len(reply)) + reply)
        if self._transport.get_write_buffer_size() > LARGEST_UNSENT:
            self._transport.abort()  # asks, but does not read

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _use(self) -> None:
        """Only a whole message counts: a byte now and then keeps no connection open."""
        connections = self._streams.connections
        if connections.pop(self, 0) is None:
            connections[self] = None
        self.used_at = time.monotonic()


async def serve(settings: dict[str, Any]) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    await TcpWorker(settings, most_connections(most)).serve()


def most_connections(descriptors: int) -> int:
    """What may be open at once: so many that descriptors never run out, because then nobody new would be let in."""
    return min(MOST_CONNECTIONS, max(descriptors // 2, descriptors - OTHER_DESCRIPTORS))
