"""QEMU Machine Protocol: the control socket of a storage daemon. One JSON message per line."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

from zonewise.ceph.node.mappers import MapperError

TIMEOUT_SECONDS: Final = 30.0


class QmpConnection:
    """Raises MapperError for a rejected command, OSError if the daemon does not answer."""

    def __init__(self, path: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_seconds)
            _connect(self._socket, path)
            self._lines = self._socket.makefile("rwb")
            self._receive()  # the greeting
            self.execute("qmp_capabilities")
        except BaseException:
            self._socket.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self._lines.close()
        except OSError:
            pass  # the daemon has closed the connection
        finally:
            self._socket.close()

    def execute(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        message = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self._lines.write(json.dumps(message).encode() + b"\n")
        self._lines.flush()
        while True:
            reply = self._receive()
            if "error" in reply:
                raise MapperError(f"the storage daemon rejected {command}: {reply['error'].get('desc', '')}")
            if "return" in reply:
                return reply["return"]
            # other messages are events

    def _receive(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionResetError("the storage daemon closed its control socket")
        message = json.loads(line)
        return message if isinstance(message, dict) else {}


def _connect(connection: socket.socket, path: Path) -> None:
    """Through the directory's descriptor, since a socket path is limited to 107 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
