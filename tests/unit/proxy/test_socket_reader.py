"""Waiting for a socket that tells of something."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing

from zonewise.proxy.socket_reader import readable


async def test_a_source_that_is_left_unread_does_not_keep_the_loop_awake() -> None:
    teller, source = socket.socketpair()
    loop = asyncio.get_running_loop()
    teller.send(b"first")
    rounds = 0
    async with aclosing(readable(source)) as told:
        async for _ in told:
            assert not loop.remove_reader(source), "nobody waits now, though there is something to read"
            rounds += 1
            if rounds == 2:
                break
    assert source.fileno() == -1, "closed"
    teller.close()
