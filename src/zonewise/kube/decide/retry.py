"""Retry rules: whether a failed call is tried again, and when. Pure.

A read may always be repeated. A write is repeated only when the server surely did not process it: the connection was
never made, or the server turned it away with 429.
"""

from __future__ import annotations

from zonewise.kube.wire.errors import (
    ApiError,
    ServerError,
    ServerTimeout,
    TooManyRequests,
    Unavailable,
    Unreachable,
    Untrusted,
)

FIRST_DELAY_SECONDS = 0.1
LONGEST_DELAY_SECONDS = 5.0


def delay_before_retry(
    error: ApiError, *, is_read: bool, wait_for_server: bool, attempt: int, remaining_seconds: float, jitter: float
) -> float | None:
    """Seconds to wait, or None to give up. `attempt` counts from 0; `jitter` is drawn from [0, 1)."""
    if isinstance(error, Unreachable) and not error.sent and not wait_for_server:
        return None
    if not (_is_passing(error) if is_read else _surely_not_processed(error)):
        return None
    backoff = min(LONGEST_DELAY_SECONDS, FIRST_DELAY_SECONDS * 2**attempt) * (0.5 + jitter)
    # Added, not the larger of both: clients with the same Retry-After should not all return at once.
    delay = error.retry_after_seconds + backoff
    return delay if delay < remaining_seconds else None


def _is_passing(error: ApiError) -> bool:
    match error:
        case Untrusted():
            return False
        case Unreachable() | TooManyRequests() | Unavailable() | ServerTimeout():
            return True
        case ServerError():
            return error.retry_after_seconds > 0
        case _:
            return False


def _surely_not_processed(error: ApiError) -> bool:
    match error:
        case TooManyRequests():
            return True
        case Untrusted():
            return False
        case Unreachable():
            return not error.sent
        case _:
            return False
