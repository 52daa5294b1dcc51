"""The nftables elements and chains of one Service port. Pure.

`ElementWriter` writes a port's rules into a `PortElements`. `ruleset` writes the old and the new state of a port and
compares them.
"""

from __future__ import annotations

import base64
import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from ipaddress import ip_network
from typing import Final, NamedTuple

import msgspec

from zonewise.proxy.decide.rules import PortName, PortRefusal, PortRules, Scope
from zonewise.proxy.decide.targets import EndpointTarget
from zonewise.proxy.wire import layout
from zonewise.proxy.wire.family import Family
from zonewise.proxy.wire.layout import (
    Chain,
    FixedLayout,
    LayoutOptions,
    Set,
    frontend_key,
    index_keys,
    node_port_key,
    port_data,
)
from zonewise.proxy.wire.netlink import DROP, NftVerdict, Value, goto

_ID_LENGTH: Final = 12


class Frontend(NamedTuple):
    """What clients connect to: an address with a port, or a node port if the address is empty."""

    address: str
    protocol: int
    port: int


@dataclass(slots=True)
class PortElements:
    """`counted` has the elements that ports may share, with reference counts; `chains` belong to a single port."""

    elements: dict[str, dict[bytes, Value]] = field(default_factory=lambda: defaultdict(dict))
    counted: Counter[tuple[str, bytes]] = field(default_factory=Counter)
    shared_chains: dict[str, Chain] = field(default_factory=dict)
    chains: dict[str, Chain] = field(default_factory=dict)
    sets: dict[str, Set] = field(default_factory=dict)
    picks: dict[str, dict[bytes, Value]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ElementWriter:
    """Writes ports into `PortElements`; `node_ips` decide whether a firewall's ranges include the node."""

    family: Family
    options: LayoutOptions
    node_addresses: tuple[str, ...] = ()
    node_ips: tuple[str, ...] = ()

    def write(self, rules: PortRules, into: PortElements, lost: frozenset[Frontend] = frozenset()) -> None:
        """Write the port, without the frontends that it has lost to another Service."""
        port = _Port(self, rules, into)
        if not lost or _frontend(rules, rules.cluster_ip) not in lost:
            port.cluster_ip()
        for frontend in external_frontends(rules):
            if frontend not in lost:
                port.external(frontend)
        if rules.source_ranges:
            port.firewall([address for address in rules.balancer_ips if _frontend(rules, address) not in lost])
        if rules.affinity_seconds:
            port.sticky_endpoints()
        for target in rules.hairpin:
            address = self.family.pack(target.address)
            key = address + frontend_key(address, rules.protocol, target.port)
            into.counted[FixedLayout.HAIRPIN, key] += 1

    def firewall_ranges(self, rules: PortRules) -> tuple[tuple[bytes, bytes], ...]:
        """A request of this node to a load balancer address may return to it with that address as its source."""
        networks = [ip_network(text) for text in rules.source_ranges]
        if any(ip_network(address)[0] in network for address in self.node_ips for network in networks):
            networks += [ip_network(address) for address in rules.balancer_ips]
        return tuple((network.network_address.packed, network.netmask.packed) for network in networks)


def frontends(rules: PortRules) -> list[Frontend]:
    return [Frontend(rules.cluster_ip, rules.protocol, rules.port), *external_frontends(rules)]


def external_frontends(rules: PortRules) -> Iterable[Frontend]:
    for address in (*rules.external_ips, *rules.balancer_ips):
        yield _frontend(rules, address)
    if rules.node_port:
        yield Frontend("", rules.protocol, rules.node_port)


def moved_slots(family: Family, old: PortRules, new: PortRules) -> dict[bytes, Value] | None:
    """The elements of slots whose target changed; None if the port's states differ in anything else.

    Only for ports with nothing but a cluster IP, as nearly all are: the elements of others depend on more.
    """
    if new.node_port or new.external_ips or new.balancer_ips or new.affinity_seconds:
        return None
    if isinstance(new.internal, PortRefusal):
        return None
    same = msgspec.structs.replace(old, cluster=new.cluster, local=new.local, flows=new.flows, left_out=new.left_out)
    local = new.internal is Scope.LOCAL
    before, after = (old.local, new.local) if local else (old.cluster, new.cluster)
    if same != new or len(before) != len(after):
        return None
    key = frontend_key(family.pack(new.cluster_ip), new.protocol, new.port)
    indexes = index_keys(layout.LOCAL_OFFSET if local else 0, len(after))
    changed = [(index, to) for index, old_to, to in zip(indexes, before, after, strict=True) if old_to != to]
    return {key + index: family.pack(to.address) + port_data(to.port) for index, to in changed}


def _frontend(rules: PortRules, address: str) -> Frontend:
    return Frontend(address, rules.protocol, rules.port)


@lru_cache(maxsize=4096)
def identifier(name: PortName) -> str:
    """A short, stable ID that is safe in nftables names for any Service name."""
    digest = hashlib.sha256(str(name).encode()).digest()
    return base64.b32encode(digest).decode().lower()[:_ID_LENGTH]


def endpoint_identifier(name: PortName, target: EndpointTarget) -> str:
    digest = hashlib.sha256(str(target).encode()).digest()
    return f"{identifier(name)}-{base64.b32encode(digest).decode().lower()[:_ID_LENGTH]}"


def _refusal(refusal: PortRefusal) -> NftVerdict:
    return goto(layout.REFUSE) if refusal is PortRefusal.REJECT else DROP


@dataclass(slots=True)
class _Port:
    writer: ElementWriter
    rules: PortRules
    into: PortElements

    def cluster_ip(self) -> None:
        address = self.writer.family.pack(self.rules.cluster_ip)
        key = frontend_key(address, self.rules.protocol, self.rules.port)
        self.into.counted[FixedLayout.CLUSTER_IPS, address] += 1
        match self.rules.internal:
            case Scope() as scope:
                self.into.elements[FixedLayout.SERVICES][key] = goto(self._pick(scope, node_port=False))
                self._number(FixedLayout.ENDPOINTS, key, (scope,))
            case PortRefusal() as refusal:
                self.into.elements[FixedLayout.REFUSED][key] = _refusal(refusal)

    def external(self, frontend: Frontend) -> None:
        node_port = not frontend.address
        key = node_port_key(frontend.protocol, frontend.port)
        key = key if node_port else self.writer.family.pack(frontend.address) + key
        elements = self.into.elements
        if chain := self._external_chain(node_port=node_port):
            elements[FixedLayout.NODE_PORTS if node_port else FixedLayout.SERVICES][key] = goto(chain)
            scopes = (Scope.CLUSTER, Scope.LOCAL) if self.rules.external_policy_local else (Scope.CLUSTER,)
            self._number(FixedLayout.NODE_PORT_ENDPOINTS if node_port else FixedLayout.ENDPOINTS, key, scopes)
            elements[self._masqueraded(node_port=node_port)][key] = None
        if isinstance(self.rules.external, PortRefusal):
            refused = FixedLayout.REFUSED_NODE_PORTS if node_port else FixedLayout.REFUSED
            elements[refused][key] = _refusal(self.rules.external)

    def firewall(self, addresses: Iterable[str]) -> None:
        name = f"fw-{identifier(self.rules.name)}"
        chain = layout.firewall_chain(self.writer.family, name, self.writer.firewall_ranges(self.rules))
        for address in addresses:
            key = frontend_key(self.writer.family.pack(address), self.rules.protocol, self.rules.port)
            self.into.elements[FixedLayout.FIREWALLED][key] = goto(name)
            self.into.chains[name] = chain

    def sticky_endpoints(self) -> None:
        family, rules = self.writer.family, self.rules
        for target in dict.fromkeys((*rules.cluster, *rules.local)):
            name = endpoint_identifier(rules.name, target)
            clients = self._clients(name)
            self.into.sets[clients] = layout.affinity_set(family, clients, rules.affinity_seconds)
            packed = family.pack(target.address)
            self.into.chains[f"e-{name}"] = layout.sticky_endpoint_chain(
                family, f"e-{name}", clients, rules.protocol, packed, target.port
            )

    def _clients(self, endpoint: str) -> str:
        """A set's timeout can't be changed, so the timeout is part of the name."""
        return f"a-{endpoint}-{self.rules.affinity_seconds}"

    def _masqueraded(self, *, node_port: bool) -> FixedLayout:
        if self.rules.external_policy_local:
            return FixedLayout.LOCAL_NODE_PORTS if node_port else FixedLayout.EXTERNAL_LOCAL
        return FixedLayout.EXTERNAL_NODE_PORTS if node_port else FixedLayout.EXTERNAL

    def _external_chain(self, *, node_port: bool) -> str:
        """Empty if no endpoint serves external traffic."""
        cluster = self._pick(Scope.CLUSTER, node_port=node_port) if self.rules.cluster else ""
        if not self.rules.external_policy_local:
            return cluster
        local = self._pick(Scope.LOCAL, node_port=node_port) if self.rules.local else ""
        if not cluster and not local:
            return ""
        sticky = self.rules.affinity_seconds
        name = f"x-{identifier(self.rules.name)}" if sticky else f"x-{cluster or 'none'}-{local or 'none'}"
        chain = layout.external_local_chain(self.writer.family, name, cluster, local, self.writer.options)
        (self.into.chains if sticky else self.into.shared_chains)[name] = chain
        return name

    def _slots(self, scope: Scope) -> tuple[EndpointTarget, ...]:
        return self.rules.cluster if scope is Scope.CLUSTER else self.rules.local

    def _pick(self, scope: Scope, *, node_port: bool) -> str:
        """The chain that picks one of the targets of the scope."""
        if self.rules.affinity_seconds:
            return self._sticky(scope)
        slots, local = len(self._slots(scope)), scope is Scope.LOCAL
        name = f"{'n' if node_port else ''}{'local' if local else 'any'}-{slots}"
        if name not in self.into.shared_chains:
            chain = layout.pick_chain(self.writer.family, name, slots, local=local, node_port=node_port)
            self.into.shared_chains[name] = chain
        return name

    def _sticky(self, scope: Scope) -> str:
        port_id = identifier(self.rules.name)
        name, picks = f"s-{port_id}-{scope}", f"p-{port_id}-{scope}"
        if name not in self.into.chains:
            slots = self._slots(scope)
            names = {target: endpoint_identifier(self.rules.name, target) for target in dict.fromkeys(slots)}
            kept = tuple((self._clients(endpoint_id), f"e-{endpoint_id}") for endpoint_id in names.values())
            self.into.chains[name] = layout.sticky_chain(self.writer.family, name, kept, picks, len(slots))
            self.into.sets[picks] = layout.pick_map(picks)
            verdicts = {target: goto(f"e-{endpoint_id}") for target, endpoint_id in names.items()}
            self.into.picks[picks] = dict(zip(index_keys(0, len(slots)), map(verdicts.__getitem__, slots), strict=True))
        return name

    def _number(self, endpoints: FixedLayout, key: bytes, scopes: Iterable[Scope]) -> None:
        """Ports with session affinity have chains of their own instead."""
        if self.rules.affinity_seconds:
            return
        numbered = self.into.elements[endpoints]
        for scope in scopes:
            slots = self._slots(scope)
            indexes = index_keys(layout.LOCAL_OFFSET if scope is Scope.LOCAL else 0, len(slots))
            packed = self.writer.family.pack_all([target[0] for target in slots])
            data = [address + port_data(target[1]) for address, target in zip(packed, slots, strict=True)]
            numbered.update(zip([key + index for index in indexes], data, strict=True))
