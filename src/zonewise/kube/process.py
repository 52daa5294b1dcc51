"""The life of a long-running command: signals, health, an orderly end and an exit code.

`run` starts `main` and serves its health. On SIGTERM or SIGINT the process first says that it is not ready, then
cancels `main`, whose `async with` blocks end from the inside out: the leader's work, its lease, events, caches, the
client. The health server goes last. Whoever can't wait sends a second signal, and whatever hangs is cut off when
the grace is over.
"""

from __future__ import annotations

import asyncio
import os
import signal
import ssl
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

import uvloop

from zonewise import log
from zonewise.errors import ZonewiseError
from zonewise.kube.server import health
from zonewise.kube.server.health import Health
from zonewise.kube.wire.errors import ApiError, ConfigError

_log = log.get_logger(__name__)

Main = Callable[[Health], Coroutine[Any, Any, None]]
"""Runs until cancelled. Calls `started` on the health it is given once it is ready for work."""

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
EXIT_FINE = 0
EXIT_FAILED = 1


@dataclass(frozen=True, slots=True)
class HealthListen:
    """Where `/livez`, `/readyz` and `/metrics` are served: by default on all addresses, as kubelets probe the pod's."""

    host: str | None = None
    port: int = 0
    tls: ssl.SSLContext | None = None


def run(
    main: Main, *, listen: HealthListen | None = None, grace_seconds: float = 25.0, unready_seconds: float = 0.0
) -> int:
    """The exit code: 0 after a signal or when `main` returns, 1 when it fails.

    `unready_seconds` is how long to go on serving after readiness is off, for those who send work to notice.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_Process(grace_seconds, unready_seconds).live(main, listen or HealthListen()))


class _Process:
    def __init__(self, grace_seconds: float, unready_seconds: float) -> None:
        self._grace_seconds = grace_seconds
        self._unready_seconds = unready_seconds
        self._health = Health()
        self._stop = asyncio.Event()

    async def live(self, main: Main, listen: HealthListen) -> int:
        self._catch_signals()
        try:
            async with health.serve(self._health, listen.host, listen.port, listen.tls) as port:
                _log.info("process started", pid=os.getpid(), health_port=port)
                await self._run_until_stopped(main)
        except Exception as error:  # noqa: BLE001 - the last to see it
            _log_failure(error)
            return EXIT_FAILED
        _log.info("process ended")
        return EXIT_FINE

    async def _run_until_stopped(self, main: Main) -> None:
        async with asyncio.TaskGroup() as group:
            work = group.create_task(main(self._health), name="main")
            ending = group.create_task(self._end_on_signal(work), name="signals")
            work.add_done_callback(lambda _: ending.cancel())

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
        for each in _SIGNALS:  # from here on without the loop, which may be what hangs
            loop.remove_signal_handler(each)
            signal.signal(each, _leave_at_once)
        self._stop.set()

    def _cut_off(self) -> NoReturn:
        hanging = sorted(task.get_name() for task in asyncio.all_tasks())
        _log.error(
            "process did not end in its grace and is cut off", grace_seconds=self._grace_seconds, hanging=hanging
        )
        os._exit(EXIT_FAILED)


def _leave_at_once(number: int, _frame: object) -> NoReturn:
    os._exit(128 + number)


def _log_failure(error: Exception) -> None:
    for each in _leaves(error):
        expected = isinstance(each, ApiError | ConfigError | ZonewiseError)
        _log.error("process failed", error=str(each) or type(each).__name__, exc_info=None if expected else each)


def _leaves(error: Exception) -> Iterator[Exception]:
    if isinstance(error, ExceptionGroup):
        for each in error.exceptions:
            yield from _leaves(each)
    else:
        yield error
