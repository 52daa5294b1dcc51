"""Network failures as errors, and detection of vanished peers."""

import asyncio
import gc
import socket
import ssl
import threading
import traceback
from collections.abc import Iterator

import aiohttp
import pytest
import trustme
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
def test_network_failure_becomes_the_matching_error(error: Exception, kind: type[Unreachable], sent: bool) -> None:
    unreachable = _unreachable(error, "get of pods a/b")
    assert (type(unreachable), unreachable.sent) == (kind, sent)
    assert str(unreachable).startswith(f"{kind.kind}: get of pods a/b: ")
    assert unreachable.message
    assert "ssl:" not in unreachable.message


async def body_or_error(transport: Transport) -> str:
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
            outcome = await body_or_error(transport)
    assert b"Proxy-Authorization: Basic am9lOmh1bnRlcjI=" in heads[0]
    assert "407" in outcome
    assert says in outcome
    assert "hunter2" not in outcome


def test_keepalive_detects_a_vanished_peer_within_30_seconds() -> None:
    with _keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))) as tcp_socket:

        def option(name: str) -> int:
            return tcp_socket.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))

        assert tcp_socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option("TCP_KEEPIDLE") + option("TCP_KEEPINTVL") * option("TCP_KEEPCNT") <= 30
        assert option("TCP_USER_TIMEOUT") <= 30_000


class SilentServer:
    """Server that sends half a response or none, and never answers a TLS close."""

    def __init__(self, reply: bytes) -> None:
        authority = trustme.CA()
        self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        authority.issue_cert("127.0.0.1").configure_cert(self._tls)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._reply = reply
        self._connection: ssl.SSLSocket | None = None
        self.requested = threading.Event()
        self.access = ClusterAccess(
            server=f"https://127.0.0.1:{self._listener.getsockname()[1]}", authority=authority.cert_pem.bytes()
        )
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        self._connection = self._tls.wrap_socket(self._listener.accept()[0], server_side=True)
        self._connection.recv(65536)
        self._connection.sendall(self._reply)
        self.requested.set()

    def close(self) -> None:
        self._thread.join(10)
        self._listener.close()
        if self._connection is not None:
            self._connection.close()


@pytest.fixture(params=[b"", b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n{"], ids=["no answer", "half a body"])
def silent_server(request: pytest.FixtureRequest) -> Iterator[SilentServer]:
    server = SilentServer(request.param)
    yield server
    server.close()


def test_cancelled_request_leaves_no_open_transport(
    silent_server: SilentServer, recwarn: pytest.WarningsRecorder
) -> None:
    async def request(transport: Transport) -> None:
        call = ApiRequest(verb="get", method="GET", path="/version")
        async with await transport.send(call) as response:
            await transport.read(response, call)

    async def cancelled() -> None:
        async with Transport(silent_server.access) as transport:
            task = asyncio.create_task(request(transport))
            await asyncio.to_thread(silent_server.requested.wait, 10)
            await asyncio.sleep(0.05)
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    asyncio.run(cancelled())
    gc.collect()
    assert not [warning for warning in recwarn if "unclosed" in str(warning.message)]
