"""Waiting for a socket that tells of something, such as the kernel's word of changes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Protocol


class SocketReader(Protocol):
    def fileno(self) -> int: ...
    def close(self) -> None: ...


async def readable(source: SocketReader) -> AsyncGenerator[None, None]:
    """Whenever there is something to read; the source is closed in the end.

    It is listened to only while somebody waits here: what is left unread meanwhile would wake the loop again and again.
    """
    loop = asyncio.get_running_loop()
    heard = asyncio.Event()
    try:
        while True:
            heard.clear()
            loop.add_reader(source.fileno(), heard.set)
            await heard.wait()
            loop.remove_reader(source.fileno())
            yield
    finally:
        loop.remove_reader(source.fileno())
        source.close()
