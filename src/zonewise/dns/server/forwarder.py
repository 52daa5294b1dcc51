"""Forwarding to upstream DNS servers: UDP from a new port per query, TCP for truncated replies, failover to the next.

`upstreams` orders the servers and `forward_cache` keeps their answers. Concurrent equal questions are sent once.
"""

from __future__ import annotations

import asyncio
import random
import secrets
import struct
import time
from typing import Final

from zonewise.dns.decide.forward_cache import CacheHit, ForwardCache, ForwardQuestion
from zonewise.dns.decide.handler import OPT_HEAD, OUR_UDP_BYTES
from zonewise.dns.decide.upstreams import Upstream, Upstreams
from zonewise.dns.wire.message import IN, RecordType
from zonewise.dns.wire.names import ROOT
from zonewise.dns.wire.upstream_message import UpstreamResponse, read_response

ANSWER_SECONDS: Final = 2.0
PROBE_SECONDS: Final = 0.5
MAX_CONCURRENT: Final = 1000

_PROBE: Final = ForwardQuestion(ROOT + struct.pack(">HH", RecordType.NS, IN), dnssec_ok=False)
_UNREACHABLE: Final = (OSError, TimeoutError, asyncio.IncompleteReadError)


class Forwarder:
    def __init__(self, upstreams: Upstreams, cache: ForwardCache) -> None:
        self._upstreams = upstreams
        self._cache = cache
        self._in_flight: dict[ForwardQuestion, asyncio.Task[CacheHit | None]] = {}

    async def ask(self, question: ForwardQuestion) -> CacheHit | None:
        """None if no upstream answers, or if too many questions are in flight."""
        if hit := self._cache.get(question, time.monotonic()):
            return hit
        task = self._in_flight.get(question)
        if task is None:
            if len(self._in_flight) >= MAX_CONCURRENT:
                return self._cache.stale(question, time.monotonic())
            task = self._in_flight[question] = asyncio.create_task(self._ask(question))
            task.add_done_callback(lambda _: self._in_flight.pop(question))
        return await asyncio.shield(task)

    async def keep_probing(self) -> None:
        """Probe unhealthy upstreams, so that no client query has to."""
        while True:
            await asyncio.sleep(PROBE_SECONDS)
            for upstream in self._upstreams.unhealthy:
                await self._exchange(upstream, _PROBE)

    async def _ask(self, question: ForwardQuestion) -> CacheHit | None:
        """If all upstreams fail, a stale answer is preferred to the failure."""
        failure: UpstreamResponse | None = None
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
                response = await _over_udp(upstream, question)
                if response.truncated:
                    response = await _over_tcp(upstream, question)
        except _UNREACHABLE:
            self._upstreams.failed(upstream)
            return None
        self._upstreams.succeeded(upstream)
        return response


def _query(question: ForwardQuestion) -> bytes:
    """With an unpredictable id (RFC 5452)."""
    opt = OPT_HEAD + struct.pack(">HIH", OUR_UDP_BYTES, 0x8000 if question.dnssec_ok else 0, 0)
    return secrets.token_bytes(2) + struct.pack(">HHHHH", 0x0100, 1, 0, 0, 1) + question.question + opt


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
    query = _query(question)
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
    query = _query(question)
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
