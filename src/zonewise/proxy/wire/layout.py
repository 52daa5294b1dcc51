"""The nftables table of each family: fixed sets and chains, and the few chains that are created on demand.

Almost every change is an element of one of these sets. The map `svc` leads from a Service address to a chain that picks
one of n numbered endpoints in `ep`; all addresses with n endpoints share the chain. An update is a few elements,
whatever the number of Services, and a packet needs two hash lookups. No marks are used: masquerading follows from the
connection's original destination.

    prerouting, output   firewall -> nat        postrouting   masquerade
    input, forward, output   refuse (without an endpoint)
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum, IntEnum, StrEnum
from functools import lru_cache
from typing import Final

from zonewise.proxy.wire import expressions as x
from zonewise.proxy.wire.family import Family
from zonewise.proxy.wire.netlink import DROP, RETURN, goto

TABLE: Final = "zonewise"
REFUSE: Final = "refuse"
"""The chain that rejects: clients see a closed port."""
LOCAL_OFFSET: Final = 1 << 16
"""Node-local endpoints are numbered from here, those for the whole cluster from 0."""

_PROTOCOL, _PORT, _INDEX = 12, 13, 19
_TO_CLUSTER_IPS: Final = "sources-cluster-ips"


class FixedLayout(StrEnum):
    """The sets and maps that always exist."""

    SERVICES = "svc"
    ENDPOINTS = "ep"
    NODE_PORTS = "nodeports"
    NODE_PORT_ENDPOINTS = "nodeport-ep"
    REFUSED = "refused"
    REFUSED_NODE_PORTS = "refused-nodeports"
    FIREWALLED = "firewalled"
    CLUSTER_IPS = "cluster-ips"
    NODE_IPS = "node-ips"
    HAIRPIN = "hairpin"
    EXTERNAL = "external"
    EXTERNAL_LOCAL = "external-local"
    EXTERNAL_NODE_PORTS = "external-nodeports"
    LOCAL_NODE_PORTS = "local-nodeports"
    PODS = "pods"
    SERVICE_RANGES = "service-ranges"


class ChainHook(IntEnum):
    PREROUTING = 0
    INPUT = 1
    FORWARD = 2
    OUTPUT = 3
    POSTROUTING = 4


class SetType(Enum):
    FILTER = "filter"
    NAT = "nat"


@dataclass(frozen=True, slots=True)
class HookedChain:
    """A base chain's hook. Smaller priorities come first: DNAT is at -100, SNAT at 100."""

    type: SetType
    hook: ChainHook
    priority: int


@dataclass(frozen=True, slots=True)
class Chain:
    name: str
    rules: tuple[bytes, ...] = ()
    attached: HookedChain | None = None


@dataclass(frozen=True, slots=True)
class Set:
    """A set, or a map: `data` has the type numbers of a map's values, `verdicts` marks a verdict map."""

    name: str
    key: tuple[int, ...]
    data: tuple[int, ...] = ()
    verdicts: bool = False
    interval: bool = False
    timeout_seconds: int = 0


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """Which sources are masqueraded: all, or those that are not pods of this node; none if pods can't be recognised.

    Pods are recognised by their CIDRs, or by the incoming interface: a name, or a prefix that ends with a star.
    """

    masquerade_all: bool = False
    pods_known: bool = True
    pods_interface: str = ""


def fixed_sets(family: Family) -> tuple[Set, ...]:
    address = family.address_type
    frontend, node_port = (address, _PROTOCOL, _PORT), (_PROTOCOL, _PORT)
    target = (address, _PORT)
    return (
        Set(FixedLayout.SERVICES, frontend, verdicts=True),
        Set(FixedLayout.ENDPOINTS, (*frontend, _INDEX), target),
        Set(FixedLayout.NODE_PORTS, node_port, verdicts=True),
        Set(FixedLayout.NODE_PORT_ENDPOINTS, (*node_port, _INDEX), target),
        Set(FixedLayout.REFUSED, frontend, verdicts=True),
        Set(FixedLayout.REFUSED_NODE_PORTS, node_port, verdicts=True),
        Set(FixedLayout.FIREWALLED, frontend, verdicts=True),
        Set(FixedLayout.CLUSTER_IPS, (address,)),
        Set(FixedLayout.NODE_IPS, (address,)),
        Set(FixedLayout.HAIRPIN, (address, address, _PROTOCOL, _PORT)),
        Set(FixedLayout.EXTERNAL, frontend),
        Set(FixedLayout.EXTERNAL_LOCAL, frontend),
        Set(FixedLayout.EXTERNAL_NODE_PORTS, node_port),
        Set(FixedLayout.LOCAL_NODE_PORTS, node_port),
        Set(FixedLayout.PODS, (address,), interval=True),
        Set(FixedLayout.SERVICE_RANGES, (address,), interval=True),
    )


def affinity_set(family: Family, name: str, timeout_seconds: int) -> Set:
    """The clients with affinity to an endpoint; each expires some time after its last connection."""
    return Set(name, (family.address_type,), timeout_seconds=timeout_seconds)


def pick_map(name: str) -> Set:
    """A random index to the chain of an endpoint."""
    return Set(name, (_INDEX,), verdicts=True)


def fixed_chains(family: Family, options: LayoutOptions) -> tuple[Chain, ...]:
    firewall_at, nat_at = -110, -100
    refuse_at = -1  # just before kube-proxy's filter, which drops traffic to addresses it does not know
    firewall = x.is_new() + _frontend_loads(family) + x.looked_up(FixedLayout.FIREWALLED, verdict_map=True)
    services = _service_rules(family)
    settled = (  # nearly all packets return here: established connections, and those sent to an endpoint
        x.is_new(new=False) + x.decide(RETURN),
        x.is_translated() + x.decide(RETURN),
    )
    forwarded = (
        *settled,
        _frontend_loads(family) + _refused(FixedLayout.REFUSED),
        _to_cluster_ip(family) + x.reject(family),
        x.concatenation(family, x.destination) + x.contained(FixedLayout.SERVICE_RANGES) + x.decide(DROP),
    )
    received = (
        *settled,
        _to_node(family) + _node_port_loads(family) + _refused(FixedLayout.REFUSED_NODE_PORTS),
        _frontend_loads(family) + _refused(FixedLayout.REFUSED),
    )
    return (
        Chain(REFUSE, (x.reject(family),)),
        Chain("firewall-in", (firewall,), HookedChain(SetType.FILTER, ChainHook.PREROUTING, firewall_at)),
        Chain("firewall-out", (firewall,), HookedChain(SetType.FILTER, ChainHook.OUTPUT, firewall_at)),
        Chain("nat-in", services, HookedChain(SetType.NAT, ChainHook.PREROUTING, nat_at)),
        Chain("nat-out", services, HookedChain(SetType.NAT, ChainHook.OUTPUT, nat_at)),
        Chain("filter-in", received, HookedChain(SetType.FILTER, ChainHook.INPUT, refuse_at)),
        Chain("filter-forward", forwarded, HookedChain(SetType.FILTER, ChainHook.FORWARD, refuse_at)),
        Chain("filter-out", forwarded, HookedChain(SetType.FILTER, ChainHook.OUTPUT, refuse_at)),
        Chain(_TO_CLUSTER_IPS, tuple(_cluster_ip_masquerade_rules(family, options))),
        Chain("sources", tuple(_masquerade_rules(family)), HookedChain(SetType.NAT, ChainHook.POSTROUTING, 100)),
    )


def _frontend_loads(family: Family) -> bytes:
    return x.concatenation(family, x.destination, x.protocol, x.port)


def _node_port_loads(family: Family) -> bytes:
    return x.concatenation(family, x.protocol, x.port)


def _to_node(family: Family) -> bytes:
    return x.concatenation(family, x.destination) + x.contained(FixedLayout.NODE_IPS)


def _to_cluster_ip(family: Family) -> bytes:
    return x.concatenation(family, x.destination) + x.contained(FixedLayout.CLUSTER_IPS)


def _refused(name: FixedLayout) -> bytes:
    return x.looked_up(name, verdict_map=True)


def _service_rules(family: Family) -> tuple[bytes, ...]:
    return (
        _frontend_loads(family) + x.looked_up(FixedLayout.SERVICES, verdict_map=True),
        _to_node(family) + _node_port_loads(family) + x.looked_up(FixedLayout.NODE_PORTS, verdict_map=True),
    )


def _masquerade_rules(family: Family) -> Iterator[bytes]:
    """Connections that leave with the node's own address: otherwise replies would bypass it.

    Cluster IPs, the common case, are checked first and need no other lookup.
    """
    masquerade = x.masquerade()
    hairpin = x.concatenation(family, x.source, x.destination, x.protocol, x.port) + x.contained(FixedLayout.HAIRPIN)
    original = x.concatenation(family, x.original_destination, x.protocol, x.original_port)
    original_address = x.concatenation(family, x.original_destination)
    original_node = original_address + x.contained(FixedLayout.NODE_IPS)
    original_port = x.concatenation(family, x.protocol, x.original_port)
    from_node = x.source_is_local(family)
    yield x.is_translated(translated=False) + x.decide(RETURN)
    yield hairpin + masquerade
    yield original_address + x.contained(FixedLayout.CLUSTER_IPS) + x.decide(goto(_TO_CLUSTER_IPS))
    yield original + x.contained(FixedLayout.EXTERNAL) + masquerade
    yield original_node + original_port + x.contained(FixedLayout.EXTERNAL_NODE_PORTS) + masquerade
    yield from_node + original + x.contained(FixedLayout.EXTERNAL_LOCAL) + masquerade
    yield from_node + original_node + original_port + x.contained(FixedLayout.LOCAL_NODE_PORTS) + masquerade


def _cluster_ip_masquerade_rules(family: Family, options: LayoutOptions) -> Iterator[bytes]:
    if not options.masquerade_all:
        yield (_from_pods(family, options) or b"") + x.decide(RETURN)
    yield x.masquerade()


@lru_cache(maxsize=1024)
def pick_chain(family: Family, name: str, slots: int, *, local: bool, node_port: bool) -> Chain:
    """Sends to one of `slots` numbered endpoints of the packet's destination address or node port."""
    chance = x.chance(slots, LOCAL_OFFSET if local else 0)
    address = () if node_port else (x.destination,)
    endpoints = FixedLayout.NODE_PORT_ENDPOINTS if node_port else FixedLayout.ENDPOINTS
    key = x.concatenation(family, *address, x.protocol, x.port, chance)
    return Chain(name, (key + x.looked_up(endpoints) + x.destination_nat(family),))


def _from_pods(family: Family, options: LayoutOptions) -> bytes | None:
    """Matches pods of this node; None if they can't be recognised."""
    if options.pods_interface:
        return x.came_by(options.pods_interface)
    return x.concatenation(family, x.source) + x.contained(FixedLayout.PODS) if options.pods_known else None


def external_local_chain(family: Family, name: str, cluster: str, local: str, options: LayoutOptions) -> Chain:
    """Pods and the node itself use endpoints of the whole cluster; other clients only those on the node, if any."""
    from_pods = _from_pods(family, options)
    rules = [from_pods + x.decide(goto(cluster))] if cluster and from_pods else []
    if cluster:
        rules.append(x.source_is_local(family) + x.decide(goto(cluster)))
    if local:
        rules.append(x.decide(goto(local)))
    return Chain(name, tuple(rules))


def firewall_chain(family: Family, name: str, allowed: tuple[tuple[bytes, bytes], ...]) -> Chain:
    """Drops sources outside `allowed`: networks and their masks."""
    rules = (x.source_within(family, network, mask) + x.decide(RETURN) for network, mask in allowed)
    return Chain(name, (*rules, x.decide(DROP)))


def sticky_endpoint_chain(family: Family, name: str, clients: str, protocol: int, address: bytes, port: int) -> Chain:
    send = x.is_protocol(family, protocol) + x.fixed_destination(family, address, port) + x.destination_nat(family)
    return Chain(name, (x.remember_source(family, clients), send))


def sticky_chain(family: Family, name: str, kept: tuple[tuple[str, str], ...], picks: str, slots: int) -> Chain:
    """`kept`: each endpoint's set of clients and its chain; a client in none of the sets gets a random endpoint."""
    keeps = (
        x.concatenation(family, x.source) + x.contained(clients) + x.decide(goto(chain)) for clients, chain in kept
    )
    pick = x.concatenation(family, x.chance(slots)) + x.looked_up(picks, verdict_map=True)
    return Chain(name, (*keeps, pick))


def frontend_key(address: bytes, protocol: int, port: int) -> bytes:
    return address + node_port_key(protocol, port)


def node_port_key(protocol: int, port: int) -> bytes:
    return struct.pack(">BxxxHxx", protocol, port)


def index_key(index: int) -> bytes:
    return struct.pack("=I", index)


@lru_cache(maxsize=256)
def index_keys(first: int, count: int) -> tuple[bytes, ...]:
    return tuple(map(index_key, range(first, first + count)))


@lru_cache(maxsize=4096)
def port_data(port: int) -> bytes:
    """The part of an endpoint's data after the address."""
    return struct.pack(">Hxx", port)
