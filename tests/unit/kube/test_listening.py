"""Listening addresses of the servers, over IPv4 and IPv6 loopback."""

import socket
import ssl

import aiohttp
import pytest

from zonewise.errors import ZonewiseError
from zonewise.kube.process import HealthListen
from zonewise.kube.server import health
from zonewise.kube.server.admission import AdmissionServer
from zonewise.kube.server.health import Health


async def responds(host: str, port: int) -> bool:
    async with aiohttp.ClientSession() as session:
        try:
            async with session.get(f"http://{host}:{port}/livez") as answer:
                return answer.status == 200
        except aiohttp.ClientConnectorError:
            return False


async def test_health_listens_on_both_families_by_default() -> None:
    async with health.serve(Health(), HealthListen().host, HealthListen().port) as port:
        assert [await responds("127.0.0.1", port), await responds("[::1]", port)] == [True, True]


@pytest.mark.parametrize(("host", "served"), [("127.0.0.1", [True, False]), ("::1", [False, True])])
async def test_given_address_is_the_only_one(host: str, served: list[bool]) -> None:
    async with health.serve(Health(), host) as port:
        assert [await responds("127.0.0.1", port), await responds("[::1]", port)] == served


async def test_machine_without_ipv6_serves_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    async with health.serve(Health()) as port:
        assert [await responds("127.0.0.1", port), await responds("[::1]", port)] == [True, False]


async def test_admission_listens_on_both_families() -> None:
    async with AdmissionServer([], ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), bool, port=0) as server:
        for host in ("127.0.0.1", "::1"):
            socket.create_connection((host, server.port), timeout=30).close()


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", None])
async def test_port_in_use_in_one_family_is_an_error(host: str | None) -> None:
    async with health.serve(Health(), host) as port:
        with pytest.raises(
            ZonewiseError, match=r"health and metrics: Address already in use .*; choose a free address"
        ):
            async with health.serve(Health(), None, port):
                pass


async def test_foreign_host_is_a_one_line_error() -> None:
    with pytest.raises(ZonewiseError, match=r"health and metrics: .*192\.0\.2\.1.*; choose a free address"):
        async with health.serve(Health(), "192.0.2.1"):
            pass


async def test_link_local_address_keeps_its_interface() -> None:
    """No machine has this one; without its interface it would be an invalid argument."""
    with pytest.raises(ZonewiseError, match=r"Cannot assign requested address .*fe80::5ca1:ab1e"):
        async with health.serve(Health(), "fe80::5ca1:ab1e%lo"):
            pass
