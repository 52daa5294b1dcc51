"""The forwarder with upstreams that never answer, or that change the case of names."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import cast

import pytest

from support.waiting import eventually
from zonewise.dns.decide import fair_share, upstreams
from zonewise.dns.decide.fast_path import QueryCounters, QueryKind
from zonewise.dns.decide.forward_cache import ForwardCache, ForwardQuestion
from zonewise.dns.decide.upstreams import CASE_CHANGES, Upstream, Upstreams
from zonewise.dns.server import forwarder
from zonewise.dns.server.forwarder import Forwarder
from zonewise.dns.wire.names import to_wire


@pytest.fixture
def silent() -> Iterator[Upstream]:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind(("127.0.0.1", 0))
        yield Upstream(*sock.getsockname())


def question(number: int) -> ForwardQuestion:
    return ForwardQuestion(to_wire(f"n{number}.example") + b"\0\1\0\1", dnssec_ok=False)


async def test_questions_given_up_before_their_first_turn_end_all_the_same(
    silent: Upstream, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a process that was stopped for longer than the grace."""
    monkeypatch.setattr(fair_share, "GRACE_SECONDS", 0.0)
    monkeypatch.setattr(forwarder, "MAX_CONCURRENT", 4)
    counters = QueryCounters()
    made = Forwarder(Upstreams([silent]), ForwardCache(30, 30), counters)
    asked = [asyncio.create_task(made.ask(question(number), b"a")) for number in range(20)]
    await asyncio.wait(asked[:18])
    assert [task.result() for task in asked[:18]] == [None] * 18
    assert counters.counts[QueryKind.GIVEN_UP] == 18
    assert counters.counts[QueryKind.REFUSED] == 0
    assert not asked[19].done(), "the newest ones are still under way"
    other = asyncio.create_task(made.ask(question(99), b"b"))
    joined = asyncio.create_task(made.ask(question(19), b"b"))
    await asyncio.wait([other, joined, *asked])
    assert counters.counts[QueryKind.GIVEN_UP] == 18, "the others waited for their answer in full"
    assert not made._in_flight


class FoldingUpstream(asyncio.DatagramProtocol):
    """Over UDP it repeats names in lower case while `folds`, with one address; over TCP as asked, with another."""

    UDP, TCP = b"\xc0\x00\x02\x42", b"\xc0\x00\x02\x01"

    def __init__(self) -> None:
        self.folds = True
        self.names: list[bytes] = []
        """Asked over UDP."""
        self._transport: asyncio.DatagramTransport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        asked = data[12 : data.index(b"\0", 12) + 5]
        self.names.append(asked[:-4])
        self._transport.sendto(_answer(data, asked.lower() if self.folds else asked, self.UDP), addr)

    async def serve_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.readexactly(int.from_bytes(await reader.readexactly(2)))
        reply = _answer(data, data[12 : data.index(b"\0", 12) + 5], self.TCP)
        writer.write(len(reply).to_bytes(2) + reply)
        writer.close()


def _answer(query: bytes, asked: bytes, address: bytes) -> bytes:
    return query[:2] + b"\x80\0\0\1\0\1\0\0\0\0" + asked + b"\xc0\x0c\0\1\0\1\0\0\0\x3c\0\4" + address


@asynccontextmanager
async def folding() -> AsyncIterator[tuple[FoldingUpstream, Upstream]]:
    made = FoldingUpstream()
    async with await asyncio.start_server(made.serve_tcp, "127.0.0.1", 0) as tcp:
        address = tcp.sockets[0].getsockname()
        transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(lambda: made, local_addr=address)
        try:
            yield made, Upstream(*address)
        finally:
            transport.close()


def long_question(number: int) -> ForwardQuestion:
    """With so many letters that mixing changes one for certain."""
    return ForwardQuestion(
        to_wire(f"n{number}.{'abcdefgh' * 7}.{'abcdefgh' * 7}.example") + b"\0\1\0\1", dnssec_ok=False
    )


async def test_reply_in_the_wrong_case_leads_to_tcp_not_to_lower_case_over_udp() -> None:
    async with folding() as (made, address):
        hit = await Forwarder(Upstreams([address]), ForwardCache(30, 30), QueryCounters()).ask(long_question(0), b"a")
        assert hit is not None
        assert hit.response.body.endswith(FoldingUpstream.TCP)
        assert [name == name.lower() for name in made.names] == [False]


async def test_replies_in_the_wrong_case_add_up_only_in_a_row() -> None:
    async with folding() as (made, address):
        asking = Forwarder(Upstreams([address]), ForwardCache(30, 30), QueryCounters())
        for number in range(4 * CASE_CHANGES):
            made.folds = number % CASE_CHANGES != 0
            assert await asking.ask(long_question(number), b"a")
        assert [name for name in made.names if name == name.lower()] == []


async def test_upstream_that_keeps_case_again_is_asked_in_mixed_case_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "PROBE_SECONDS", 0.01)
    monkeypatch.setattr(upstreams, "CASE_PROBE_SECONDS", 0.0)
    async with folding() as (made, address):
        order = Upstreams([address])
        asking = Forwarder(order, ForwardCache(30, 30), QueryCounters())
        for number in range(CASE_CHANGES + 1):
            assert await asking.ask(long_question(number), b"a")
        assert made.names[-1] == made.names[-1].lower(), "it does not keep the case"
        probing = asyncio.create_task(asking.keep_probing())
        probed = len(made.names)
        await eventually(lambda: len(made.names) > probed + 2, "probed again and again")
        assert not order.keeps_case(address)
        made.folds = False
        await eventually(lambda: order.keeps_case(address), "a probe came back as it was sent")
        probing.cancel()
        await asyncio.wait([probing])
        assert await asking.ask(long_question(99), b"a")
        assert made.names[-1] != made.names[-1].lower()
