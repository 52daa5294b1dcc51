"""Brings rulesets into the kernel: the one place that changes nftables.

A change is one transaction per family. When the kernel refuses one, or somebody else has touched our tables, everything
is said again in one transaction that replaces whatever is there; established connections don't notice either.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network
from typing import Any

from prometheus_client import Counter, Histogram

from zonewise import log
from zonewise.proxy.decide.rules import PortName, PortRules
from zonewise.proxy.nft_socket import NftRefusedError, NftSocket
from zonewise.proxy.wire import messages as nft_messages
from zonewise.proxy.wire.elements import ElementWriter
from zonewise.proxy.wire.family import FAMILIES, Family
from zonewise.proxy.wire.layout import LayoutOptions
from zonewise.proxy.wire.netlink import Message
from zonewise.proxy.wire.ruleset import ElementConflict, Ruleset

COMMITS = Counter("zonewise_proxy_commits", "Transactions sent to the kernel", ["family", "scope"])
REFUSALS = Counter("zonewise_proxy_refusals", "Transactions that the kernel refused", ["family"])
COMMIT_SECONDS = Histogram(
    "zonewise_proxy_commit_seconds", "How long a transaction takes", buckets=(1e-4, 1e-3, 0.01, 0.1, 0.5, 1, 5)
)

_log = log.get_logger(__name__)

Changes = Mapping[Family, Mapping[PortName, PortRules | None]]


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """What rules need to know of the node: who its pods are, and the addresses its node ports are served on.

    What goes to an address within `service_ranges` that is no Service's is dropped.
    """

    pod_ranges: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    masquerade_all: bool = False
    pods_interface: str = ""
    service_ranges: tuple[str, ...] = ()


class Applier:
    def __init__(self, kernel: NftSocket, families: Iterable[Family], network: NodeNetwork) -> None:
        self._kernel = kernel
        self.network = network
        self._rulesets = {family: _ruleset(family, network) for family in families}

    def start(self, changes: Changes) -> None:
        """Adopt what an earlier process left: addresses that are served stay served, clients keep their endpoints."""
        for family, ruleset in self._rulesets.items():
            ruleset.adopt(changes.get(family, {}))
        self.repair()

    def apply(self, changes: Changes) -> None:
        for family, wanted in changes.items():
            messages = self._rulesets[family].change(wanted)
            if not messages:
                continue
            try:
                self._commit(family, messages, "change")
            except NftRefusedError as error:
                REFUSALS.labels(family.name).inc()
                _log.warning("change refused, saying everything again", family=family.name, error=str(error))
                self._say_all(family)

    def repair(self) -> None:
        for family in self._rulesets:
            self._say_all(family)

    def move(self, network: NodeNetwork) -> None:
        """The node has other addresses or pod ranges now."""
        if network == self.network:
            return
        self.network = network
        for family, old in tuple(self._rulesets.items()):
            self._rulesets[family] = _ruleset(family, network)
            self._rulesets[family].adopt(old.ports)
        self.repair()

    def contests(self) -> list[ElementConflict]:
        return [contest for ruleset in self._rulesets.values() for contest in ruleset.contests()]

    def _say_all(self, family: Family) -> None:
        """In place, or if that is refused because the table is not as we know it, as a table made anew."""
        ruleset = self._rulesets[family]
        try:
            messages = ruleset.whole(self._kernel.chains(family), self._kernel.sets(family))
            self._commit(family, messages, "whole")
        except NftRefusedError as error:
            REFUSALS.labels(family.name).inc()
            _log.warning("table made anew", family=family.name, error=str(error))
            self._commit(family, ruleset.whole(anew=True), "anew")

    def _commit(self, family: Family, messages: list[Message], scope: str) -> None:
        with COMMIT_SECONDS.time():
            self._kernel.commit(messages)
        COMMITS.labels(family.name, scope).inc()


def clean_up(kernel: NftSocket) -> list[Family]:
    """Remove our tables; says of which families there were any."""
    found = [family for family in FAMILIES.values() if kernel.chains(family)]
    kernel.commit([nft_messages.delete_table(family) for family in found])
    return found


def _ruleset(family: Family, network: NodeNetwork) -> Ruleset:
    ranges = _of_family(family, network.pod_ranges)
    options = LayoutOptions(network.masquerade_all, bool(ranges), network.pods_interface)
    addresses = tuple(address for address in network.addresses if family.owns(address))
    services = _of_family(family, network.service_ranges)
    return Ruleset(ElementWriter(family, options, addresses), _bounds(ranges), _bounds(services))


def _of_family(family: Family, ranges: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    networks: list[Any] = [ip_network(written, strict=False) for written in ranges]
    mine = [network for network in networks if network.max_prefixlen == family.address_bytes * 8]
    return list(collapse_addresses(mine))


def _bounds(networks: Iterable[IPv4Network | IPv6Network]) -> list[tuple[bytes, bool]]:
    """Where each range begins and where, exclusive, it ends; the last address of all has none after it."""
    bounds: list[tuple[bytes, bool]] = []
    for network in networks:
        first, last = int(network.network_address), int(network.broadcast_address)
        size = network.max_prefixlen // 8
        bounds.append((first.to_bytes(size, "big"), False))
        if last + 1 < 1 << network.max_prefixlen:
            bounds.append(((last + 1).to_bytes(size, "big"), True))
    return bounds
