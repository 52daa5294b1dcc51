"""Health-check node ports that are in use by another program."""

from __future__ import annotations

import socket

import structlog.testing

from zonewise.objects import Key
from zonewise.proxy.healthcheck import HealthCheckServer, LocalEndpoints


async def test_port_in_use_is_logged_once_and_retried() -> None:
    server = HealthCheckServer()
    with structlog.testing.capture_logs() as lines, socket.create_server(("", 0)) as listener:
        port = listener.getsockname()[1]
        for count in range(3):
            await server.update({port: LocalEndpoints(Key("shop", "web"), count)})
    assert [line["port"] for line in lines] == [port]
    await server.update({port: LocalEndpoints(Key("shop", "web"), 1)})
    assert list(server._runners) == [port]
    await server.close()
