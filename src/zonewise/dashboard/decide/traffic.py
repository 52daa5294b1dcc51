"""Measured traffic over time: increments of the proxies' counters, and in-zone shares of the last minutes. Pure.

A proxy's counters grow until it restarts. `DashboardTraffic` turns counters into increments; `TrafficHistory` keeps these in
buckets, so that a page that is opened later can show them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from zonewise.diagnostics.decide.status.traffic import (
    ByteCounters,
    TrafficPath,
    ZoneFlow,
    share_by_service,
    zone_flows,
)

BUCKET_SECONDS: Final = 20
BUCKETS: Final = 60
RECENT_SECONDS: Final = 60.0
"""Period of the rates on the map. Proxies count open connections every 20 s, so a shorter one would cover one count or two."""
ALL_SERVICES: Final = "*"
"""The key of all Services together."""


class TrafficSample(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Traffic of the `seconds` before `at`, in Unix time. `services` has bytes that stayed in their zone and that left it."""

    at: float
    seconds: float
    flows: tuple[ZoneFlow, ...]
    services: Mapping[str, tuple[int, int]]


class DashboardTraffic:
    def __init__(self) -> None:
        self._last: dict[str, ByteCounters] = {}
        self._increments: dict[TrafficPath, float] = defaultdict(float)
        self._since = 0.0

    def add(self, proxy: str, counters: ByteCounters) -> None:
        """The first counters of a proxy are only a baseline: it may have counted for weeks."""
        last = self._last.get(proxy)
        self._last[proxy] = counters
        if last is None:
            return
        for path, now in counters.items():
            before = last.get(path, 0.0)
            if increment := now - before if now >= before else now:
                self._increments[path] += increment

    def retain(self, proxies: set[str]) -> None:
        """Forgets all other proxies."""
        self._last = {proxy: counters for proxy, counters in self._last.items() if proxy in proxies}

    def sample(self, at: float, zones: Iterable[str]) -> TrafficSample:
        """The increments since the last sample."""
        increments, since = dict(self._increments), self._since
        self._increments.clear()
        self._since = at
        shares = share_by_service(increments, zones)
        return TrafficSample(
            at=at,
            seconds=at - since if since else 0.0,
            flows=zone_flows(increments),
            services={str(service): (share.in_zone, share.cross_zone) for service, share in shares.items()},
        )


class TrafficHistory:
    """Bytes in zone and across zones, by Service and bucket of Unix time. Old buckets are dropped."""

    def __init__(self) -> None:
        self._buckets: dict[int, dict[str, tuple[int, int]]] = {}
        self.recent: list[TrafficSample] = []

    def add(self, sample: TrafficSample) -> None:
        number = int(sample.at) // BUCKET_SECONDS
        bucket = self._buckets.setdefault(number, {})
        for service, (in_zone, cross_zone) in _with_total(sample.services):
            before = bucket.get(service, (0, 0))
            bucket[service] = (before[0] + in_zone, before[1] + cross_zone)
        self._buckets = {old: content for old, content in self._buckets.items() if old > number - BUCKETS}
        self.recent = [*(old for old in self.recent if sample.at - old.at < RECENT_SECONDS), sample]

    def by_service(self) -> dict[str, list[tuple[int, int, int]]]:
        """Bucket, bytes in zone, and bytes across zones, in order of time."""
        series: dict[str, list[tuple[int, int, int]]] = {}
        for number, bucket in sorted(self._buckets.items()):
            for service, in_and_across in bucket.items():
                series.setdefault(service, []).append((number, *in_and_across))
        return series


def _with_total(services: Mapping[str, tuple[int, int]]) -> Iterator[tuple[str, tuple[int, int]]]:
    yield from services.items()
    if services:
        yield (
            ALL_SERVICES,
            (sum(in_zone for in_zone, _ in services.values()), sum(across for _, across in services.values())),
        )
