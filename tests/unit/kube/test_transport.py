"""What a failure of the network means, and how a vanished peer is noticed."""

import asyncio
import socket
import ssl
import traceback

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from zonewise.kube.client.transport import Transport, _keepalive_socket, _unreachable
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.errors import Unreachable, Untrusted
from zonewise.kube.wire.requests import ApiRequest

KEY = ConnectionKey("api", 6443, True, True, None, None, None)


@pytest.mark.parametrize(
    ("error", "kind", "sent"),
    [
        (aiohttp.ClientConnectorError(KEY, ConnectionRefusedError(111, "refused")), Unreachable, False),
        (aiohttp.ClientConnectorDNSError(KEY, OSError(-2, "unknown name")), Unreachable, False),
        (aiohttp.ClientConnectorCertificateError(KEY, ssl.SSLCertVerificationError("expired")), Untrusted, False),
        (aiohttp.ClientConnectorSSLError(KEY, ssl.SSLError(1, "wrong version")), Untrusted, False),
        (aiohttp.ConnectionTimeoutError("Connection timeout"), Unreachable, False),
        (aiohttp.ServerDisconnectedError(), Unreachable, True),
        (aiohttp.ClientOSError(104, "reset"), Unreachable, True),
        (aiohttp.ClientPayloadError("not completed"), Unreachable, True),
        (TimeoutError(110, "timed out"), Unreachable, True),
        (aiohttp.ClientError(), Unreachable, True),
    ],
)
def test_what_a_failure_means(error: Exception, kind: type[Unreachable], sent: bool) -> None:
    unreachable = _unreachable(error, "get of pods a/b")
    assert (type(unreachable), unreachable.sent) == (kind, sent)
    assert str(unreachable).startswith(f"{kind.kind}: get of pods a/b: ")
    assert unreachable.message
    assert "ssl:" not in unreachable.message


async def answer_or_error(transport: Transport) -> str:
    try:
        answer = await transport.send(ApiRequest(verb="get", method="GET", path="/version"))
    except Unreachable as error:
        return "".join(traceback.format_exception(error))
    answer.release()
    return repr(answer)


@pytest.mark.parametrize(
    ("server", "says"),
    [
        pytest.param("https://api:6443", "http://127.0.0.1", id="CONNECT"),
        pytest.param("http://api", "", id="plain HTTP"),
    ],
)
async def test_only_the_proxy_gets_the_password(server: str, says: str) -> None:
    heads = []

    async def refuse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n")
        writer.close()

    async with await asyncio.start_server(refuse, "127.0.0.1", 0) as proxy:
        port = proxy.sockets[0].getsockname()[1]
        access = ClusterAccess(server=server, proxy_url=f"http://joe:hunter2@127.0.0.1:{port}")
        async with Transport(access) as transport:
            told = await answer_or_error(transport)
    assert b"Proxy-Authorization: Basic am9lOmh1bnRlcjI=" in heads[0]
    assert "407" in told
    assert says in told
    assert "hunter2" not in told


def test_a_vanished_peer_is_noticed_within_30_seconds() -> None:
    with _keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))) as made:

        def option(name: str) -> int:
            return made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))

        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option("TCP_KEEPIDLE") + option("TCP_KEEPINTVL") * option("TCP_KEEPCNT") <= 30
        assert option("TCP_USER_TIMEOUT") <= 30_000
