"""Reconcile loop: every key is reconciled independently, and failures are retried and counted."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from prometheus_client import REGISTRY
from structlog.testing import capture_logs

from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.workqueue import Backoff, WorkQueue
from zonewise.kube.decide.election import NotLeader
from zonewise.kube.wire.errors import Conflict, Unavailable

QUICK = Backoff(first_seconds=0.001, longest_seconds=0.002)


def reconciles(controller: str, result: str) -> float:
    return REGISTRY.get_sample_value("zonewise_reconcile_total", {"controller": controller, "result": result}) or 0.0


async def run_until(
    done: asyncio.Event, name: str, reconcile: Callable[[str], Awaitable[float | None]], *keys: str, workers: int = 2
) -> None:
    queue: WorkQueue[str] = WorkQueue(name, backoff=QUICK)
    for key in keys:
        queue.add(key)
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(Controller(name, queue, reconcile, workers=workers).run())
        await done.wait()
        queue.shut_down()


async def test_every_key_is_reconciled_and_run_ends_with_the_queue() -> None:
    reconciled: set[str] = set()
    done = asyncio.Event()

    async def reconcile(key: str) -> None:
        reconciled.add(key)
        if len(reconciled) == 3:
            done.set()

    await run_until(done, "all", reconcile, "a", "b", "c")
    assert reconciled == {"a", "b", "c"}
    assert reconciles("all", "success") == 3


async def test_reconcile_may_request_a_requeue() -> None:
    calls = 0
    done = asyncio.Event()

    async def reconcile(_key: str) -> float | None:
        nonlocal calls
        calls += 1
        if calls < 3:
            return 0.001
        done.set()
        return None

    await run_until(done, "again", reconcile, "a")
    assert calls == 3
    assert (reconciles("again", "requeued"), reconciles("again", "success")) == (2, 1)


@pytest.mark.parametrize(
    ("error", "result", "traceback"),
    [
        (ValueError("a bug of ours"), "error", True),
        (KeyError(), "error", True),
        (Unavailable("the server is away", action="get of pods"), "error", False),
        (Conflict("changed", action="update of leases"), "overtaken", None),
        (NotLeader("not us"), "overtaken", None),
    ],
    ids=["bug", "without a text", "server", "conflict", "not the leader"],
)
async def test_failed_key_is_retried_and_other_keys_continue(
    error: Exception, result: str, traceback: bool | None
) -> None:
    name = f"failing-{type(error).__name__}"
    attempts = 0
    done = asyncio.Event()

    async def reconcile(key: str) -> None:
        nonlocal attempts
        if key == "good":
            return
        attempts += 1
        if attempts <= 3:
            raise error
        done.set()

    with capture_logs() as lines:
        await run_until(done, name, reconcile, "bad", "good", workers=1)
    assert reconciles(name, result) == 3
    assert reconciles(name, "success") == 2
    failed = [line for line in lines if line["event"] == "reconcile failed"]
    if traceback is None:
        assert not lines, "a conflict is not logged"
    else:
        assert [line["failures"] for line in failed] == [1, 2, 3]
        assert all(line["error"] and (line["exc_info"] is not None) == traceback for line in failed)
        assert [line["event"] for line in lines][-1] == "reconcile recovered"


async def test_success_resets_the_back_off() -> None:
    queue: WorkQueue[str] = WorkQueue("reset", backoff=QUICK)
    failure_counts: list[int] = []
    fail = [True, True, False, True, False]
    done = asyncio.Event()

    async def reconcile(key: str) -> float | None:
        failure_counts.append(queue.failures(key))
        if fail[len(failure_counts) - 1]:
            raise ValueError("on purpose")
        if len(failure_counts) == len(fail):
            done.set()
            return None
        return 0.001

    queue.add("a")
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(Controller("reset", queue, reconcile, workers=1).run())
        await done.wait()
        queue.shut_down()
    assert failure_counts == [0, 1, 2, 0, 1]


async def test_next_controller_finishes_keys_of_a_cancelled_one() -> None:
    queue: WorkQueue[str] = WorkQueue("cancelled-controller")
    begun, finished = asyncio.Event(), asyncio.Event()
    hang = True

    async def reconcile(_key: str) -> None:
        begun.set()
        if hang:
            await asyncio.Event().wait()
        finished.set()

    controller = Controller("cancelled-controller", queue, reconcile, workers=1)
    queue.add("a")
    first = asyncio.create_task(controller.run())
    await begun.wait()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    hang = False
    async with asyncio.timeout(30), asyncio.TaskGroup() as group:
        group.create_task(controller.run())
        await finished.wait()
        queue.shut_down()
