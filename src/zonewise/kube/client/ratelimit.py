"""Client-side rate limit: `Limiter` waits as long as its token bucket says."""

from __future__ import annotations

import asyncio
import time

from zonewise.kube.decide.token_bucket import TokenBucket


class Limiter:
    def __init__(self, qps: float, burst: int) -> None:
        self._bucket = TokenBucket(qps, burst, time.monotonic())

    async def wait(self) -> float:
        """Returns the seconds waited."""
        delay = self._bucket.take(time.monotonic())
        if not delay:
            return 0.0
        try:
            await asyncio.sleep(delay)
        except asyncio.CancelledError:
            self._bucket.give_back(time.monotonic())
            raise
        return delay
