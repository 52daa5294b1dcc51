"""The process of a long-running command: signals, health server, graceful shutdown and exit code.

`run` starts `main` and serves its health. On SIGTERM or SIGINT the process first reports that it is not ready, then
cancels `main`, whose `async with` blocks end from the inside out (see `zonewise.kube.manager`). The health server stops
last. A second signal ends the process at once; when the grace period is over, it is killed.
"""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, Final, NoReturn

import uvloop

from zonewise import log
from zonewise.errors import ZonewiseError
from zonewise.kube.server import health, metrics_server
from zonewise.kube.server.health import Health
from zonewise.kube.server.metrics_server import MetricsListen
from zonewise.kube.wire.errors import ApiError, ConfigError

_log = log.get_logger(__name__)

Main = Callable[[Health], Coroutine[Any, Any, None]]
"""Runs until cancelled. Calls `Health.started` once it is ready for work."""

_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)
EXIT_FINE: Final = 0
EXIT_FAILED: Final = 1


@dataclass(frozen=True, slots=True)
class HealthListen:
    """Address of `/livez` and `/readyz`. Default: all addresses, as kubelets probe the pod's address."""

    host: str | None = None
    port: int = 0
    metrics: MetricsListen | None = None
    """Where `/metrics` is served to others than this machine."""


def run(
    main: Main, *, listen: HealthListen | None = None, grace_seconds: float = 25.0, unready_seconds: float = 0.0
) -> int:
    """The exit code: 0 after a signal or when `main` returns, 1 when it fails.

    `unready_seconds`: how long to serve on after readiness is off, until clients have noticed.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Process(grace_seconds, unready_seconds).run(main, listen or HealthListen()))


class _Process:
    def __init__(self, grace_seconds: float, unready_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._unready_seconds = unready_seconds
        self._health = Health()
        self._stop = asyncio.Event()

    async def run(self, main: Main, listen: HealthListen) -> int:
        self._catch_signals()
        try:
            async with health.serve(self._health, listen.host, listen.port) as port:
                _log.info("process started", pid=os.getpid(), health_port=port)
                await self._run_until_stopped(main, listen.metrics)
        except Exception as error:  # noqa: BLE001 - the outermost handler: logged, and the exit code says it
            _log_failure(error)
            return EXIT_FAILED
        _log.info("process ended")
        return EXIT_FINE

    async def _run_until_stopped(self, main: Main, metrics: MetricsListen | None) -> None:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(main(self._health), name="main")
            beside = [group.create_task(self._end_on_signal(work), name="signals")]
            if metrics is not None:
                beside.append(group.create_task(metrics_server.serve(metrics), name="metrics"))
            work.add_done_callback(lambda _: [task.cancel() for task in beside])

    async def _end_on_signal(self, work: asyncio.Task[None]) -> None:
        await self._stop.wait()
        self._health.stopping()
        asyncio.get_running_loop().call_later(self._unready_seconds + self._grace_seconds, self._cut_off)
        await asyncio.sleep(self._unready_seconds)
        work.cancel()

    def _catch_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: int) -> None:
        _log.info("process stopping", signal=signal.Signals(number).name, grace_seconds=self._grace_seconds)
        loop = asyncio.get_running_loop()
        for handled in _SIGNALS:  # a second signal must work even if the event loop hangs
            loop.remove_signal_handler(handled)
            signal.signal(handled, _exit_at_once)
        self._stop.set()

    def _cut_off(self) -> NoReturn:
        hanging = sorted(task.get_name() for task in asyncio.all_tasks())
        _log.error(
            "process did not end in its grace and is cut off", grace_seconds=self._grace_seconds, hanging=hanging
        )
        os._exit(EXIT_FAILED)


def _exit_at_once(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)


def _log_failure(error: Exception) -> None:
    for leaf in _leaves(error):
        expected = isinstance(leaf, ApiError | ConfigError | ZonewiseError)
        _log.error("process failed", error=str(leaf) or type(leaf).__name__, exc_info=None if expected else leaf)


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error
