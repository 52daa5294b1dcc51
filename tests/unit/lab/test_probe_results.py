"""Probe results against thresholds, and their effect on a container."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.lab.decide import probe_results
from zonewise.lab.decide.podspec import Probe, RunContainer
from zonewise.lab.decide.probe_results import ProbeKind, ProbeTally

PROBE = Probe(success_threshold=2, failure_threshold=3)

RUNS = {
    "no results": ("", None),
    "one success is not two": ("+", None),
    "two in a row are enough": ("++", True),
    "a failure starts the count again": ("+-+", None),
    "two failures change nothing": ("++--", True),
    "three do": ("++---", False),
    "only in a row": ("++--+--", True),
    "it can come back": ("---++", True),
}


@pytest.mark.parametrize(("results", "passing"), RUNS.values(), ids=RUNS)
def test_results_pass_or_fail_at_their_thresholds(results: str, passing: bool | None) -> None:
    assert _tally(results).passing is passing


@given(st.text("+-", max_size=40))
def test_verdict_is_the_last_run_that_reached_its_threshold(results: str) -> None:
    """Independent model: the latest point at which a run of equal results reached its threshold."""
    verdict = None
    for end in range(1, len(results) + 1):
        prefix = results[:end]
        if prefix.endswith("+" * PROBE.success_threshold):
            verdict = True
        elif prefix.endswith("-" * PROBE.failure_threshold):
            verdict = False
    assert _tally(results).passing is verdict


def _tally(results: str) -> ProbeTally:
    tally = ProbeTally()
    for result in results:
        tally = tally.record(PROBE, result == "+", 0)
    return tally


GOOD, BAD = ProbeTally(passing=True, last_at=100.0), ProbeTally(passing=False, last_at=100.0)
WITH_ALL = RunContainer(startup_probe=Probe(), readiness_probe=Probe(), liveness_probe=Probe())
S, R, L = ProbeKind.STARTUP, ProbeKind.READINESS, ProbeKind.LIVENESS

READY = {
    "without probes a running container is ready": (RunContainer(), {}, True),
    "with one it is not before its first success": (RunContainer(readiness_probe=Probe()), {}, False),
    "then it is": (RunContainer(readiness_probe=Probe()), {R: GOOD}, True),
    "until it fails": (RunContainer(readiness_probe=Probe()), {R: BAD}, False),
    "not before it has started up": (WITH_ALL, {R: GOOD}, False),
    "liveness says nothing about it": (WITH_ALL, {S: GOOD, R: GOOD, L: BAD}, True),
}


@pytest.mark.parametrize(("container", "tallies", "ready"), READY.values(), ids=READY)
def test_container_readiness_by_probe_results(
    container: RunContainer, tallies: dict[ProbeKind, ProbeTally], ready: bool
) -> None:
    assert probe_results.ready(container, tallies) is ready


def test_only_startup_and_liveness_failures_restart() -> None:
    assert probe_results.failed({S: BAD}) is S
    assert probe_results.failed({S: GOOD, R: BAD}) is None
    assert probe_results.failed({S: GOOD, L: BAD, R: GOOD}) is L


def test_probe_is_due_one_period_after_the_last() -> None:
    container = RunContainer(liveness_probe=Probe(period_seconds=7, initial_delay_seconds=3))
    assert probe_results.due(container, {}, 50.0, terminating=False) == {L: 53.0}
    assert probe_results.due(container, {L: GOOD}, 50.0, terminating=False) == {L: 107.0}
    assert probe_results.due(container, {L: GOOD}, 50.0, terminating=True) == {}
