"""Decisions as hints, what hints cannot express, and what slices store."""

import json
from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import cluster, endpoint, endpoints, node, service
from zonewise.api.names import (
    ALGORITHM,
    OLD_HINTS,
    PADDING,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTING_THRESHOLD,
    TOPOLOGY_KEYS,
)
from zonewise.objects import Endpoint, EndpointHints, EndpointPort, EndpointSlice, Metadata, ServicePort
from zonewise.routing import RoutingCode, RoutingNodes, choose, decide, express, recall, stock_choice
from zonewise.topology import HOSTNAME, REGION, ZONE

AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
THREE = cluster({"a": 1, "b": 1, "c": 1}, region="r")
REGIONS = RoutingNodes.of(
    node(f"{zone}1", zone, region="west" if zone in "ab" else "east", labels={"rack": zone}) for zone in "abcd"
)
MANY = cluster({f"z{number}": 1 for number in range(10)}, region="r")
TWO = [endpoint("A", "a1", "a"), endpoint("B", "b1", "b")]


def keys(*label_keys: str) -> dict[str, str]:
    return {TOPOLOGY_KEYS: json.dumps(label_keys)}


def read(hints: Mapping[str, EndpointHints]) -> dict[str, str]:
    """`zones/nodes` by address."""
    return {
        address: f"{'+'.join(h.name for h in given.for_zones)}/{'+'.join(h.name for h in given.for_nodes)}"
        for address, given in hints.items()
    }


EXPRESSED = {
    # name: annotations, endpoints, cluster, hints, words of the losses
    "no policy": ({}, TWO, THREE, {}, []),
    "zone preferred": (
        {SAME_ZONE: "Prefer"} | AT_ONCE,
        endpoints({"a": 1, "b": 1, "c": 1}),
        THREE,
        {"a-1": "a/", "b-1": "b/", "c-1": "c/"},
        [],
    ),
    "zone required": ({SAME_ZONE: "Require"}, TWO, THREE, {"A": "a/", "B": "b/"}, ["the rule is hard"]),
    "node required": ({SAME_NODE: "Require"}, TWO, THREE, {"A": "/a1", "B": "/b1"}, ["the rule is hard"]),
    "node preferred": ({SAME_NODE: "Prefer"}, TWO, THREE, {"A": "/a1", "B": "/b1"}, []),
    "node preferred, one on no node": (
        {SAME_NODE: "Prefer"},
        [*TWO, endpoint("X")],
        THREE,
        {"A": "/a1", "B": "/b1", "X": "/zonewise-no-node"},
        [],
    ),
    "region required": (
        {SAME_REGION: "Require"},
        endpoints({"a": 1, "c": 1}),
        REGIONS,
        {"a-1": "a+b/", "c-1": "c+d/"},
        ["the rule is hard"],
    ),
    "region preferred": (
        {SAME_REGION: "Prefer"} | AT_ONCE,
        endpoints({"a": 1, "d": 1}),
        REGIONS,
        {"a-1": "a+b/", "d-1": "c+d/"},
        [],
    ),
    "zone preferred in one of two required regions": (
        {SAME_REGION: "Require", SAME_ZONE: "Prefer"} | AT_ONCE,
        endpoints({"a": 1, "b": 1, "c": 1}),
        REGIONS,
        {"a-1": "a/", "b-1": "b/", "c-1": "c+d/"},
        ["the rule is hard"],
    ),
    "host, zone, everyone": (keys(HOSTNAME, ZONE, "*"), TWO, THREE, {"A": "a/a1", "B": "b/b1"}, []),
    "zone, region, everyone": (
        keys(ZONE, REGION, "*"),
        TWO,
        THREE,
        {"A": "a/", "B": "b/"},
        [f"hints cannot express {REGION} at this position"],
    ),
    "rack, zone, everyone": (
        keys("rack", ZONE, "*"),
        TWO,
        REGIONS,
        {"A": "a/", "B": "b/"},
        ["hints cannot express rack at this position"],
    ),
    "zone before host": (
        keys(ZONE, HOSTNAME, "*"),
        TWO,
        THREE,
        {"A": "a/", "B": "b/"},
        [f"hints cannot express {HOSTNAME} at this position"],
    ),
    "zone, hard": (keys(ZONE), TWO, THREE, {"A": "a/", "B": "b/"}, ["the rule is hard"]),
    "zone, an endpoint without one": (
        keys(ZONE, "*"),
        [*TWO, endpoint("X")],
        THREE,
        {},
        ["1 endpoints are for no zone"],
    ),
    "weights": (
        {SAME_ZONE: "Prefer", ALGORITHM: "local-weighted"} | AT_ONCE,
        endpoints({"a": 2, "b": 1, "c": 1}),
        THREE,
        {"a-1": "a/", "a-2": "a+b+c/", "b-1": "b/", "c-1": "c/"},
        ["hints cannot express weights"],
    ),
    "more zones than hints can name": (
        {SAME_REGION: "Prefer"} | AT_ONCE,
        [endpoint("X", "z01")],
        RoutingNodes.of([*MANY.nodes.values(), node("far", "far", region="far")]),
        {},
        [],
    ),
    "ten zones in a region, hard": (
        {SAME_REGION: "Require"},
        [endpoint("X", "z01")],
        MANY,
        {},
        ["the rule is hard", "more than 8 zones"],
    ),
}


@pytest.mark.parametrize("name", EXPRESSED)
def test_express(name: str) -> None:
    annotations, candidates, routing_nodes, hints, words = EXPRESSED[name]
    expression = express(decide(service(annotations), candidates, routing_nodes), routing_nodes)
    assert read(expression.hints) == hints
    assert len(expression.losses) == len(words)
    assert all(word in loss.sentence for word, loss in zip(words, expression.losses, strict=True))
    assert all(loss.code is RoutingCode.NEEDS_PROXY and loss.remedy for loss in expression.losses)


def test_host_label_is_translated_to_node_names() -> None:
    named = RoutingNodes.of([node("ip-10-0-0-1", "a", labels={HOSTNAME: "one"})])
    decision = decide(service(keys(HOSTNAME, "*")), [endpoint("A", "ip-10-0-0-1")], named)
    assert read(express(decision, named).hints) == {"A": "/ip-10-0-0-1"}


def test_recall_reads_zones_and_regions_from_hints() -> None:
    hinted = [endpoint("A", "a1", zones="ab"), endpoint("C", "c1", zones="c"), endpoint("X"), Endpoint()]
    memory = recall(hinted, REGIONS)
    assert {address: [share.domain for share in consumers] for address, consumers in memory[ZONE].items()} == {
        "A": ["a", "b"],
        "C": ["c"],
    }
    assert {address: [share.domain for share in consumers] for address, consumers in memory[REGION].items()} == {
        "A": ["west"],
        "C": ["east"],
    }


def test_recall_without_hints() -> None:
    assert recall(TWO, THREE) == {}
    assert REGION not in recall([endpoint("A", zones="unknown")], THREE)


POLICIES = st.sampled_from(
    [
        {SAME_ZONE: "Prefer"} | AT_ONCE,
        {SAME_ZONE: "Prefer", ALGORITHM: "optimal"} | AT_ONCE,
        {SAME_ZONE: "Prefer", ALGORITHM: "local-shared"} | AT_ONCE,
        {SAME_REGION: "Prefer"} | AT_ONCE,
        {SAME_NODE: "Prefer"},
        {OLD_HINTS: "Auto"},
        keys(HOSTNAME, ZONE, "*"),
        keys(ZONE, "*"),
        keys(HOSTNAME, "*"),
        keys(HOSTNAME, REGION, "*"),
        keys(REGION, ZONE, "*"),
        keys("*"),
        {},
    ]
)


@given(POLICIES, st.lists(st.sampled_from(sorted(REGIONS.nodes)), min_size=1, max_size=20))
def test_stock_proxy_follows_the_decision_without_losses(annotations: dict[str, str], node_names: list[str]) -> None:
    """End to end: decide, express as hints, and let a stock proxy choose on every node."""
    candidates = [endpoint(f"10.0.0.{number}", node_name, node_name[0]) for number, node_name in enumerate(node_names)]
    svc = service(annotations, cluster_ip="10.96.0.1")
    decision = decide(svc, candidates, REGIONS)
    expression = express(decision, REGIONS)
    if expression.losses:
        return
    hinted = tuple(
        Endpoint(
            addresses=candidate.addresses,
            node_name=candidate.node_name,
            hints=expression.hints.get(candidate.addresses[0]),
        )
        for candidate in candidates
    )
    metadata = Metadata(name="web-1", namespace="shop", labels={"kubernetes.io/service-name": "web"})
    slices = [EndpointSlice(metadata=metadata, endpoints=hinted, ports=(EndpointPort(name="http", port=1),))]
    for name, client in REGIONS.nodes.items():
        stock = stock_choice(svc, ServicePort(name="http"), slices, client)
        ours = sorted(f"{address}:1" for address in choose(decision, REGIONS, name).shares)
        assert list(stock.cluster) == ours


@given(st.lists(st.sampled_from(sorted(REGIONS.nodes)), min_size=1, max_size=30), POLICIES)
def test_decision_from_recalled_hints_is_the_same(node_names: list[str], annotations: dict[str, str]) -> None:
    """A controller that restarts reads the memory from the slices and decides the same."""
    candidates = [endpoint(f"10.0.0.{number}", node_name, node_name[0]) for number, node_name in enumerate(node_names)]
    first = decide(service(annotations), candidates, REGIONS)
    expression = express(first, REGIONS)
    hinted = [
        Endpoint(
            addresses=candidate.addresses,
            node_name=candidate.node_name,
            zone=candidate.zone,
            conditions=candidate.conditions,
            hints=expression.hints.get(candidate.addresses[0]),
        )
        for candidate in candidates
    ]
    again = decide(service(annotations), hinted, REGIONS, recall(hinted, REGIONS))
    assert express(again, REGIONS).hints == expression.hints
