"""Nodes of client networks: an answer to a forwarder holds for every client of the network it asks for."""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Network, IPv6Network

import dns.edns
import dns.message
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.dns.cluster import FakeCluster, answer_texts, endpoint, headless, slice_of
from zonewise.dns.decide.client_location import ClientLocations
from zonewise.dns.decide.handler import MAX_MESSAGE_BYTES, QuerySender, respond

ZONES = {"db": '["topology.kubernetes.io/zone"]', "near": '["topology.kubernetes.io/zone", "*"]'}
A1, B1 = "10.0.11.1", "10.0.21.1"


def cluster() -> FakeCluster:
    """zone-a-1 has pods 10.0.11.0/24 and zone-a-2 10.0.12.0/24; zone-b has 10.0.21.0/24 and 10.0.22.0/24."""
    made = FakeCluster()
    for name, keys in ZONES.items():
        rule = {"zonewise.dev/topology-keys": keys}
        made.put(headless(name, annotations=rule), slice_of(name, [endpoint(A1, "zone-a-1"), endpoint(B1, "zone-b-1")]))
    return made


def ask(made: FakeCluster, name: str, network: IPv4Network | IPv6Network) -> tuple[list[str], int]:
    option = dns.edns.ECSOption(str(network.network_address), network.prefixlen)
    query = dns.message.make_query(f"{name}.shop.svc.cluster.local.", "A", use_edns=0, options=[option])
    packet = respond(made.table, query.to_wire(), QuerySender("zone-b-1", forwards=True), MAX_MESSAGE_BYTES)
    assert isinstance(packet, bytes)
    reply = dns.message.from_wire(packet)
    (echoed,) = reply.options
    assert isinstance(echoed, dns.edns.ECSOption)
    return answer_texts(reply), echoed.scopelen


CASES = [
    ("10.0.11.9/32", [A1], "one client"),
    ("10.0.11.0/24", [A1], "one node"),
    ("10.0.11.128/25", [A1], "a part of one node"),
    ("10.0.0.0/16", [A1, B1], "several zones"),
    ("10.0.8.0/21", [A1, B1], "one zone, and addresses on no node"),
    ("10.0.0.0/8", [A1, B1], "all"),
    ("0.0.0.0/0", [A1, B1], "a forwarder that tells nothing"),
    ("192.168.1.1/32", [A1], "a node's own address"),
    ("192.168.0.0/16", [A1, B1], "own addresses of several nodes"),
    ("198.51.100.0/24", [A1, B1], "no node"),
]


@pytest.mark.parametrize("name", ZONES)
@pytest.mark.parametrize(("network", "expected"), [case[:2] for case in CASES], ids=[case[2] for case in CASES])
def test_answer_holds_for_the_whole_client_network(name: str, network: str, expected: list[str]) -> None:
    asked = IPv4Network(network)
    assert ask(cluster(), name, asked) == ([f"A {address}" for address in expected], asked.prefixlen)


def test_network_within_one_zone_gets_its_answer() -> None:
    made = cluster()
    pods = {IPv4Address(f"10.9.0.{n}").packed: f"zone-a-{1 + n % 2}" for n in range(4)}
    made.table.locations.pods.update(pods)
    assert ask(made, "db", IPv4Network("10.9.0.0/30")) == ([f"A {A1}"], 30)
    assert ask(made, "db", IPv4Network("10.9.0.0/29")) == ([f"A {A1}", f"A {B1}"], 29)


NODES = ("a", "b", "c")
addresses = st.integers(0, 255).map(lambda last: bytes((10, 0, 0, last)))
points = st.dictionaries(addresses, st.sampled_from(NODES), max_size=12)


@st.composite
def placed(draw: st.DrawFn) -> ClientLocations:
    """Ranges within 10.0.0.0/24, nested or not, as `client_locations` sorts them."""
    ranges: dict[int, dict[int, str]] = {}
    for bits in sorted(draw(st.sets(st.integers(0, 9), max_size=4))):
        numbers = st.integers(0, max(0, 255 >> bits)).map(lambda n, bits=bits: (10 << 24 >> bits) + n)
        ranges[bits] = draw(st.dictionaries(numbers, st.sampled_from(NODES), max_size=40))
    return ClientLocations(draw(points), {4: ranges}, draw(points))


@given(placed(), st.integers(0, 255), st.integers(22, 32))
def test_nodes_of_a_network_are_those_of_its_addresses(locations: ClientLocations, last: int, prefix: int) -> None:
    network = IPv4Network((bytes((10, 0, 0, last)), prefix), strict=False)
    each = {locations.node_of(str(address)) for address in network}
    nodes = locations.nodes_in(str(network.network_address), prefix)
    assert each <= nodes, "never fewer"
    assert len(nodes) > 1 or nodes == each
    mapped = f"::ffff:{network.network_address}"
    assert locations.nodes_in(mapped, 96 + prefix) == nodes
    if not any(locations.exact) and not any(locations.pods) and len(locations.ranges[4]) < 2:
        assert nodes == each, "never more, unless ranges are hidden by others"
