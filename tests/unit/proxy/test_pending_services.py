"""What waits for the next sync of a node's rules, and since when."""

from __future__ import annotations

from zonewise.objects import Key
from zonewise.proxy.server import PendingServices

ONE, TWO = Key("shop", "one"), Key("shop", "two")


async def test_oldest_change_counts_until_it_is_in_the_kernel() -> None:
    pending = PendingServices()
    assert pending.state.waiting_since is None
    pending.add([ONE])
    first = pending.state.waiting_since
    assert first is not None
    assert (await pending.take()).keys == {ONE}
    pending.add([TWO])
    assert pending.state.waiting_since == first, "neither a sync under way nor a later change hides it"
    assert pending.state.last_sync is None


async def test_change_that_comes_during_a_sync_waits_from_its_end() -> None:
    pending = PendingServices()
    pending.add([ONE])
    await pending.take()
    pending.add([TWO])
    pending.done()
    assert pending.state.last_sync == pending.state.waiting_since
    assert (await pending.take()).keys == {TWO}
    pending.done()
    assert pending.state.waiting_since is None
