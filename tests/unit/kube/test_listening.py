"""Where our servers listen, tried over loopback of both families."""

import socket
import ssl

import aiohttp
import pytest

from zonewise.errors import ZonewiseError
from zonewise.kube.process import HealthListen
from zonewise.kube.server import health
from zonewise.kube.server.admission import AdmissionServer
from zonewise.kube.server.health import Health


async def answers(host: str, port: int) -> bool:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://{host}:{port}/livez") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectorError:
            return False


async def test_by_default_health_is_served_on_one_port_of_both_families() -> None:
    async with health.serve(Health(), HealthListen().host, HealthListen().port) as port:
        assert [await answers("127.0.0.1", port), await answers("[::1]", port)] == [True, True]


@pytest.mark.parametrize(("host", "served"), [("127.0.0.1", [True, False]), ("::1", [False, True])])
async def test_an_address_asked_for_is_the_only_one(host: str, served: list[bool]) -> None:
    async with health.serve(Health(), host) as port:
        assert [await answers("127.0.0.1", port), await answers("[::1]", port)] == served


async def test_a_machine_without_ipv6_serves_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with health.serve(Health()) as port:
        assert [await answers("127.0.0.1", port), await answers("[::1]", port)] == [True, False]


async def test_admission_is_served_on_one_port_of_both_families() -> None:
    async with AdmissionServer([], ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), port=0) as server:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, server.port), timeout=30).close()


@pytest.mark.parametrize("taken", ["127.0.0.1", "::1", None])
async def test_a_port_taken_in_one_family_is_taken(taken: str | None) -> None:
    async with health.serve(Health(), taken) as port:
        with pytest.raises(
            ZonewiseError, match=r"health and metrics: Address already in use .*; choose a free address"
        ):
            async with health.serve(Health(), None, port):
                pass


async def test_a_foreign_host_is_a_one_line_error() -> None:
    with pytest.raises(ZonewiseError, match=r"health and metrics: .*192\.0\.2\.1.*; choose a free address"):
        async with health.serve(Health(), "192.0.2.1"):
            pass
