"""Health-check node ports: by these a load balancer learns whether this node has endpoints of its own for a Service.

As kube-proxy answers them: 200 with the number of local endpoints, 503 when there is none.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zonewise import log
from zonewise.errors import ZonewiseError
from zonewise.kube.server.listening import listen
from zonewise.objects import Key

if TYPE_CHECKING:
    from aiohttp import web

_log = log.get_logger(__name__)


@dataclass(slots=True)
class LocalEndpoints:
    """A Service and how many of its endpoints run on this node."""

    service: Key
    endpoints: int


class HealthCheckServer:
    """`follow` opens and closes ports; what is answered is read when it is asked."""

    def __init__(self) -> None:
        self._wanted: dict[int, LocalEndpoints] = {}
        self._runners: dict[int, web.AppRunner] = {}
        self._taken: set[int] = set()
        """Ports that others have: said once, not with every change."""

    async def follow(self, wanted: Mapping[int, LocalEndpoints]) -> None:
        self._wanted = dict(wanted)
        self._taken &= wanted.keys()
        for port in self._runners.keys() - wanted.keys():
            await self._runners.pop(port).cleanup()
        for port in sorted(wanted.keys() - self._runners.keys()):
            await self._open(port)

    async def close(self) -> None:
        await self.follow({})

    async def _open(self, port: int) -> None:
        """A port that is taken is one Service's trouble, and is tried again with the next change."""
        from aiohttp import web  # noqa: PLC0415 - few clusters have such ports

        service = self._wanted[port].service
        application = web.Application()
        application.router.add_get("/{path:.*}", self._answer(port))
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await listen(runner, f"health checks of Service {service}", None, port, None)
        except (OSError, ZonewiseError) as error:
            if port not in self._taken:
                _log.warning("no health-check port", service=str(service), port=port, error=str(error))
            self._taken.add(port)
            await runner.cleanup()
        else:
            self._taken.discard(port)
            self._runners[port] = runner

    def _answer(self, port: int) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        from aiohttp import web  # noqa: PLC0415 - as above

        async def answer(_request: web.Request) -> web.Response:
            local = self._wanted[port]
            said = {
                "service": {"namespace": local.service.namespace, "name": local.service.name},
                "localEndpoints": local.endpoints,
                "serviceProxyHealthy": True,
            }
            weight = {"X-Load-Balancing-Endpoint-Weight": str(local.endpoints)}
            return web.json_response(said, status=200 if local.endpoints else 503, headers=weight)

        return answer
