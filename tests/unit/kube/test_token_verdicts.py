"""Which tokens are remembered, and whose reviews may be made now."""

from __future__ import annotations

import pytest

from zonewise.kube.decide.token_verdicts import (
    CACHE_SECONDS,
    MAX_CACHED,
    MAX_PENDING,
    REFUSAL_CACHE_SECONDS,
    TokenVerdict,
    TokenVerdicts,
)

ALLOWED = TokenVerdict(user="anna")
REFUSED = TokenVerdict(401, "unknown")


def test_verdicts_are_kept_for_their_time_and_allowed_tokens_stay_known() -> None:
    verdicts = TokenVerdicts()
    verdicts.remember(b"a", ALLOWED, 0.0)
    verdicts.remember(b"b", REFUSED, 0.0)
    assert verdicts.find(b"a", CACHE_SECONDS - 1) == ALLOWED
    assert verdicts.find(b"b", REFUSAL_CACHE_SECONDS - 1) == REFUSED
    assert verdicts.find(b"a", CACHE_SECONDS) is None
    assert verdicts.find(b"b", REFUSAL_CACHE_SECONDS) is None
    assert verdicts.is_known(b"a")
    assert not verdicts.is_known(b"b")
    verdicts.remember(b"a", REFUSED, CACHE_SECONDS)
    assert not verdicts.is_known(b"a")
    assert verdicts.find(b"a", CACHE_SECONDS) == REFUSED


def test_refused_tokens_push_no_allowed_one_out() -> None:
    verdicts = TokenVerdicts()
    verdicts.remember(b"a", ALLOWED, 0.0)
    for at in range(2 * MAX_CACHED):
        verdicts.remember(b"r%d" % at, REFUSED, 0.0)
    assert verdicts.find(b"a", 1.0) == ALLOWED
    assert verdicts.find(b"r0", 1.0) is None
    assert verdicts.find(b"r%d" % (2 * MAX_CACHED - 1), 1.0) == REFUSED


def test_allowed_tokens_are_bounded_and_the_least_used_goes() -> None:
    verdicts = TokenVerdicts()
    for at in range(MAX_CACHED):
        verdicts.remember(b"%d" % at, ALLOWED, 0.0)
    verdicts.find(b"0", 1.0)
    verdicts.remember(b"more", ALLOWED, 1.0)
    assert [verdicts.is_known(name) for name in (b"0", b"1", b"more")] == [True, False, True]


def test_pending_reviews_are_bounded_and_freed() -> None:
    verdicts = TokenVerdicts()
    assert sum(verdicts.begin(f"a{at}") for at in range(2 * MAX_PENDING)) == MAX_PENDING
    verdicts.end("a0")
    assert [verdicts.begin("b"), verdicts.begin("b")] == [True, False]


@pytest.mark.parametrize("strangers", [1, 2, 4, 8, 16])
def test_strangers_leave_room_for_the_token_of_a_new_reader(strangers: int) -> None:
    verdicts = TokenVerdicts()
    for at in range(strangers * MAX_PENDING):
        verdicts.begin(f"stranger-{at % strangers}")
    assert verdicts.begin("reader")
