"""Answers of headless Services by the client's location, for every policy."""

from __future__ import annotations

import dns.edns
import dns.message
import dns.rcode
import msgspec
import pytest

from support.dns.cluster import FakeCluster, answer_texts, endpoint, headless, node, nodes, slice_of
from zonewise.dns.decide.handler import MAX_MESSAGE_BYTES, QuerySender, respond

KEYS = "zonewise.dev/topology-keys"
SAME_ZONE = "endpointslice.kubernetes.io/same-zone"
SAME_NODE = "endpointslice.kubernetes.io/same-node"

IN_A, IN_B, IN_C, NOWHERE = "10.0.11.99", "10.0.21.99", "10.0.31.99", "203.0.113.9"
"""Clients on zone-a-1, zone-b-1, zone-c-1, and outside the cluster."""

A1, A2, B1 = "10.0.11.1", "10.0.12.1", "10.0.21.1"
ENDPOINTS = [endpoint(A1, "zone-a-1"), endpoint(A2, "zone-a-2"), endpoint(B1, "zone-b-1")]
EVERY = [A1, A2, B1]

POLICIES = [
    ("none", {}, {}, {IN_A: EVERY, IN_B: EVERY, IN_C: EVERY}),
    ("hard keys", {KEYS: '["topology.kubernetes.io/zone"]'}, {}, {IN_A: [A1, A2], IN_B: [B1], IN_C: []}),
    (
        "soft keys",
        {KEYS: '["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]'},
        {},
        {IN_A: [A1], IN_B: [B1], IN_C: EVERY, "10.0.22.9": [B1]},
    ),
    ("hard host names", {KEYS: '["kubernetes.io/hostname"]'}, {}, {IN_A: [A1], IN_B: [B1], "10.0.22.9": []}),
    ("same zone required", {SAME_ZONE: "Require"}, {}, {IN_A: [A1, A2], IN_B: [B1], IN_C: []}),
    ("same node required", {SAME_NODE: "Require"}, {}, {IN_A: [A1], IN_B: [B1], "10.0.22.9": []}),
    ("balanced", {SAME_ZONE: "Balanced"}, {}, {IN_A: EVERY, IN_B: EVERY, IN_C: EVERY}),
    ("preferred close", {}, {"trafficDistribution": "PreferClose"}, {IN_A: [A1, A2], IN_B: [B1], IN_C: EVERY}),
    (
        "preferred same node",
        {},
        {"trafficDistribution": "PreferSameNode"},
        {IN_A: [A1], "10.0.12.9": [A2], IN_B: [B1], "10.0.22.9": [B1], IN_C: EVERY},
    ),
    ("a node's own address", {SAME_ZONE: "Require"}, {}, {"192.168.2.1": [B1], "::ffff:192.168.1.1": [A1, A2]}),
]


@pytest.mark.parametrize(
    ("annotations", "spec", "expected"), [case[1:] for case in POLICIES], ids=[case[0] for case in POLICIES]
)
def test_headless_answer_follows_policy_and_client_zone(
    annotations: dict[str, str], spec: dict[str, str], expected: dict[str, list[str]]
) -> None:
    cluster = FakeCluster().put(headless("db", annotations=annotations, **spec), slice_of("db", ENDPOINTS))
    for client, addresses in (expected | {NOWHERE: EVERY}).items():
        reply = cluster.ask("db.shop.svc.cluster.local.", client=client)
        assert answer_texts(reply) == [f"A {address}" for address in addresses], client
        assert reply.rcode() == dns.rcode.NOERROR, "with a hard rule the name exists, without data"
        ports = cluster.ask("_http._tcp.db.shop.svc.cluster.local.", "SRV", client=client)
        assert len(answer_texts(ports)) == len(addresses)
        assert answer_texts(cluster.ask("10-0-21-1.db.shop.svc.cluster.local.", client=client)) == [f"A {B1}"], (
            "an endpoint's own name is not filtered"
        )


def test_automatic_hints_and_prefer_answer_by_zone() -> None:
    spread = [endpoint(f"10.0.{z}1.{n}", f"zone-{zone}-1") for z, zone in enumerate("abc", 1) for n in range(1, 7)]
    for policy in ({"service.kubernetes.io/topology-mode": "Auto"}, {SAME_ZONE: "Prefer"}):
        cluster = FakeCluster().put(headless("db", annotations=policy), slice_of("db", spread))
        for z, client in enumerate((IN_A, IN_B, IN_C), 1):
            records = answer_texts(cluster.ask("db.shop.svc.cluster.local.", client=client))
            assert records == [f"A 10.0.{z}1.{n}" for n in range(1, 7)], policy


def test_both_address_families_follow_the_rule() -> None:
    cluster = FakeCluster()
    cluster.put(
        headless("db", annotations={SAME_ZONE: "Require"}),
        slice_of("db", ENDPOINTS),
        slice_of("db", [endpoint("fd00:21::1", "zone-b-1"), endpoint("fd00:31::1", "zone-c-1")], family="IPv6"),
    )
    expected = {IN_A: [], IN_B: ["fd00:21::1"], IN_C: ["fd00:31::1"], "fd00:22::9": ["fd00:21::1"]}
    for client, addresses in expected.items():
        assert answer_texts(cluster.ask("db.shop.svc.cluster.local.", "AAAA", client=client)) == [
            f"AAAA {a}" for a in addresses
        ]
    assert len(answer_texts(cluster.ask("db.shop.svc.cluster.local.", "SRV", client=IN_B))) == 2


def test_relabelled_node_changes_its_clients_answers() -> None:
    cluster = FakeCluster().put(headless("db", annotations={SAME_ZONE: "Require"}), slice_of("db", ENDPOINTS))
    assert answer_texts(cluster.ask("db.shop.svc.cluster.local.", client=IN_C)) == []
    moved = [item for item in nodes() if item.metadata.name != "zone-c-1"]
    moved.append(node("zone-c-1", "zone-b", ["10.0.31.0/24"], "192.168.3.1"))
    cluster.apply(cluster.zone.set_nodes(moved))
    for key in list(cluster.zone.node_dependent):
        assert key.name == "db"
    cluster.put(headless("db", annotations={SAME_ZONE: "Require"}), slice_of("db", ENDPOINTS))
    assert answer_texts(cluster.ask("db.shop.svc.cluster.local.", client=IN_C)) == [f"A {B1}"]


DRAIN = {"zonewise.dev/drain-zone": "zone-a"}


@pytest.mark.parametrize("by", ["service", "namespace", "node"])
def test_drained_zone_is_excluded_but_keeps_its_names(by: str) -> None:
    cluster = FakeCluster()
    if by == "namespace":
        cluster.apply(cluster.zone.set_namespaces({"shop": DRAIN}))
    if by == "node":
        first, *others = nodes()
        annotated = msgspec.structs.replace(first, metadata=msgspec.structs.replace(first.metadata, annotations=DRAIN))
        cluster.apply(cluster.zone.set_nodes([annotated, *others]))
    cluster.put(headless("db", annotations=DRAIN if by == "service" else {}), slice_of("db", ENDPOINTS))
    for client in (IN_A, IN_B, NOWHERE):
        assert answer_texts(cluster.ask("db.shop.svc.cluster.local.", client=client)) == [f"A {B1}"]
    assert answer_texts(cluster.ask("10-0-11-1.db.shop.svc.cluster.local.")) == [f"A {A1}"]
    assert answer_texts(cluster.ask("zone-a.pin._zone.db.shop.svc.cluster.local.")) == [f"A {A1}", f"A {A2}"]


def test_near_and_far_answers_are_counted() -> None:
    soft = {KEYS: '["topology.kubernetes.io/zone", "*"]'}
    cluster = FakeCluster().put(headless("db", annotations=soft), slice_of("db", ENDPOINTS))
    for client in (IN_A, IN_B, IN_C, NOWHERE):
        cluster.ask("db.shop.svc.cluster.local.", client=client)
    counts = cluster.counters.reset()
    assert (counts["near"], counts["far"]) == (2, 2)


def test_client_subnet_is_trusted_from_forwarders_only() -> None:
    cluster = FakeCluster().put(headless("db", annotations={SAME_ZONE: "Require"}), slice_of("db", ENDPOINTS))
    option = dns.edns.ECSOption(IN_B, 32)
    query = dns.message.make_query("db.shop.svc.cluster.local.", "A", use_edns=0, options=[option]).to_wire()
    for forwards, expected in ((False, EVERY), (True, [B1])):
        packet = respond(cluster.table, query, QuerySender("", forwards), MAX_MESSAGE_BYTES)
        assert isinstance(packet, bytes)
        reply = dns.message.from_wire(packet)
        assert answer_texts(reply) == [f"A {address}" for address in expected]
        (echoed,) = reply.options
        assert isinstance(echoed, dns.edns.ECSOption)
        assert (echoed.address, echoed.scopelen) == (IN_B, 32), "the answer holds for this client alone"
