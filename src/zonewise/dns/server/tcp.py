"""DNS worker for TCP clients and for forwarded queries: everything that takes time.

UDP workers hand queries over that they can't answer at once; the replies leave through the same port. Connections that
are idle or too many are closed, the longest idle first, so that slow clients don't block others.
"""

from __future__ import annotations

import asyncio
import itertools
import marshal
import socket
import struct
import time
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from zonewise import descriptors
from zonewise.dns.decide.client_location import client_key
from zonewise.dns.decide.fair_share import FairShare
from zonewise.dns.decide.fast_path import QueryKind
from zonewise.dns.decide.forward_cache import CacheHit, ForwardCache, ForwardQuestion
from zonewise.dns.decide.handler import (
    MAX_MESSAGE_BYTES,
    OUR_UDP_BYTES,
    ForwardQuery,
    QuerySender,
    failure,
    respond,
    with_upstream_records,
)
from zonewise.dns.decide.upstreams import Upstreams, read_upstream
from zonewise.dns.server import priority
from zonewise.dns.server.forwarder import MAX_CONCURRENT, Forwarder
from zonewise.dns.server.worker import Worker, WorkerSockets
from zonewise.dns.wire.ipc import WorkerConfig
from zonewise.dns.wire.message import IN, Rcode
from zonewise.dns.wire.upstream_message import client_reply, uncompressed_answers

IDLE_SECONDS: Final = 10.0
MAX_CONNECTIONS: Final = 20_000
OTHER_DESCRIPTORS: Final = MAX_CONCURRENT + 100
"""For queries to upstreams, and for what a process has open anyway."""

MAX_WAITING: Final = 10_000
"""Clients that wait for upstreams: each takes memory, however many ask the same question."""
MAX_UNSENT_BYTES: Final = 1 << 20
MAX_BUFFERED_BYTES: Final = 64 << 20
"""Of all connections together: incomplete messages, and unread replies."""
DRAIN_SECONDS: Final = 5.0
_BACKLOG: Final = 1024
_ACCEPTED_AT_ONCE: Final = 8
"""In a turn of the event loop. Connections over the limit are closed some turns later, and until then descriptors must suffice:
without any, asyncio logs its failure to accept without end.
"""


class TcpWorker:
    def __init__(self, config: WorkerConfig, sockets: WorkerSockets, connection_limit: int = MAX_CONNECTIONS) -> None:
        self.connection_limit = connection_limit
        self.loop = asyncio.get_running_loop()
        self.worker = Worker(config, socket.socket(fileno=sockets.feed), self._drain_soon)
        self.connections: dict[TcpConnection, None] = {}
        """In the order of last use."""
        self.draining = asyncio.Event()
        self.turns = itertools.count()
        self._answers: set[asyncio.Task[None]] = set()
        self._waiting = FairShare(MAX_WAITING)
        self._listeners = [socket.socket(fileno=descriptor) for descriptor in sockets.tcp]
        self._senders = [socket.socket(fileno=descriptor) for descriptor in sockets.udp]
        self._handover = socket.socket(fileno=sockets.handover)
        upstreams = tuple(map(read_upstream, config.upstreams))
        cache = ForwardCache(config.cache_seconds, config.stale_seconds)
        self._forwarder = Forwarder(Upstreams(upstreams), cache, self.worker.counters) if upstreams else None

    async def serve(self) -> None:
        priority.favour_short_slices()
        self.worker.start_update_thread()
        self._handover.setblocking(False)
        self.loop.add_reader(self._handover, self._receive_handover)
        for listener in self._listeners:
            await self.loop.create_server(lambda: TcpConnection(self), sock=listener, backlog=_ACCEPTED_AT_ONCE)
            listener.listen(_BACKLOG)
        async with asyncio.TaskGroup() as group:
            group.create_task(self._limit_connections())
            if self._forwarder:
                group.create_task(self._forwarder.keep_probing())
            await self.draining.wait()
            if self._answers:
                await asyncio.wait(self._answers, timeout=DRAIN_SECONDS)
            self.worker.report_and_exit()

    def _drain_soon(self) -> None:
        self.loop.call_soon_threadsafe(self.drain)

    def drain(self) -> None:
        for listener in self._listeners:
            self.loop.remove_reader(listener)
            listener.close()
        self.draining.set()

    def sender(self, address: str) -> QuerySender:
        sender = self.worker.clients.get(address) or self.worker.sender(address)
        sender.queries += 1
        return sender

    def answer(self, packet: bytes, address: str, max_bytes: int) -> bytes | ForwardQuery:
        return respond(self.worker.table, packet, self.sender(address), max_bytes, next(self.turns))

    async def forward(self, forwarded: ForwardQuery, client: bytes) -> bytes:
        query = forwarded.query
        if self._forwarder is None:
            return with_upstream_records(forwarded, 0, b"", 0) if forwarded.count else failure(query, Rcode.REFUSED)
        dnssec_ok = bool(query.edns and query.edns.dnssec_ok)
        question = forwarded.name.lower() + struct.pack(">HH", query.type, IN)
        hit = await self._forwarder.ask(ForwardQuestion(question, dnssec_ok), client)
        if hit is None:
            return failure(query, Rcode.SERVFAIL)
        return _forwarded_reply(forwarded, hit)

    def begin_forward(self, forwarded: ForwardQuery, address: str, send: Callable[[bytes], None]) -> None:
        client = client_key(address, self.worker.table.locations.node_of(address))
        if not self._waiting.take(client):
            self.worker.counters.counts[QueryKind.REFUSED] += 1
            send(failure(forwarded.query, Rcode.SERVFAIL))
            return

        async def work() -> None:
            try:
                send(await self.forward(forwarded, client))
            finally:
                self._waiting.give_back(client)

        task = self.loop.create_task(work())
        self._answers.add(task)
        task.add_done_callback(self._forward_done)

    def _forward_done(self, task: asyncio.Task[None]) -> None:
        self._answers.discard(task)
        if not task.cancelled() and task.exception() is not None:
            self.worker.errors += 1

    def _receive_handover(self) -> None:
        """Queries from UDP workers: index of the socket, client, and packet."""
        for _ in range(64):
            try:
                data = self._handover.recv(MAX_MESSAGE_BYTES)
            except BlockingIOError:
                return
            index, address, packet = marshal.loads(data)  # noqa: S302 - from our own processes only
            reply = self.answer(packet, address[0], OUR_UDP_BYTES)
            if isinstance(reply, ForwardQuery):
                self.begin_forward(reply, address[0], partial(self._send, index, address))
            elif reply:
                self._send(index, address, reply)

    def _send(self, index: int, address: Any, reply: bytes) -> None:
        try:
            self._senders[index].sendto(reply, address)
        except OSError:
            self.worker.dropped += 1

    async def _limit_connections(self) -> None:
        while True:
            self.worker.looped_at = time.monotonic()
            await asyncio.sleep(1.0)
            for connection in (*self._idle(time.monotonic() - IDLE_SECONDS), *self._over_buffered(MAX_BUFFERED_BYTES)):
                connection.close()

    def _over_buffered(self, limit: int) -> list[TcpConnection]:
        """The least recently used connections with buffers, so many that the rest buffers at most `limit` bytes."""
        buffered = {connection: size for connection in self.connections if (size := connection.buffered_bytes)}
        excess = sum(buffered.values()) - limit
        closing: list[TcpConnection] = []
        for connection, size in buffered.items():
            if excess <= 0:
                break
            closing.append(connection)
            excess -= size
        return closing

    def _idle(self, since: float) -> list[TcpConnection]:
        return list(itertools.takewhile(lambda connection: connection.used_at < since, self.connections))


def _forwarded_reply(forwarded: ForwardQuery, hit: CacheHit) -> bytes:
    if not forwarded.count:
        return client_reply(hit.response, forwarded.query, forwarded.max_bytes, hit.age)
    count, records = uncompressed_answers(hit.response, hit.age)
    return with_upstream_records(forwarded, count, records, hit.response.rcode)


class TcpConnection(asyncio.Protocol):
    """A TCP client: messages with two bytes of length before each (RFC 7766), pipelined or not."""

    __slots__ = ("_address", "_buffer", "_transport", "_worker", "used_at")

    def __init__(self, worker: TcpWorker) -> None:
        self._worker = worker
        self._buffer = b""
        self._address = ""
        self._transport: asyncio.Transport | None = None
        self.used_at = time.monotonic()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        peer = transport.get_extra_info("peername")
        self._address = peer[0] if peer else ""
        connections = self._worker.connections
        connections[self] = None
        if len(connections) > self._worker.connection_limit:
            next(iter(connections)).close()

    @property
    def buffered_bytes(self) -> int:
        return len(self._buffer) + (self._transport.get_write_buffer_size() if self._transport else 0)

    def pause_writing(self) -> None:
        """A client that does not read replies is not read from."""
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        self._worker.connections.pop(self, None)
        self._transport = None

    def data_received(self, data: bytes) -> None:
        buffer, begin = self._buffer + data, 0
        while len(buffer) >= begin + 2:
            end = begin + 2 + int.from_bytes(buffer[begin : begin + 2])
            if len(buffer) < end:
                break
            self._mark_used()
            if not self._answer(buffer[begin + 2 : end]):
                self.close()  # not a DNS client
                return
            begin = end
        self._buffer = buffer[begin:]

    def _answer(self, packet: bytes) -> bool:
        reply = self._worker.answer(packet, self._address, MAX_MESSAGE_BYTES)
        if isinstance(reply, ForwardQuery):
            self._worker.begin_forward(reply, self._address, self.send)
        elif reply:
            self.send(reply)
        return bool(reply)

    def send(self, reply: bytes) -> None:
        if self._transport is None:
            return
        self._transport.write(struct.pack(">H", len(reply)) + reply)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            self._transport.abort()

    def close(self) -> None:
        """Forgotten at once: others that connect in the same turn of the event loop close the next one."""
        self._worker.connections.pop(self, None)
        if self._transport is not None:
            self._transport.abort()

    def _mark_used(self) -> None:
        """Only a complete message counts: single bytes keep no connection open."""
        connections = self._worker.connections
        if connections.pop(self, 0) is None:
            connections[self] = None
        self.used_at = time.monotonic()


async def serve(config: WorkerConfig, sockets: WorkerSockets) -> None:
    await TcpWorker(config, sockets, connection_limit(descriptors.raise_limit())).serve()


def connection_limit(available: int) -> int:
    """Low enough that descriptors never run out: then no new client could connect."""
    return min(MAX_CONNECTIONS, max(available // 2, available - OTHER_DESCRIPTORS))
