"""Retry rules: reads on transient failures; writes only if the server did not process them."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.kube.decide.retry import FIRST_DELAY_SECONDS, LONGEST_DELAY_SECONDS, delay_before_retry
from zonewise.kube.wire.errors import (
    ApiError,
    Conflict,
    DeadlineExceeded,
    ErrorDetails,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerError,
    ServerTimeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Undecodable,
    Unreachable,
    Untrusted,
    from_answer,
)

ASKED_TO_WAIT = ErrorDetails(retry_after_seconds=3)


def delay(error: ApiError, **given: Any) -> float | None:
    defaults = {"wait_for_server": True, "attempt": 0, "remaining_seconds": 30.0, "jitter": 0.5}
    return delay_before_retry(error, **{**defaults, **given})


@pytest.mark.parametrize(
    ("error", "read", "write"),
    [
        pytest.param(Unreachable("refused", sent=False), True, True, id="refused"),
        pytest.param(Unreachable("reset"), True, False, id="reset after sending"),
        pytest.param(Untrusted("bad certificate", sent=False), False, False, id="certificate not trusted"),
        pytest.param(TooManyRequests("busy"), True, True, id="429"),
        pytest.param(from_answer(502, b"bad gateway", "get"), True, False, id="502"),
        pytest.param(Unavailable("starting"), True, False, id="503"),
        pytest.param(ServerTimeout("slow"), True, False, id="504"),
        pytest.param(ServerError("broken"), False, False, id="500"),
        pytest.param(ServerError("broken", details=ASKED_TO_WAIT), True, False, id="500 that asks to come back"),
        pytest.param(DeadlineExceeded("too slow"), False, False, id="our own deadline"),
        pytest.param(Unauthorized("who?"), False, False, id="401"),
        pytest.param(Forbidden("no"), False, False, id="403"),
        pytest.param(NotFound("no"), False, False, id="404"),
        pytest.param(Conflict("changed"), False, False, id="409"),
        pytest.param(Gone("too old"), False, False, id="410"),
        pytest.param(Invalid("no"), False, False, id="422"),
        pytest.param(Undecodable("odd"), False, False, id="undecodable"),
    ],
)
def test_reads_and_writes_are_retried_by_error(error: ApiError, read: bool, write: bool) -> None:
    def retried(is_read: bool) -> bool:
        return delay(error, is_read=is_read, attempt=0, remaining_seconds=30, jitter=0.5) is not None

    assert (retried(True), retried(False)) == (read, write)


def test_retry_after_is_honoured_with_jitter() -> None:
    error = TooManyRequests("busy", details=ASKED_TO_WAIT)
    delays = [delay(error, is_read=False, attempt=0, remaining_seconds=30, jitter=j) for j in (0, 0.5)]
    assert delays == pytest.approx([3.05, 3.1])


@pytest.mark.parametrize("is_read", [True, False])
def test_refused_connection_is_not_retried_without_waiting(is_read: bool) -> None:
    refused, reset = Unreachable("refused", sent=False), Unreachable("reset")
    assert delay(refused, is_read=is_read, wait_for_server=False) is None
    assert (delay(reset, is_read=is_read, wait_for_server=False) is not None) == is_read


def test_no_retry_past_the_deadline() -> None:
    error = TooManyRequests("busy", details=ASKED_TO_WAIT)
    assert delay(error, is_read=True, attempt=0, remaining_seconds=3, jitter=0) is None


@given(attempt=st.integers(0, 60), jitter=st.floats(0, 1, exclude_max=True))
def test_back_off_grows_and_stays_bounded(attempt: int, jitter: float) -> None:
    pause = delay(Unreachable("reset"), is_read=True, attempt=attempt, remaining_seconds=1e9, jitter=jitter)
    assert pause is not None
    assert FIRST_DELAY_SECONDS / 2 <= pause <= LONGEST_DELAY_SECONDS * 1.5
