"""Health endpoints `/livez` and `/readyz`, and for this machine `/metrics`.

`Health` holds named checks and the process's phase; `zonewise.kube.process` moves the phase, capabilities add checks.
The answers look like the API server's own: "ok", or with `?verbose` and on failure one line per check. Kubelets probe
without TLS and tokens, so there is none here; metrics are served to others by `zonewise.kube.server.metrics_server`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from zonewise.kube.server import metrics_server
from zonewise.kube.server.listening import LazyHttpServer, listen_for

if TYPE_CHECKING:
    from aiohttp import web


Check = Callable[[], str | None]
"""What is wrong, in one line, or None; must answer from memory and at once."""


class Phase(Enum):
    STARTING = "the process is starting"
    RUNNING = None
    STOPPING = "the process is stopping"


@dataclass(frozen=True, slots=True)
class CheckResult:
    check: str
    trouble: str | None

    def __str__(self) -> str:
        return f"[-]{self.check} failed: {self.trouble}" if self.trouble else f"[+]{self.check} ok"


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The answer to one probe."""

    probe: str
    findings: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        return not any(finding.trouble for finding in self.findings)

    def text(self, *, verbose: bool) -> str:
        if self.passed and not verbose:
            return "ok"
        verdict = f"{self.probe} check {'passed' if self.passed else 'failed'}"
        return "\n".join([*map(str, self.findings), verdict])


class Health:
    """Alive: the process answers and all live checks pass. Ready: it runs and all ready checks pass."""

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

    @property
    def is_stopping(self) -> bool:
        return self._phase is Phase.STOPPING

    def live(self, exclude: Collection[str] = ()) -> HealthReport:
        return _report("livez", self._live, exclude)

    def ready(self, exclude: Collection[str] = ()) -> HealthReport:
        return _report("readyz", self._ready, exclude)


def _report(probe: str, checks: Mapping[str, Check], exclude: Collection[str]) -> HealthReport:
    return HealthReport(
        probe, tuple(CheckResult(name, check()) for name, check in checks.items() if name not in exclude)
    )


@asynccontextmanager
async def serve(health: Health, host: str | None = None, port: int = 0) -> AsyncIterator[int]:
    """Answer probes, without a host on all addresses; yields the port, a free one if none was asked for."""
    server = LazyHttpServer("health and metrics", _Answers(health).answer)
    listener = await listen_for(server, host, port, None)
    try:
        yield listener.port
    finally:
        listener.close()
        await server.close()


class _Answers:
    def __init__(self, health: Health) -> None:
        self._probes = {"/livez": health.live, "/readyz": health.ready}

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web  # noqa: PLC0415 - with the first request

        if request.method not in {"GET", "HEAD"}:
            return web.Response(status=405, headers={"Allow": "GET, HEAD"})
        if request.path == metrics_server.PATH:
            return metrics_server.local_page(request)
        if (probe := self._probes.get(request.path)) is None:
            return web.Response(status=404, text="only /livez, /readyz and /metrics are here\n")
        report = probe(request.query.getall("exclude", []))
        text = report.text(verbose="verbose" in request.query) + "\n"
        return web.Response(status=200 if report.passed else 500, text=text, headers={"Cache-Control": "no-store"})
