"""`optimal` compared with a search of all assignments, and its stability when endpoints are added or removed."""

from __future__ import annotations

from itertools import combinations_with_replacement, product
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.full_search import best_total
from zonewise.routing.algorithms import (
    STANDARD,
    Algorithm,
    EndpointGroup,
    EndpointGroups,
    Weights,
    assign,
    evaluate,
    total_score,
)
from zonewise.routing.algorithms.hysteresis import moved


def reached(nodes: tuple[int, ...], endpoints: tuple[int, ...], threshold: float = 0.5) -> float:
    score = evaluate(nodes, assign(Algorithm.OPTIMAL, nodes, endpoints, threshold=threshold))
    assert score.highest < threshold
    return total_score(score, sum(endpoints), STANDARD)


@pytest.mark.parametrize(
    ("zones", "most_nodes", "most_endpoints"), [(1, 3, 9), (2, 5, 12), (3, 3, 4), (4, 2, 2)], ids=str
)
def test_all_small_inputs_agree_with_a_full_search(zones: int, most_nodes: int, most_endpoints: int) -> None:
    for nodes in combinations_with_replacement(range(1, most_nodes + 1), zones):
        for endpoints in product(range(most_endpoints + 1), repeat=zones):
            if sum(endpoints):
                assert reached(nodes, endpoints) == pytest.approx(best_total(nodes, endpoints), abs=1e-9), (
                    nodes,
                    endpoints,
                )


@pytest.mark.parametrize("threshold", [0.1, 0.2, 0.5, 2.0])
def test_sample_of_larger_inputs_agrees_with_a_full_search(threshold: float) -> None:
    random = Random(7)
    for zones, most in ((3, 12), (3, 60), (4, 6), (5, 3)):
        for _ in range(6):
            nodes = tuple(random.randint(1, 10) for _ in range(zones))
            endpoints = (*(random.randint(0, most) for _ in range(zones - 1)), 1)
            best = best_total(nodes, endpoints, threshold)
            assert reached(nodes, endpoints, threshold) == pytest.approx(best, abs=1e-9), (nodes, endpoints)


@pytest.mark.parametrize(
    ("nodes", "endpoints", "groups"),
    [
        pytest.param([30, 30, 30], [100, 0, 0], {(0, 1, 2): 100}, id="nothing can stay home: one group, one slice"),
        pytest.param([1, 1, 1], [5, 5, 5], {(0,): 5, (1,): 5, (2,): 5}, id="all at home"),
        pytest.param([30, 30, 30], [2, 1, 0], {(0, 2): 2, (1,): 1}, id="an empty zone shares with the richest"),
        pytest.param([1, 1, 3], [30, 51, 90], {(0,): 34, (1,): 37, (2,): 100}, id="cut to a full slice"),
        pytest.param([3, 7, 7], [6, 9, 9], {(0,): 6, (1,): 9, (2,): 9}, id="two shrink together, all stay home"),
    ],
)
def test_shapes(nodes: list[int], endpoints: list[int], groups: dict[tuple[int, ...], int]) -> None:
    assert {group.consumers: group.size for group in assign(Algorithm.OPTIMAL, nodes, endpoints)} == groups


def test_other_score_weights_make_other_groups() -> None:
    locality = assign(Algorithm.OPTIMAL, [1, 1, 1], [9, 1, 2], threshold=3.5, weights=Weights(100.0, 0.0, 0.0, 0.0))
    assert evaluate([1, 1, 1], locality).in_zone == pytest.approx(1)
    few = assign(Algorithm.OPTIMAL, [1, 1, 1], [9, 9, 9], weights=Weights(0.0, 0.0, 0.0, 100.0))
    assert few.is_balanced


def moved_per_added(algorithm: Algorithm, *, remembering: bool) -> float:
    random = Random(5)
    nodes = list(combinations_with_replacement(range(1, 11), 3))
    moves = added = 0
    for _ in range(150):
        chosen = random.choice(nodes)
        endpoints = sorted(random.randint(0, 100) for _ in range(3))
        endpoints[2] += 1
        before = assign(algorithm, chosen, endpoints)
        for zone in range(3):
            more = [count + (at == zone) for at, count in enumerate(endpoints)]
            after = assign(algorithm, chosen, more, previous=before if remembering else None)
            moves += moved(before, after)
            added += 1
    return moves / added


def test_adding_an_endpoint_moves_no_more_than_local_does() -> None:
    assert moved_per_added(Algorithm.OPTIMAL, remembering=True) <= moved_per_added(Algorithm.LOCAL, remembering=False)


ENDPOINTS = st.lists(st.integers(0, 60), min_size=3, max_size=3).filter(any)


@given(ENDPOINTS, st.lists(st.integers(-4, 4), min_size=3, max_size=3))
def test_memory_keeps_the_limit_at_little_cost(endpoints: list[int], changes: list[int]) -> None:
    nodes = [3, 4, 5]
    later = [max(count + change, 0) for count, change in zip(endpoints, changes, strict=True)]
    before = assign(Algorithm.OPTIMAL, nodes, endpoints)
    after = assign(Algorithm.OPTIMAL, nodes, later, previous=before)
    assert [sum(group.composition[zone] for group in after) for zone in range(3)] == later
    if not any(later):
        return
    score, fresh_score = evaluate(nodes, after), evaluate(nodes, assign(Algorithm.OPTIMAL, nodes, later))
    assert score.highest < 0.5
    assert not score.unreached
    assert total_score(score, sum(later), STANDARD) >= total_score(fresh_score, sum(later), STANDARD) - 5


@pytest.mark.parametrize("endpoints", [[10, 10, 10], [30, 2, 7], [0, 0, 9]])
def test_memory_of_the_same_input_changes_nothing(endpoints: list[int]) -> None:
    first = assign(Algorithm.OPTIMAL, [3, 4, 5], endpoints)
    assert moved(first, assign(Algorithm.OPTIMAL, [3, 4, 5], endpoints, previous=first)) == 0


@pytest.mark.parametrize(
    "previous",
    [
        pytest.param(assign(Algorithm.LOCAL_WEIGHTED, [3, 4, 5], [7, 8, 10]), id="weighted"),
        pytest.param(EndpointGroups((EndpointGroup((7, 8, 10), (1.0, 1.0, 0.0)),)), id="a zone without endpoints"),
    ],
)
def test_weighted_memory_is_not_kept(previous: EndpointGroups) -> None:
    fresh = assign(Algorithm.OPTIMAL, [3, 4, 5], [7, 8, 10])
    assert assign(Algorithm.OPTIMAL, [3, 4, 5], [7, 8, 10], previous=previous) == fresh
