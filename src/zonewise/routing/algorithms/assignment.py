"""Entry point of the algorithms: counts per zone in, groups of endpoints out, with exact arithmetic in plain Python.

`assign` decides how many endpoints of each zone serve the clients of which zones, not which endpoints. Zones come in the
caller's order and ties follow it, so callers sort zones by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from fractions import Fraction

from zonewise.routing.algorithms.blocks import search_space
from zonewise.routing.algorithms.groups import EndpointGroups, read
from zonewise.routing.algorithms.hysteresis import steady
from zonewise.routing.algorithms.local import balanced, local, require
from zonewise.routing.algorithms.optimal import optimal
from zonewise.routing.algorithms.score import STANDARD, Weights
from zonewise.routing.algorithms.shared import local_shared
from zonewise.routing.algorithms.weighted import local_opt, local_weighted
from zonewise.routing.algorithms.workspace import Workspace, new_workspace


class Algorithm(StrEnum):
    BALANCED = "balanced"
    REQUIRE = "require"
    LOCAL = "local"
    LOCAL_SHARED = "local-shared"
    LOCAL_WEIGHTED = "local-weighted"
    LOCAL_OPT = "local-opt"
    OPTIMAL = "optimal"


def assign(
    algorithm: Algorithm,
    nodes: Sequence[int],
    endpoints: Sequence[int],
    *,
    threshold: float = 0.5,
    starting_factor: int = 3,
    weights: Weights = STANDARD,
    previous: EndpointGroups | None = None,
) -> EndpointGroups:
    """Groups for these nodes and endpoints per zone; a zone without nodes has no demand.

    `weights` are the goal of `optimal`. With the last assignment as `previous` it moves only what is worth the move;
    the other algorithms ignore it.
    """
    check(nodes, endpoints)
    if sum(endpoints) == 0:
        return EndpointGroups(())
    workspace = new_workspace(len(nodes))
    answer = solve(algorithm, nodes, endpoints, threshold, starting_factor * len(nodes), weights, workspace)
    groups = read(answer, len(nodes), workspace)
    if algorithm is Algorithm.OPTIMAL and previous:
        return steady(nodes, endpoints, threshold, previous, groups, weights)
    return groups


def solve(
    algorithm: Algorithm,
    nodes: Sequence[int],
    endpoints: Sequence[int],
    threshold: float,
    start: int,
    weights: Weights,
    workspace: Workspace,
) -> int:
    """Integer ratios and correctly rounded expectations compare like exact values."""
    total = sum(endpoints)
    expected = [total * count / sum(nodes) for count in nodes]
    match algorithm:
        case Algorithm.BALANCED:
            return balanced(endpoints, workspace)
        case Algorithm.REQUIRE:
            return require(endpoints, workspace)
        case Algorithm.LOCAL:
            return local(expected, nodes, endpoints, threshold, start, workspace)
        case Algorithm.LOCAL_SHARED:
            return local_shared(expected, nodes, endpoints, threshold, workspace)
        case Algorithm.LOCAL_WEIGHTED:
            shares = [Fraction(total * count, sum(nodes)) for count in nodes]
            return local_weighted(shares, endpoints, workspace)
        case Algorithm.LOCAL_OPT:
            return local_opt(expected, endpoints, workspace)
        case Algorithm.OPTIMAL:
            return optimal(expected, nodes, endpoints, threshold, weights, search_space(len(nodes)), workspace)


def check(nodes: Sequence[int], endpoints: Sequence[int]) -> None:
    if len(nodes) != len(endpoints):
        raise ValueError(f"nodes are given for {len(nodes)} zones, endpoints for {len(endpoints)}: give both per zone")
    if min(nodes, default=0) < 0 or min(endpoints, default=0) < 0:
        raise ValueError(f"counts cannot be negative: nodes {list(nodes)}, endpoints {list(endpoints)}")
    if sum(nodes) == 0:
        raise ValueError("no zone has a node: at least one is needed to know where demand comes from")
