"""Metrics over TLS, for those whom the API server lets `get` the path `/metrics`.

The same page is on the health port without TLS, for this machine only (`zonewise.kube.server.health`).
"""

from __future__ import annotations

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from prometheus_client import REGISTRY
from prometheus_client.exposition import choose_encoder

from zonewise.api.names import METRICS_AUDIENCE, METRICS_TOKEN_HEADER
from zonewise.kube.client.client import Client
from zonewise.kube.server.listening import LazyHttpServer, is_loopback, listen_for
from zonewise.kube.server.tls import ServingCertificate
from zonewise.kube.server.token_reviewer import TokenReviewer
from zonewise.kube.wire.access import ClusterAccess
from zonewise.log import get_logger

if TYPE_CHECKING:
    from aiohttp import web

PATH: Final = "/metrics"
PERMISSION: Final = {"nonResourceAttributes": {"path": PATH, "verb": "get"}}

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsListen:
    """`access` is that of the API server that reviews tokens. Without files, the certificate is self-signed."""

    access: ClusterAccess
    port: int
    certificate: tuple[Path, Path] | None = None
    host: str | None = None


async def serve(listen: MetricsListen) -> None:
    """Until cancelled."""
    certificate = ServingCertificate(("localhost", socket.gethostname()), listen.certificate)
    await certificate.load()
    async with Client(listen.access) as client:
        reviewer = TokenReviewer(client, PERMISSION, f"get {PATH}", audience=METRICS_AUDIENCE)
        server = LazyHttpServer("metrics", _Answers(reviewer).answer)
        listener = await listen_for(server, listen.host, listen.port, certificate.context)
        try:
            _log.info("metrics served", port=listener.port)
            await certificate.run()
        finally:
            listener.close()
            await server.close()


def page(request: web.BaseRequest) -> web.Response:
    from aiohttp import web  # noqa: PLC0415 - with the first request

    encode, content_type = choose_encoder(request.headers.get("Accept", ""))
    return web.Response(body=encode(REGISTRY), headers={"Content-Type": content_type})


def local_page(request: web.BaseRequest) -> web.Response:
    """Without TLS and tokens, for this machine only."""
    from aiohttp import web  # noqa: PLC0415 - with the first request

    if not _is_local(request):
        return web.Response(status=403, text="metrics are here for this machine only: see --metrics-port\n")
    return page(request)


def _is_local(request: web.BaseRequest) -> bool:
    """By both ends of the connection: others reach loopback addresses with route_localnet, which kube-proxy may set."""
    ends = ("peername", "sockname")
    return all(is_loopback(request.get_extra_info(end, ("",))[0]) for end in ends)


class _Answers:
    def __init__(self, reviewer: TokenReviewer) -> None:
        self._reviewer = reviewer

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        from aiohttp import web  # noqa: PLC0415 - with the first request

        verdict = await self._reviewer.authorize(read_token(request), request.remote or "")
        if verdict.refusal:
            headers = {401: {"WWW-Authenticate": "Bearer"}, 429: {"Retry-After": "1"}}.get(verdict.status, {})
            return web.Response(status=verdict.status, text=f"{verdict.refusal}\n", headers=headers)
        if request.path != PATH or request.method not in {"GET", "HEAD"}:
            return web.Response(status=404, text=f"only GET {PATH} is here\n")
        return page(request)


def read_token(request: web.BaseRequest) -> str:
    """An API server that forwards a request removes its Authorization; our own header passes."""
    kind, _, token = request.headers.get("Authorization", "").partition(" ")
    return token.strip() if kind.lower() == "bearer" else request.headers.get(METRICS_TOKEN_HEADER, "")
