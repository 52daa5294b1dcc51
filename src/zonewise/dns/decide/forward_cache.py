"""Cache of upstream answers: entry for their TTL, and longer as stale answers while no upstream answers (RFC 8767)."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from zonewise.dns.wire.upstream_message import UpstreamResponse

MAX_ENTRIES: Final = 10_000
MAX_BYTES: Final = 32 << 20
"""Of all answers: one may have 64 KiB, and the owner of a zone could fill the memory."""
STALE_TTL: Final = 30
"""TTL of a stale answer (RFC 8767, 4)."""


class ForwardQuestion(NamedTuple):
    """In lower case. Answers with and without DNSSEC records are different entries."""

    question: bytes
    dnssec_ok: bool


class CachedAnswer(NamedTuple):
    response: UpstreamResponse
    received_at: float
    expires_at: float


class CacheHit(NamedTuple):
    response: UpstreamResponse
    age: int
    """Seconds to subtract from its TTLs."""


class ForwardCache:
    """Times are seconds of one clock. The least recently used entry is evicted first."""

    def __init__(self, max_seconds: float, stale_seconds: float, max_entries: int = MAX_ENTRIES) -> None:
        self._max_seconds = max_seconds
        self._stale_seconds = stale_seconds
        self._max_entries = max_entries
        self._entries: OrderedDict[ForwardQuestion, CachedAnswer] = OrderedDict()
        self._bytes = 0

    def get(self, question: ForwardQuestion, now: float) -> CacheHit | None:
        entry = self._entries.get(question)
        if entry is None or now >= entry.expires_at:
            return None
        self._entries.move_to_end(question)
        return CacheHit(entry.response, int(now - entry.received_at))

    def stale(self, question: ForwardQuestion, now: float) -> CacheHit | None:
        """An expired answer; its TTL is at most `STALE_TTL`."""
        entry = self._entries.get(question)
        if entry is None or now >= entry.expires_at + self._stale_seconds:
            return None
        return CacheHit(entry.response, max(0, entry.response.ttl - STALE_TTL))

    def put(self, question: ForwardQuestion, response: UpstreamResponse, now: float) -> None:
        seconds = min(response.ttl, self._max_seconds)
        if response.failed or seconds <= 0:
            return
        self._drop(question)
        self._entries[question] = CachedAnswer(response, now, now + seconds)
        self._bytes += len(response.body)
        while len(self._entries) > self._max_entries or self._bytes > MAX_BYTES:
            self._drop(next(iter(self._entries)))

    def _drop(self, question: ForwardQuestion) -> None:
        if old := self._entries.pop(question, None):
            self._bytes -= len(old.response.body)
