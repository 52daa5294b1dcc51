"""What a failure of the network means, and how a vanished peer is noticed."""

import socket
import ssl

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey

from zonewise.kube.errors import Unreachable, Untrusted
from zonewise.kube.transport import _keepalive_socket, _unreachable

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


def test_a_vanished_peer_is_noticed_within_30_seconds() -> None:
    with _keepalive_socket((socket.AF_INET, socket.SOCK_STREAM, 0, "", ("127.0.0.1", 0))) as made:

        def option(name: str) -> int:
            return made.getsockopt(socket.IPPROTO_TCP, getattr(socket, name))

        assert made.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        assert option("TCP_KEEPIDLE") + option("TCP_KEEPINTVL") * option("TCP_KEEPCNT") <= 30
        assert option("TCP_USER_TIMEOUT") <= 30_000
