"""etcd client for labs, through the JSON gateway on its socket."""

import base64
import http.client
import json
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_MOST_IN_ONE_TRANSACTION = 40


class _SocketConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=10)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def revision(socket_path: Path) -> int:
    return int(_call(socket_path, "/v3/maintenance/status", {})["header"]["revision"])


def compact(socket_path: Path) -> int:
    """Drop the history before the current revision, which is returned."""
    now = revision(socket_path)
    _call(socket_path, "/v3/kv/compaction", {"revision": str(now), "physical": True})
    return now


def write(socket_path: Path, objects: Mapping[str, Any]) -> None:
    """Writes objects by key, past the API server, which then serves them as any other.

    For thousands of Services: the API server would allocate an IPAddress object for each, fifty a second.
    """
    puts = [{"request_put": {"key": _base64(key), "value": _base64(json.dumps(body))}} for key, body in objects.items()]
    for first in range(0, len(puts), _MOST_IN_ONE_TRANSACTION):
        _call(socket_path, "/v3/kv/txn", {"success": puts[first : first + _MOST_IN_ONE_TRANSACTION]})


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _call(socket_path: Path, method: str, body: Any) -> Any:
    connection = _SocketConnection(socket_path)
    try:
        connection.request("POST", method, json.dumps(body))
        response = connection.getresponse()
        content = response.read()
        if response.status != http.HTTPStatus.OK:
            raise http.client.HTTPException(
                f"etcd {method}: {response.status} {content.decode(errors='replace')[:300]}"
            )
        return json.loads(content)
    finally:
        connection.close()
