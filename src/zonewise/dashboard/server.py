"""Serves the page: its files, the stream of what changes, and answers to what-if questions. It changes nothing anywhere.

Everything but the files asks the door first. The page's policy allows it nothing but its own files and its own server, no
script or style in the text, and no text that becomes markup.
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
from zonewise.dashboard.auth import COOKIE, Authenticator, AuthVerdict, TokenReviewAuthenticator
from zonewise.dashboard.decide.whatif_api import WhatIfQuestion, answer
from zonewise.dashboard.live_state import LiveState
from zonewise.errors import ZonewiseError
from zonewise.planning.snapshot import Snapshot
from zonewise.routing import HintsForm
from zonewise.simulator.decide.results import ResultTable

KEEP_ALIVE_SECONDS: Final = 15.0
JUDGED_AGAIN_SECONDS: Final = 60.0
MOST_VIEWERS: Final = 200
MOST_ASKED_BYTES: Final = 64 << 10
SIMULATION_KEPT_SECONDS: Final = 30.0

POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
PICTURE_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
"""For plots, which bring their style along and run nothing."""

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
    """By name, read once: no path that a request names is ever opened."""
    found = {}
    for entry in resources.files("zonewise.dashboard").joinpath("page").iterdir():
        ending = entry.name.rpartition(".")[2]
        if ending in _TYPES:
            body = entry.read_bytes()
            found[entry.name] = StaticFile(body, _TYPES[ending], f'"{hashlib.sha256(body).hexdigest()[:16]}"')
    return found


class DashboardServer:
    def __init__(
        self,
        board: LiveState,
        situation: Callable[[], Snapshot],
        door: Authenticator,
        hints: HintsForm = HintsForm.STABLE,
        file: str = "",
    ) -> None:
        """`file` is the dump that is shown, if it is one."""
        self._board = board
        self._situation = situation
        self._door = door
        self._hints = hints
        self._dump = file
        self._files = page_files()
        self._viewers = 0
        self._thinking = asyncio.Lock()
        self._simulating = asyncio.Lock()
        self._simulated: tuple[float, ResultTable] | None = None

    def application(self) -> web.Application:
        application = web.Application(middlewares=[_secured], client_max_size=MOST_ASKED_BYTES)
        application.add_routes(
            [
                web.get("/", self._page),
                web.get("/events", self._guarded(self._events)),
                web.post("/what-if", self._guarded(self._what_if)),
                web.get("/simulation", self._guarded(self._simulation)),
                web.get("/simulation/{plot}.svg", self._guarded(self._plot)),
                web.post("/login", self._login),
                web.post("/logout", self._logout),
                web.get("/{file}", self._file),
            ]
        )
        return application

    def _guarded(self, handler: Handler) -> Handler:
        async def guarded(request: web.Request) -> web.StreamResponse:
            verdict = await self._door.judge(request)
            return _refused(verdict) if verdict.refusal else await handler(request)

        return guarded

    async def _page(self, request: web.Request) -> web.StreamResponse:
        verdict = await self._door.judge(request)
        if verdict.refusal and not verdict.login:
            return _refused(verdict)
        return self._sent("login.html" if verdict.refusal else "index.html", request)

    async def _file(self, request: web.Request) -> web.StreamResponse:
        return self._sent(request.match_info["file"], request)

    def _sent(self, name: str, request: web.Request) -> web.Response:
        found = self._files.get(name)
        if found is None:
            raise web.HTTPNotFound(text="no such file\n")
        headers = {"ETag": found.tag, "Cache-Control": "no-cache"}
        if request.headers.get("If-None-Match") == found.tag:
            return web.Response(status=304, headers=headers)
        return web.Response(body=found.body, content_type=found.kind, charset="utf-8", headers=headers)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        if self._viewers >= MOST_VIEWERS:
            return web.json_response({"error": "too many look at this already"}, status=503)
        stream = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        await stream.prepare(request)
        self._viewers += 1
        try:
            with self._board.viewed() as viewer:
                judged_at = time.monotonic()
                while not viewer.too_slow:
                    try:
                        async with asyncio.timeout(KEEP_ALIVE_SECONDS):
                            event, data = await viewer.next()
                        await stream.write(b"event: %s\ndata: %s\n\n" % (event.encode(), data))
                    except TimeoutError:
                        await stream.write(b": still here\n\n")
                    if time.monotonic() - judged_at > JUDGED_AGAIN_SECONDS:
                        judged_at = time.monotonic()
                        if (await self._door.judge(request)).refusal:
                            break
        except (ConnectionResetError, asyncio.CancelledError):
            pass
        finally:
            self._viewers -= 1
        return stream

    async def _what_if(self, request: web.Request) -> web.StreamResponse:
        """JSON only: a form of another site can't send that."""
        if request.content_type != "application/json":
            return web.json_response({"error": "send JSON"}, status=415)
        try:
            question = msgspec.json.decode(await request.read(), type=WhatIfQuestion)
            async with self._thinking:
                found = await asyncio.to_thread(answer, question, self._situation(), self._hints, self._dump)
        except (ZonewiseError, msgspec.DecodeError) as error:
            return web.json_response({"error": str(error)}, status=400)
        return web.Response(body=msgspec.json.encode(found), content_type="application/json")

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
        """One at a time, and kept for a while; what-if questions need not wait for it."""
        async with self._simulating:
            if self._simulated is None or time.monotonic() - self._simulated[0] > SIMULATION_KEPT_SECONDS:
                table = await asyncio.to_thread(simulation.judge, self._situation())
                self._simulated = (time.monotonic(), table)
            return self._simulated[1]

    async def _login(self, request: web.Request) -> web.StreamResponse:
        if not isinstance(self._door, TokenReviewAuthenticator):
            raise web.HTTPNotFound(text="nobody needs to log in here\n")
        token = str((await request.post()).get("token", "")).strip()
        verdict = await self._door.judge_token(token) if token else AuthVerdict("no token", login=True)
        if verdict.refusal:
            raise web.HTTPSeeOther("/?refused")
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.set_cookie(COOKIE, auth.as_cookie(token), path="/", secure=True, httponly=True, samesite="Strict")
        return answer

    async def _logout(self, _request: web.Request) -> web.StreamResponse:
        answer = web.Response(status=303, headers={"Location": "/"})
        answer.del_cookie(COOKIE, path="/", secure=True, httponly=True, samesite="Strict")
        return answer


def _refused(verdict: AuthVerdict) -> web.Response:
    return web.json_response({"error": verdict.refusal}, status=401 if verdict.login else 403)


@web.middleware
async def _secured(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        found = await handler(request)
    except web.HTTPException as error:
        _add(error.headers)
        raise
    if not found.prepared:
        _add(found.headers)
    return found


def _add(headers: Mapping[str, str]) -> None:
    for name, value in HEADERS.items():
        headers.setdefault(name, value)  # type: ignore[attr-defined]  # a multidict, which knows no common base


@asynccontextmanager
async def serve(application: web.Application) -> AsyncIterator[web.AppRunner]:
    runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        yield runner
    finally:
        await runner.cleanup()
