"""Retries while a lab starts: on a busy machine its API server may be slow to answer."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from zonewise.kube.wire.errors import DeadlineExceeded, ServerError

T = TypeVar("T")
_PAUSE_SECONDS = 0.5


async def patiently(act: Callable[[], Awaitable[T]], seconds: float) -> T:
    """Call `act` until it succeeds; re-raise server errors after `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return await act()
        except (ServerError, DeadlineExceeded):
            if time.monotonic() > deadline:
                raise
        await asyncio.sleep(_PAUSE_SECONDS)  # some fail at once, and asking is work for the server, too
