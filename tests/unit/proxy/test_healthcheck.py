"""Ports by which load balancers learn of a node's endpoints, where somebody else has them."""

from __future__ import annotations

import socket

import structlog.testing

from zonewise.objects import Key
from zonewise.proxy.healthcheck import HealthCheckServer, LocalEndpoints


async def test_a_port_that_is_taken_is_said_once_and_tried_again() -> None:
    ports = HealthCheckServer()
    with structlog.testing.capture_logs() as lines, socket.create_server(("", 0)) as other:
        port = other.getsockname()[1]
        for count in range(3):
            await ports.follow({port: LocalEndpoints(Key("shop", "web"), count)})
    assert [line["port"] for line in lines] == [port]
    await ports.follow({port: LocalEndpoints(Key("shop", "web"), 1)})
    assert list(ports._runners) == [port]
    await ports.close()
