"""Waiting for what must come to be, as long as a busy machine may need."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")

PATIENCE_SECONDS = 90.0


async def eventually(condition: Callable[[], T | Awaitable[T]], what: str = "") -> T:
    """The first true value of `condition`, a function or coroutine function; the deadline only ends a failing test."""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            while True:
                value = condition()
                if inspect.isawaitable(value):
                    value = await value
                if value:
                    return cast("T", value)
                await asyncio.sleep(0.02)
    except TimeoutError:
        raise AssertionError(f"not within {PATIENCE_SECONDS:g} s: {what or condition}") from None
