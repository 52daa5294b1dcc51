"""Task runners: this process, a process pool, or a Dask cluster. All yield partial results as they complete."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from multiprocessing import resource_tracker

from zonewise.errors import UsageError
from zonewise.simulator.decide.tasks import Partial, Task
from zonewise.simulator.worker import perform

Runner = Callable[[Sequence[Task]], Iterator[Partial]]


def one_by_one(tasks: Sequence[Task]) -> Iterator[Partial]:
    return map(perform, tasks)


def in_processes(jobs: int) -> Runner:
    def run(tasks: Sequence[Task]) -> Iterator[Partial]:
        # Spawn: a fork would copy the threads of the progress bar in an undefined state.
        context = multiprocessing.get_context("spawn")
        pool = ProcessPoolExecutor(min(jobs, len(tasks) or 1), context)
        try:
            for future in as_completed(_submitted(pool, tasks)):
                yield future.result()
        finally:
            pool.shutdown(cancel_futures=True)

    return run


def on_dask(address: str, timeout_seconds: float = 10) -> Runner:
    import distributed  # noqa: PLC0415 - an extra, and slow to import

    def run(tasks: Sequence[Task]) -> Iterator[Partial]:
        try:
            client = distributed.Client(address, timeout=timeout_seconds)
        except (OSError, ValueError) as error:
            raise UsageError(f"--dask {address}: no scheduler answers there: {error}") from error
        with client:
            for _, partial in distributed.as_completed(client.map(perform, tasks, pure=False), with_results=True):
                yield partial

    return run


def _submitted(pool: ProcessPoolExecutor, tasks: Sequence[Task]) -> list[Future[Partial]]:
    """Start workers with SIGINT blocked: Ctrl-C reaches every process of the terminal, and only this one handles it.

    They inherit the mask, so that it also protects their start. The resource tracker unblocks signals when it starts,
    so it is started first.
    """
    resource_tracker.ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        return [pool.submit(perform, task) for task in tasks]
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
