"""Forecasts of decisions, compared with manual calculations."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import cluster, endpoint, endpoints, node, service
from zonewise.api.names import ALGORITHM, PADDING, SAME_NODE, SAME_ZONE, STARTING_THRESHOLD, TOPOLOGY_KEYS
from zonewise.routing import RoutingCode, RoutingNodes, choose, decide, forecast
from zonewise.routing.tuning import PREFER_ALGORITHMS
from zonewise.topology import ZONE

AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
THREE = cluster({"a": 1, "b": 1, "c": 1})

FORECASTS = {
    "spread evenly": ({}, endpoints({"a": 3, "b": 3}), THREE, 1 / 3, 0.0, ()),
    "everyone at home": ({SAME_ZONE: "Prefer"} | AT_ONCE, endpoints({"a": 3, "b": 3, "c": 3}), THREE, 1.0, 0.0, ()),
    "a lucky zone": ({SAME_ZONE: "Prefer"} | AT_ONCE, endpoints({"a": 4, "b": 3, "c": 3}), THREE, 1.0, 1 / 9, ()),
    "required, uneven": ({SAME_ZONE: "Require"}, endpoints({"a": 1, "b": 1, "c": 4}), THREE, 1.0, 1.0, ()),
    "required, one cut off": ({SAME_ZONE: "Require"}, endpoints({"a": 1, "b": 1}), THREE, 1.0, 0.0, ("c1",)),
    "on the node, else anywhere": (
        {SAME_NODE: "Prefer"},
        [endpoint("A", "a1"), endpoint("B", "b1")],
        THREE,
        2 / 3,
        0.0,
        (),
    ),
    "clients without a zone are never at home": (
        {SAME_ZONE: "Prefer"} | AT_ONCE,
        endpoints({"a": 2, "b": 2}),
        RoutingNodes.of([node("a1", "a"), node("b1", "b"), node("x")]),
        2 / 3,
        0.0,
        (),
    ),
    "no nodes": ({}, endpoints({"a": 1}), RoutingNodes.of([]), 0.0, 0.0, ()),
}


@pytest.mark.parametrize("name", FORECASTS)
def test_forecast(name: str) -> None:
    annotations, candidates, routing_nodes, in_zone, overload, cut_off = FORECASTS[name]
    result = forecast(decide(service(annotations), candidates, routing_nodes), routing_nodes)
    assert result.in_zone == pytest.approx(in_zone)
    assert result.worst_overload == pytest.approx(overload)
    assert result.cut_off == cut_off


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=2),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1),
    st.sampled_from(sorted(PREFER_ALGORITHMS)),
)
def test_forecast_agrees_with_the_preference(nodes: dict[str, int], counts: dict[str, int], algorithm: str) -> None:
    routing_nodes = cluster(nodes)
    candidates = [endpoint(candidate.addresses[0], None, candidate.zone) for candidate in endpoints(counts)]
    decision = decide(service({SAME_ZONE: "Prefer", ALGORITHM: algorithm} | AT_ONCE), candidates, routing_nodes)
    if decision.reason.code is RoutingCode.PREFERRED:
        result = forecast(decision, routing_nodes)
        assert result.in_zone == pytest.approx(decision.reason.facts["in_domain"], abs=1e-4)
        assert result.worst_overload == pytest.approx(decision.reason.facts["worst_overload"], abs=1e-4)


KEYS = st.permutations(["kubernetes.io/hostname", "example.com/rack", ZONE]).flatmap(
    lambda keys: st.integers(1, 3).map(lambda count: keys[:count])
)


@given(
    st.lists(st.tuples(st.sampled_from(["a", "b", ""]), st.sampled_from(["1", "2", ""])), min_size=1, max_size=9),
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    KEYS,
    st.booleans(),
)
def test_grouped_clients_give_the_same_forecast_as_single_ones(
    domains: list[tuple[str, str]], homes: list[int], keys: list[str], soft: bool
) -> None:
    """Compared with a sum node by node, for any common domains."""
    routing_nodes = RoutingNodes.of(
        node(f"n{at}", zone or None, labels={"example.com/rack": rack} if rack else {})
        for at, (zone, rack) in enumerate(domains)
    )
    candidates = [endpoint(f"E{at}", f"n{home % len(domains)}") for at, home in enumerate(homes)]
    decision = decide(service({TOPOLOGY_KEYS: json.dumps([*keys, *["*"] * soft])}), candidates, routing_nodes)
    zones, load, in_zone = routing_nodes.homes(decision.endpoints, ZONE), Counter[str](), 0.0
    chosen = {name: choose(decision, routing_nodes, name).shares for name in routing_nodes.clients}
    for name, shares in chosen.items():
        for address in shares:
            load[address] += 1 / len(shares)
            in_zone += (zones[address] is not None and zones[address] == routing_nodes.domains(ZONE).get(name)) / len(
                shares
            )
    sending = sum(map(bool, chosen.values()))
    result = forecast(decision, routing_nodes)
    assert result.cut_off == tuple(sorted(name for name, shares in chosen.items() if not shares))
    assert result.in_zone == pytest.approx(in_zone / sending if sending else 0)
    worst = max(load.values()) * len(candidates) / sending - 1 if sending else 0
    assert result.worst_overload == pytest.approx(max(0, worst), abs=1e-9)
