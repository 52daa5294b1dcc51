"""Same node, zone and region: walls, preferences within them, and the reason of each level."""

import pytest

from unit.routing.build import cluster, endpoint, endpoints, node, service
from zonewise.api.names import (
    ALGORITHM,
    OVERLOAD_THRESHOLD,
    PADDING,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTING_THRESHOLD,
)
from zonewise.objects import Endpoint
from zonewise.routing import Decision, RoutingCode, RoutingNodes, RoutingSubject, choose, decide, forecast
from zonewise.topology import REGION

AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
THREE = cluster({"a": 2, "b": 2, "c": 2})
TWO_REGIONS = RoutingNodes.of(
    [node(name, name[0], region="west" if name[0] in "ab" else "east") for name in ("a1", "b1", "c1", "d1")]
)


def decided(
    annotations: dict[str, str],
    candidates: list[Endpoint],
    routing_nodes: RoutingNodes,
    previous: Decision | None = None,
) -> Decision:
    return decide(service(annotations), candidates, routing_nodes, previous or {})


def chosen(decision: Decision, routing_nodes: RoutingNodes, client: str) -> str:
    return " ".join(choose(decision, routing_nodes, client).shares)


FOUR = [endpoint("A1", "a1"), endpoint("A2", "a2"), endpoint("B1", "b1"), endpoint("X")]

CHOICES = {
    "balanced": ({SAME_ZONE: "Balanced"}, FOUR, THREE, "a1", "A1 A2 B1 X"),
    "misspelled": ({SAME_ZONE: "Required"}, FOUR, THREE, "c1", "A1 A2 B1 X"),
    "zone required": ({SAME_ZONE: "Require"}, FOUR, THREE, "a2", "A1 A2"),
    "zone required, none there": ({SAME_ZONE: "Require"}, FOUR, THREE, "c1", ""),
    "zone required, client nowhere": ({SAME_ZONE: "Require"}, FOUR, THREE, "unknown", ""),
    "node required": ({SAME_NODE: "Require"}, FOUR, THREE, "a2", "A2"),
    "node required, none there": ({SAME_NODE: "Require"}, FOUR, THREE, "b2", ""),
    "node required beats zone preferred": ({SAME_NODE: "Require", SAME_ZONE: "Prefer"}, FOUR, THREE, "b2", ""),
    "node preferred": ({SAME_NODE: "Prefer"}, FOUR, THREE, "a2", "A2"),
    "node preferred, none there": ({SAME_NODE: "Prefer"}, FOUR, THREE, "b2", "A1 A2 B1 X"),
    "node preferred in a required zone": ({SAME_NODE: "Prefer", SAME_ZONE: "Require"}, FOUR, THREE, "a2", "A2"),
    "node preferred in a required zone, none on the node": (
        {SAME_NODE: "Prefer", SAME_ZONE: "Require"},
        FOUR,
        THREE,
        "b2",
        "B1",
    ),
    "zone preferred": ({SAME_ZONE: "Prefer"} | AT_ONCE, endpoints({"a": 1, "b": 1, "c": 2}), THREE, "c2", "c-1 c-2"),
    "node, then zone": (
        {SAME_NODE: "Prefer", SAME_ZONE: "Prefer"} | AT_ONCE,
        endpoints({"a": 2, "b": 2, "c": 2}),
        THREE,
        "a2",
        "a-1 a-2",
    ),
    "zone preferred, below the start": (
        {SAME_ZONE: "Prefer"},
        endpoints({"a": 3, "b": 3, "c": 3}),
        THREE,
        "a1",
        "a-1 a-2 a-3 b-1 b-2 b-3 c-1 c-2 c-3",
    ),
    "region required": ({SAME_REGION: "Require"}, endpoints({"a": 1, "c": 1}), TWO_REGIONS, "b1", "a-1"),
    "region preferred": (
        {SAME_REGION: "Prefer"} | AT_ONCE,
        endpoints({"a": 2, "c": 1, "d": 1}),
        TWO_REGIONS,
        "d1",
        "c-1 d-1",
    ),
    "zone preferred in a required region": (
        {SAME_REGION: "Require", SAME_ZONE: "Prefer"} | AT_ONCE,
        endpoints({"a": 1, "b": 1, "c": 1, "d": 1}),
        TWO_REGIONS,
        "c1",
        "c-1",
    ),
    "zone preferred in a required region borrows no further": (
        {SAME_REGION: "Require", SAME_ZONE: "Prefer"} | AT_ONCE,
        endpoints({"a": 5, "c": 2}),
        TWO_REGIONS,
        "d1",
        "c-2",
    ),
    "zone overloaded, so the region": (
        {SAME_REGION: "Prefer", SAME_ZONE: "Prefer"} | AT_ONCE,
        endpoints({"a": 1, "c": 1}),
        TWO_REGIONS,
        "d1",
        "c-1",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choice(name: str) -> None:
    annotations, candidates, routing_nodes, client, expected = CHOICES[name]
    assert chosen(decided(annotations, candidates, routing_nodes), routing_nodes, client) == expected


def test_require_names_zones_cut_off_and_hidden_endpoints() -> None:
    reason = decided({SAME_ZONE: "Require"}, FOUR, THREE).reason
    assert reason.code is RoutingCode.REQUIRED
    assert reason.blame == (RoutingSubject("Zone", "c"), RoutingSubject("Endpoint", "X"))
    assert "1 zone has none and cannot reach the Service: c" in reason.sentence
    assert reason.remedy


def test_require_with_endpoints_everywhere_has_no_blame() -> None:
    reason = decided({SAME_ZONE: "Require"}, endpoints({"a": 1, "b": 1, "c": 1}), THREE).reason
    assert (reason.blame, reason.remedy) == ((), "")


def test_node_that_would_overload_its_own_uses_others() -> None:
    """Three nodes, one endpoint on a1 and five on each of b1 and c1: a1 alone would load its own 3.7-fold."""
    nodes = cluster({"a": 1, "b": 1, "c": 1})
    decision = decided({SAME_NODE: "Prefer"}, endpoints({"a": 1, "b": 5, "c": 5}), nodes)
    assert len(choose(decision, nodes, "a1").shares) == 11
    assert len(choose(decision, nodes, "b1").shares) == 5
    assert decision.reason.blame == (RoutingSubject("Node", "a1"),)
    tolerant = decided({SAME_NODE: "Prefer", OVERLOAD_THRESHOLD: "300%"}, endpoints({"a": 1, "b": 5, "c": 5}), nodes)
    assert len(choose(tolerant, nodes, "a1").shares) == 1


def on_nodes(*counts: int) -> tuple[list[Endpoint], RoutingNodes]:
    """Nodes n0, n1, ... of one zone with so many endpoints each."""
    nodes = RoutingNodes.of(node(f"n{number}", "a") for number in range(len(counts)))
    return [
        endpoint(f"{name}-{n}", name) for name, count in zip(nodes.nodes, counts, strict=True) for n in range(count)
    ], nodes


NODE_LIMITS = {
    "own traffic is too much": ((1, 9), "50%", {"n0": 10, "n1": 9}, 0.056),
    "own traffic and that of nodes without endpoints": (
        (2, 18, *[0] * 8),
        "50%",
        {"n0": 20, "n1": 18, "n2": 20},
        0.011,
    ),
    "the limit allows it": ((2, 18, *[0] * 8), "100%", {"n0": 2, "n1": 18, "n2": 20}, 0.8),
    "giving up loads others, who give up too": ((3, 4, 9, 0), "20%", {"n0": 16, "n1": 16, "n2": 9, "n3": 16}, 0.194),
    "alike nodes": ((2, 2, 0, 0), "10%", {"n0": 2, "n1": 2, "n2": 4}, 0.0),
}


@pytest.mark.parametrize(("counts", "limit", "gets", "worst"), NODE_LIMITS.values(), ids=NODE_LIMITS)
def test_node_keeps_to_its_own_within_the_limit_of_all_traffic(
    counts: tuple[int, ...], limit: str, gets: dict[str, int], worst: float
) -> None:
    candidates, nodes = on_nodes(*counts)
    decision = decided({SAME_NODE: "Prefer", OVERLOAD_THRESHOLD: limit}, candidates, nodes)
    assert {name: len(choose(decision, nodes, name).shares) for name in gets} == gets
    assert forecast(decision, nodes).worst_overload == pytest.approx(worst, abs=1e-3)
    assert decision.reason.facts["worst_overload"] == pytest.approx(worst, abs=1e-3), "the reason says the same"


def test_example_of_the_docs() -> None:
    nodes = cluster({"a": 2, "b": 2})
    candidates = [endpoint(f"{at}-{n}", at) for at, count in {"a1": 6, "b1": 1, "b2": 5}.items() for n in range(count)]
    decision = decided({SAME_NODE: "Prefer", SAME_ZONE: "Prefer"}, candidates, nodes)
    assert {name: len(choose(decision, nodes, name).shares) for name in nodes.nodes} == {
        "a1": 6,
        "a2": 6,
        "b1": 6,
        "b2": 5,
    }
    assert forecast(decision, nodes).worst_overload == pytest.approx(0.1)


def test_lent_endpoints_do_not_serve_their_node_too() -> None:
    """Zone a has seven and lends two, so its node keeps to five."""
    nodes = cluster({"a": 1, "b": 1})
    decision = decided({SAME_NODE: "Prefer", SAME_ZONE: "Prefer"} | AT_ONCE, endpoints({"a": 7, "b": 3}), nodes)
    assert [len(choose(decision, nodes, name).shares) for name in nodes.nodes] == [5, 5]
    assert forecast(decision, nodes).worst_overload == 0


def test_no_node_can_keep_to_its_own() -> None:
    candidates, nodes = on_nodes(1, *[0] * 3)
    assert decided({SAME_NODE: "Prefer"}, candidates, nodes).reason.code is RoutingCode.PREFERRED, "fair even so"
    candidates, nodes = on_nodes(1, 1, *[0] * 2)
    candidates += [endpoint(f"x{number}") for number in range(8)]
    reason = decided({SAME_NODE: "Prefer"}, candidates, nodes).reason
    assert (reason.code, reason.facts["crowded_nodes"]) == (RoutingCode.WOULD_OVERLOAD, 2)


def test_regions_do_not_add_load_beside_zones() -> None:
    """A node without zone uses every endpoint, not only those of its region."""
    nodes = RoutingNodes.of([*TWO_REGIONS.nodes.values(), node("bare", region="west")])
    both = {SAME_ZONE: "Prefer", SAME_REGION: "Prefer"} | AT_ONCE
    decision = decided(both, endpoints(dict.fromkeys("abcd", 2)), nodes)
    assert len(choose(decision, nodes, "bare").shares) == 8
    assert [reason.code for reason in decision.reasons] == [RoutingCode.PREFERRED] * 2
    assert REGION in decision.memory, "the preference of regions has started"


def test_one_endpoint_per_node_stays_on_its_node() -> None:
    daemons = [endpoint(name.upper(), name) for name in THREE.nodes]
    decision = decided({SAME_NODE: "Prefer"}, daemons, THREE)
    assert [chosen(decision, THREE, name) for name in THREE.nodes] == [name.upper() for name in THREE.nodes]


def test_nodes_without_a_zone_are_named_and_use_all_endpoints() -> None:
    nodes = RoutingNodes.of([*THREE.nodes.values(), node("bare")])
    decision = decided({SAME_ZONE: "Prefer"} | AT_ONCE, endpoints({"a": 2, "b": 2, "c": 2}), nodes)
    assert decision.reason.blame == (RoutingSubject("Node", "bare"),)
    assert len(choose(decision, nodes, "bare").shares) == 6


def test_each_level_has_its_reason() -> None:
    annotations = {SAME_NODE: "Prefer", SAME_ZONE: "Prefer", SAME_REGION: "Require"} | AT_ONCE
    decision = decided(annotations, endpoints({"a": 1, "b": 1, "c": 1}), TWO_REGIONS)
    assert [reason.code for reason in decision.reasons] == [
        RoutingCode.PREFERRED,
        RoutingCode.WOULD_OVERLOAD,
        RoutingCode.REQUIRED,
    ]
    assert decision.reasons[1].sentence.startswith("east: ")


def test_walls_without_endpoints_have_no_preference() -> None:
    annotations = {SAME_ZONE: "Prefer", SAME_REGION: "Require"} | AT_ONCE
    decision = decided(annotations, [endpoint("X", "nowhere")], TWO_REGIONS)
    assert [reason.code for reason in decision.reasons] == [RoutingCode.NO_ENDPOINTS, RoutingCode.REQUIRED]
    assert decision.reasons[1].blame[-1] == RoutingSubject("Endpoint", "X")
    assert str(decision.reasons[1].blame[-1]) == "Endpoint X"
    assert choose(decision, TWO_REGIONS, "a1").reason.code is RoutingCode.NONE_REACHABLE


def test_preference_is_restored_when_a_zone_returns() -> None:
    """Ten endpoints are too few to start at 6 + 5, but enough to continue."""
    annotations = {SAME_ZONE: "Prefer", PADDING: "5"}
    two_zones, one_zone = cluster({"a": 1, "b": 1}), cluster({"a": 1})
    first = decided(annotations, endpoints({"a": 6, "b": 6}), two_zones)
    during = decided(annotations, endpoints({"a": 5, "b": 5}), one_zone, first)
    assert (during.reason.code, len(choose(during, one_zone, "a1").shares)) == (RoutingCode.ONE_DOMAIN, 10)
    after = decided(annotations, endpoints({"a": 5, "b": 5}), two_zones, during)
    assert after.reason.code is RoutingCode.PREFERRED
    assert decided(annotations, endpoints({"a": 5, "b": 5}), two_zones).reason.code is RoutingCode.BELOW_START


def test_regions_have_separate_memory() -> None:
    annotations = {SAME_REGION: "Require", SAME_ZONE: "Prefer", STARTING_THRESHOLD: "4", PADDING: "2"}
    many = decided(annotations, endpoints({"a": 3, "b": 3, "c": 2, "d": 2}), TWO_REGIONS)
    assert (chosen(many, TWO_REGIONS, "a1"), chosen(many, TWO_REGIONS, "c1")) == ("a-1 a-2 a-3", "c-1 c-2 d-1 d-2")
    fewer = decided(annotations, endpoints({"a": 2, "b": 2, "c": 2, "d": 2}), TWO_REGIONS, many)
    assert (chosen(fewer, TWO_REGIONS, "a1"), chosen(fewer, TWO_REGIONS, "c1")) == ("a-1 a-2", "c-1 c-2 d-1 d-2")


def test_terminating_endpoints_are_not_preferred_but_walls_hold() -> None:
    draining = [
        endpoint(f"{zone.upper()}{n}", f"{zone}1", zone, ready=False, serving=True, terminating=True)
        for zone in "abc"
        for n in range(4)
    ]
    soft = decided({SAME_ZONE: "Prefer"} | AT_ONCE, draining, THREE)
    assert (soft.reason.code, len(choose(soft, THREE, "a1").shares)) == (RoutingCode.ONLY_TERMINATING, 12)
    hard = decided({SAME_ZONE: "Require"}, draining, THREE)
    assert (hard.reason.code, len(choose(hard, THREE, "a1").shares)) == (RoutingCode.ONLY_TERMINATING, 4)


def test_weights_reach_the_client() -> None:
    annotations = {SAME_ZONE: "Prefer", ALGORITHM: "local-weighted"} | AT_ONCE
    decision = decided(annotations, endpoints({"a": 3, "b": 2, "c": 2}), THREE)
    assert choose(decision, THREE, "b1").shares == pytest.approx({"a-3": 1 / 3, "b-1": 1, "b-2": 1})
