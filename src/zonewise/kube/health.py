"""What a process says of itself over HTTP: `/livez`, `/readyz` and `/metrics`.

`Health` holds named checks and the process's phase; `zonewise.kube.process` moves the phase, capabilities add checks.
The answers look like the API server's own: "ok", or with `?verbose` and on failure one line per check.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum

from aiohttp import web
from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from zonewise.kube.listening import listen

Check = Callable[[], str | None]
"""What is wrong, in one line, or None; must answer from memory and at once."""


class Phase(Enum):
    STARTING = "the process is starting"
    RUNNING = None
    STOPPING = "the process is stopping"


@dataclass(frozen=True, slots=True)
class Finding:
    check: str
    trouble: str | None

    def __str__(self) -> str:
        return f"[-]{self.check} failed: {self.trouble}" if self.trouble else f"[+]{self.check} ok"


@dataclass(frozen=True, slots=True)
class Report:
    """The answer to one probe."""

    probe: str
    findings: tuple[Finding, ...]

    @property
    def passed(self) -> bool:
        return not any(finding.trouble for finding in self.findings)

    def text(self, *, verbose: bool) -> str:
        if self.passed and not verbose:
            return "ok"
        verdict = f"{self.probe} check {'passed' if self.passed else 'failed'}"
        return "\n".join([*map(str, self.findings), verdict])


class Health:
    """A process is alive while it answers and all live checks pass; it is ready while running and all ready checks pass."""

    def __init__(self) -> None:
        self._phase = Phase.STARTING
        self._live: dict[str, Check] = {"ping": lambda: None}
        self._ready: dict[str, Check] = {"phase": lambda: self._phase.value}

    def add_live(self, name: str, check: Check) -> None:
        """Something only a restart repairs."""
        self._live[name] = check

    def add_ready(self, name: str, check: Check) -> None:
        """Something without which this process should get no work."""
        self._ready[name] = check

    def started(self) -> None:
        """All is set up; from now on the ready checks decide. Too late once the process stops."""
        if self._phase is Phase.STARTING:
            self._phase = Phase.RUNNING

    def stopping(self) -> None:
        self._phase = Phase.STOPPING

    def live(self, exclude: Collection[str] = ()) -> Report:
        return _report("livez", self._live, exclude)

    def ready(self, exclude: Collection[str] = ()) -> Report:
        return _report("readyz", self._ready, exclude)


def _report(probe: str, checks: Mapping[str, Check], exclude: Collection[str]) -> Report:
    return Report(probe, tuple(Finding(name, check()) for name, check in checks.items() if name not in exclude))


@asynccontextmanager
async def serve(
    health: Health, host: str | None = None, port: int = 0, tls: ssl.SSLContext | None = None
) -> AsyncIterator[int]:
    """Answer probes and scrapes, without a host on all addresses; yields the port, a free one if none was asked for."""
    runner = web.AppRunner(_application(health), access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield await listen(runner, "health and metrics", host, port, tls)
    finally:
        await runner.cleanup()


def _application(health: Health) -> web.Application:
    async def live(request: web.Request) -> web.Response:
        return _answer(request, health.live)

    async def ready(request: web.Request) -> web.Response:
        return _answer(request, health.ready)

    application = web.Application()
    application.add_routes([web.get("/livez", live), web.get("/readyz", ready), web.get("/metrics", _metrics)])
    return application


def _answer(request: web.Request, probe: Callable[[Collection[str]], Report]) -> web.Response:
    report = probe(request.query.getall("exclude", []))
    text = report.text(verbose="verbose" in request.query)
    return web.Response(status=200 if report.passed else 500, text=text + "\n", headers={"Cache-Control": "no-store"})


async def _metrics(request: web.Request) -> web.Response:
    """All, or those named by `name[]`, as Prometheus' own servers understand it."""
    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    wanted = request.query.getall("name[]", [])
    registry = REGISTRY.restricted_registry(wanted) if wanted else REGISTRY
    return web.Response(body=encode(registry), headers={"Content-Type": content_type})
