"""HTTP server of the dashboard: the page's files, the event stream, and what-if and simulation requests. Read-only.

Everything but the files requires authorization. The content security policy allows the page only its own files and its
own server, no inline script or style, and no text that becomes markup.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from importlib import resources
from typing import Final

import msgspec
from aiohttp import web

from zonewise.dashboard import auth, simulation
from zonewise.dashboard.auth import COOKIE, Authenticator, TokenReviewAuthenticator
from zonewise.dashboard.decide.whatif_api import WhatIfQuestion, answer_question
from zonewise.dashboard.live_state import LiveState
from zonewise.errors import ZonewiseError
from zonewise.kube.decide.connection_pool import IDLE_SECONDS
from zonewise.kube.decide.token_verdicts import TokenVerdict
from zonewise.kube.server.connections import Connections
from zonewise.planning.snapshot import Snapshot
from zonewise.routing import HintsForm
from zonewise.simulator.decide.results import ResultTable

KEEP_ALIVE_SECONDS: Final = 15.0
REAUTHORIZE_SECONDS: Final = 60.0
MAX_VIEWERS: Final = 200
MAX_BODY_BYTES: Final = 64 << 10
SIMULATION_CACHE_SECONDS: Final = 30.0

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
PICTURE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""For plots, which have inline styles and no scripts."""

HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-store",
}
_TYPES: Final = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class StaticFile:
    body: bytes
    kind: str
    tag: str


def page_files() -> dict[str, StaticFile]:
    """By name, read once: paths in requests are never opened."""
    files = {}
    for entry in resources.files("zonewise.dashboard").joinpath("page").iterdir():
        ending = entry.name.rpartition(".")[2]
        if ending in _TYPES:
            body = entry.read_bytes()
            files[entry.name] = StaticFile(body, _TYPES[ending], f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return files


class DashboardServer:
    def __init__(
        self,
        state: LiveState,
        snapshot: Callable[[], Snapshot],
        authenticator: Authenticator,
        hints: HintsForm = HintsForm.STABLE,
        file: str = "",
    ) -> None:
        """`file` is the dump that is shown, if any."""
        self._state = state
        self._snapshot = snapshot
        self._authenticator = authenticator
        self.connections = Connections("the dashboard")
        self._hints = hints
        self._dump = file
        self._files = page_files()
        self._viewers = 0
        self._forecasting = asyncio.Lock()
        self._simulating = asyncio.Lock()
        self._simulated: tuple[float, ResultTable] | None = None

    def application(self) -> web.Application:
        application = web.Application(
            middlewares=[self.connections.middleware(), _secured], client_max_size=MAX_BODY_BYTES
        )
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/events", self._authorized(self._events)),
                web.post("/what-if", self._authorized(self._what_if)),
                web.get("/simulation", self._authorized(self._simulation)),
                web.get("/simulation/{plot}.svg", self._authorized(self._plot)),
                web.post("/login", self._login),
                web.post("/logout", self._logout),
                web.get("/{file}", self._file),
            ]
        )
        return application

    def _authorized(self, handler: Handler) -> Handler:
        async def authorized(request: web.Request) -> web.StreamResponse:
            verdict = await self._authenticator.authorize(request)
            if verdict.refusal:
                return _refused(verdict)
            self.connections.prove(request)
            return await handler(request)

        return authorized

    async def _page(self, request: web.Request) -> web.StreamResponse:
        verdict = await self._authenticator.authorize(request)
        login = verdict.status in {401, 403} and isinstance(self._authenticator, TokenReviewAuthenticator)
        if verdict.refusal and not login:
            return _refused(verdict)
        return self._send("login.html" if verdict.refusal else "index.html", request)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._send(request.match_info["file"], request)

    def _send(self, name: str, request: web.Request) -> web.Response:
        file = self._files.get(name)
        if file is None:
            raise web.HTTPNotFound(text="no such file\n")
        headers = {"ETag": file.tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == file.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=file.body, content_type=file.kind, charset="utf-8", headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._viewers >= MAX_VIEWERS:
            return web.json_response({"error": "too many open pages; try again later"}, status=503)
        stream = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await stream.prepare(request)
        self._viewers += 1
        try:
            with self._state.subscribe() as subscriber:
                authorized_at = time.monotonic()
                while not subscriber.too_slow:
                    try:
                        async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                            event, data = await subscriber.next()
                        await stream.write(b"event: %s\ndata: %s\n\n" % (event.encode(), data))
                    except TimeoutError:
                        await stream.write(b": keep-alive\n\n")
                    if time.monotonic() - authorized_at > REAUTHORIZE_SECONDS:
                        authorized_at = time.monotonic()
                        if (await self._authenticator.authorize(request)).refusal:
                            break
        except (ConnectionResetError, asyncio.CancelledError):
            pass
        finally:
            self._viewers -= 1
        return stream

    async def _what_if(self, request: web.Request) -> web.StreamResponse:
        """JSON only: a form of another site can't send it."""
        if request.content_type != "application/json":
            return web.json_response({"error": "send JSON"}, status=415)
        try:
            question = msgspec.json.decode(await request.read(), type=WhatIfQuestion)
            async with self._forecasting:
                reply = await asyncio.to_thread(answer_question, question, self._snapshot(), self._hints, self._dump)
        except (ZonewiseError, msgspec.DecodeError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.Response(body=msgspec.json.encode(reply), content_type="application/json")

    async def _simulation(self, _request: web.Request) -> web.StreamResponse:
        table = await self._table()
        return web.Response(
            body=msgspec.json.encode(msgspec.structs.replace(table, judged=())), content_type="application/json"
        )

    async def _plot(self, request: web.Request) -> web.StreamResponse:
        draw = simulation.PLOTS.get(request.match_info["plot"])
        if draw is None:
            raise web.HTTPNotFound(text="no such plot\n")
        table = await self._table()
        headers = {"Content-Security-Policy": PICTURE_POLICY}
        return web.Response(body=draw(table.rows).encode(), content_type="image/svg+xml", headers=headers)

    async def _table(self) -> ResultTable:
        """One simulation at a time, cached; what-if requests do not wait for it."""
        async with self._simulating:
            if self._simulated is None or time.monotonic() - self._simulated[0] > SIMULATION_CACHE_SECONDS:
                table = await asyncio.to_thread(simulation.simulate_cluster, self._snapshot())
                self._simulated = (time.monotonic(), table)
            return self._simulated[1]

    async def _login(self, request: web.Request) -> web.StreamResponse:
        if not isinstance(self._authenticator, TokenReviewAuthenticator):
            raise web.HTTPNotFound(text="no login is needed here\n")
        token = str((await request.post()).get("token", "")).strip()
        verdict = await self._authenticator.authorize_token(token, request)
        if verdict.status not in {200, 401, 403}:
            return _refused(verdict)
        if verdict.refusal:
            raise web.HTTPSeeOther("/?refused")
        answer_question = web.Response(status=303, headers={"Location": "/"})
        answer_question.set_cookie(
            COOKIE, auth.encode_cookie(token), path="/", secure=True, httponly=True, samesite="Strict"
        )
        return answer_question

    async def _logout(self, _request: web.Request) -> web.StreamResponse:
        answer_question = web.Response(status=303, headers={"Location": "/"})
        answer_question.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        return answer_question


def _refused(verdict: TokenVerdict) -> web.Response:
    headers = {"Retry-After": "1"} if verdict.status in {429, 503} else {}
    return web.json_response({"error": verdict.refusal}, status=verdict.status, headers=headers)


@web.middleware
async def _secured(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        _add_headers(error.headers)
        raise
    if not response.prepared:
        _add_headers(response.headers)
    return response


def _add_headers(headers: Mapping[str, str]) -> None:
    for name, value in HEADERS.items():
        headers.setdefault(name, value)  # type: ignore[attr-defined]  # a multidict, which has no common base class


@asynccontextmanager
async def serve(application: web.Application) -> AsyncIterator[web.AppRunner]:
    runner = web.AppRunner(application, access_log=None, keepalive_timeout=IDLE_SECONDS, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()
