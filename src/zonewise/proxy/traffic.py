"""Traffic measured: connections and bytes per Service, by the client's zone and the endpoint's.

The kernel counts bytes per connection anyway once it is asked to, and tells of each connection that ends. Those to our
Services are added up here; one that lasts counts when it ends. `Tally` is what is known of addresses, `Ended` listens.
"""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterable
from ipaddress import IPv4Network, IPv6Network, ip_address
from pathlib import Path
from typing import Final, NamedTuple

from prometheus_client import Counter

from zonewise import log
from zonewise.objects import EndpointSlice, Key
from zonewise.proxy.conntrack import Flow, read_flow
from zonewise.proxy.family import FAMILIES
from zonewise.proxy.fragment import fronts
from zonewise.proxy.netlink import received
from zonewise.proxy.rules import PortRules

_log = log.get_logger(__name__)

_PLACE = ("namespace", "service", "client_zone", "endpoint_zone")
CONNECTIONS = Counter("zonewise_proxy_connections", "Connections to Services that have ended", _PLACE)
BYTES = Counter("zonewise_proxy_bytes", "Bytes of such connections, headers included, both ways", _PLACE)
LOST = Counter("zonewise_proxy_traffic_lost", "Times that ended connections came too fast to be counted")

OUTSIDE: Final = "outside"
UNKNOWN: Final = ""
_ACCOUNTING: Final = Path("/proc/sys/net/netfilter/nf_conntrack_acct")
_DESTROYED: Final = 1 << 8 | 2
_GROUP_DESTROY: Final = 3


class Where(NamedTuple):
    """The Service, and the zones at both ends."""

    service: Key
    client_zone: str
    endpoint_zone: str


_Place = tuple[bytes, int, int]
"""Address, protocol and port of a front."""


class _Known(NamedTuple):
    places: tuple[_Place, ...]
    zones: dict[bytes, str]


class Tally:
    """What is known of addresses: which front is whose, and which zone an endpoint is in."""

    def __init__(self) -> None:
        self._fronts: dict[_Place, Key] = {}
        self._known: dict[Key, _Known] = {}

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

    def locate(self, flow: Flow, own_zone: str, here: Iterable[IPv4Network | IPv6Network]) -> Where | None:
        """None for what is no Service's. Clients are in our zone if they are `here`: pods of this node, or the node."""
        key = self._fronts.get((flow.destination, flow.protocol, flow.port))
        if key is None:
            return None
        source = ip_address(flow.source)
        inside = any(source.version == network.version and source in network for network in here)
        return Where(key, own_zone if inside else OUTSIDE, self._known[key].zones.get(flow.answered_by, UNKNOWN))


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


class Ended:
    """Connections that ended, of the network namespace in which it is made; `fileno` becomes readable with each."""

    def __init__(self) -> None:
        self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_CLOEXEC, 12)
        self._socket.setblocking(False)
        self._socket.setsockopt(socket.SOL_SOCKET, 33, 16 << 20)
        self._socket.bind((0, 0))
        self._socket.setsockopt(270, 1, _GROUP_DESTROY)
        try:
            _ACCOUNTING.write_text("1")
        except OSError as error:
            _log.warning("connections are counted, but no bytes", error=str(error), remedy=f"write 1 to {_ACCOUNTING}")

    def fileno(self) -> int:
        return self._socket.fileno()

    def close(self) -> None:
        self._socket.close()

    def take(self, most: int = 4096) -> Iterable[Flow]:
        """Those that wait, but not more at once: other work waits, too."""
        for _ in range(most):
            try:
                datagram = self._socket.recv(1 << 16)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno != errno.ENOBUFS:
                    raise
                LOST.inc()
                continue
            for message in received(datagram):
                if message.kind == _DESTROYED and (flow := read_flow(message.payload)):
                    yield flow


def count(where: Where, carried: int) -> None:
    labels = (*where.service, where.client_zone, where.endpoint_zone)
    CONNECTIONS.labels(*labels).inc()
    BYTES.labels(*labels).inc(carried)
