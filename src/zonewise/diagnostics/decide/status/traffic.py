"""Traffic counters of the node proxies: parsed, and summed by zones and by Service. Pure.

Each proxy counts from its own start, so totals cover different periods. `since` gives the traffic between two reads.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import msgspec

from zonewise.objects import Key

METRIC: Final = "zonewise_proxy_bytes_total"
_SAMPLE: Final = re.compile(rf"^{METRIC}\{{(.*)\}} (\S+)$", re.MULTILINE)
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_ESCAPED: Final = re.compile(r"\\(.)")
_NAMES: Final = ("namespace", "service", "client_zone", "endpoint_zone")


class TrafficPath(NamedTuple):
    """A Service and two zones. An unknown zone is empty; the zone of clients from outside the cluster is `outside`."""

    service: Key
    client_zone: str
    endpoint_zone: str


ByteCounters = Mapping[TrafficPath, float]
"""Bytes by path, of one proxy or summed."""


@dataclass(frozen=True, slots=True)
class MeasuredTraffic:
    """Counters of each proxy that answered, by node. `problem` is why not all `proxies` did.

    `silent` are the nodes of those that did not; `forbidden`: the caller may not scrape them.
    """

    by_node: Mapping[str, ByteCounters] = field(default_factory=dict)
    proxies: int = 0
    problem: str = ""
    silent: Sequence[str] = ()
    forbidden: bool = False

    def total(self) -> dict[TrafficPath, float]:
        total: dict[TrafficPath, float] = defaultdict(float)
        for counters in self.by_node.values():
            for path, amount in counters.items():
                total[path] += amount
        return dict(total)

    def since(self, before: MeasuredTraffic) -> dict[TrafficPath, float]:
        """The increments. All that a restarted proxy has counted is new.

        A proxy that did not answer before is left out: it may have counted for weeks.
        """
        increments: dict[TrafficPath, float] = defaultdict(float)
        for node in self.by_node.keys() & before.by_node.keys():
            counters, earlier = self.by_node[node], before.by_node[node]
            restarted = any(counters.get(path, 0.0) < amount for path, amount in earlier.items())
            for path, amount in counters.items():
                increments[path] += amount if restarted else amount - earlier.get(path, 0.0)
        return {path: amount for path, amount in increments.items() if amount}


class ZoneFlow(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes from the clients of one zone to the endpoints of one zone, over all Services."""

    client_zone: str
    endpoint_zone: str
    bytes: int


class InZoneShare(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes of one Service that stayed in their zone, and that left it."""

    in_zone: int = 0
    cross_zone: int = 0

    @property
    def share(self) -> float | None:
        total = self.in_zone + self.cross_zone
        return self.in_zone / total if total else None


def parse_counters(text: str) -> dict[TrafficPath, float]:
    """From the Prometheus text of a proxy. Malformed samples are skipped."""
    counters: dict[TrafficPath, float] = {}
    for sample in _SAMPLE.finditer(text):
        labels = {name: _ESCAPED.sub(_unescape, value) for name, value in _LABEL.findall(sample[1])}
        try:
            namespace, service, client, endpoint = (labels[name] for name in _NAMES)
            counters[TrafficPath(Key(namespace, service), client, endpoint)] = float(sample[2])
        except (KeyError, ValueError):
            continue
    return counters


def _unescape(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def zone_flows(counters: ByteCounters) -> tuple[ZoneFlow, ...]:
    totals: dict[tuple[str, str], float] = defaultdict(float)
    for path, amount in counters.items():
        totals[path.client_zone, path.endpoint_zone] += amount
    return tuple(ZoneFlow(client, endpoint, int(amount)) for (client, endpoint), amount in sorted(totals.items()))


def share_by_service(counters: ByteCounters, zones: Iterable[str]) -> dict[Key, InZoneShare]:
    """Only traffic between known zones of the cluster counts; that of outside clients is neither in zone nor across."""
    zone_names = set(zones)
    in_zone: dict[Key, float] = defaultdict(float)
    across: dict[Key, float] = defaultdict(float)
    for (service, client, endpoint), amount in counters.items():
        if client in zone_names and endpoint in zone_names:
            (in_zone if client == endpoint else across)[service] += amount
    return {
        service: InZoneShare(int(in_zone[service]), int(across[service])) for service in sorted({*in_zone, *across})
    }
