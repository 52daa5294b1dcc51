"""The live state of the dashboard: rows by table and name, and the open pages that subscribe to their changes.

A new subscriber gets everything, then only changes. One that reads too slowly is disconnected and starts over, so its
queue is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from prometheus_client import Gauge

from zonewise.dashboard.decide.traffic import BUCKET_SECONDS, BUCKETS, RECENT_SECONDS, TrafficHistory, TrafficSample

VIEWERS: Final = Gauge("zonewise_dashboard_viewers", "Pages that are open")
MAX_QUEUED: Final = 64

Table = Mapping[str, msgspec.Struct]


def changed_rows(before: Table, after: Table) -> dict[str, msgspec.Struct | None]:
    """Rows that are new or differ, by name; None for rows that are gone."""
    changed: dict[str, msgspec.Struct | None] = {name: row for name, row in after.items() if before.get(name) != row}
    return changed | dict.fromkeys(before.keys() - after.keys())


class Subscriber:
    """The queue of one page: names of events and their JSON."""

    def __init__(self) -> None:
        self._queue: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(MAX_QUEUED)
        self.too_slow = False

    def put(self, event: str, data: bytes) -> None:
        try:
            self._queue.put_nowait((event, data))
        except asyncio.QueueFull:
            self.too_slow = True

    async def next(self) -> tuple[str, bytes]:
        return await self._queue.get()


class LiveState:
    """`about` describes the source of the data to the page."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = dict(about)
        self.tables: dict[str, Table] = {}
        self.history = TrafficHistory()
        self._subscribers: set[Subscriber] = set()

    def publish(self, tables: Mapping[str, Table]) -> None:
        """Replaces these tables; others stay as they are."""
        changed = {
            name: rows for name, table in tables.items() if (rows := changed_rows(self.tables.get(name, {}), table))
        }
        self.tables.update(tables)
        if changed:
            self._send("change", changed)

    def publish_traffic(self, traffic: TrafficSample) -> None:
        self.history.add(traffic)
        self._send("traffic", traffic)

    @contextmanager
    def subscribe(self) -> Iterator[Subscriber]:
        subscriber = Subscriber()
        subscriber.put("all", self._full_state())
        self._subscribers.add(subscriber)
        VIEWERS.set(len(self._subscribers))
        try:
            yield subscriber
        finally:
            self._subscribers.discard(subscriber)
            VIEWERS.set(len(self._subscribers))

    def _full_state(self) -> bytes:
        return msgspec.json.encode(
            {
                "about": self.about,
                "tables": self.tables,
                "history": {
                    "bucketSeconds": BUCKET_SECONDS,
                    "buckets": BUCKETS,
                    "services": self.history.by_service(),
                    "recentSeconds": RECENT_SECONDS,
                    "recent": self.history.recent,
                },
            }
        )

    def _send(self, event: str, message: Any) -> None:
        if not self._subscribers:
            return
        data = msgspec.json.encode(message)
        for subscriber in self._subscribers:
            subscriber.put(event, data)
