"""Health-check node ports: tell load balancers whether this node has local endpoints of a Service.

Answers as kube-proxy does: 200 with the number of local endpoints, 503 if there is none or the proxy is stuck.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from zonewise import log
from zonewise.errors import ZonewiseError
from zonewise.kube.server.connections import Connections
from zonewise.kube.server.listening import listen
from zonewise.objects import Key

if TYPE_CHECKING:
    from aiohttp import web

_log = log.get_logger(__name__)


@dataclass(slots=True)
class LocalEndpoints:
    """A Service, and the number of its ready endpoints on this node."""

    service: Key
    endpoints: int


class HealthCheckServer:
    """`update` opens and closes ports, and sets what they answer."""

    def __init__(self, is_healthy: Callable[[], bool]) -> None:
        self._is_healthy = is_healthy
        self._ports: dict[int, LocalEndpoints] = {}
        self._runners: dict[int, web.AppRunner] = {}
        self._in_use: set[int] = set()
        """Ports in use by other programs: logged once, not with every update."""

    async def update(self, ports: Mapping[int, LocalEndpoints]) -> None:
        self._ports = dict(ports)
        self._in_use &= ports.keys()
        for port in self._runners.keys() - ports.keys():
            await self._runners.pop(port).cleanup()
        for port in sorted(ports.keys() - self._runners.keys()):
            await self._open(port)

    async def close(self) -> None:
        await self.update({})

    async def _open(self, port: int) -> None:
        """A port in use affects one Service only, and is tried again with the next update."""
        from aiohttp import web  # noqa: PLC0415 - few clusters use such ports

        service = self._ports[port].service
        connections = Connections(f"health checks of Service {service}")
        application = web.Application(middlewares=[connections.middleware()])
        application.router.add_get("/{path:.*}", self._handler(port))
        runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await runner.setup()
        try:
            await listen(runner, connections, None, port, None)
        except (OSError, ZonewiseError) as error:
            if port not in self._in_use:
                _log.warning("health-check port unavailable", service=str(service), port=port, error=str(error))
            self._in_use.add(port)
            await runner.cleanup()
        else:
            self._in_use.discard(port)
            self._runners[port] = runner

    def _handler(self, port: int) -> Callable[[web.Request], Awaitable[web.StreamResponse]]:
        from aiohttp import web  # noqa: PLC0415 - as above

        async def handle(_request: web.Request) -> web.Response:
            local, healthy = self._ports[port], self._is_healthy()
            body = {
                "service": {"namespace": local.service.namespace, "name": local.service.name},
                "localEndpoints": local.endpoints,
                "serviceProxyHealthy": healthy,
            }
            weight = {"X-Load-Balancing-Endpoint-Weight": str(local.endpoints)}
            return web.json_response(body, status=200 if local.endpoints and healthy else 503, headers=weight)

        return handle
