"""The algorithms on worked shapes, on bad input, and in exact arithmetic."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from zonewise.routing.algorithms import STANDARD, Algorithm, Downgrade, EndpointGroups, assign, evaluate, total_score
from zonewise.routing.algorithms.heap import build, pop, push
from zonewise.routing.algorithms.local import fewest, overloaded


class Vector(NamedTuple):
    """The result of an algorithm for a shape: composition by consumers and weights, and the scores as printed."""

    name: str
    nodes: list[int]
    endpoints: list[int]
    algorithm: Algorithm
    groups: dict[tuple[float, ...], tuple[int, ...]]
    figures: list[float]


def vectors() -> Iterator[Vector]:
    name, nodes, endpoints = "", [], []
    for line in (Path(__file__).parent / "algorithm_vectors.txt").read_text().splitlines():
        if line.startswith("  "):
            algorithm, groups, *figures = line.strip().split(" | ")
            taken = dict(read_group(group, len(nodes)) for group in groups.split("; "))
            yield Vector(name, nodes, endpoints, Algorithm(algorithm), taken, [float(figure) for figure in figures])
        elif line and not line.startswith("#"):
            name, nodes_text, endpoints_text = line.split("; ")
            nodes, endpoints = json.loads(nodes_text), json.loads(endpoints_text)


def read_group(text: str, zones: int) -> tuple[tuple[float, ...], tuple[int, ...]]:
    consumers, composition = text.split(" <- ")
    weights = [0.0] * zones
    for consumer in consumers.split("+"):
        zone, _, weight = consumer.partition("*")
        weights[int(zone[1:]) - 1] = float(weight or 1)
    return tuple(weights), tuple(json.loads(composition))


VECTORS = list(vectors())


def by_weights(groups: EndpointGroups) -> dict[tuple[float, ...], tuple[int, ...]]:
    return {tuple(round(weight, 6) for weight in group.weights): group.composition for group in groups}


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: f"{vector.name}-{vector.algorithm}")
def test_worked_shapes(vector: Vector) -> None:
    groups = assign(vector.algorithm, vector.nodes, vector.endpoints)
    assert by_weights(groups) == vector.groups
    score = evaluate(vector.nodes, groups)
    endpoints = sum(vector.endpoints)
    reached = [
        score.slices,
        total_score(score, endpoints, STANDARD),
        100 * score.in_zone,
        100 - 50 * score.highest - 50 * score.mean,
        100 * -(-endpoints // 100) / score.slices,
        100 * score.highest,
        100 * score.mean,
    ]
    assert reached == pytest.approx(vector.figures, abs=0.000051)


def test_every_shape_has_five_algorithms() -> None:
    assert len(VECTORS) == 21 * 5


@pytest.mark.parametrize(
    ("algorithm", "nodes", "endpoints", "why"),
    [
        (Algorithm.LOCAL, [1, 1, 1], [3, 3, 2], Downgrade.BELOW_START),
        (Algorithm.LOCAL, [1, 1, 1], [3, 3, 3], None),
        (Algorithm.LOCAL_SHARED, [1, 1, 1], [1, 1, 0], Downgrade.TOO_FEW),
        (Algorithm.LOCAL_SHARED, [4, 2, 6], [5, 4, 0], Downgrade.OVERLOADED),
        (Algorithm.OPTIMAL, [1, 1, 1], [1, 1, 0], None),
    ],
)
def test_downgrades_have_a_reason(
    algorithm: Algorithm, nodes: list[int], endpoints: list[int], why: Downgrade | None
) -> None:
    groups = assign(algorithm, nodes, endpoints)
    assert groups.downgrade == why
    assert groups.is_balanced or why is None


def test_local_exceeds_the_limit_only_by_downgrade() -> None:
    groups = assign(Algorithm.LOCAL, [1, 1, 1, 1], [2, 2, 0, 0], starting_factor=0, threshold=0.0001)
    assert evaluate([1, 1, 1, 1], groups).highest == 0


@pytest.mark.parametrize(
    ("nodes", "endpoints", "message"),
    [
        ([1, 2], [1], "nodes are given for 2 zones, endpoints for 1"),
        ([1, -2], [1, 1], "counts cannot be negative"),
        ([1, 2], [1, -1], "counts cannot be negative"),
        ([0, 0], [1, 1], "no zone has a node"),
        ([], [], "no zone has a node"),
    ],
)
def test_invalid_counts_raise(nodes: list[int], endpoints: list[int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        assign(Algorithm.LOCAL, nodes, endpoints)


@pytest.mark.parametrize("algorithm", Algorithm)
def test_no_endpoints_make_no_groups(algorithm: Algorithm) -> None:
    assert assign(algorithm, [1, 2, 3], [0, 0, 0]) == EndpointGroups(())


def test_weighted_is_exact_where_floats_are_not() -> None:
    """As floats, 3 of 22 nodes times 110 is a little less than 15, and the fifteenth endpoint is lost."""
    groups = assign(Algorithm.LOCAL_WEIGHTED, [3, 9, 10], [31, 31, 48])
    assert sum(group.size for group in groups) == 110
    assert [group.size for group in groups] == [15, 45, 50]
    assert evaluate([3, 9, 10], groups).highest == pytest.approx(0)


@pytest.mark.parametrize("expected", [0.0, 0.4, 1.0, 1.5, 2.9999, 3.0, 3.0001, 1500.0])
@pytest.mark.parametrize("threshold", [0.1, 0.5, 1.0])
def test_fewest_is_the_smallest_size_without_overload(expected: float, threshold: float) -> None:
    size = fewest(expected, threshold)
    assert not overloaded(expected, size, threshold)
    assert size == 0 or overloaded(expected, size - 1, threshold)


def test_heaps_pop_the_least_and_keep_their_order_in_ties() -> None:
    rank = [3.0, 1.0, 2.0, 1.0, 0.5]
    pool = [0, 1, 2, 3, 4]
    build(pool, 5, rank)
    first = [pop(pool, count, rank) for count in (5, 4, 3)]
    assert first[0] == 4
    assert sorted(first[1:]) == [1, 3]
    count = push(pool, 2, 4, rank)
    assert [pop(pool, left, rank) for left in range(count, 0, -1)] == [4, 2, 0]
