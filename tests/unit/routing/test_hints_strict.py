"""Automatic hints, strict: upstream's answers, number by number.

`stock_hints.jsonl` holds what `k8s.io/endpointslice/topologycache` v0.36.3 answered to random slices, where its answer
does not depend on the order of a Go map. An endpoint is written as its zone (`?` for none), `!` before it for not
ready, `>zone` after it for each hint it has.
"""

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import endpoint, node
from zonewise.api.names import BETA_ZONE
from zonewise.objects import Endpoint, Node
from zonewise.routing.endpointslice_events import stock_event
from zonewise.routing.hints_strict import Allocation, Hinted, allocate, cpu_shares, hint_strictly
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.topology import ZONE

VECTORS = [json.loads(line) for line in (Path(__file__).parent / "stock_hints.jsonl").read_text().splitlines()]


def read_slice(text: str) -> tuple[Endpoint, ...]:
    return tuple(read_endpoint(word, number) for number, word in enumerate(text.split()))


def read_endpoint(word: str, number: int) -> Endpoint:
    zone, *hints = word.removeprefix("!").split(">")
    return endpoint(f"10.0.0.{number}", zone=None if zone == "?" else zone, ready=word[0] != "!", zones=hints)


def hinted_zones(hinted: Hinted, slices: Sequence[Sequence[Endpoint]]) -> dict[str, int]:
    """How often each zone is hinted for on ready endpoints, over the slices that are written."""
    counted: Counter[str] = Counter()
    for endpoints, hints in zip(slices, hinted.slices, strict=True):
        for candidate, endpoint_hints in zip(endpoints, hints or [None] * len(endpoints), strict=True):
            if candidate.conditions.ready and endpoint_hints:
                counted.update(hint.name for hint in endpoint_hints.for_zones)
    return dict(counted)


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: "-".join(map(str, vector["cpu_millis"].values())))
def test_result_matches_upstream(vector: dict[str, Any]) -> None:
    shares = cpu_shares(node(zone, zone, cpu=f"{millis}m") for zone, millis in vector["cpu_millis"].items())
    changing, unchanged = map(read_slice, vector["changing"]), map(read_slice, vector["unchanged"])
    slices = (tuple(changing), tuple(unchanged))
    hinted = hint_strictly(shares, *slices)
    assert stock_event(hinted.reason, "IPv4").message == f"{vector['event']}, addressType: IPv4"
    assert hinted_zones(hinted, slices[0] + slices[1]) == vector["hinted"]
    assert [hints is not None for hints in hinted.slices] == vector["written"]


REFUSED = {
    (1, 1): {3, 5},
    (1, 1, 1): {4, 5, 8, 11},
    (1, 1, 1, 1): {5, 6, 7, 10, 11, 15},
    (1, 1, 1, 1, 1): {6, 7, 8, 9, 12, 13, 14, 19, 24},
    (50, 25, 25): {3, 5, 6, 10},
    (40, 32, 28): {3, 4, 5, 6},
}


@pytest.mark.parametrize(("cpu", "refused"), REFUSED.items(), ids=str)
def test_endpoint_counts_that_upstream_refuses(cpu: tuple[int, ...], refused: set[int]) -> None:
    shares = {f"z{number}": share / sum(cpu) for number, share in enumerate(cpu)}
    answers = {count: allocate(shares, count) for count in range(len(cpu), 101)}
    assert {count for count, answer in answers.items() if isinstance(answer, RoutingReason)} == refused


def test_an_allocation() -> None:
    assert allocate({"a": 0.5, "b": 0.25, "c": 0.25}, 9) == {
        "a": Allocation(minimum=4, maximum=5, desired=4.5),
        "b": Allocation(minimum=2, maximum=3, desired=2.25),
        "c": Allocation(minimum=2, maximum=3, desired=2.25),
    }


def test_refusal_names_the_next_accepted_count() -> None:
    refused = allocate({"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}, 4)
    assert isinstance(refused, RoutingReason)
    assert refused.remedy == "run 6 endpoints"


WORKERS = [node("a1", "a"), node("b1", "b")]
BAD_NODES: dict[str, tuple[list[Node], tuple[RoutingSubject, ...], str]] = {
    "no zone": ([*WORKERS, node("n")], (RoutingSubject("Node", "n"),), f"label {ZONE}"),
    "an empty zone": ([*WORKERS, node("n", labels={ZONE: ""})], (RoutingSubject("Node", "n"),), f"label {ZONE}"),
    "only the old label": (
        [*WORKERS, node("n", labels={BETA_ZONE: "a"})],
        (RoutingSubject("Node", "n"),),
        f"label {ZONE}",
    ),
    "no CPU": ([*WORKERS, node("n", "a", cpu=None)], (RoutingSubject("Node", "n"),), "allocatable CPU"),
    "zero CPU": ([*WORKERS, node("n", "a", cpu="0")], (RoutingSubject("Node", "n"),), "allocatable CPU"),
    "several": (
        [*WORKERS, node("y", cpu=None), node("x")],
        (RoutingSubject("Node", "x"), RoutingSubject("Node", "y")),
        "(and 1 nodes more)",
    ),
    "one zone": ([node("a1", "a"), node("a2", "a")], (RoutingSubject("Zone", "a"),), "only in zone a"),
    "the other zone is not ready": (
        [node("a1", "a"), node("b1", "b", ready=False)],
        (RoutingSubject("Zone", "a"),),
        "zone a",
    ),
    "no nodes": ([], (), "in no zone"),
}


@pytest.mark.parametrize("name", BAD_NODES)
def test_nodes_that_disable_hints_are_named(name: str) -> None:
    nodes, blame, words = BAD_NODES[name]
    reason = cpu_shares(nodes)
    assert isinstance(reason, RoutingReason)
    assert (reason.code, reason.blame) == (RoutingCode.INSUFFICIENT_NODE_INFO, blame)
    assert words in reason.sentence
    hinted = hint_strictly(reason, [read_slice("a>a b")], [read_slice("a>a"), read_slice("b")])
    assert hinted.slices == ((None, None), (None,), None)


@pytest.mark.parametrize("role", ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"])
def test_unready_and_control_plane_nodes_are_ignored(role: str) -> None:
    aside = [node("m", labels={role: "false"}), node("n", ready=False)]
    assert cpu_shares([*aside, node("a1", "a", cpu="1500m"), node("b1", "b", cpu="500m")]) == {"a": 0.75, "b": 0.25}


EVENTS = {
    "enabled": ("a a b b", "Normal", "TopologyAwareHintsEnabled", "Topology Aware Hints has been enabled"),
    "too few": (
        "a",
        "Warning",
        "TopologyAwareHintsDisabled",
        "Insufficient number of endpoints (1 endpoints, 2 zones)",
    ),
    "overload": (
        "a a b",
        "Warning",
        "TopologyAwareHintsDisabled",
        (
            "Unable to allocate minimum required endpoints to each zone without exceeding overload threshold "
            "(3 endpoints, 2 zones)"
        ),
    ),
    "no zone": (
        "a a b ?",
        "Warning",
        "TopologyAwareHintsDisabled",
        "One or more endpoints do not have a zone specified",
    ),
}


@pytest.mark.parametrize("name", EVENTS)
def test_events_match_upstream(name: str) -> None:
    slice_text, kind, reason, message = EVENTS[name]
    hinted = hint_strictly(cpu_shares(WORKERS), [read_slice(slice_text)])
    assert stock_event(hinted.reason, "IPv6") == (kind, reason, f"{message}, addressType: IPv6")


def test_event_about_nodes_matches_upstream() -> None:
    hinted = hint_strictly(cpu_shares([]), [read_slice("a")])
    assert stock_event(hinted.reason, "IPv4").message.startswith(
        "Insufficient Node information: allocatable CPU or zone"
    )


def test_endpoints_without_zone_are_named() -> None:
    hinted = hint_strictly(cpu_shares(WORKERS), [read_slice("a b ? ?")])
    assert hinted.reason.code is RoutingCode.ENDPOINT_WITHOUT_ZONE
    assert hinted.reason.blame == (RoutingSubject("Endpoint", "10.0.0.2"), RoutingSubject("Endpoint", "10.0.0.3"))


KEPT = {
    "valid hints stay": (["a>a b>b"], [], [False]),
    "a hint is missing": (["a>a b"], [], [True]),
    "a zone is gone": (["a>a b>x"], [], [True]),
    "a zone has too many": (["a>a b>a a>a b>a"], [], [True]),
    "too many only with the slice before": (["a>a b>a", "a>a b>a"], [], [False, True]),
    "an endpoint that is not ready needs none": (["a>a b>b !a"], [], [False]),
    "nothing ready, nothing to hint": (["!a"], ["a b"], [True, False]),
}


@pytest.mark.parametrize("name", KEPT)
def test_slices_that_are_kept(name: str) -> None:
    unchanged, changing, changed = KEPT[name]
    hinted = hint_strictly(cpu_shares(WORKERS), [*map(read_slice, changing)], [*map(read_slice, unchanged)])
    assert [hints is not None for hints in hinted.slices] == changed


def test_unready_endpoint_keeps_its_stale_hint() -> None:
    stale = read_slice("a b !a>b")
    hinted = hint_strictly(cpu_shares(WORKERS), [stale])
    assert hinted.slices[0] is not None
    assert hinted.slices[0][2] == stale[2].hints


ZONED = st.lists(st.lists(st.sampled_from(["a", "b", "c", "!a", "x"]), max_size=9).map(" ".join), max_size=4)


@given(st.lists(st.integers(1, 9), min_size=3, max_size=3), ZONED)
def test_every_ready_endpoint_is_hinted_once_or_none_is(cpu: list[int], slice_texts: list[str]) -> None:
    shares = cpu_shares(node(zone, zone, cpu=str(cores)) for zone, cores in zip("abc", cpu, strict=True))
    slices = [*map(read_slice, slice_texts)]
    hinted = hint_strictly(shares, slices)
    ready = sum(bool(endpoint.conditions.ready) for endpoints in slices for endpoint in endpoints)
    assert sum(hinted.by_zone.values()) in {0, ready}
    assert hinted_zones(hinted, slices) == {zone: count for zone, count in hinted.by_zone.items() if count}


@given(st.lists(st.integers(1, 9), min_size=3, max_size=3), ZONED, st.randoms(use_true_random=False))
def test_hints_are_independent_of_node_order(cpu: list[int], slice_texts: list[str], random: Any) -> None:
    nodes = [node(zone, zone, cpu=str(cores)) for zone, cores in zip("abc", cpu, strict=True)]
    slices = [*map(read_slice, slice_texts)]
    answer = hint_strictly(cpu_shares(nodes), slices)
    random.shuffle(nodes)
    assert hint_strictly(cpu_shares(nodes), slices) == answer
