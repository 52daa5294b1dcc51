"""Health-check node ports that are in use by another program."""

from __future__ import annotations

import socket

import aiohttp
import structlog.testing

from zonewise.objects import Key
from zonewise.proxy.healthcheck import HealthCheckServer, LocalEndpoints


async def test_port_in_use_is_logged_once_and_retried() -> None:
    server = HealthCheckServer(lambda: True)
    with structlog.testing.capture_logs() as lines, socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        for count in range(3):
            await server.update({port: LocalEndpoints(Key("shop", "web"), count)})
    assert [line["port"] for line in lines] == [port]
    await server.update({port: LocalEndpoints(Key("shop", "web"), 1)})
    assert list(server._runners) == [port]
    await server.close()


async def test_stuck_proxy_takes_its_node_out_of_load_balancers() -> None:
    healthy = [True]
    server = HealthCheckServer(lambda: healthy[0])
    with socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
    await server.update({port: LocalEndpoints(Key("shop", "web"), 1)})
    async with aiohttp.ClientSession() as session:
        for healthy[0] in (True, False):
            async with session.get(f"http://127.0.0.1:{port}/") as response:
                assert response.status == (200 if healthy[0] else 503)
                assert (await response.json())["serviceProxyHealthy"] is healthy[0]
    await server.close()
