"""Admission webhook server: HTTPS, one path per webhook, for callers with a key only.

A path is `/NAME/KEY`. Webhook configurations name it, so API servers know the key and tenants don't. Without it the
answer is a plain 404 before anything of the body is read, and a connection that is idle is closed within seconds
(`zonewise.kube.server.connections`). The server reads a review, runs the webhook's handler under a deadline and answers
its verdict. When the handler is late or fails, the answer is the webhook's own `on_failure` verdict, sent before the API
server's timeout: the outcome is declared here, not left to that timeout. Once the process is stopping, each answer
closes its connection, so that an API server sends no review on one that is about to end.
Certificates come from `zonewise.kube.server.cert_manager`.
"""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Final, Generic, Self, TypeVar

from aiohttp import web
from prometheus_client import Counter, Histogram

from zonewise import descriptors
from zonewise.errors import ZonewiseError
from zonewise.kube.decide.connection_pool import IDLE_SECONDS
from zonewise.kube.server.connections import Connections
from zonewise.kube.server.listening import listen
from zonewise.kube.wire import admission_review
from zonewise.kube.wire.admission_review import AdmissionVerdict, Review, ReviewError
from zonewise.log import get_logger

T = TypeVar("T")

_log = get_logger(__name__)

# An API server takes 3 MiB per request; an update's review carries the old and the new object.
BODY_LIMIT_BYTES: Final = 8 * 2**20
_REPORT_SECONDS: Final = 60.0
_PARTS: Final = 3  # of "/NAME/KEY"

_TIMEOUT: Final = re.compile(r"([0-9]+)s")
_REFUSED: Final = Counter("zonewise_admission_refused_callers", "Requests without a valid caller key")
_LATENCY_BUCKETS: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_REVIEWS: Final = Counter("zonewise_admission_reviews", "Reviews by what became of them", ["webhook", "outcome"])
_SECONDS: Final = Histogram(
    "zonewise_admission_seconds", "Time from request to answer", ["webhook"], buckets=_LATENCY_BUCKETS
)


class AdmissionOutcome(StrEnum):
    ALLOWED = "allowed"
    DENIED = "denied"
    LATE = "late"
    FAILED = "failed"
    UNREADABLE = "unreadable"


@dataclass(frozen=True, slots=True)
class Webhook(Generic[T]):
    """`name` is the first part of the path and the metrics label.

    Objects are read through `view` (`dict[str, Any]` for the whole).
    """

    name: str
    view: type[T]
    decide: Callable[[Review[T]], Awaitable[AdmissionVerdict]]
    on_failure: AdmissionVerdict
    deadline_seconds: float = 5.0


class AdmissionServer:
    """`async with AdmissionServer([...], context, accepts, port=8443) as server:` serves until left.

    Requests under way are finished. `accepts` knows the callers' keys. Without a host it listens on all addresses; port
    0 takes any free one.
    """

    def __init__(
        self,
        webhooks: Iterable[Webhook[Any]],
        context: ssl.SSLContext,
        accepts: Callable[[str], bool],
        *,
        port: int,
        host: str | None = None,
        body_limit_bytes: int = BODY_LIMIT_BYTES,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._webhooks = tuple(webhooks)
        self._context = context
        endpoints = {webhook.name: _Endpoint(webhook) for webhook in self._webhooks}
        descriptors.raise_limit()
        self._connections = Connections("admission")
        self._callers = _CallerFilter(endpoints, accepts, is_stopping, self._connections)
        self._address = (host, port)
        self._body_limit_bytes = body_limit_bytes
        self._runner: web.AppRunner | None = None
        self._port: int | None = None

    @property
    def port(self) -> int:
        """The port listened on, also where 0 was asked for."""
        assert self._port is not None, "the server is not running"
        return self._port

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=self._body_limit_bytes)
        application.router.add_route("*", "/{path:.*}", self._callers.handle)
        longest = max((webhook.deadline_seconds for webhook in self._webhooks), default=0.0)
        self._runner = web.AppRunner(
            application,
            access_log=None,  # it would show the keys
            keepalive_timeout=IDLE_SECONDS,
            lingering_time=0.0,  # do not wait for the body of a refused request
            shutdown_timeout=longest + 1.0,
        )
        await self._runner.setup()
        try:
            self._port = await listen(self._runner, self._connections, *self._address, self._context)
        except ZonewiseError:
            await self._runner.cleanup()
            raise
        _log.info("admission server listens", port=self.port, webhooks=[webhook.name for webhook in self._webhooks])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None, "the server is not running"
        await self._runner.cleanup()
        _log.info("admission server stopped")


class _CallerFilter:
    """Lets callers with a valid key through to their webhook; counts the others, and reports them once a minute."""

    def __init__(
        self,
        endpoints: Mapping[str, _Endpoint[Any]],
        accepts: Callable[[str], bool],
        is_stopping: Callable[[], bool],
        connections: Connections,
    ) -> None:
        self._connections = connections
        self._endpoints = endpoints
        self._accepts = accepts
        self._is_stopping = is_stopping
        self._refused = 0
        self._reported_at = float("-inf")

    async def handle(self, request: web.Request) -> web.Response:
        parts = request.rel_url.raw_path.split("/")
        endpoint = self._endpoints.get(parts[1]) if len(parts) == _PARTS and request.method == "POST" else None
        if endpoint is None or not self._accepts(parts[2]):
            return self._refuse(request)
        self._connections.prove(request)
        answer = await endpoint.handle(request)
        if self._is_stopping():
            answer.force_close()
        return answer

    def _refuse(self, request: web.Request) -> web.Response:
        _REFUSED.inc()
        self._refused += 1
        now = asyncio.get_running_loop().time()
        if now - self._reported_at >= _REPORT_SECONDS:
            _log.warning("callers without a valid key refused", count=self._refused, last=request.remote)
            self._reported_at, self._refused = now, 0
        answer = web.Response(status=404, text="404: Not Found")
        answer.force_close()
        return answer


class _Endpoint(Generic[T]):
    def __init__(self, webhook: Webhook[T]) -> None:
        self._webhook = webhook
        self._decoder = admission_review.decoder_for(webhook.view)

    async def handle(self, request: web.Request) -> web.Response:
        started = asyncio.get_running_loop().time()
        deadline = started + _allowed_seconds(self._webhook, request.query.get("timeout", ""))
        try:
            asked = await self._read(request, deadline)
        except web.HTTPException as error:
            self._count(AdmissionOutcome.UNREADABLE, started)
            _log.warning("review refused", webhook=self._webhook.name, status=error.status, problem=error.text)
            raise
        answer, outcome = await self._judge(asked, deadline)
        self._count(outcome, started)
        return web.Response(body=answer, content_type="application/json")

    async def _read(self, request: web.Request, deadline: float) -> Review[T]:
        try:
            async with asyncio.timeout_at(deadline):
                return admission_review.read(await request.read(), self._decoder)
        except ReviewError as error:
            raise web.HTTPBadRequest(text=str(error)) from error
        except (ConnectionError, web.RequestPayloadError) as error:
            raise web.HTTPBadRequest(text="the body ended early") from error
        except TimeoutError as error:
            raise web.HTTPRequestTimeout(text="the body did not arrive in time") from error

    async def _judge(self, asked: Review[T], deadline: float) -> tuple[bytes, AdmissionOutcome]:
        """A verdict counts once it is encoded: a patch may hold what JSON can't say."""
        patience = asyncio.timeout_at(deadline)
        try:
            async with patience:
                verdict = await self._webhook.decide(asked)
            answer = admission_review.answer(asked.uid, verdict)
        except Exception as error:  # noqa: BLE001 - the API server waits for an answer
            outcome = AdmissionOutcome.LATE if patience.expired() else AdmissionOutcome.FAILED
            failed = error if outcome is AdmissionOutcome.FAILED else None
            _log.warning("review not decided", webhook=self._webhook.name, outcome=outcome, exc_info=failed)
            return admission_review.answer(asked.uid, self._webhook.on_failure), outcome
        return answer, AdmissionOutcome.ALLOWED if verdict.allowed else AdmissionOutcome.DENIED

    def _count(self, outcome: AdmissionOutcome, started: float) -> None:
        _REVIEWS.labels(self._webhook.name, outcome).inc()
        _SECONDS.labels(self._webhook.name).observe(asyncio.get_running_loop().time() - started)


def _allowed_seconds(webhook: Webhook[Any], timeout: str) -> float:
    """Our deadline, or sooner when the API server says that it will not wait so long (`?timeout=3s`, rounded up)."""
    match = _TIMEOUT.fullmatch(timeout)
    if match is None:
        return webhook.deadline_seconds
    patience = int(match[1])
    return min(webhook.deadline_seconds, patience - max(0.25, patience / 10))
