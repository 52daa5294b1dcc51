"""Traffic measured: connections and bytes per Service, by the client's zone and the endpoint's.

The kernel counts bytes per connection anyway once it is asked to. `measuring` hears of those that end, and looks at
those that go on; `TrafficCount` knows whose they are, and `TrafficMeter` adds up what is new of each.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address
from typing import Final, NamedTuple

from prometheus_client import Counter

from zonewise.objects import EndpointSlice, Key
from zonewise.proxy.conntrack import ConntrackFlow
from zonewise.proxy.decide.rules import PortRules
from zonewise.proxy.wire.elements import fronts
from zonewise.proxy.wire.family import FAMILIES

_PLACE = ("namespace", "service", "client_zone", "endpoint_zone")
CONNECTIONS = Counter("zonewise_proxy_connections", "Connections to Services", _PLACE)
BYTES = Counter("zonewise_proxy_bytes", "Bytes of connections to Services, headers included, both ways", _PLACE)

OUTSIDE: Final = "outside"
UNKNOWN: Final = ""
_MOST_CLIENTS: Final = 1 << 16

Networks = tuple[IPv4Network | IPv6Network, ...]


class TrafficKey(NamedTuple):
    """The Service, and the zones at both ends."""

    service: Key
    client_zone: str
    endpoint_zone: str


_Place = tuple[bytes, int, int]
"""Address, protocol and port of a front."""


class _Known(NamedTuple):
    places: tuple[_Place, ...]
    zones: dict[bytes, str]


class TrafficCount:
    """What is known of addresses: which front is whose, and which zone an endpoint is in."""

    def __init__(self) -> None:
        self._fronts: dict[_Place, Key] = {}
        self._known: dict[Key, _Known] = {}
        self._here: Networks = ()
        self._inside: dict[bytes, bool] = {}

    def follow(
        self, key: Key, rules: Iterable[PortRules], slices: Iterable[EndpointSlice], nodes: Iterable[str]
    ) -> None:
        """The Service's rules and slices are these now; `nodes` are the addresses of its node ports."""
        if old := self._known.pop(key, None):
            for place in old.places:
                if self._fronts.get(place) == key:
                    del self._fronts[place]
        if places := tuple(place for each in rules for place in _places(each, nodes)):
            self._fronts.update(dict.fromkeys(places, key))
            self._known[key] = _Known(places, _zones(slices))

    def locate(self, flow: ConntrackFlow, own_zone: str, here: Networks) -> TrafficKey | None:
        """None for what is no Service's. Clients are in our zone if they are `here`: pods of this node, or the node."""
        key = self._fronts.get((flow.destination, flow.protocol, flow.port))
        if key is None:
            return None
        client_zone = own_zone if self._is_inside(flow.source, here) else OUTSIDE
        return TrafficKey(key, client_zone, self._known[key].zones.get(flow.answered_by, UNKNOWN))

    def _is_inside(self, packed: bytes, here: Networks) -> bool:
        if here is not self._here or len(self._inside) > _MOST_CLIENTS:
            self._here, self._inside = here, {}
        if packed not in self._inside:
            address = ip_address(packed)
            self._inside[packed] = any(address.version == each.version and address in each for each in here)
        return self._inside[packed]


def _zones(slices: Iterable[EndpointSlice]) -> dict[bytes, str]:
    return {
        _packed(address): endpoint.zone or UNKNOWN
        for found in slices
        for endpoint in found.endpoints or ()
        for address in endpoint.addresses[:1]
    }


def _places(rules: PortRules, nodes: Iterable[str]) -> list[_Place]:
    own = ":" in rules.cluster_ip
    return [
        (_packed(address), front.protocol, front.port)
        for front in fronts(rules)
        for address in ([front.address] if front.address else [node for node in nodes if (":" in node) is own])
    ]


def _packed(address: str) -> bytes:
    return FAMILIES["IPv6" if ":" in address else "IPv4"].pack(address)


class TrafficMeter:
    """What was counted of each connection that goes on; the rest counts when it is looked at again, or ends."""

    def __init__(self) -> None:
        self._counted: dict[bytes, int] = {}
        self._seen: set[bytes] = set()
        self._over: set[bytes] = set()
        self._looking = False

    def ended(self, flow: ConntrackFlow, where: TrafficKey) -> None:
        before = self._counted.pop(flow.identity, None)
        if self._looking:
            self._over.add(flow.identity)
        _count(where, flow.carried, before)

    def goes_on(self, flow: ConntrackFlow, where: TrafficKey) -> None:
        """One that ended since the kernel was asked is counted already."""
        if flow.identity in self._over:
            return
        _count(where, flow.carried, self._counted.get(flow.identity))
        self._counted[flow.identity] = flow.carried
        self._seen.add(flow.identity)

    def begin(self) -> None:
        """All connections are about to be looked at."""
        self._looking = True

    def looked(self) -> None:
        """Those that were not among them have ended without word."""
        self._counted = {identity: self._counted[identity] for identity in self._seen & self._counted.keys()}
        self._looking = False
        self._seen.clear()
        self._over.clear()


def _count(where: TrafficKey, carried: int, before: int | None) -> None:
    """One that carried less than before is another of the same addresses and ports."""
    connections, all_bytes = _counters(where)
    if before is None or carried < before:
        connections.inc()
        before = 0
    all_bytes.inc(carried - before)


@lru_cache(maxsize=1 << 16)
def _counters(where: TrafficKey) -> tuple[Counter, Counter]:
    labels = (*where.service, where.client_zone, where.endpoint_zone)
    return CONNECTIONS.labels(*labels), BYTES.labels(*labels)
