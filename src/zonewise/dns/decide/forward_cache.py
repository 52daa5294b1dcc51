"""What other servers answered, for as long as they allow, and a while longer for when none of them answers (RFC 8767)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from zonewise.dns.wire.upstream_message import UpstreamResponse

MOST_ENTRIES: Final = 10_000
MOST_BYTES: Final = 32 << 20
"""Of all answers: one may have 64 KiB, and whoever owns a name could fill the memory with such."""
STALE_TTL: Final = 30
"""What a stale answer is said to be good for (RFC 8767, 4)."""


class ForwardQuestion(NamedTuple):
    """In lower case; with DNSSEC records or without is not the same answer."""

    question: bytes
    dnssec_ok: bool


class CachedAnswer(NamedTuple):
    response: UpstreamResponse
    came_at: float
    good_until: float


class CacheHit(NamedTuple):
    response: UpstreamResponse
    age: int
    """Seconds to take off its times to live."""


class ForwardCache:
    """Times are seconds of one clock. The entry that was not asked for longest goes first."""

    def __init__(self, longest_seconds: float, stale_seconds: float, most: int = MOST_ENTRIES) -> None:
        self._longest_seconds = longest_seconds
        self._stale_seconds = stale_seconds
        self._most = most
        self._kept: OrderedDict[ForwardQuestion, CachedAnswer] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._kept)

    def get(self, question: ForwardQuestion, now: float) -> CacheHit | None:
        kept = self._kept.get(question)
        if kept is None or now >= kept.good_until:
            return None
        self._kept.move_to_end(question)
        return CacheHit(kept.response, int(now - kept.came_at))

    def stale(self, question: ForwardQuestion, now: float) -> CacheHit | None:
        """An answer that is no longer good, but better than none; it then lives as long as `STALE_TTL` says, or less."""
        kept = self._kept.get(question)
        if kept is None or now >= kept.good_until + self._stale_seconds:
            return None
        return CacheHit(kept.response, max(0, kept.response.ttl - STALE_TTL))

    def put(self, question: ForwardQuestion, response: UpstreamResponse, now: float) -> None:
        seconds = min(response.ttl, self._longest_seconds)
        if response.failed or seconds <= 0:
            return
        self._drop(question)
        self._kept[question] = CachedAnswer(response, now, now + seconds)
        self._bytes += len(response.body)
        while len(self._kept) > self._most or self._bytes > MOST_BYTES:
            self._drop(next(iter(self._kept)))

    def _drop(self, question: ForwardQuestion) -> None:
        if old := self._kept.pop(question, None):
            self._bytes -= len(old.response.body)
