"""The test plan of the same-zone annotation, row by row: which endpoints are in which zone's slices.

A distribution is written as the consumers of each slice group and the home zones of its endpoints: `{"a": "aab"}` is two
endpoints of zone a and one of zone b, for the clients of zone a. Balanced slices have no group, written as "".
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from unit.slices.build import SliceStore, node, pods_in, service
from zonewise.api.names import CONSUMER, SAME_ZONE, STARTING_THRESHOLD
from zonewise.objects import Pod
from zonewise.routing import RoutingCode, RoutingNodes
from zonewise.slices.decide.plan import SlicesPlan
from zonewise.slices.decide.status_diff import report_on

Counts = Mapping[str, int]
THREE = {"a": 2, "b": 2, "c": 2}


def nodes(per_zone: Counts) -> RoutingNodes:
    return RoutingNodes.of(node(f"{zone}{n}", zone) for zone, count in per_zone.items() for n in range(1, count + 1))


def approach(value: str | None, **more: str) -> Any:
    return service(({SAME_ZONE: value} if value is not None else {}) | more)


def distribution(store: SliceStore) -> dict[str, str]:
    homes_of: dict[str, list[str]] = {}
    for endpoint_slice in store.slices:
        group = homes_of.setdefault(endpoint_slice.metadata.labels.get(CONSUMER, ""), [])
        group += [endpoint.zone or "?" for endpoint in endpoint_slice.endpoints or ()]
    return {group: "".join(sorted(homes)) for group, homes in sorted(homes_of.items())}


def distributed(value: str | None, nodes_per_zone: Counts, counts: Counts, **more: str) -> dict[str, str]:
    store = SliceStore(nodes(nodes_per_zone))
    store.sync(approach(value, **more), pods_in(counts))
    assert len(store.by_pod) == sum(counts.values())
    return distribution(store)


def grown(store: SliceStore, value: str, *steps: Counts) -> SlicesPlan:
    """One sync after the other; the plan of the last."""
    return [store.sync(approach(value), pods_in(counts)) for counts in steps][-1]


# Single Approach Test

FEW, MANY = {"a": 1, "b": 1, "c": 1}, {"a": 400, "b": 400, "c": 400}
FOUR_EACH = {"a": 4, "b": 4, "c": 4}
BY_ZONE = {"a": "aaaa", "b": "bbbb", "c": "cccc"}


@pytest.mark.parametrize("nodes_per_zone", [FEW, MANY], ids=["small", "large"])
@pytest.mark.parametrize(
    ("value", "expected"), [(None, {"": "aaaabbbbcccc"}), ("Require", BY_ZONE), ("Prefer", BY_ZONE)]
)
def test_single_approach_small_or_large_number_of_nodes(
    nodes_per_zone: Counts, value: str | None, expected: dict[str, str]
) -> None:
    assert distributed(value, nodes_per_zone, FOUR_EACH) == expected


@pytest.mark.parametrize(
    ("value", "counts", "expected"),
    [
        ("Balanced", {"a": 8, "b": 3, "c": 1}, {"": "aaaaaaaabbbc"}),
        ("Require", {"a": 8, "b": 3, "c": 1}, {"a": "aaaaaaaa", "b": "bbb", "c": "c"}),
        ("Prefer", {"a": 4, "b": 4, "c": 4}, BY_ZONE),
        ("Prefer", {"a": 5, "b": 4, "c": 4}, {"a": "aaaaa", "b": "bbbb", "c": "cccc"}),
        ("Prefer", {"a": 8, "b": 3, "c": 1}, {"a": "aaaa", "b": "abbb", "c": "aaac"}),
    ],
    ids=["balanced", "require", "prefer, balanced", "prefer, one more", "prefer, imbalanced"],
)
def test_single_approach_balanced_or_imbalanced_endpoints(value: str, counts: Counts, expected: dict[str, str]) -> None:
    assert distributed(value, THREE, counts) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("Balanced", {"": "aaaaaabbbbbb"}),
        ("Require", {"a": "aaaaaa", "b": "bbbbbb"}),
        ("Prefer", {"a": "aaaa", "b": "bbbb", "c": "aabb"}),
    ],
)
def test_single_approach_zero_endpoints_in_some_zones(value: str, expected: dict[str, str]) -> None:
    assert distributed(value, THREE, {"a": 6, "b": 6}) == expected


@pytest.mark.parametrize("value", ["", "require", "PreferZone", "true"])
def test_single_approach_invalid_annotation(value: str) -> None:
    """The default, and an event that says so."""
    store = SliceStore(nodes(THREE))
    plan = store.sync(approach(value), pods_in(FOUR_EACH))
    assert distribution(store) == {"": "aaaabbbbcccc"}
    assert [complaint.code for complaint in plan.decisions["IPv4"].complaints] == [RoutingCode.INVALID_VALUE]


# Prefer Test


@pytest.mark.parametrize("threshold", ["", "-1", "many", "3 x"])
def test_prefer_invalid_starting_threshold(threshold: str) -> None:
    """The default of nine, so that with its padding eleven endpoints are too few and twelve are enough."""
    tuned = {STARTING_THRESHOLD: threshold}
    assert distributed("Prefer", THREE, {"a": 4, "b": 4, "c": 3}, **tuned) == {"zonewise-all": "aaaabbbbccc"}
    assert distributed("Prefer", THREE, FOUR_EACH, **tuned) == BY_ZONE


def test_prefer_endpoints_below_starting_threshold_and_padding() -> None:
    assert distributed("Prefer", THREE, {"a": 4, "b": 4, "c": 3}) == {"zonewise-all": "aaaabbbbccc"}


def test_prefer_endpoints_above_starting_threshold_and_padding() -> None:
    assert distributed("Prefer", THREE, {"a": 5, "b": 4, "c": 4}) == {"a": "aaaaa", "b": "bbbb", "c": "cccc"}


# Approach Transition Test


def test_transition_increase_above_threshold_within_padding() -> None:
    store = SliceStore(nodes(THREE))
    plan = grown(store, "Prefer", {"a": 2, "b": 2, "c": 2}, {"a": 4, "b": 3, "c": 3})
    assert distribution(store) == {"zonewise-all": "aaaabbbccc"}
    assert plan.decisions["IPv4"].reason.code is RoutingCode.BELOW_START


def test_transition_increase_above_threshold_and_padding() -> None:
    store = SliceStore(nodes(THREE))
    grown(store, "Prefer", {"a": 2, "b": 2, "c": 2}, {"a": 4, "b": 4, "c": 3}, FOUR_EACH)
    assert distribution(store) == BY_ZONE


def test_transition_decrease_below_threshold_within_padding() -> None:
    store = SliceStore(nodes(THREE))
    plan = grown(store, "Prefer", FOUR_EACH, {"a": 3, "b": 2, "c": 2})
    assert distribution(store) == {"a": "aaa", "b": "bb", "c": "cc"}
    assert plan.reallocated == 0


def test_transition_decrease_below_threshold_minus_padding() -> None:
    store = SliceStore(nodes(THREE))
    grown(store, "Prefer", FOUR_EACH, {"a": 2, "b": 2, "c": 2})
    assert distribution(store) == {"zonewise-all": "aabbcc"}


BY_APPROACH = {
    "Balanced": {"": "aaaaaaabbbccc"},
    "Require": {"a": "aaaaaaa", "b": "bbb", "c": "ccc"},
    "Prefer": {"a": "aaaaa", "b": "abbb", "c": "accc"},
}


@pytest.mark.parametrize("after", BY_APPROACH)
@pytest.mark.parametrize("before", BY_APPROACH)
def test_transition_annotation_changed_to_another_approach(before: str, after: str) -> None:
    """No endpoint is lost, not even between two writes."""
    store = SliceStore(nodes(THREE))
    pods = pods_in({"a": 7, "b": 3, "c": 3})
    store.sync(approach(before), pods)
    assert distribution(store) == BY_APPROACH[before]
    for _ in store.write_plan(store.plan(approach(after), pods)):
        assert {endpoint.addresses[0] for endpoint in store.endpoints} == {pod.status.pod_ip for pod in pods}
    assert distribution(store) == BY_APPROACH[after]


def test_transition_from_require_to_prefer_needs_the_threshold() -> None:
    """Nine endpoints under `Require` do not count as a started preference."""
    store = SliceStore(nodes(THREE))
    store.sync(approach("Require"), pods_in({"a": 3, "b": 3, "c": 3}))
    store.sync(approach("Prefer"), pods_in({"a": 3, "b": 3, "c": 3}))
    assert distribution(store) == {"zonewise-all": "aaabbbccc"}


# Rolling Update Test


def rolled(pods: list[Pod], zone: str, number: int, at_once: int) -> list[Pod]:
    """`at_once` pods of a zone replaced by new ones, with other names and addresses."""
    new = pods_in({zone: number + at_once})[number:]
    return [*(pod for pod in pods if not pod.metadata.name.startswith(f"web-{zone}-")), *new]


@pytest.mark.parametrize(
    "counts", [{"a": 4, "b": 4, "c": 4}, {"a": 12}, {"a": 6, "b": 6}, {"a": 10, "b": 1, "c": 1}], ids=str
)
def test_rolling_update(counts: Counts) -> None:
    """Replaces one whole zone at a time: all zones are served within the limit, and churn is bounded."""
    store = SliceStore(nodes(THREE))
    pods = pods_in(counts)
    store.sync(approach("Prefer"), pods)
    reallocated = 0
    for zone, count in counts.items():
        without = [pod for pod in pods if pod.spec.node_name != f"{zone}1"]
        reallocated += store.sync(approach("Prefer"), without).reallocated
        pods = rolled(pods, zone, 100, count)
        reallocated += store.sync(approach("Prefer"), pods).reallocated
        assert {endpoint.addresses[0] for endpoint in store.endpoints} == {pod.status.pod_ip for pod in pods}
    served = distribution(store)
    assert served.keys() <= {*"abc", "zonewise-shared"} or served.keys() == {"zonewise-all"}
    assert all(len(pods) / 3 / len(homes) < 1.5 for homes in served.values())
    assert reallocated <= 2 * len(pods)
    assert not store.sync(approach("Prefer"), pods).writes


def test_rolling_update_with_a_surge_moves_no_old_endpoint() -> None:
    store = SliceStore(nodes(THREE))
    pods = pods_in({"a": 6, "b": 6, "c": 6})
    store.sync(approach("Prefer"), pods)
    for zone in "abc":
        surge = [*pods, *pods_in({zone: 102})[100:]]
        assert store.sync(approach("Prefer"), surge).reallocated == 0
        pods = [pod for pod in surge if pod.metadata.name not in {f"web-{zone}-0", f"web-{zone}-1"}]
        assert store.sync(approach("Prefer"), pods).reallocated == 0
    assert distribution(store) == {"a": "aaaaaa", "b": "bbbbbb", "c": "cccccc"}


# Observability


def test_refusal_names_the_limit_the_gap_and_a_remedy() -> None:
    store = SliceStore(nodes(THREE))
    plan = store.sync(approach("Prefer"), pods_in({"a": 4, "b": 4, "c": 3}))
    report = report_on(
        approach("Prefer"), plan.decisions, plan.expressions, store.cluster, None, datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert "12 are needed" in report.notes[0].text
    assert "run 1 more" in report.notes[0].text
