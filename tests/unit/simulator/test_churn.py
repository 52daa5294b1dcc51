"""Traces, and the churn of replaying them through the controller's logic."""

from __future__ import annotations

import pytest

from zonewise.routing.algorithms import Algorithm
from zonewise.routing.load import consumed_by
from zonewise.simulator.decide import traces
from zonewise.simulator.decide.churn import EVERYONE, SLICE_CAPACITY, ChurnMode, SliceStore, replay
from zonewise.simulator.decide.inputs import InputError
from zonewise.simulator.decide.traces import TraceState

PREFER_ALGORITHMS = [
    Algorithm.LOCAL,
    Algorithm.LOCAL_SHARED,
    Algorithm.LOCAL_WEIGHTED,
    Algorithm.LOCAL_OPT,
    Algorithm.OPTIMAL,
]


@pytest.mark.parametrize("name", traces.BUILT_IN)
def test_built_in_traces_begin_and_end_with_endpoints(name: str) -> None:
    trace = traces.built_in(name)
    assert len(trace.states) > 10
    assert all(state.zone_of and state.nodes for state in trace.states)


def test_rolling_update_replaces_all_endpoints_in_the_same_zones() -> None:
    first, *_, last = traces.built_in("rolling-update").states
    assert sorted(first.zone_of.values()) == sorted(last.zone_of.values())
    assert not set(first.zone_of) & set(last.zone_of)


@pytest.mark.parametrize("name", traces.BUILT_IN)
@pytest.mark.parametrize("algorithm", PREFER_ALGORITHMS)
def test_lazy_rebalance_never_moves_or_flips_more_than_a_full_one(name: str, algorithm: Algorithm) -> None:
    trace = traces.built_in(name)
    full, padded, lazy = (replay(trace, algorithm, mode) for mode in ChurnMode)
    assert lazy.endpoints_moved <= padded.endpoints_moved
    assert lazy.flips <= padded.flips <= full.flips
    assert lazy.worst_overload < 0.5


def test_padding_avoids_flips_around_the_starting_threshold() -> None:
    steps = "[{add: {a: 1}}, {remove: {a: 1}}]"
    text = f"nodes: {{a: 1, b: 1, c: 1}}\nendpoints: {{a: 2, b: 3, c: 3}}\nsteps: {steps}\n"
    trace = traces.read(text, "walk.yaml")
    assert replay(trace, Algorithm.LOCAL, ChurnMode.FULL).flips == 2
    assert replay(trace, Algorithm.LOCAL, ChurnMode.PADDED).flips == 0


def test_slice_is_written_once_per_step_and_endpoints_stay() -> None:
    store = SliceStore()
    names = [f"e{number}" for number in range(SLICE_CAPACITY + 1)]
    store.put(dict.fromkeys(names, EVERYONE), first=False)
    assert store.written == 2
    store.put(dict.fromkeys(names, EVERYONE), first=False)
    assert (store.written, store.moved) == (2, 0)
    store.put({**dict.fromkeys(names, EVERYONE), "e0": consumed_by("a")}, first=False)
    assert (store.written, store.moved) == (4, 1), "one slice changed, one created"
    store.put(dict.fromkeys(names[1:], EVERYONE), first=False)
    assert (store.written, store.moved) == (5, 1), "the empty slice is deleted"


def test_user_trace_is_read() -> None:
    text = "nodes: {a: 2, b: 1}\nendpoints: {a: 1}\nsteps:\n- add: {b: 2}\n- remove: {a: 1}\n  nodes: {a: 0}\n- repeat: 2\n"
    states = traces.read(text, "mine.yaml").states
    assert states[0] == TraceState({"a": 2, "b": 1}, {"endpoint-00001": "a"})
    assert states[2] == TraceState({"b": 1}, {"endpoint-00002": "b", "endpoint-00003": "b"})
    assert len(states) == 5


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: [", "mine.yaml:1: not YAML"),
        ("5", "mine.yaml: Expected `object`"),
        ("nodes: {a: 1}\nendpoints: {a: 1}\nsteps: [{ad: {a: 1}}]", "mine.yaml: Object contains unknown field `ad`"),
        ("nodes: {a: -1}\nendpoints: {a: 1}\nsteps: []", "mine.yaml: nodes: a is -1; write 0 to 100000"),
        ("nodes: {a: 1}\nendpoints: {a: 1}\nsteps: [{add: {a: 1.5}}]", "mine.yaml: Expected `int`"),
        ("nodes: {a: 1}\nendpoints: {a: 1}\nsteps: [{remove: {a: 2}}]", "mine.yaml: a step removes 2 endpoints of a"),
        ("nodes: {a: 1}\nendpoints: {a: 1}\nsteps: [{repeat: 10001}]", "mine.yaml: step 1: repeat is 10001"),
    ],
)
def test_bad_trace_is_rejected_in_one_line(text: str, message: str) -> None:
    with pytest.raises(InputError) as raised:
        traces.read(text, "mine.yaml")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
