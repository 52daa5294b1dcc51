"""A failed watch is reported healthy once its readers have the missed changes."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from support.waiting import eventually
from zonewise.kube.decide import reflector
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.codec import EventType, WatchEvent
from zonewise.kube.wire.errors import Gone
from zonewise.objects import NODES, Metadata, Node

BOOKMARK = WatchEvent(EventType.BOOKMARK, Node(metadata=Metadata(resource_version="9")), end_of_initial_events=True)


class FakeClient:
    """Client whose watches yield from `events`; an error ends a watch."""

    def __init__(self) -> None:
        self.events: asyncio.Queue[WatchEvent[Node] | Gone] = asyncio.Queue()
        self.opened = 0

    async def watch(self, *_: Any, on_open: Callable[[], None], **__: Any) -> AsyncIterator[WatchEvent[Node]]:
        on_open()
        self.opened += 1
        while True:
            event = await self.events.get()
            if isinstance(event, Gone):
                raise event
            yield event


async def test_watch_problem_is_cleared_when_the_new_state_is_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reflector, "FIRST_WAIT_SECONDS", 0.01)
    client: Any = FakeClient()
    async with Caches(client) as caches:
        nodes = caches.of(NODES)
        client.events.put_nowait(BOOKMARK)
        await nodes.wait_synced()
        client.events.put_nowait(Gone("too old"))
        await eventually(lambda: is_so(client.opened == 2), "the watch is opened again")
        client.events.put_nowait(WatchEvent(EventType.ADDED, Node(metadata=Metadata(name="new"))))
        await eventually(lambda: is_so(client.events.empty()), "the event is read")
        assert "too old" in nodes.problem
        assert not len(nodes)
        client.events.put_nowait(BOOKMARK)
        await eventually(lambda: is_so(len(nodes) == 1), "the new state is published")
        assert not nodes.problem


async def is_so(claim: bool) -> bool:
    await asyncio.sleep(0)
    return claim
