"""Execution of one API request: rate limit, lease guard, send, retry. Every verb of `client` takes this path.

In order: wait for the purpose's rate limit and a free slot, ask the guard whether we may still write, send, map the
answer, and decide with `retry` whether to try again; all within the call's deadline.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass, field, replace
from typing import Protocol, Self

from prometheus_client import Counter, Histogram

from zonewise.kube.client.http import aiohttp
from zonewise.kube.client.ratelimit import Limiter
from zonewise.kube.client.transport import Transport
from zonewise.kube.decide.retry import delay_before_retry
from zonewise.kube.wire.errors import ApiError, DeadlineExceeded, from_answer
from zonewise.kube.wire.requests import ApiRequest

REQUESTS = Counter(
    "zonewise_kube_requests",
    'Requests to the API server; the code is "none" where no answer came',
    ["verb", "resource", "purpose", "code"],
)
LATENCY = Histogram(
    "zonewise_kube_request_seconds", "From sending a request to its whole answer", ["verb", "resource", "purpose"]
)
WAITED = Histogram("zonewise_kube_rate_limit_seconds", "Time waited for our own rate limit", ["purpose"])

CONCURRENT_CALLS = 64
"""Per purpose: each request needs its own connection. Watches do not count."""


class RetryGuard(Protocol):
    """Says whether we may still write: a leader's lease."""

    def remaining_seconds(self) -> float:
        """Raises when we may not."""
        ...


def _slots() -> asyncio.Semaphore:
    return asyncio.Semaphore(CONCURRENT_CALLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallExecutor:
    transport: Transport
    purpose: str = "default"
    limiter: Limiter | None = None
    slots: asyncio.Semaphore = field(default_factory=_slots)
    guard: RetryGuard | None = None
    wait_for_server: bool = True

    def limited(self, purpose: str, qps: float, burst: int) -> Self:
        return replace(self, purpose=purpose, limiter=Limiter(qps, burst), slots=_slots())

    def guarded(self, guard: RetryGuard) -> Self:
        return replace(self, guard=guard)

    async def perform(self, call: ApiRequest, deadline_seconds: float) -> bytes:
        failed: list[ApiError] = []
        try:
            async with asyncio.timeout(deadline_seconds) as deadline:
                ends = deadline.when()
                assert ends is not None
                return await self._try_until(ends, call, failed)
        except TimeoutError as error:
            last = f"; last {failed[-1].kind}: {failed[-1].message}" if failed else ""
            raise DeadlineExceeded(f"no answer within {deadline_seconds:g} s{last}", action=call.action) from error

    async def _try_until(self, ends: float, call: ApiRequest, failed: list[ApiError]) -> bytes:
        clock = asyncio.get_running_loop().time
        while True:
            try:
                return await self._once(call)
            except ApiError as error:
                delay = self._delay(call, error, attempt=len(failed), remaining=ends - clock())
                if delay is None:
                    raise
                failed.append(error)
            await asyncio.sleep(delay)

    def _delay(self, call: ApiRequest, error: ApiError, attempt: int, remaining: float) -> float | None:
        if not call.repeatable:
            return None
        return delay_before_retry(
            error,
            is_read=call.is_read,
            wait_for_server=self.wait_for_server,
            attempt=attempt,
            remaining_seconds=remaining,
            jitter=random.random(),  # noqa: S311 - spreads retries, keeps no secret
        )

    async def _once(self, call: ApiRequest) -> bytes:
        await self._wait_for_limit()
        async with self.slots:
            if self.guard is None or call.is_read:
                return await self._exchange(call)
            return await self._guarded(call, self.guard)

    async def _guarded(self, call: ApiRequest, guard: RetryGuard) -> bytes:
        """The server gets the deadline too, so that it does not store a write after our lease has ended."""
        remaining = guard.remaining_seconds()
        bounded = replace(call, query={**call.query, "timeout": f"{remaining:.3f}s"})
        try:
            async with asyncio.timeout(remaining):
                return await self._exchange(bounded, guard)
        except TimeoutError as error:
            raise DeadlineExceeded(f"the guard allowed only {remaining:.3f} s", action=call.action) from error

    async def _wait_for_limit(self) -> None:
        if self.limiter is not None:
            WAITED.labels(self.purpose).observe(await self.limiter.wait())

    async def _exchange(self, call: ApiRequest, guard: RetryGuard | None = None) -> bytes:
        started = time.perf_counter()
        code = "none"
        try:
            async with await self.transport.send(call, guard.remaining_seconds if guard else None) as response:
                code = str(response.status)
                return await self._answer(call, response)
        finally:
            LATENCY.labels(call.verb, call.resource, self.purpose).observe(time.perf_counter() - started)
            self._count(call, code)

    async def _answer(self, call: ApiRequest, response: aiohttp.ClientResponse) -> bytes:
        body = await self.transport.read(response, call)
        if response.status >= 300:
            raise from_answer(response.status, body, call.action, response.headers.get("Retry-After", ""))
        return body

    def _count(self, call: ApiRequest, code: str) -> None:
        REQUESTS.labels(call.verb, call.resource, self.purpose, code).inc()

    async def open(self, call: ApiRequest, deadline_seconds: float) -> aiohttp.ClientResponse:
        """For streams: the answer with its body still to come. Not retried: a watch has its own back-off."""
        code = "none"
        try:
            async with asyncio.timeout(deadline_seconds):
                await self._wait_for_limit()
                response = await self.transport.send(call)
                code = str(response.status)
                if response.status >= 300:
                    async with response:
                        await self._answer(call, response)
                return response
        except TimeoutError as error:
            raise DeadlineExceeded(f"no answer within {deadline_seconds:g} s", action=call.action) from error
        finally:
            self._count(call, code)
