"""Measured traffic over time: what came since the proxies were last asked, and the in-zone shares of the last while. Pure.

A proxy's counters only grow, until it starts again. `TrafficHistory` takes each proxy's counters as they were read, and gives what
came since the last time; `History` keeps it in buckets, for those who come to look later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from zonewise.diagnostics.decide.status.traffic import Bytes, TrafficPath, ZoneFlow, by_service, flows

BUCKET_SECONDS: Final = 20
BUCKETS: Final = 60
RECENT_SECONDS: Final = 60.0
"""What the rates on the map are of: proxies look at connections that go on every 20 s, so less would tell of one look or of two."""
EVERYTHING: Final = "*"
"""The key of all Services together."""


class TrafficSample(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What went where in the `seconds` up to `at`, in Unix time; of each Service, bytes in their zone, and across."""

    at: float
    seconds: float
    flows: tuple[ZoneFlow, ...]
    services: Mapping[str, tuple[int, int]]


class TrafficHistory:
    def __init__(self) -> None:
        self._last: dict[str, Bytes] = {}
        self._since: dict[TrafficPath, float] = defaultdict(float)
        self._from = 0.0

    def take(self, proxy: str, counted: Bytes) -> None:
        """Of a proxy that is new to us nothing is known to be recent: what it counts from now on is."""
        before = self._last.get(proxy)
        self._last[proxy] = counted
        if before is None:
            return
        for path, now in counted.items():
            then = before.get(path, 0.0)
            if came := now - then if now >= then else now:
                self._since[path] += came

    def keep(self, proxies: set[str]) -> None:
        """All others are gone."""
        self._last = {proxy: counted for proxy, counted in self._last.items() if proxy in proxies}

    def close(self, at: float, zones: Iterable[str]) -> TrafficSample:
        """What came since it was last closed."""
        came, since = dict(self._since), self._from
        self._since.clear()
        self._from = at
        return TrafficSample(
            at=at,
            seconds=at - since if since else 0.0,
            flows=flows(came),
            services={
                str(service): (shared.in_zone, shared.cross_zone) for service, shared in by_service(came, zones).items()
            },
        )


class History:
    """Bytes in their zone and across, by Service and bucket of Unix time; what is older than all buckets is dropped."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[str, tuple[int, int]]] = {}
        self.recent: list[TrafficSample] = []

    def add(self, traffic: TrafficSample) -> None:
        number = int(traffic.at) // BUCKET_SECONDS
        bucket = self._buckets.setdefault(number, {})
        for service, (stayed, crossed) in _with_all(traffic.services):
            before = bucket.get(service, (0, 0))
            bucket[service] = (before[0] + stayed, before[1] + crossed)
        self._buckets = {kept: found for kept, found in self._buckets.items() if kept > number - BUCKETS}
        self.recent = [*(one for one in self.recent if traffic.at - one.at < RECENT_SECONDS), traffic]

    def by_service(self) -> dict[str, list[tuple[int, int, int]]]:
        """Bucket, bytes in zone, and bytes across, in order of time."""
        found: dict[str, list[tuple[int, int, int]]] = {}
        for number, bucket in sorted(self._buckets.items()):
            for service, shared in bucket.items():
                found.setdefault(service, []).append((number, *shared))
        return found


def _with_all(services: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, tuple[int, int]]]:
    yield from services.items()
    if services:
        yield EVERYTHING, (sum(stayed for stayed, _ in services.values()), sum(gone for _, gone in services.values()))
