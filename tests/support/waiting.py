"""Polling for a condition, with a deadline that suits a busy machine."""

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from typing import TypeVar, cast

T = TypeVar("T")

PATIENCE_SECONDS = 90.0


async def eventually(condition: Callable[[], T | Awaitable[T]], description: str = "") -> T:
    """First true value of `condition`, a function or coroutine function; fails after the deadline."""
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
        raise AssertionError(f"not within {PATIENCE_SECONDS:g} s: {description or condition}") from None
