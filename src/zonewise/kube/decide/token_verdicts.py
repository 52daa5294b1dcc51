"""Verdicts on bearer tokens: which are remembered, and whose unknown tokens may be reviewed now.

The time is an argument. Allowed and refused tokens are kept apart, so that strangers push no reader out, however many
tokens they send. An allowed token stays known when its verdict is due again: its review does not queue. Reviews of
unknown tokens are limited in sum and per address. An address may have no more under way than are free, so a few
addresses leave room for the next.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from dataclasses import dataclass
from typing import Final

CACHE_SECONDS: Final = 60.0
REFUSAL_CACHE_SECONDS: Final = 10.0
MAX_CACHED: Final = 1024
"""Of each: allowed, and refused."""
MAX_PENDING: Final = 32
MAX_PENDING_PER_ADDRESS: Final = 8

Digest = bytes


@dataclass(frozen=True, slots=True)
class TokenVerdict:
    """`status` is the HTTP status: 200; 401 for an unknown token; 403 without the right; 429 or 503: try again."""

    status: int = 200
    refusal: str = ""
    user: str = ""


NO_TOKEN: Final = TokenVerdict(401, "no token")
TOO_MANY: Final = TokenVerdict(429, "too many unknown tokens are being reviewed; try again")


class TokenVerdicts:
    def __init__(self) -> None:
        self._allowed: OrderedDict[Digest, tuple[float, TokenVerdict]] = OrderedDict()
        self._refused: OrderedDict[Digest, tuple[float, TokenVerdict]] = OrderedDict()
        self._pending: Counter[str] = Counter()

    def find(self, digest: Digest, now: float) -> TokenVerdict | None:
        for verdicts in (self._allowed, self._refused):
            until, verdict = verdicts.get(digest, (0.0, NO_TOKEN))
            if until > now:
                verdicts.move_to_end(digest)
                return verdict
        return None

    def is_known(self, digest: Digest) -> bool:
        """Whether it was allowed when it was last reviewed."""
        return digest in self._allowed

    def remember(self, digest: Digest, verdict: TokenVerdict, now: float) -> None:
        self._allowed.pop(digest, None)
        verdicts = self._refused if verdict.refusal else self._allowed
        verdicts[digest] = (now + (REFUSAL_CACHE_SECONDS if verdict.refusal else CACHE_SECONDS), verdict)
        if len(verdicts) > MAX_CACHED:
            verdicts.popitem(last=False)

    def begin(self, address: str) -> bool:
        """Whether one more unknown token from there may be reviewed now; `end` when that is over."""
        free = MAX_PENDING - self._pending.total()
        if self._pending[address] >= min(MAX_PENDING_PER_ADDRESS, free):
            return False
        self._pending[address] += 1
        return True

    def end(self, address: str) -> None:
        self._pending[address] -= 1
        self._pending += Counter()  # drops addresses with none
