"""HTTP gate between a client and an API server: requests whose body holds a word wait until they are let go."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

import aiohttp
from aiohttp import web

from zonewise.kube.client.tls import TlsContexts
from zonewise.kube.wire.access import ClusterAccess


@dataclass
class Gate:
    word: bytes
    access: ClusterAccess
    """Of the API server through the gate, without TLS."""
    held: int = 0
    passed: list[bytes] = field(default_factory=list)
    """Bodies of the requests that went on, in order."""
    opened: asyncio.Event = field(default_factory=asyncio.Event)


@asynccontextmanager
async def gate(access: ClusterAccess, word: bytes) -> AsyncIterator[Gate]:
    tls: ssl.SSLContext = TlsContexts(access).current()

    async def forward(request: web.Request) -> web.Response:
        body = await request.read()
        if word in body:
            held.held += 1
            await held.opened.wait()
        held.passed.append(body)
        url, headers = access.server + request.path_qs, {"Content-Type": "application/json"}
        async with session.request(request.method, url, data=body, headers=headers, ssl=tls) as answer:
            return web.Response(status=answer.status, body=await answer.read(), content_type="application/json")

    application = web.Application()
    application.router.add_route("*", "/{path:.*}", forward)
    runner = web.AppRunner(application, shutdown_timeout=1.0)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    plain = replace(access, server=f"http://127.0.0.1:{runner.addresses[0][1]}", certificate=None, authority=None)
    held = Gate(word, plain)
    async with aiohttp.ClientSession() as session:
        try:
            yield held
        finally:
            held.opened.set()
            await runner.cleanup()
