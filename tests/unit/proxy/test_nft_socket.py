"""Waiting for a netlink socket."""

from __future__ import annotations

import asyncio
import socket
from contextlib import aclosing

from zonewise.proxy.nft_socket import readable


async def test_unread_data_does_not_wake_the_loop_again() -> None:
    sender, source = socket.socketpair()
    loop = asyncio.get_running_loop()
    sender.send(b"first")
    rounds = 0
    async with aclosing(readable(source)) as notifications:
        async for _ in notifications:
            assert not loop.remove_reader(source), "not polled outside the generator, though there is data"
            rounds += 1
            if rounds == 2:
                break
    assert source.fileno() == -1, "closed"
    sender.close()
