"""Work queue with real workers on an event loop."""

import asyncio
import random
from collections import defaultdict

import pytest
from prometheus_client import REGISTRY

from zonewise.kube.controller.workqueue import Backoff, QueueShutDown, WorkQueue


def sample(metric: str, name: str) -> float:
    value = REGISTRY.get_sample_value(metric, {"name": name})
    assert value is not None, f"no sample of {metric} for queue {name}"
    return value


async def test_waiting_worker_gets_an_added_key() -> None:
    queue: WorkQueue[str] = WorkQueue("waiting")
    worker = asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")
    assert await worker == "a"


async def test_delayed_keys_arrive_earliest_first() -> None:
    queue: WorkQueue[str] = WorkQueue("delayed")
    queue.add_after("late", 0.05)
    queue.add_after("early", 0.01)
    queue.add_after("now", 0)
    queue.add_after("late", 0.03)
    assert [await queue.get() for _ in range(3)] == ["now", "early", "late"]


async def test_retry_delay_grows_until_forgotten() -> None:
    queue: WorkQueue[str] = WorkQueue("retries", backoff=Backoff(first_seconds=0.001, longest_seconds=0.004))
    assert [queue.add_rate_limited("a") for _ in range(4)] == [0.001, 0.002, 0.004, 0.004]
    assert await queue.get() == "a"
    assert queue.failures("a") == 4
    queue.forget("a")
    assert queue.add_rate_limited("a") == 0.001
    assert sample("workqueue_retries_total", "retries") == 5


async def test_key_of_a_cancelled_worker_goes_to_another() -> None:
    queue: WorkQueue[str] = WorkQueue("cancelled")
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    queue.add("a")  # wakes the first worker
    first.cancel()
    assert await second == "a"
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_worker_cancelled_while_waiting_is_skipped() -> None:
    queue: WorkQueue[str] = WorkQueue("passed-over")
    first, second = asyncio.create_task(queue.get()), asyncio.create_task(queue.get())
    await asyncio.sleep(0)
    first.cancel()
    queue.add("a")
    assert await second == "a"


async def test_shutdown_ends_waiting_workers_and_waits_for_busy_ones() -> None:
    queue: WorkQueue[str] = WorkQueue("shut-down")
    queue.add("a")
    key = await queue.get()
    idle = [asyncio.create_task(queue.get()) for _ in range(3)]
    await asyncio.sleep(0)
    queue.shut_down()
    outcomes = await asyncio.gather(*idle, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [QueueShutDown] * 3
    drained = asyncio.create_task(queue.drained())
    await asyncio.sleep(0)
    assert not drained.done()
    queue.done(key)
    await drained
    with pytest.raises(QueueShutDown, match="shut-down"):
        await queue.get()


async def test_shutdown_hands_out_queued_keys_and_drops_delayed_ones() -> None:
    queue: WorkQueue[str] = WorkQueue("left")
    queue.add("a")
    queue.add_after("b", 0.001)
    queue.shut_down()
    assert await queue.get() == "a"
    queue.done("a")
    await queue.drained()


async def test_metrics_show_depth_adds_and_durations() -> None:
    now = 100.0
    queue: WorkQueue[str] = WorkQueue("measured", clock=lambda: now)
    for key in ("a", "b", "a"):
        queue.add(key)
    assert len(queue) == sample("workqueue_depth", "measured") == 2
    assert sample("workqueue_adds_total", "measured") == 2
    now = 103.0
    await queue.get()
    assert sample("workqueue_queue_duration_seconds_sum", "measured") == 3.0
    now = 105.0
    await queue.get()
    now = 106.0
    assert sample("workqueue_unfinished_work_seconds", "measured") == 3.0 + 1.0
    assert sample("workqueue_longest_running_processor_seconds", "measured") == 3.0
    queue.done("a")
    assert sample("workqueue_work_duration_seconds_sum", "measured") == 3.0
    assert sample("workqueue_longest_running_processor_seconds", "measured") == 1.0


async def test_concurrent_workers_lose_no_key_and_never_share_one() -> None:
    """Each key's last add is followed by a run that starts after it, and runs of a key never overlap."""
    queue: WorkQueue[int] = WorkQueue("many")
    chance = random.Random(7)
    latest: dict[int, int] = defaultdict(int)
    processed: dict[int, int] = {}
    busy: set[int] = set()

    async def work() -> None:
        while True:
            try:
                key = await queue.get()
            except QueueShutDown:
                return
            assert key not in busy
            busy.add(key)
            version = latest[key]
            for _ in range(chance.randrange(3)):
                await asyncio.sleep(0)
            processed[key] = version
            busy.remove(key)
            queue.done(key)

    async with asyncio.TaskGroup() as group:
        for _ in range(5):
            group.create_task(work())
        for _ in range(3000):
            key = chance.randrange(20)
            latest[key] += 1
            queue.add(key)
            if chance.random() < 0.3:
                await asyncio.sleep(0)
        queue.shut_down()
    await queue.drained()
    assert processed == latest
