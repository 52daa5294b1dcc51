"""Authorization without the API server: host names of this machine, and tokens in requests."""

from __future__ import annotations

import pytest
from aiohttp.test_utils import make_mocked_request

from zonewise.dashboard.auth import COOKIE, LoopbackAuthenticator, encode_cookie, read_token
from zonewise.kube.server.listening import is_loopback


@pytest.mark.parametrize("host", ["localhost:8480", "127.0.0.1:8480", "127.0.0.1", "[::1]:8480", "[::1]", "127.8.8.8"])
async def test_loopback_hosts_are_allowed(host: str) -> None:
    assert not (await LoopbackAuthenticator().authorize(make_mocked_request("GET", "/", {"Host": host}))).refusal


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example:8480", "10.0.0.1", "", "localhost.evil"])
async def test_other_host_names_are_refused(host: str) -> None:
    verdict = await LoopbackAuthenticator().authorize(make_mocked_request("GET", "/", {"Host": host}))
    assert "not a name of this machine" in verdict.refusal
    assert verdict.status == 403


def test_a_token_is_read_from_header_or_cookie() -> None:
    assert read_token(make_mocked_request("GET", "/", {"Authorization": "Bearer abc"})) == "abc"
    assert read_token(make_mocked_request("GET", "/", {"Cookie": f"{COOKIE}={encode_cookie('a.b-c=')}"})) == "a.b-c="
    assert not read_token(make_mocked_request("GET", "/", {"Cookie": f"{COOKIE}=%%%"}))
    assert not read_token(make_mocked_request("GET", "/"))


@pytest.mark.parametrize(
    ("address", "local"),
    [
        ("127.0.0.1", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("::ffff:10.0.0.1", False),
        ("0.0.0.0", False),
        ("10.1.1.1", False),
    ],
)
def test_only_loopback_addresses_are_local(address: str, local: bool) -> None:
    assert is_loopback(address) is local
