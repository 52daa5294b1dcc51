"""Applies rulesets to the kernel; only this module changes nftables.

A change is one transaction per family. If the kernel rejects it, or another program has changed our tables, one
transaction sets all rules in place; if that is rejected too, the table is deleted and created again, which ends session
affinity. Established connections survive all three.
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
REFUSALS = Counter("zonewise_proxy_refusals", "Transactions rejected by the kernel", ["family"])
COMMIT_SECONDS = Histogram(
    "zonewise_proxy_commit_seconds", "Duration of a transaction", buckets=(1e-4, 1e-3, 0.01, 0.1, 0.5, 1, 5)
)

_log = log.get_logger(__name__)

Changes = Mapping[Family, Mapping[PortName, PortRules | None]]


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """The node's network as the rules need it: its pods, the `addresses` that serve node ports, and the node's own.

    Traffic to addresses within `service_ranges` that belong to no Service is dropped.
    """

    pod_ranges: tuple[str, ...] = ()
    addresses: tuple[str, ...] = ()
    masquerade_all: bool = False
    pods_interface: str = ""
    service_ranges: tuple[str, ...] = ()
    node_ips: tuple[str, ...] = ()


class Applier:
    def __init__(self, kernel: NftSocket, families: Iterable[Family], network: NodeNetwork) -> None:
        self._kernel = kernel
        self.network = network
        self._rulesets = {family: _ruleset(family, network) for family in families}

    def start(self, changes: Changes) -> None:
        """Take over the tables of an earlier process without interrupting service or session affinity."""
        for family, ruleset in self._rulesets.items():
            ruleset.adopt(changes.get(family, {}))
        self.repair()

    def apply(self, changes: Changes) -> None:
        for family, ports in changes.items():
            messages = self._rulesets[family].diff(ports)
            if not messages:
                continue
            try:
                self._commit(family, messages, "change")
            except NftRefusedError as error:
                REFUSALS.labels(family.name).inc()
                _log.warning("update rejected, resyncing", family=family.name, error=str(error))
                self._resync(family)

    def repair(self) -> None:
        for family in self._rulesets:
            self._resync(family)

    def set_node_network(self, network: NodeNetwork) -> None:
        if network == self.network:
            return
        self.network = network
        for family, old in tuple(self._rulesets.items()):
            self._rulesets[family] = _ruleset(family, network)
            self._rulesets[family].adopt(old.ports)
        self.repair()

    def conflicts(self) -> list[ElementConflict]:
        return [conflict for ruleset in self._rulesets.values() for conflict in ruleset.conflicts()]

    def _resync(self, family: Family) -> None:
        """Update the table in place; if the kernel rejects that, as the table is not as expected, recreate it."""
        ruleset = self._rulesets[family]
        try:
            messages = ruleset.full_sync(self._kernel.chains(family), self._kernel.sets(family))
            self._commit(family, messages, "whole")
        except NftRefusedError as error:
            REFUSALS.labels(family.name).inc()
            _log.warning("full sync rejected, recreating the table", family=family.name, error=str(error))
            self._commit(family, ruleset.full_sync(recreate=True), "anew")

    def _commit(self, family: Family, messages: list[Message], scope: str) -> None:
        with COMMIT_SECONDS.time():
            self._kernel.commit(messages)
        COMMITS.labels(family.name, scope).inc()


def clean_up(kernel: NftSocket) -> list[Family]:
    """Delete our tables; returns the families that had one."""
    families = [family for family in FAMILIES.values() if kernel.chains(family)]
    kernel.commit([nft_messages.delete_table(family) for family in families])
    return families


def _ruleset(family: Family, network: NodeNetwork) -> Ruleset:
    pods = _of_family(family, network.pod_ranges)
    options = LayoutOptions(network.masquerade_all, bool(pods), network.pods_interface)
    addresses = tuple(address for address in network.addresses if family.owns(address))
    node_ips = tuple(address for address in network.node_ips if family.owns(address))
    services = _of_family(family, network.service_ranges)
    return Ruleset(ElementWriter(family, options, addresses, node_ips), _bounds(pods), _bounds(services))


def _of_family(family: Family, ranges: Iterable[str]) -> list[IPv4Network | IPv6Network]:
    networks: list[Any] = [ip_network(text, strict=False) for text in ranges]
    matching = [network for network in networks if network.max_prefixlen == family.address_bytes * 8]
    return list(collapse_addresses(matching))


def _bounds(networks: Iterable[IPv4Network | IPv6Network]) -> list[tuple[bytes, bool]]:
    """The start of each range and its exclusive end; a range up to the last address has no end."""
    bounds: list[tuple[bytes, bool]] = []
    for network in networks:
        first, last = int(network.network_address), int(network.broadcast_address)
        size = network.max_prefixlen // 8
        bounds.append((first.to_bytes(size, "big"), False))
        if last + 1 < 1 << network.max_prefixlen:
            bounds.append(((last + 1).to_bytes(size, "big"), True))
    return bounds
