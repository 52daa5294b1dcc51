"""Token bucket: at most burst + qps x time, in order."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.kube.client.ratelimit import Limiter
from zonewise.kube.decide.token_bucket import TokenBucket


def test_burst_passes_then_the_rate_applies() -> None:
    bucket = TokenBucket(qps=10, burst=3, now=100.0)
    waits = [bucket.take(100.0) for _ in range(6)]
    assert waits == pytest.approx([0, 0, 0, 0.1, 0.2, 0.3])


def test_idle_time_refills_up_to_the_burst() -> None:
    bucket = TokenBucket(qps=10, burst=2, now=0.0)
    for _ in range(2):
        bucket.take(0.0)
    assert [bucket.take(60.0) for _ in range(3)] == pytest.approx([0, 0, 0.1])


def test_cancelled_waiter_returns_its_token() -> None:
    bucket = TokenBucket(qps=1, burst=1, now=0.0)
    bucket.take(0.0)
    assert bucket.take(0.0) == 1
    bucket.give_back(0.0)
    assert bucket.take(0.0) == 1


def test_returned_tokens_never_exceed_the_burst() -> None:
    bucket = TokenBucket(qps=1, burst=1, now=0.0)
    bucket.give_back(0.0)
    assert [bucket.take(0.0), bucket.take(0.0)] == [0, 1]


@pytest.mark.parametrize(("qps", "burst"), [(0, 1), (-1, 1), (1, 0)])
def test_limit_of_zero_is_refused(qps: float, burst: int) -> None:
    with pytest.raises(ValueError, match=f"qps={qps} and burst={burst}"):
        TokenBucket(qps, burst, 0.0)


@given(
    qps=st.floats(0.1, 1000),
    burst=st.integers(1, 50),
    steps=st.lists(st.floats(0, 10), min_size=1, max_size=80),
)
def test_no_window_exceeds_burst_plus_rate(qps: float, burst: int, steps: list[float]) -> None:
    bucket = TokenBucket(qps, burst, 0.0)
    now, served = 0.0, []
    for step in steps:
        now += step
        served.append(now + bucket.take(now))
    assert served == sorted(served)
    for first, start in enumerate(served):
        for last in range(first, len(served)):
            assert last - first + 1 <= burst + qps * (served[last] - start) + 1e-6


@given(times=st.lists(st.floats(0, 100), min_size=1, max_size=30))
def test_stopped_or_backward_clock_adds_no_tokens(times: list[float]) -> None:
    bucket = TokenBucket(qps=1, burst=1, now=100.0)
    assert [bucket.take(now) for now in times] == pytest.approx(list(range(len(times))))


async def test_limiter_returns_its_waiting_time() -> None:
    limiter = Limiter(qps=1000, burst=1)
    assert await limiter.wait() == 0
    assert 0 < await limiter.wait() <= 0.001


async def test_cancelled_wait_frees_its_turn() -> None:
    limiter = Limiter(qps=0.01, burst=1)
    await limiter.wait()
    waiting = asyncio.create_task(limiter.wait())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert limiter._bucket.take(0.0) == pytest.approx(100, rel=0.01)
