"""Pages that load balancers and tools ask kube-proxy for, while `zonewise proxy --all-services` stands in its place.

`:10256/healthz` and `/livez` on all addresses, `127.0.0.1:10249/proxyMode` and `/metrics`. While kube-proxy still runs,
its ports are taken: they are tried again until it has ended.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from zonewise import log
from zonewise.errors import ZonewiseError
from zonewise.kube.server import metrics_server
from zonewise.kube.server.listening import LazyHttpServer, Listener, listen_for
from zonewise.proxy.decide.node_health import NodeHealth

if TYPE_CHECKING:
    from aiohttp import web

    Answer = Callable[[web.BaseRequest], Awaitable[web.StreamResponse]]

HEALTH_PORT: Final = 10256
STATUS_PORT: Final = 10249
_RETRY_SECONDS: Final = 10.0
_log = log.get_logger(__name__)


async def serve(health: Callable[[datetime], NodeHealth]) -> None:
    """Until cancelled."""

    async def health_page(request: web.BaseRequest) -> web.StreamResponse:
        return _health_page(request, health(datetime.now(UTC)))

    async with asyncio.TaskGroup() as group:
        group.create_task(_listening(health_page, None, HEALTH_PORT))
        group.create_task(_listening(_status_page, "127.0.0.1", STATUS_PORT))


async def _listening(answer: Answer, host: str | None, port: int) -> None:
    server = LazyHttpServer("kube-proxy's pages", answer)
    listener = await _free_listener(server, host, port)
    _log.info("pages of kube-proxy served", port=port)
    try:
        await asyncio.Event().wait()
    finally:
        listener.close()
        await server.close()


async def _free_listener(server: LazyHttpServer, host: str | None, port: int) -> Listener:
    logged = False
    while True:
        try:
            return await listen_for(server, host, port, None)
        except ZonewiseError as error:
            if not logged:
                advice = "tried again until it is free, or leave the pages out with --no-kube-proxy-pages"
                _log.warning("port of kube-proxy unavailable", port=port, error=str(error), advice=advice)
            logged = True
            await asyncio.sleep(_RETRY_SECONDS)


def _health_page(request: web.BaseRequest, health: NodeHealth) -> web.StreamResponse:
    from aiohttp import web  # noqa: PLC0415 - with the first request

    passed = {"/healthz": health.healthy and health.eligible, "/livez": health.healthy}.get(request.path)
    if passed is None:
        return web.Response(status=404, text="only /healthz and /livez are here\n")
    return web.json_response(health.body, status=200 if passed else 503, headers={"Cache-Control": "no-store"})


async def _status_page(request: web.BaseRequest) -> web.StreamResponse:
    from aiohttp import web  # noqa: PLC0415 - as above

    if request.path == metrics_server.PATH:
        return metrics_server.local_page(request)
    if request.path != "/proxyMode":
        return web.Response(status=404, text="only /proxyMode and /metrics are here\n")
    return web.Response(text="nftables")
