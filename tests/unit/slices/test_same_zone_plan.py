"""The test plan of the same-zone annotation, row by row: which endpoints stand in which zone's slices.

A distribution is written as the consumers of each slice group and the home zones of its endpoints: `{"a": "aab"}` is two
endpoints of zone a and one of zone b, for the clients of zone a. Balanced slices have no group, written as "".
"""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from unit.slices.build import World, node, pods_in, service
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


def distribution(world: World) -> dict[str, str]:
    found: dict[str, list[str]] = {}
    for seen in world.slices:
        group = found.setdefault(seen.metadata.labels.get(CONSUMER, ""), [])
        group += [endpoint.zone or "?" for endpoint in seen.endpoints or ()]
    return {group: "".join(sorted(homes)) for group, homes in sorted(found.items())}


def distributed(value: str | None, where: Counts, there: Counts, **more: str) -> dict[str, str]:
    world = World(nodes(where))
    world.sync(approach(value, **more), pods_in(there))
    assert len(world.by_pod) == sum(there.values())
    return distribution(world)


def grown(world: World, value: str, *steps: Counts) -> SlicesPlan:
    """One sync after the other; the plan of the last."""
    return [world.sync(approach(value), pods_in(there)) for there in steps][-1]


# Single Approach Test

FEW, MANY = {"a": 1, "b": 1, "c": 1}, {"a": 400, "b": 400, "c": 400}
FOUR_EACH = {"a": 4, "b": 4, "c": 4}
AT_HOME = {"a": "aaaa", "b": "bbbb", "c": "cccc"}


@pytest.mark.parametrize("where", [FEW, MANY], ids=["small", "large"])
@pytest.mark.parametrize(
    ("value", "expected"), [(None, {"": "aaaabbbbcccc"}), ("Require", AT_HOME), ("Prefer", AT_HOME)]
)
def test_single_approach_small_or_large_number_of_nodes(
    where: Counts, value: str | None, expected: dict[str, str]
) -> None:
    assert distributed(value, where, FOUR_EACH) == expected


@pytest.mark.parametrize(
    ("value", "there", "expected"),
    [
        ("Balanced", {"a": 8, "b": 3, "c": 1}, {"": "aaaaaaaabbbc"}),
        ("Require", {"a": 8, "b": 3, "c": 1}, {"a": "aaaaaaaa", "b": "bbb", "c": "c"}),
        ("Prefer", {"a": 4, "b": 4, "c": 4}, AT_HOME),
        ("Prefer", {"a": 5, "b": 4, "c": 4}, {"a": "aaaaa", "b": "bbbb", "c": "cccc"}),
        ("Prefer", {"a": 8, "b": 3, "c": 1}, {"a": "aaaa", "b": "abbb", "c": "aaac"}),
    ],
    ids=["balanced", "require", "prefer, balanced", "prefer, one more", "prefer, imbalanced"],
)
def test_single_approach_balanced_or_imbalanced_endpoints(value: str, there: Counts, expected: dict[str, str]) -> None:
    assert distributed(value, THREE, there) == expected


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
    world = World(nodes(THREE))
    plan = world.sync(approach(value), pods_in(FOUR_EACH))
    assert distribution(world) == {"": "aaaabbbbcccc"}
    assert [complaint.code for complaint in plan.decisions["IPv4"].complaints] == [RoutingCode.INVALID_VALUE]


# Prefer Test


@pytest.mark.parametrize("threshold", ["", "-1", "many", "3 x"])
def test_prefer_invalid_starting_threshold(threshold: str) -> None:
    """The default of nine, so that with its padding eleven endpoints are too few and twelve are enough."""
    tuned = {STARTING_THRESHOLD: threshold}
    assert distributed("Prefer", THREE, {"a": 4, "b": 4, "c": 3}, **tuned) == {"zonewise-all": "aaaabbbbccc"}
    assert distributed("Prefer", THREE, FOUR_EACH, **tuned) == AT_HOME


def test_prefer_endpoints_below_starting_threshold_and_padding() -> None:
    assert distributed("Prefer", THREE, {"a": 4, "b": 4, "c": 3}) == {"zonewise-all": "aaaabbbbccc"}


def test_prefer_endpoints_above_starting_threshold_and_padding() -> None:
    assert distributed("Prefer", THREE, {"a": 5, "b": 4, "c": 4}) == {"a": "aaaaa", "b": "bbbb", "c": "cccc"}


# Approach Transition Test


def test_transition_increase_above_threshold_but_below_threshold_and_padding() -> None:
    world = World(nodes(THREE))
    plan = grown(world, "Prefer", {"a": 2, "b": 2, "c": 2}, {"a": 4, "b": 3, "c": 3})
    assert distribution(world) == {"zonewise-all": "aaaabbbccc"}
    assert plan.decisions["IPv4"].reason.code is RoutingCode.BELOW_START


def test_transition_increase_above_threshold_and_padding() -> None:
    world = World(nodes(THREE))
    grown(world, "Prefer", {"a": 2, "b": 2, "c": 2}, {"a": 4, "b": 4, "c": 3}, FOUR_EACH)
    assert distribution(world) == AT_HOME


def test_transition_decrease_below_threshold_but_above_threshold_minus_padding() -> None:
    world = World(nodes(THREE))
    plan = grown(world, "Prefer", FOUR_EACH, {"a": 3, "b": 2, "c": 2})
    assert distribution(world) == {"a": "aaa", "b": "bb", "c": "cc"}
    assert plan.reallocated == 0


def test_transition_decrease_below_threshold_minus_padding() -> None:
    world = World(nodes(THREE))
    grown(world, "Prefer", FOUR_EACH, {"a": 2, "b": 2, "c": 2})
    assert distribution(world) == {"zonewise-all": "aabbcc"}


BY_APPROACH = {
    "Balanced": {"": "aaaaaaabbbccc"},
    "Require": {"a": "aaaaaaa", "b": "bbb", "c": "ccc"},
    "Prefer": {"a": "aaaaa", "b": "abbb", "c": "accc"},
}


@pytest.mark.parametrize("after", BY_APPROACH)
@pytest.mark.parametrize("before", BY_APPROACH)
def test_transition_annotation_changed_to_another_approach(before: str, after: str) -> None:
    """Nothing is lost on the way, not even between two writes."""
    world = World(nodes(THREE))
    there = pods_in({"a": 7, "b": 3, "c": 3})
    world.sync(approach(before), there)
    assert distribution(world) == BY_APPROACH[before]
    for _ in world.carry_out(world.plan(approach(after), there)):
        assert {endpoint.addresses[0] for endpoint in world.endpoints} == {pod.status.pod_ip for pod in there}
    assert distribution(world) == BY_APPROACH[after]


def test_transition_from_require_starts_prefer_at_its_own_threshold() -> None:
    """Nine endpoints that were required to stay at home are no preference that had started."""
    world = World(nodes(THREE))
    world.sync(approach("Require"), pods_in({"a": 3, "b": 3, "c": 3}))
    world.sync(approach("Prefer"), pods_in({"a": 3, "b": 3, "c": 3}))
    assert distribution(world) == {"zonewise-all": "aaabbbccc"}


# Rolling Update Test


def rolled(there: list[Pod], zone: str, number: int, at_once: int) -> list[Pod]:
    """`at_once` pods of a zone replaced by new ones, with other names and addresses."""
    new = pods_in({zone: number + at_once})[number:]
    return [*(pod for pod in there if not pod.metadata.name.startswith(f"web-{zone}-")), *new]


@pytest.mark.parametrize(
    "there", [{"a": 4, "b": 4, "c": 4}, {"a": 12}, {"a": 6, "b": 6}, {"a": 10, "b": 1, "c": 1}], ids=str
)
def test_rolling_update(there: Counts) -> None:
    """A zone at a time is replaced whole, the most aggressive way: all zones are served within the limit, and churn is bounded."""
    world = World(nodes(THREE))
    pods = pods_in(there)
    world.sync(approach("Prefer"), pods)
    reallocated = 0
    for zone, count in there.items():
        without = [pod for pod in pods if pod.spec.node_name != f"{zone}1"]
        reallocated += world.sync(approach("Prefer"), without).reallocated
        pods = rolled(pods, zone, 100, count)
        reallocated += world.sync(approach("Prefer"), pods).reallocated
        assert {endpoint.addresses[0] for endpoint in world.endpoints} == {pod.status.pod_ip for pod in pods}
    served = distribution(world)
    assert served.keys() <= {*"abc", "zonewise-shared"} or served.keys() == {"zonewise-all"}
    assert all(len(pods) / 3 / len(homes) < 1.5 for homes in served.values())
    assert reallocated <= 2 * len(pods)
    assert not world.sync(approach("Prefer"), pods).writes


def test_rolling_update_with_a_surge_moves_nothing_that_stays() -> None:
    world = World(nodes(THREE))
    pods = pods_in({"a": 6, "b": 6, "c": 6})
    world.sync(approach("Prefer"), pods)
    for zone in "abc":
        surge = [*pods, *pods_in({zone: 102})[100:]]
        assert world.sync(approach("Prefer"), surge).reallocated == 0
        pods = [pod for pod in surge if pod.metadata.name not in {f"web-{zone}-0", f"web-{zone}-1"}]
        assert world.sync(approach("Prefer"), pods).reallocated == 0
    assert distribution(world) == {"a": "aaaaaa", "b": "bbbbbb", "c": "cccccc"}


# Observability


def test_every_refusal_says_which_limit_by_how_much_and_what_would_help() -> None:
    world = World(nodes(THREE))
    plan = world.sync(approach("Prefer"), pods_in({"a": 4, "b": 4, "c": 3}))
    report = report_on(
        approach("Prefer"), plan.decisions, plan.expressions, world.cluster, None, datetime(2026, 1, 1, tzinfo=UTC)
    )
    assert "12 are needed" in report.notes[0].text
    assert "run 1 more" in report.notes[0].text
