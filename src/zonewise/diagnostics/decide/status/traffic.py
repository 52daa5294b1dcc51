"""Traffic as node proxies measured it: their counters read, added up by zones and by Service, and compared. Pure.

Counters start with each proxy, so that totals tell of different times; what happened between two looks is told by
`since`.
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
    """Whose traffic, and between which zones; a zone that is not known is empty, clients from elsewhere are `outside`."""

    service: Key
    client_zone: str
    endpoint_zone: str


Bytes = Mapping[TrafficPath, float]
"""Of one proxy."""


@dataclass(frozen=True, slots=True)
class MeasuredTraffic:
    """What each proxy that answered has counted, by node; `proxies` is how many there are, `problem` why not all are told of.

    `silent` are the nodes whose proxies gave no answer, `forbidden` where one may not even ask them.
    """

    by_node: Mapping[str, Bytes] = field(default_factory=dict)
    proxies: int = 0
    problem: str = ""
    silent: Sequence[str] = ()
    forbidden: bool = False

    def total(self) -> dict[TrafficPath, float]:
        found: dict[TrafficPath, float] = defaultdict(float)
        for counted in self.by_node.values():
            for path, carried in counted.items():
                found[path] += carried
        return dict(found)

    def since(self, before: MeasuredTraffic) -> dict[TrafficPath, float]:
        """What came since; a proxy that started again has counted all of it since.

        Of one that was not heard then nothing is known to be recent: it may have counted for weeks.
        """
        found: dict[TrafficPath, float] = defaultdict(float)
        for node in self.by_node.keys() & before.by_node.keys():
            counted, earlier = self.by_node[node], before.by_node[node]
            restarted = any(counted.get(path, 0.0) < carried for path, carried in earlier.items())
            for path, carried in counted.items():
                found[path] += carried if restarted else carried - earlier.get(path, 0.0)
        return {path: carried for path, carried in found.items() if carried}


class ZoneFlow(msgspec.Struct, frozen=True, rename="camel"):
    """Bytes from the clients of one zone to the endpoints of one, over all Services."""

    client_zone: str
    endpoint_zone: str
    bytes: int


class InZoneShare(msgspec.Struct, frozen=True, rename="camel"):
    """Of one Service: bytes that stayed in their zone, and that did not."""

    in_zone: int = 0
    cross_zone: int = 0

    @property
    def share(self) -> float | None:
        whole = self.in_zone + self.cross_zone
        return self.in_zone / whole if whole else None


def read_bytes(exposed: str) -> dict[TrafficPath, float]:
    """Of the text that a proxy answers a scrape with; a sample that is not whole counts as none."""
    found: dict[TrafficPath, float] = {}
    for sample in _SAMPLE.finditer(exposed):
        labels = {name: _ESCAPED.sub(_unescaped, value) for name, value in _LABEL.findall(sample[1])}
        try:
            namespace, service, client, endpoint = (labels[name] for name in _NAMES)
            found[TrafficPath(Key(namespace, service), client, endpoint)] = float(sample[2])
        except (KeyError, ValueError):
            continue
    return found


def _unescaped(mark: re.Match[str]) -> str:
    return "\n" if mark[1] == "n" else mark[1]


def flows(carried: Bytes) -> tuple[ZoneFlow, ...]:
    found: dict[tuple[str, str], float] = defaultdict(float)
    for path, amount in carried.items():
        found[path.client_zone, path.endpoint_zone] += amount
    return tuple(ZoneFlow(client, endpoint, int(amount)) for (client, endpoint), amount in sorted(found.items()))


def by_service(carried: Bytes, zones: Iterable[str]) -> dict[Key, InZoneShare]:
    """Only between zones of the cluster: what comes from outside, or whose place nobody knows, is neither in nor across."""
    known = set(zones)
    stayed: dict[Key, float] = defaultdict(float)
    crossed: dict[Key, float] = defaultdict(float)
    for (service, client, endpoint), amount in carried.items():
        if client in known and endpoint in known:
            (stayed if client == endpoint else crossed)[service] += amount
    return {
        service: InZoneShare(int(stayed[service]), int(crossed[service])) for service in sorted({*stayed, *crossed})
    }
