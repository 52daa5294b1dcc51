"""Updates as bytes, between the watcher and serving processes.

Both ends are the same interpreter and the socket between them is private, so Python's own form is safe here, and it
is read several times faster than any other.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Iterator
from typing import Any, Final, cast

_LENGTH: Final = struct.Struct(">I")


def encode(update: tuple[Any, ...]) -> bytes:
    body = marshal.dumps(update)
    return _LENGTH.pack(len(body)) + body


class UpdateDecoder:
    """Bytes as they come, updates as they are whole."""

    def __init__(self) -> None:
        self._waiting = bytearray()

    def feed(self, data: bytes) -> Iterator[tuple[Any, ...]]:
        self._waiting += data
        while len(self._waiting) >= _LENGTH.size:
            end = _LENGTH.size + _LENGTH.unpack_from(self._waiting)[0]
            if len(self._waiting) < end:
                return
            update = marshal.loads(bytes(self._waiting[_LENGTH.size : end]))  # noqa: S302 - from our own watcher only
            del self._waiting[:end]
            yield cast("tuple[Any, ...]", update)
