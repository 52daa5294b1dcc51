"""What the page shows now, and who looks at it: rows by table and name, and a message to everybody when some change.

A new viewer gets everything, then only changes. One that does not read fast enough is let go and comes back for
everything: what waits for a viewer never grows beyond a bound.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

import msgspec
from prometheus_client import Gauge

from zonewise.dashboard.decide.traffic import BUCKET_SECONDS, BUCKETS, RECENT_SECONDS, History, TrafficSample

VIEWERS: Final = Gauge("zonewise_dashboard_viewers", "Pages that are open")
MOST_WAITING: Final = 64

Table = Mapping[str, msgspec.Struct]


def changes(before: Table, after: Table) -> dict[str, msgspec.Struct | None]:
    """By name, the rows that are new or other than before; None for those that are gone."""
    changed: dict[str, msgspec.Struct | None] = {name: row for name, row in after.items() if before.get(name) != row}
    return changed | dict.fromkeys(before.keys() - after.keys())


class Subscriber:
    """What waits to be sent to one page: names of events and their JSON."""

    def __init__(self) -> None:
        self._waiting: asyncio.Queue[tuple[str, bytes]] = asyncio.Queue(MOST_WAITING)
        self.too_slow = False

    def put(self, event: str, data: bytes) -> None:
        try:
            self._waiting.put_nowait((event, data))
        except asyncio.QueueFull:
            self.too_slow = True

    async def next(self) -> tuple[str, bytes]:
        return await self._waiting.get()


class LiveState:
    """`about` tells the page what it is looking at."""

    def __init__(self, about: Mapping[str, Any]) -> None:
        self.about = dict(about)
        self.tables: dict[str, Table] = {}
        self.history = History()
        self._viewers: set[Subscriber] = set()

    def show(self, tables: Mapping[str, Table]) -> None:
        """These tables are so now; others stay as they were."""
        changed = {name: rows for name, table in tables.items() if (rows := changes(self.tables.get(name, {}), table))}
        self.tables.update(tables)
        if changed:
            self._tell("change", changed)

    def show_traffic(self, traffic: TrafficSample) -> None:
        self.history.add(traffic)
        self._tell("traffic", traffic)

    @contextmanager
    def viewed(self) -> Iterator[Subscriber]:
        viewer = Subscriber()
        viewer.put("all", self._everything())
        self._viewers.add(viewer)
        VIEWERS.set(len(self._viewers))
        try:
            yield viewer
        finally:
            self._viewers.discard(viewer)
            VIEWERS.set(len(self._viewers))

    def _everything(self) -> bytes:
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

    def _tell(self, event: str, said: Any) -> None:
        if not self._viewers:
            return
        data = msgspec.json.encode(said)
        for viewer in self._viewers:
            viewer.put(event, data)
