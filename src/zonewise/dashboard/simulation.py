"""The simulator's table and plots for the cluster at hand: its Services through every algorithm, as `zonewise simulate` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zonewise.objects import EndpointSlice
from zonewise.planning.situation import Situation
from zonewise.simulator import plots
from zonewise.simulator.inputs import from_cluster
from zonewise.simulator.reproduce import ALGORITHMS
from zonewise.simulator.results import Row, Table
from zonewise.simulator.tally import tally
from zonewise.simulator.tasks import own_tasks
from zonewise.simulator.work import perform

PLOTS: Final[dict[str, Callable[[tuple[Row, ...]], str]]] = {
    "totals": plots.totals,
    "in-zone-against-overload": plots.in_zone_against_overload,
    "distribution": plots.score_distribution,
}


def judge(situation: Situation) -> Table:
    slices: list[EndpointSlice] = [found for served in situation.services for found in served.slices]
    tasks = own_tasks(from_cluster(situation.nodes, slices), ALGORITHMS.rules)
    return tally("cluster", "Services with ready endpoints", ALGORITHMS.rules, [perform(task) for task in tasks])
