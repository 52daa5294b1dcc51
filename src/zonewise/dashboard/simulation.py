"""The simulator's table and plots for the cluster at hand: its Services through every algorithm, as `zonewise simulate` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zonewise.objects import EndpointSlice
from zonewise.planning.snapshot import Snapshot
from zonewise.simulator.decide import plots
from zonewise.simulator.decide.inputs import from_cluster
from zonewise.simulator.decide.published import ALGORITHMS
from zonewise.simulator.decide.results import AlgorithmResult, ResultTable
from zonewise.simulator.decide.tally import tally
from zonewise.simulator.decide.tasks import own_tasks
from zonewise.simulator.worker import perform

PLOTS: Final[dict[str, Callable[[tuple[AlgorithmResult, ...]], str]]] = {
    "totals": plots.totals,
    "in-zone-against-overload": plots.in_zone_against_overload,
    "distribution": plots.score_distribution,
}


def judge(situation: Snapshot) -> ResultTable:
    slices: list[EndpointSlice] = [found for served in situation.services for found in served.slices]
    tasks = own_tasks(from_cluster(situation.nodes, slices), ALGORITHMS.rules)
    return tally("cluster", "Services with ready endpoints", ALGORITHMS.rules, [perform(task) for task in tasks])
