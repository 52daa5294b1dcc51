"""Forwarding to upstream DNS servers: UDP from a new port per query, TCP for truncated replies, failover to the next.

`upstreams` orders the servers, `fair_share` divides the slots among clients, and `forward_cache` keeps the answers.
Concurrent equal questions are sent once. A forger has to guess the port, the id and the case of every letter of the name
(draft-vixie-dnsext-dns0x20). A reply in the wrong case leads to TCP, which needs no such guard.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import struct
import time
from contextlib import suppress
from typing import Final, NamedTuple

from zonewise.dns.decide.fair_share import ForwardSlots
from zonewise.dns.decide.fast_path import QueryCounters, QueryKind
from zonewise.dns.decide.forward_cache import CacheHit, ForwardCache, ForwardQuestion
from zonewise.dns.decide.handler import OPT_HEAD, OUR_UDP_BYTES
from zonewise.dns.decide.upstreams import Upstream, Upstreams
from zonewise.dns.wire.message import IN, RecordType
from zonewise.dns.wire.names import ROOT, to_wire
from zonewise.dns.wire.upstream_message import UpstreamResponse, mix_case, read_response

ANSWER_SECONDS: Final = 2.0
PROBE_SECONDS: Final = 0.5
MAX_CONCURRENT: Final = 1000

_PROBE: Final = ForwardQuestion(ROOT + struct.pack(">HH", RecordType.NS, IN), dnssec_ok=False)
_CASE_PROBE: Final = ForwardQuestion(
    to_wire("a.root-servers.net") + struct.pack(">HH", RecordType.A, IN), dnssec_ok=False
)
_UNREACHABLE: Final = (OSError, TimeoutError, asyncio.IncompleteReadError)


class _Exchange(NamedTuple):
    task: asyncio.Task[CacheHit | None]
    deadline: asyncio.Timeout


class Forwarder:
    def __init__(self, upstreams: Upstreams, cache: ForwardCache, counters: QueryCounters) -> None:
        self._upstreams = upstreams
        self._cache = cache
        self._counts = counters.counts
        self._slots = ForwardSlots(MAX_CONCURRENT)
        self._in_flight: dict[ForwardQuestion, _Exchange] = {}

    async def ask(self, question: ForwardQuestion, client: bytes) -> CacheHit | None:
        """None if no upstream answers, or if the client has its share of questions in flight."""
        if hit := self._cache.get(question, time.monotonic()):
            return hit
        exchange = self._in_flight.get(question)
        if exchange:
            self._slots.join(question, client)
        elif not (exchange := self._begin(question, client)):
            return self._cache.stale(question, time.monotonic())
        return await asyncio.shield(exchange.task)

    def _begin(self, question: ForwardQuestion, client: bytes) -> _Exchange | None:
        admitted, given_up = self._slots.enter(question, client, time.monotonic())
        if given_up:
            asyncio.get_running_loop().call_soon(self._give_up, self._in_flight[given_up])
        if not admitted:
            self._counts[QueryKind.REFUSED] += 1
            return None
        deadline = asyncio.timeout(None)
        task = asyncio.create_task(self._ask(question, deadline))
        task.add_done_callback(lambda _: self._end(question))
        exchange = self._in_flight[question] = _Exchange(task, deadline)
        return exchange

    def _give_up(self, exchange: _Exchange) -> None:
        """Called once the task has had its first turn, however late this process is: before, it has no deadline."""
        if not exchange.task.done():
            self._counts[QueryKind.GIVEN_UP] += 1
            exchange.deadline.reschedule(0)

    def _end(self, question: ForwardQuestion) -> None:
        del self._in_flight[question]
        self._slots.leave(question)

    async def keep_probing(self) -> None:
        """Probe unhealthy upstreams, and those that changed the case of names, so that no client query has to."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            for upstream in self._upstreams.unhealthy:
                await self._exchange(upstream, _PROBE)
            for upstream in self._upstreams.case_probes_due(time.monotonic()):
                await self._probe_case(upstream)

    async def _probe_case(self, upstream: Upstream) -> None:
        self._upstreams.case_probed(upstream, time.monotonic())
        with suppress(*_UNREACHABLE):
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._over_udp_mixed(upstream, _CASE_PROBE)

    async def _ask(self, question: ForwardQuestion, deadline: asyncio.Timeout) -> CacheHit | None:
        """If all upstreams fail, a stale answer is preferred to the failure."""
        failure: UpstreamResponse | None = None
        with suppress(TimeoutError):
            async with deadline:
                for upstream in self._upstreams.order(random.random()):  # noqa: S311 - spreads load, no secret
                    response = await self._exchange(upstream, question)
                    if response and not response.failed:
                        self._cache.put(question, response, time.monotonic())
                        return CacheHit(response, 0)
                    failure = response or failure
        return self._cache.stale(question, time.monotonic()) or (CacheHit(failure, 0) if failure else None)

    async def _exchange(self, upstream: Upstream, question: ForwardQuestion) -> UpstreamResponse | None:
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                keeps_case = self._upstreams.keeps_case(upstream)
                response = await (self._over_udp_mixed if keeps_case else _over_udp)(upstream, question)
                if response.truncated or response.case_changed:
                    response = await _over_tcp(upstream, question)
        except _UNREACHABLE:
            self._upstreams.failed(upstream)
            return None
        self._upstreams.succeeded(upstream)
        return response

    async def _over_udp_mixed(self, upstream: Upstream, question: ForwardQuestion) -> UpstreamResponse:
        """With letters in random case, which the reply has to repeat."""
        mixed = mix_case(question.question, secrets.token_bytes(len(question.question)))
        response = await _over_udp(upstream, question._replace(question=mixed))
        if response.case_changed:
            self._upstreams.case_changed(upstream, time.monotonic())
        elif mixed != question.question:
            self._upstreams.case_kept(upstream)
        return response


def _query(question: bytes, dnssec_ok: bool) -> bytes:
    """With an unpredictable id (RFC 5452)."""
    opt = OPT_HEAD + struct.pack(">HIH", OUR_UDP_BYTES, 0x8000 if dnssec_ok else 0, 0)
    return secrets.token_bytes(2) + struct.pack(">HHHHH", 0x0100, 1, 0, 0, 1) + question + opt


class _UdpExchange(asyncio.DatagramProtocol):
    """Ignores packets that don't answer the question: they may be forged."""

    def __init__(self, query: bytes, question: bytes) -> None:
        self._id, self._question = query[:2], question
        self.answer: asyncio.Future[UpstreamResponse] = asyncio.get_running_loop().create_future()

    def datagram_received(self, data: bytes, addr: object) -> None:  # noqa: ARG002 - asyncio's signature
        response = read_response(data, self._id, self._question)
        if response and not self.answer.done():
            self.answer.set_result(response)

    def error_received(self, exc: Exception) -> None:
        if not self.answer.done():
            self.answer.set_exception(exc)


async def _over_udp(upstream: Upstream, question: ForwardQuestion) -> UpstreamResponse:
    query = _query(question.question, question.dnssec_ok)
    loop = asyncio.get_running_loop()
    transport, exchange = await loop.create_datagram_endpoint(
        lambda: _UdpExchange(query, question.question), remote_addr=(upstream.host, upstream.port)
    )
    try:
        transport.sendto(query)
        return await exchange.answer
    finally:
        transport.close()


async def _over_tcp(upstream: Upstream, question: ForwardQuestion) -> UpstreamResponse:
    query = _query(question.question, question.dnssec_ok)
    reader, writer = await asyncio.open_connection(upstream.host, upstream.port)
    try:
        writer.write(struct.pack(">H", len(query)) + query)
        length = int.from_bytes(await reader.readexactly(2))
        response = read_response(await reader.readexactly(length), query[:2], question.question)
    finally:
        writer.close()
    if response is None:
        raise OSError(f"invalid reply from {upstream} over TCP")
    return response
