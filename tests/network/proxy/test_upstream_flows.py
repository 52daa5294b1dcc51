"""The flow tables of kube-proxy's own nftables tests, as packets through the kernel: with its rules, and with ours.

Upstream traces each flow through a model of nftables. Here the same states go through our decisions and our applier, and
the same packets through the real nftables.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple, TypeVar

import msgspec
import pytest

from network.proxy import wired_node
from network.proxy.upstream_flows import Flow, FlowTable, Settings, State, Sync, every_flow, read_states
from network.proxy.wired_node import MASQUERADED, WiredNode
from zonewise.lab.build import proxy_flows
from zonewise.lab.network import namespaces
from zonewise.objects import Node
from zonewise.proxy import node_addresses
from zonewise.proxy.applier import Applier, NodeNetwork, clean_up
from zonewise.proxy.decide.rules import address_limits
from zonewise.proxy.decide.service_rules import ServiceRules
from zonewise.proxy.decide.targets import NodeLocation
from zonewise.proxy.nft_socket import NftSocket
from zonewise.proxy.wire.family import FAMILIES
from zonewise.routing import RoutingNodes

T = TypeVar("T", Sync, FlowTable)

DIFFERENCES: Mapping[tuple[str, str], frozenset[str]] = {}
"""What happens instead where we differ from kube-proxy on purpose, by test and flow; docs/proxy.md has the reasons."""
_MASQUERADED = " masqueraded"
_TRIES, _TRIES_OF_SEVERAL, _TRIES_AT_MOST = 4, 64, 96
_TRIES_OF_SEVERAL_IN_SWEEP = 16


class Played(NamedTuple):
    table: FlowTable
    name: str
    expected: frozenset[str]
    outcomes: frozenset[str]

    def __str__(self) -> str:
        where = f"{self.table.test} ({self.table.line}), {self.name}"
        return f"{where}: expected {sorted(self.expected)}, got {sorted(self.outcomes)}"


@pytest.fixture(scope="module")
def wired() -> Iterator[WiredNode]:
    with wired_node.create() as node:
        yield node


@pytest.fixture(scope="module")
def beside() -> Iterator[WiredNode]:
    """Another one, for kube-proxy's rules."""
    with wired_node.create() as node:
        yield node


@pytest.fixture(scope="module")
def states() -> list[State]:
    return read_states(proxy_flows.find())


class _Proxy:
    """The node proxy without a cluster: what its server does with each batch of changes."""

    def __init__(self, wired: WiredNode, kernel: NftSocket) -> None:
        self._wired = wired
        self._kernel = kernel
        self._rules = ServiceRules(tuple(FAMILIES.values()), all_services=True)
        self._applier: Applier | None = None

    def sync(self, step: Sync) -> None:
        settings = step.settings
        location = NodeLocation(settings.node_name, RoutingNodes.of([Node()]))
        self._rules.limits = address_limits(settings.service_ranges, all_services=True)
        changes = [self._rules.decide(key, *step.objects[key], location) for key in sorted(step.changed)]
        merged = {
            family: {name: rules for change in changes for name, rules in change[family].items()}
            for family in FAMILIES.values()
        }
        if self._applier is None:
            self._applier = Applier(self._kernel, FAMILIES.values(), self._network(settings))
            self._applier.start(merged)
        else:
            self._applier.set_node_network(self._network(settings))
            self._applier.apply(merged)

    def _network(self, settings: Settings) -> NodeNetwork:
        status = {"addresses": [{"type": "InternalIP", "address": settings.node_ip}]}
        node = msgspec.convert({"status": status}, Node)
        ranges = settings.node_port_addresses
        addresses = namespaces.inside(self._wired.netns, lambda: node_addresses.node_port_addresses(node, ranges))
        return NodeNetwork(
            pod_ranges=settings.pod_ranges,
            addresses=addresses,
            masquerade_all=settings.masquerade_all,
            service_ranges=settings.service_ranges,
            node_ips=node_addresses.primary(node),
        )


def test_packets_go_where_kube_proxy_expects_them(wired: WiredNode, states: list[State]) -> None:
    played = [flow for state in states for table in _synced(wired, state, FlowTable) for flow in _play(wired, table)]
    different = {(flow.table.test, flow.name): flow.outcomes for flow in played if flow.outcomes != flow.expected}
    print(f"{len(played)} flows of {len({id(flow.table) for flow in played})} tables, {len(different)} differ")
    assert different == DIFFERENCES, "\n".join(str(flow) for flow in played if flow.outcomes != flow.expected)
    assert len(played) >= 200


def test_kube_proxy_rules_do_in_the_kernel_what_its_model_says(wired: WiredNode, states: list[State]) -> None:
    """Otherwise the expectations are wrong, or this test's packets are."""
    played = []
    for state in states:
        wired.own(state.node_ips)
        for table in state.tables:
            with _stock_rules(wired, table.rules):
                played += _play(wired, table)
    assert [str(flow) for flow in played if flow.outcomes != flow.expected] == []


def test_both_proxies_do_the_same_in_every_state(wired: WiredNode, beside: WiredNode, states: list[State]) -> None:
    """Every address of every Service, from every source that the tables have; also in states without a table."""
    sources = {flow.source for state in states for table in state.tables for flow in table.flows}
    compared, differences = [], []
    for state in states:
        beside.own(state.node_ips)
        for sync in _synced(wired, state, Sync):
            flows = list(every_flow(sync, sources))
            with _stock_rules(beside, sync.rules):
                lines = [_difference(wired, beside, flow) for flow in flows]
            differences += [f"{state.test}: {line}" for line in lines if line]
            compared.append(len(flows))
    print(f"{sum(compared)} flows of {len(compared)} states, {len(differences)} differ")
    assert differences == []
    assert sum(compared) >= 2000


def _synced(wired: WiredNode, state: State, wanted: type[T]) -> Iterator[T]:
    """The steps of one kind, with our rules of that moment in place."""
    wired.own(state.node_ips)
    with namespaces.inside(wired.netns, NftSocket) as kernel:
        try:
            proxy = _Proxy(wired, kernel)
            for step in state.steps:
                if isinstance(step, Sync):
                    proxy.sync(step)
                if isinstance(step, wanted):
                    yield step
        finally:
            clean_up(kernel)


@contextmanager
def _stock_rules(wired: WiredNode, rules: str) -> Iterator[None]:
    nft = namespaces.command(wired.netns, ["nft", "-f", "-"])
    namespaces.run(nft, rules)
    yield
    family = "ip6" if "add table ip6 " in rules else "ip"
    namespaces.run(nft, f"delete table {family} kube-proxy")


def _play(wired: WiredNode, table: FlowTable) -> Iterator[Played]:
    for flow in table.flows:
        yield Played(table, flow.name, _expected(flow), _outcomes(wired, flow))
        if flow.source == flow.dest and flow.source not in wired.addresses:
            # A balancer's address may be one of the node's, too. It is the source then of what the node sends to it.
            node_ips = frozenset(wired.addresses)
            wired.own({*node_ips, flow.source})
            yield Played(table, f"{flow.name}, from the node", _expected(flow), _outcomes(wired, flow))
            wired.own(node_ips)


def _expected(flow: Flow) -> frozenset[str]:
    if flow.output in {"DROP", "REJECT"}:
        return frozenset({flow.output})
    return frozenset(f"{output}{_MASQUERADED if flow.masq else ''}" for output in flow.output.split(", "))


def _outcomes(wired: WiredNode, flow: Flow) -> frozenset[str]:
    tries = _TRIES_OF_SEVERAL if "," in flow.output else _TRIES
    return frozenset(_outcome(wired, flow) for _ in range(tries))


def _difference(wired: WiredNode, beside: WiredNode, flow: Flow) -> str:
    """Empty if packets come to the same places, however often they were tried."""
    ours: set[str] = set()
    stock: set[str] = set()
    for tries in range(1, _TRIES_AT_MOST):
        ours.add(_outcome(wired, flow))
        stock.add(_outcome(beside, flow))
        if ours == stock and tries >= (_TRIES if len(ours) == 1 else _TRIES_OF_SEVERAL_IN_SWEEP):
            return ""
    return f"{flow.source} to {flow.dest}:{flow.port} {flow.protocol}: ours {sorted(ours)}, stock {sorted(stock)}"


def _outcome(wired: WiredNode, flow: Flow) -> str:
    several = wired.send(flow.protocol, flow.source, flow.dest, flow.port)
    arrived = next((seen for seen in several if not seen.rejected), None)
    if arrived is None:
        return "REJECT" if several else "DROP"
    host = f"[{arrived.dest}]" if ":" in arrived.dest else arrived.dest
    unchanged = arrived.port == flow.port and arrived.dest in {"", flow.dest}  # empty: the node took it itself
    if arrived.source in MASQUERADED:
        source = _MASQUERADED
    else:
        source = "" if arrived.source == flow.source else f" from {arrived.source}"
    return f"{'' if unchanged else f'{host}:{arrived.port}'}{source}"
