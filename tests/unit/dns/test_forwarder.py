"""The forwarder with upstreams that never answer: shares, early ends, and equal questions."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator

import pytest

from zonewise.dns.decide import fair_share
from zonewise.dns.decide.fast_path import QueryCounters, QueryKind
from zonewise.dns.decide.forward_cache import ForwardCache, ForwardQuestion
from zonewise.dns.decide.upstreams import Upstream, Upstreams
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
