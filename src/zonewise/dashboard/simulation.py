"""Simulation of the shown cluster: its Services under every algorithm, as `zonewise simulate --from-cluster` does."""

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


def simulate_cluster(snapshot: Snapshot) -> ResultTable:
    slices: list[EndpointSlice] = [slice_ for service in snapshot.services for slice_ in service.slices]
    tasks = own_tasks(from_cluster(snapshot.nodes, slices), ALGORITHMS.rules)
    return tally("cluster", "Services with ready endpoints", ALGORITHMS.rules, [perform(task) for task in tasks])
