"""HTTP transport to one API server: connection pool, current TLS files and identity. Below `executor`, above aiohttp.

Network failures are raised as `Unreachable`, which says whether the request may have been processed.
"""

from __future__ import annotations

import asyncio
import os
import re
import socket
from collections.abc import Awaitable, Callable
from contextvars import ContextVar
from functools import partial
from typing import Any, Self

from multidict import CIMultiDict
from yarl import URL

from zonewise import __version__
from zonewise.kube.client.credentials import Identity, credentials_of
from zonewise.kube.client.http import aiohttp
from zonewise.kube.client.tls import TlsContexts
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.errors import Unreachable, Untrusted
from zonewise.kube.wire.http_proxy import proxy_of
from zonewise.kube.wire.requests import ApiRequest
from zonewise.log import get_logger

_log = get_logger(__name__)

CONNECT_SECONDS = 10.0
READ_BUFFER_BYTES = 2**18
_MOST_WARNINGS_REMEMBERED = 100

Check = Callable[[], object]
"""Raises when nothing may be sent any more."""

_last_check: ContextVar[Check | None] = ContextVar("_last_check", default=None)

_NEVER_SENT = (
    aiohttp.ClientConnectorError,
    aiohttp.ClientConnectorCertificateError,
    aiohttp.ConnectionTimeoutError,
    aiohttp.ClientHttpProxyError,
)
_SSL_OBJECT = re.compile(r" ssl:(<[^>]*>|\w+)")
"""Which aiohttp puts into its messages."""
_TLS_FAILED = (aiohttp.ClientConnectorCertificateError, aiohttp.ClientConnectorSSLError)


class Transport:
    def __init__(self, access: ClusterAccess) -> None:
        self.access = access
        self._credentials = credentials_of(access.credential)
        self._tls = TlsContexts(access) if access.server.startswith("https://") else None
        self._proxy, self._proxy_headers = proxy_of(access.proxy_url)
        self._session: aiohttp.ClientSession | None = None
        self._warnings: set[str] = set()

    async def __aenter__(self) -> Self:
        if self._session is None:
            self._session = _session()
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def send(self, call: ApiRequest, check: Check | None = None) -> aiohttp.ClientResponse:
        """The answer with its body unread; the caller closes it. A 401 refreshes the identity once.

        `check` is called when the connection stands, right before the request is written to it.
        """
        identity = await self._credentials.current()
        response = await self._exchange(call, identity, check)
        if response.status == 401 and self._credentials.refuse(identity):
            response.release()
            response = await self._exchange(call, await self._credentials.current(), check)
        self._log_warnings(call, response)
        return response

    async def _exchange(self, call: ApiRequest, identity: Identity, check: Check | None) -> aiohttp.ClientResponse:
        if self._session is None:
            raise RuntimeError("the client is not connected: use `async with Client(...)`")
        _last_check.set(check)
        try:
            return await self._session.request(
                call.method,
                URL(self.access.server + call.path, encoded=True),
                params=call.query,
                data=call.body,
                headers=self._headers(call, identity),
                ssl=self._tls.current(identity.certificate) if self._tls else True,
                server_hostname=self.access.tls_server_name or None,
                proxy=self._proxy,
                proxy_headers=self._proxy_headers,
                allow_redirects=False,
                read_bufsize=READ_BUFFER_BYTES,
            )
        except (aiohttp.ClientError, OSError) as error:
            raise _unreachable(error, call.action) from error

    def _headers(self, call: ApiRequest, identity: Identity) -> CIMultiDict[str]:
        headers = CIMultiDict(self.access.impersonation)
        headers.update(call.headers)
        if self._tls is None:  # then the proxy reads the request itself, else only a CONNECT before it
            headers.update(self._proxy_headers)
        headers["Accept"] = "application/json"
        headers["User-Agent"] = f"zonewise/{__version__}"
        if not self.access.compression:
            headers["Accept-Encoding"] = "identity"
        if identity.authorization:
            headers["Authorization"] = identity.authorization
        if call.body is not None:
            headers["Content-Type"] = call.content_type
        return headers

    def _log_warnings(self, call: ApiRequest, response: aiohttp.ClientResponse) -> None:
        """The server warns of deprecated kinds and unknown fields on each request; once is enough."""
        for warning in response.headers.getall("Warning", ()):
            if warning not in self._warnings and len(self._warnings) < _MOST_WARNINGS_REMEMBERED:
                self._warnings.add(warning)
                _log.warning("the API server warns", action=call.action, warning=warning)

    @staticmethod
    async def read(response: aiohttp.ClientResponse, call: ApiRequest) -> bytes:
        return await _received(response.read(), call)

    @staticmethod
    async def read_some(response: aiohttp.ClientResponse, call: ApiRequest, silence_seconds: float) -> bytes:
        """What has come of a stream; nothing at its end."""
        try:
            async with asyncio.timeout(silence_seconds):
                return await _received(response.content.readany(), call)
        except TimeoutError as error:
            raise Unreachable(f"nothing came for {silence_seconds:g} s", action=call.action) from error

    @staticmethod
    async def rest(response: aiohttp.ClientResponse, seconds: float) -> None:
        """Pause reading so that chunks of a stream gather: reading many at once costs little more than reading one."""
        transport = response.connection.transport if response.connection else None
        if transport is None or transport.is_closing():
            return
        transport.pause_reading()
        try:
            await asyncio.sleep(seconds)
        finally:
            if not transport.is_closing():
                transport.resume_reading()

    @staticmethod
    def hang_up(response: aiohttp.ClientResponse) -> None:
        """Abort a stream: a TLS close would wait for an answer that a silent peer never sends."""
        if response.connection is not None and response.connection.transport is not None:
            response.connection.transport.abort()


async def _received(reading: Awaitable[bytes], call: ApiRequest) -> bytes:
    try:
        return await reading
    except (aiohttp.ClientError, OSError) as error:
        raise _unreachable(error, call.action) from error


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=_Connector(limit=0, socket_factory=_keepalive_socket),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_SECONDS),
        cookie_jar=aiohttp.DummyCookieJar(),
        middlewares=(_send_once,),
    )


class _Connector(aiohttp.TCPConnector):
    """Making a connection can take long enough for a lease to end: the last check comes after it."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._closing: set[asyncio.Transport] = set()

    async def connect(self, *arguments: Any, **options: Any) -> Any:
        connection = await super().connect(*arguments, **options)
        check = _last_check.get()
        if check is not None:
            try:
                check()
            except BaseException:
                connection.release()
                raise
        return connection

    def _release(self, key: Any, protocol: Any, *, should_close: bool = False) -> None:
        transport, closed = protocol.transport, protocol.closed
        if (should_close or protocol.should_close) and transport is not None and closed is not None:
            self._closing.add(transport)
            closed.add_done_callback(partial(self._forget, transport))
        super()._release(key, protocol, should_close=should_close)

    def _forget(self, transport: asyncio.Transport, closed: asyncio.Future[None]) -> None:
        self._closing.discard(transport)
        if not closed.cancelled():
            closed.exception()  # retrieved, or asyncio logs it

    async def close(self, **options: Any) -> None:
        """Abort closed connections too: aiohttp does not track them, and a TLS close waits for the peer.
        A cancelled request to a silent server would leave its socket open when the event loop ends.
        """
        await super().close(**options)
        for transport in tuple(self._closing):
            transport.abort()
        await asyncio.sleep(0)  # they close in the next iteration of the event loop


class _Cut(aiohttp.ClientError):
    """The connection broke after something may have been sent; unlike its causes, aiohttp does not retry on it."""


async def _send_once(request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType) -> aiohttp.ClientResponse:
    """aiohttp by itself sends a PUT or DELETE again after a reset: an update would then conflict with itself."""
    try:
        return await handler(request)
    except _NEVER_SENT:
        raise
    except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError) as error:
        raise _Cut(str(error) or "the server closed the connection") from error


def _keepalive_socket(address: Any) -> socket.socket:
    """A peer that vanished is noticed within 30 seconds, both while waiting and while writing."""
    family, kind, protocol, _, _ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4), ("TCP_USER_TIMEOUT", 30_000)):
        if hasattr(socket, option):
            made.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)
    return made


def _unreachable(error: Exception, action: str) -> Unreachable:
    text = _words(error)
    if isinstance(error, _TLS_FAILED):
        return Untrusted(f"{text}; check certificate-authority and tls-server-name", action=action, sent=False)
    return Unreachable(text, action=action, sent=not isinstance(error, _NEVER_SENT))


def _words(error: Exception) -> str:
    if isinstance(error, aiohttp.ClientConnectorError) and not isinstance(error, _TLS_FAILED):
        number, why = error.os_error.errno or 0, error.os_error.strerror
        return f"Cannot connect to host {error.host}:{error.port}: {os.strerror(number) if number > 0 else why}"
    return _SSL_OBJECT.sub("", " ".join(str(error).split())) or type(error).__name__
