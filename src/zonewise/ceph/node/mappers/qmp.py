"""The control socket of a storage daemon (QEMU Machine Protocol): one connection per conversation, one line per message."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from zonewise.ceph.node.mappers import MapperError

TIMEOUT_SECONDS = 30.0


class QmpConnection:
    """Raises MapperError for what the daemon refuses, OSError when nobody answers."""

    def __init__(self, path: Path, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_seconds)
            _connect(self._socket, path)
            self._lines = self._socket.makefile("rwb")
            self._receive()  # the greeting
            self.ask("qmp_capabilities")
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
            pass  # it went away in the middle of a sentence
        finally:
            self._socket.close()

    def ask(self, command: str, arguments: Mapping[str, Any] | None = None) -> Any:
        message = {"execute": command, **({"arguments": arguments} if arguments else {})}
        self._lines.write(json.dumps(message).encode() + b"\n")
        self._lines.flush()
        while True:
            answer = self._receive()
            if "error" in answer:
                raise MapperError(f"the storage daemon refused {command}: {answer['error'].get('desc', '')}")
            if "return" in answer:
                return answer["return"]
            # what else comes are events

    def _receive(self) -> dict[str, Any]:
        line = self._lines.readline()
        if not line:
            raise ConnectionResetError("the storage daemon closed its control socket")
        answer = json.loads(line)
        return answer if isinstance(answer, dict) else {}


def _connect(connection: socket.socket, path: Path) -> None:
    """Through the directory's descriptor: a socket's address has room for 107 bytes only."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
