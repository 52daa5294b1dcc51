"""Invariants of every algorithm for any input."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from zonewise.routing.algorithms import STANDARD, Algorithm, EndpointGroups, assign, evaluate, total_score

COUNTS = st.integers(0, 40) | st.integers(0, 3) | st.integers(0, 400)
ZONES = st.lists(st.tuples(st.integers(1, 30), COUNTS), min_size=1, max_size=9).filter(
    lambda zones: sum(endpoints for _, endpoints in zones) > 0
)
THRESHOLDS = st.sampled_from([0.1, 0.2, 0.5, 1.0])

Zones = list[tuple[int, int]]


def split(zones: Zones) -> tuple[list[int], list[int]]:
    return [nodes for nodes, _ in zones], [endpoints for _, endpoints in zones]


def total(zones: Zones, groups: EndpointGroups) -> float:
    nodes, endpoints = split(zones)
    return total_score(evaluate(nodes, groups), sum(endpoints), STANDARD)


@pytest.mark.parametrize("algorithm", Algorithm)
@given(ZONES, THRESHOLDS)
def test_every_endpoint_is_assigned_once(algorithm: Algorithm, zones: Zones, threshold: float) -> None:
    nodes, endpoints = split(zones)
    groups = assign(algorithm, nodes, endpoints, threshold=threshold)
    assert [sum(group.composition[zone] for group in groups) for zone in range(len(zones))] == endpoints
    assert all(min(group.composition) >= 0 and group.size > 0 for group in groups)
    assert len({group.weights for group in groups}) == len(groups)


@pytest.mark.parametrize("algorithm", [Algorithm.LOCAL, Algorithm.LOCAL_SHARED, Algorithm.OPTIMAL])
@given(ZONES, THRESHOLDS)
@example([(1, 0), (1, 0), (1, 0), (14, 2), (18, 4)], 0.2)  # exactly at the limit, unless rounded
def test_limit_holds_or_result_is_downgraded(algorithm: Algorithm, zones: Zones, threshold: float) -> None:
    nodes, endpoints = split(zones)
    groups = assign(algorithm, nodes, endpoints, threshold=threshold)
    score = evaluate(nodes, groups)
    assert score.unreached == 0
    if groups.downgrade or groups.is_balanced:
        assert groups.is_balanced
    elif algorithm is not Algorithm.LOCAL_SHARED:  # its group of empty zones is rounded, not limited
        assert score.highest < threshold


@given(ZONES)
def test_weights_balance_every_endpoint(zones: Zones) -> None:
    nodes, endpoints = split(zones)
    score = evaluate(nodes, assign(Algorithm.LOCAL_WEIGHTED, nodes, endpoints))
    assert score.highest == pytest.approx(0, abs=1e-9)
    assert score.mean == pytest.approx(0, abs=1e-9)


@pytest.mark.parametrize("algorithm", [Algorithm.BALANCED, Algorithm.LOCAL_WEIGHTED, Algorithm.OPTIMAL])
@given(data=st.data())
def test_permuted_zones_give_a_permuted_result(algorithm: Algorithm, data: st.DataObject) -> None:
    zones = data.draw(ZONES)
    shuffled = data.draw(st.permutations(zones))
    first, second = (assign(algorithm, *split(order)) for order in (zones, shuffled))
    score, permuted = evaluate(split(zones)[0], first), evaluate(split(shuffled)[0], second)
    assert permuted[:3] == pytest.approx(score[:3], abs=1e-9)
    # The zones that share the fractions follow zone order, and from four zones on that changes the number of groups.
    if algorithm is not Algorithm.LOCAL_WEIGHTED or len(zones) <= 3:
        assert total(shuffled, second) == pytest.approx(total(zones, first), abs=1e-9)
    if algorithm is Algorithm.OPTIMAL:
        assert alike(zones, first) == alike(shuffled, second)


def alike(zones: Zones, groups: EndpointGroups) -> Counter[tuple[int, tuple[tuple[int, int], ...]]]:
    """Sizes and consumers by the counts of zones, not by their position: equal zones are interchangeable."""
    return Counter((group.size, tuple(sorted(zones[zone] for zone in group.consumers))) for group in groups)


@given(ZONES, THRESHOLDS)
def test_optimal_is_at_least_as_good_as_unweighted_algorithms(zones: Zones, threshold: float) -> None:
    """Up to five zones, where all partitions are tried; beyond that the search is heuristic, and balanced is its lower bound."""
    nodes, endpoints = split(zones)
    best = assign(Algorithm.OPTIMAL, nodes, endpoints, threshold=threshold)
    rivals = [Algorithm.BALANCED, *([Algorithm.LOCAL, Algorithm.LOCAL_SHARED] if len(zones) <= 5 else [])]
    for algorithm in rivals:
        groups = assign(algorithm, nodes, endpoints, threshold=threshold)
        if evaluate(nodes, groups).highest < threshold:
            assert total(zones, best) >= total(zones, groups) - 1e-6


@pytest.mark.parametrize(
    ("zones", "threshold"),
    [
        ([(1, 0), (1, 0), (1, 0), (1, 15), (4, 0), (4, 4), (5, 1), (5, 1), (7, 5)], 0.1),
        ([(3, 0), (1, 15), (4, 0), (4, 4), (5, 1), (5, 1), (7, 5)], 0.1),
        ([(5, 1), (7, 2), (6, 1), (1, 0), (2, 0), (2, 3), (5, 3)], 0.1),
    ],
)
def test_optimal_matches_local_shared_for_many_zones(zones: Zones, threshold: float) -> None:
    best, shared = (
        assign(algorithm, *split(zones), threshold=threshold)
        for algorithm in (Algorithm.OPTIMAL, Algorithm.LOCAL_SHARED)
    )
    assert total(zones, best) >= total(zones, shared) - 1e-6


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(0, 4)), min_size=9, max_size=24))
def test_optimal_needs_at_most_eight_hints_per_endpoint(zones: Zones) -> None:
    groups = assign(Algorithm.OPTIMAL, *split(zones))
    assert all(len(group.consumers) <= 8 or groups.is_balanced for group in groups)


@pytest.mark.parametrize("algorithm", [Algorithm.LOCAL_SHARED, Algorithm.OPTIMAL, Algorithm.LOCAL_WEIGHTED])
@given(ZONES, COUNTS)
def test_zone_without_nodes_only_supplies(algorithm: Algorithm, zones: Zones, endpoints: int) -> None:
    groups = assign(algorithm, *split([*zones, (0, endpoints)]))
    score = evaluate([*split(zones)[0], 0], groups)
    assert score.unreached == 0
    assert sum(group.size for group in groups) == sum(split(zones)[1]) + endpoints
