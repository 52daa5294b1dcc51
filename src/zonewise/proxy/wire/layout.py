"""The table that the proxy owns in each family: fixed sets and chains, and the few chains that are made when needed.

Almost everything that changes is an element of one of these sets. A service address leads by `svc` to a chain that
picks one of n numbered endpoints in `ep`; the chain is shared by all addresses with as many. An update is a few elements,
whatever the number of Services, and a packet needs two hash lookups. No marks are used: what is masqueraded follows
from the destination that the connection had at first.

    prerouting, output   firewall -> nat        postrouting   masquerade
    input, forward, output   refuse (what has no endpoint)
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
"""The chain that answers as if nobody listened."""
LOCAL_OFFSET: Final = 1 << 16
"""Endpoints on the node itself are numbered from here, those for the whole cluster from 0."""

_PROTOCOL, _PORT, _INDEX = 12, 13, 19
_TO_CLUSTER_IPS: Final = "sources-cluster-ips"


class FixedLayout(StrEnum):
    """The sets and maps that are always there."""

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
    """Where a chain hangs. Smaller priorities come first: destinations change at -100, sources at 100."""

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
    """`data` is the type numbers of what a map leads to; `verdicts` for a map of verdicts."""

    name: str
    key: tuple[int, ...]
    data: tuple[int, ...] = ()
    verdicts: bool = False
    interval: bool = False
    timeout_seconds: int = 0


@dataclass(frozen=True, slots=True)
class LayoutOptions:
    """How sources are masqueraded: all of them, or those that are no pods of this node; neither where these are not known.

    Pods are known by their ranges, or by the interface that they come by: its name, or with a star how names begin.
    """

    masquerade_all: bool = False
    pods_known: bool = True
    pods_interface: str = ""


def fixed_sets(family: Family) -> tuple[Set, ...]:
    address = family.address_type
    place, node_port = (address, _PROTOCOL, _PORT), (_PROTOCOL, _PORT)
    target = (address, _PORT)
    return (
        Set(FixedLayout.SERVICES, place, verdicts=True),
        Set(FixedLayout.ENDPOINTS, (*place, _INDEX), target),
        Set(FixedLayout.NODE_PORTS, node_port, verdicts=True),
        Set(FixedLayout.NODE_PORT_ENDPOINTS, (*node_port, _INDEX), target),
        Set(FixedLayout.REFUSED, place, verdicts=True),
        Set(FixedLayout.REFUSED_NODE_PORTS, node_port, verdicts=True),
        Set(FixedLayout.FIREWALLED, place, verdicts=True),
        Set(FixedLayout.CLUSTER_IPS, (address,)),
        Set(FixedLayout.NODE_IPS, (address,)),
        Set(FixedLayout.HAIRPIN, (address, address, _PROTOCOL, _PORT)),
        Set(FixedLayout.EXTERNAL, place),
        Set(FixedLayout.EXTERNAL_LOCAL, place),
        Set(FixedLayout.EXTERNAL_NODE_PORTS, node_port),
        Set(FixedLayout.LOCAL_NODE_PORTS, node_port),
        Set(FixedLayout.PODS, (address,), interval=True),
        Set(FixedLayout.SERVICE_RANGES, (address,), interval=True),
    )


def affinity_set(family: Family, name: str, timeout_seconds: int) -> Set:
    """The clients that an endpoint keeps, each for a while after its last connection."""
    return Set(name, (family.address_type,), timeout_seconds=timeout_seconds)


def pick_map(name: str) -> Set:
    """Which endpoint's chain a random index leads to."""
    return Set(name, (_INDEX,), verdicts=True)


def fixed_chains(family: Family, options: LayoutOptions) -> tuple[Chain, ...]:
    refuse_at, firewall_at, nat_at = (
        -1,
        -110,
        -100,
    )  # just before a kube-proxy's filter, which drops what it does not know
    firewall = x.is_new() + _place(family) + x.looked_up(FixedLayout.FIREWALLED, verdict_map=True)
    services = _service_rules(family)
    settled = (  # nearly all packets leave here: of what goes on, or was sent to an endpoint
        x.is_new(new=False) + x.decide(RETURN),
        x.is_translated() + x.decide(RETURN),
    )
    forwarded = (
        *settled,
        _place(family) + _refused(FixedLayout.REFUSED),
        _to_cluster_ip(family) + x.reject(family),
        x.concatenation(family, x.destination) + x.contained(FixedLayout.SERVICE_RANGES) + x.decide(DROP),
    )
    received = (
        *settled,
        _to_node(family) + _node_port(family) + _refused(FixedLayout.REFUSED_NODE_PORTS),
        _place(family) + _refused(FixedLayout.REFUSED),
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


def _place(family: Family) -> bytes:
    return x.concatenation(family, x.destination, x.protocol, x.port)


def _node_port(family: Family) -> bytes:
    return x.concatenation(family, x.protocol, x.port)


def _to_node(family: Family) -> bytes:
    return x.concatenation(family, x.destination) + x.contained(FixedLayout.NODE_IPS)


def _to_cluster_ip(family: Family) -> bytes:
    return x.concatenation(family, x.destination) + x.contained(FixedLayout.CLUSTER_IPS)


def _refused(name: FixedLayout) -> bytes:
    return x.looked_up(name, verdict_map=True)


def _service_rules(family: Family) -> tuple[bytes, ...]:
    return (
        _place(family) + x.looked_up(FixedLayout.SERVICES, verdict_map=True),
        _to_node(family) + _node_port(family) + x.looked_up(FixedLayout.NODE_PORTS, verdict_map=True),
    )


def _masquerade_rules(family: Family) -> Iterator[bytes]:
    """What the node sends out under its own address: else the answer would not come back through it.

    Most went to a cluster IP, and need not be looked up as anything else.
    """
    masquerade = x.masquerade()
    itself = x.concatenation(family, x.source, x.destination, x.protocol, x.port) + x.contained(FixedLayout.HAIRPIN)
    first = x.concatenation(family, x.original_destination, x.protocol, x.original_port)
    first_address = x.concatenation(family, x.original_destination)
    first_node = first_address + x.contained(FixedLayout.NODE_IPS)
    first_port = x.concatenation(family, x.protocol, x.original_port)
    ours = x.source_is_local(family)
    yield x.is_translated(translated=False) + x.decide(RETURN)
    yield itself + masquerade
    yield first_address + x.contained(FixedLayout.CLUSTER_IPS) + x.decide(goto(_TO_CLUSTER_IPS))
    yield first + x.contained(FixedLayout.EXTERNAL) + masquerade
    yield first_node + first_port + x.contained(FixedLayout.EXTERNAL_NODE_PORTS) + masquerade
    yield ours + first + x.contained(FixedLayout.EXTERNAL_LOCAL) + masquerade
    yield ours + first_node + first_port + x.contained(FixedLayout.LOCAL_NODE_PORTS) + masquerade


def _cluster_ip_masquerade_rules(family: Family, options: LayoutOptions) -> Iterator[bytes]:
    if not options.masquerade_all:
        yield (_from_pods(family, options) or b"") + x.decide(RETURN)
    yield x.masquerade()


@lru_cache(maxsize=1024)
def pick_chain(family: Family, name: str, slots: int, *, local: bool, node_port: bool) -> Chain:
    """One of `slots` numbered endpoints of the address, or node port, that the packet goes to."""
    chance = x.chance(slots, LOCAL_OFFSET if local else 0)
    place = () if node_port else (x.destination,)
    endpoints = FixedLayout.NODE_PORT_ENDPOINTS if node_port else FixedLayout.ENDPOINTS
    key = x.concatenation(family, *place, x.protocol, x.port, chance)
    return Chain(name, (key + x.looked_up(endpoints) + x.destination_nat(family),))


def _from_pods(family: Family, options: LayoutOptions) -> bytes | None:
    """None where pods can't be told from others."""
    if options.pods_interface:
        return x.came_by(options.pods_interface)
    return x.concatenation(family, x.source) + x.contained(FixedLayout.PODS) if options.pods_known else None


def external_local_chain(family: Family, name: str, cluster: str, local: str, options: LayoutOptions) -> Chain:
    """Pods and the node itself go wherever the cluster would send them; others stay on the node, or are not served."""
    from_pods = _from_pods(family, options)
    rules = [from_pods + x.decide(goto(cluster))] if cluster and from_pods else []
    if cluster:
        rules.append(x.source_is_local(family) + x.decide(goto(cluster)))
    if local:
        rules.append(x.decide(goto(local)))
    return Chain(name, tuple(rules))


def firewall_chain(family: Family, name: str, allowed: tuple[tuple[bytes, bytes], ...]) -> Chain:
    """`allowed`: networks and their masks."""
    rules = (x.source_within(family, network, mask) + x.decide(RETURN) for network, mask in allowed)
    return Chain(name, (*rules, x.decide(DROP)))


def sticky_endpoint_chain(family: Family, name: str, clients: str, protocol: int, address: bytes, port: int) -> Chain:
    send = x.is_protocol(family, protocol) + x.fixed_destination(family, address, port) + x.destination_nat(family)
    return Chain(name, (x.remember_source(family, clients), send))


def sticky_chain(family: Family, name: str, kept: tuple[tuple[str, str], ...], picks: str, slots: int) -> Chain:
    """`kept`: each endpoint's set of clients and its chain; who is in none of them gets one at random."""
    known = (
        x.concatenation(family, x.source) + x.contained(clients) + x.decide(goto(chain)) for clients, chain in kept
    )
    pick = x.concatenation(family, x.chance(slots)) + x.looked_up(picks, verdict_map=True)
    return Chain(name, (*known, pick))


def place_key(address: bytes, protocol: int, port: int) -> bytes:
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
    """What follows the address in the data of an endpoint."""
    return struct.pack(">Hxx", port)
