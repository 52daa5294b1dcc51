"""Accept loop of a listening socket, which counts connections from the moment they are accepted.

The event loop's own servers can't count them: uvloop accepts in C, and shows a connection only after its TLS handshake.
"""

from __future__ import annotations

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from typing import Final

from zonewise.kube.decide.connection_pool import FIRST_REQUEST_SECONDS
from zonewise.kube.server.connections import Connection, Connections
from zonewise.log import get_logger

_ACCEPTED_AT_ONCE: Final = 16
"""In a turn of the event loop. Surplus connections are closed some turns later, and until then descriptors must suffice."""
_RETRY_SECONDS: Final = 1.0
_NO_RESOURCES: Final = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = get_logger(__name__)


class AcceptLoop:
    """Accepts from its creation until closed."""

    def __init__(
        self,
        listening: socket.socket,
        connections: Connections,
        protocol: Callable[[], asyncio.Protocol],
        tls: ssl.SSLContext | None,
    ) -> None:
        self.port: int = listening.getsockname()[1]
        self._loop = asyncio.get_running_loop()
        self._listening = listening
        self._connections = connections
        self._protocol = protocol
        self._tls = tls
        self._starting: dict[asyncio.Task[None], Connection] = {}
        """Accepted, and without a transport until TLS is agreed on."""
        self._retry: asyncio.TimerHandle | None = None
        listening.setblocking(False)
        self._resume()

    def close(self) -> None:
        """Ends TLS handshakes under way; connections belong to the protocol's server."""
        if self._retry is not None:
            self._retry.cancel()
        if self._listening.fileno() >= 0:
            self._loop.remove_reader(self._listening)
            self._listening.close()
        for connection in self._starting.values():
            connection.end()

    def _resume(self) -> None:
        self._loop.add_reader(self._listening, self._accept)

    def _accept(self) -> None:
        for _ in range(_ACCEPTED_AT_ONCE):
            try:
                accepted, address = self._listening.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _NO_RESOURCES:
                    raise
                self._pause(error)
                return
            connection = self._connections.accept(accepted, address)
            task = self._loop.create_task(self._start(connection), name="connection")
            self._starting[task] = connection
            task.add_done_callback(self._starting.pop)

    def _pause(self, error: OSError) -> None:
        """The socket stays readable, so accepting at once would fail again, and without end."""
        _log.warning("connection not accepted, retrying", server=self._connections.server, error=error.strerror)
        self._loop.remove_reader(self._listening)
        self._retry = self._loop.call_later(_RETRY_SECONDS, self._resume)

    async def _start(self, connection: Connection) -> None:
        timeout = FIRST_REQUEST_SECONDS if self._tls else None
        try:
            await self._loop.connect_accepted_socket(
                self._protocol, connection, ssl=self._tls, ssl_handshake_timeout=timeout
            )
        except OSError as error:  # an SSLError is one
            _log.debug("connection not started", server=self._connections.server, error=str(error))
