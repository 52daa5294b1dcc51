"""What decisions do to traffic, by hand-made sums."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import cluster, endpoint, endpoints, node, service
from zonewise.routing import Cluster, Code, decide, forecast
from zonewise.routing.policy import SAME_NODE, SAME_ZONE
from zonewise.routing.tuning import ALGORITHM, PADDING, PREFER_ALGORITHMS, STARTING_THRESHOLD

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
        Cluster.of([node("a1", "a"), node("b1", "b"), node("x")]),
        2 / 3,
        0.0,
        (),
    ),
    "nobody there": ({}, endpoints({"a": 1}), Cluster.of([]), 0.0, 0.0, ()),
}


@pytest.mark.parametrize("name", FORECASTS)
def test_forecast(name: str) -> None:
    annotations, there, where, in_zone, overload, cut_off = FORECASTS[name]
    foreseen = forecast(decide(service(annotations), there, where), where)
    assert foreseen.in_zone == pytest.approx(in_zone)
    assert foreseen.worst_overload == pytest.approx(overload)
    assert foreseen.cut_off == cut_off


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 4), min_size=2),
    st.dictionaries(st.sampled_from("abcd"), st.integers(1, 9), min_size=1),
    st.sampled_from(sorted(PREFER_ALGORITHMS)),
)
def test_it_agrees_with_what_prefer_promised(nodes: dict[str, int], counts: dict[str, int], algorithm: str) -> None:
    where = cluster(nodes)
    there = [endpoint(found.addresses[0], None, found.zone) for found in endpoints(counts)]
    decision = decide(service({SAME_ZONE: "Prefer", ALGORITHM: algorithm} | AT_ONCE), there, where)
    if decision.reason.code is Code.PREFERRED:
        foreseen = forecast(decision, where)
        assert foreseen.in_zone == pytest.approx(decision.reason.facts["in_domain"], abs=1e-4)
        assert foreseen.worst_overload == pytest.approx(decision.reason.facts["worst_overload"], abs=1e-4)
