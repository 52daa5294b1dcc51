"""Slice groups: who consumes which slice, hints that agree, and that nothing moves which need not."""

from collections.abc import Mapping

import pytest

from unit.slices.build import PREFER, REQUIRE, World, node, pod, pods_in, service, zones
from zonewise.api.names import (
    ALGORITHM,
    CONSUMER,
    CONSUMER_ALL,
    CONSUMER_SHARED,
    OLD_HINTS,
    PADDING,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTED,
    STARTING_THRESHOLD,
    TOPOLOGY_KEYS,
    WEIGHTS,
)
from zonewise.objects import Pod
from zonewise.routing import RoutingNodes
from zonewise.routing.weights_annotation import read_weights

THREE = zones("a", "b", "c")
AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
TWO_REGIONS = RoutingNodes.of(
    [node("a1", "a", "r"), node("b1", "b", "r"), node("c1", "c", "s"), node("d1", "d", "s"), node("nowhere")]
)

Grouped = dict[str, list[tuple[str, str]]]


def groups(world: World) -> Grouped:
    """The pods of each group with the zones they are hinted for."""
    found: Grouped = {}
    for seen in world.slices:
        for end in seen.endpoints or ():
            hinted = "".join(hint.name for hint in end.hints.for_zones) if end.hints else ""
            name = end.target_ref.name if end.target_ref else ""
            found.setdefault(seen.metadata.labels.get(CONSUMER, "none"), []).append((name, hinted))
    return {group: sorted(members) for group, members in sorted(found.items())}


def sizes(world: World) -> dict[str, int]:
    return {group: len(members) for group, members in groups(world).items()}


def synced(annotations: Mapping[str, str], pods: list[Pod], cluster: RoutingNodes = THREE) -> World:
    world = World(cluster)
    world.sync(service(annotations), pods)
    return world


TWELVE = pods_in({"a": 4, "b": 4, "c": 4})
AT_HOME = {"a": 4, "b": 4, "c": 4}
SPREAD: dict[str, tuple[Mapping[str, str], dict[str, int]]] = {
    "nothing": ({}, {"none": 12}),
    "balanced": ({SAME_ZONE: "Balanced"}, {"none": 12}),
    "an unknown value": ({SAME_ZONE: "require"}, {"none": 12}),
    "hints": ({OLD_HINTS: "Auto"}, {"none": 12}),
    "keys": ({TOPOLOGY_KEYS: '["topology.kubernetes.io/zone"]'}, {"none": 12}),
    "keys over require": ({TOPOLOGY_KEYS: '["*"]'} | REQUIRE, {"none": 12}),
    "require": (REQUIRE, AT_HOME),
    "prefer": (PREFER, AT_HOME),
    "prefer, not started": (PREFER | {STARTING_THRESHOLD: "20"}, {CONSUMER_ALL: 12}),
    "require the node": ({SAME_NODE: "Require"}, AT_HOME),
    "prefer the node": ({SAME_NODE: "Prefer"}, {CONSUMER_ALL: 12}),
}


@pytest.mark.parametrize(("annotations", "expected"), SPREAD.values(), ids=SPREAD)
def test_who_is_grouped(annotations: Mapping[str, str], expected: dict[str, int]) -> None:
    assert sizes(synced(annotations, TWELVE)) == expected


def test_a_zone_of_its_own_is_in_the_label_and_in_the_hints() -> None:
    world = synced(REQUIRE, pods_in({"a": 1, "b": 2}))
    assert groups(world) == {"a": [("web-a-0", "a")], "b": [("web-b-0", "b"), ("web-b-1", "b")]}


def test_what_is_lent_stands_with_those_who_consume_it() -> None:
    world = synced(PREFER, pods_in({"a": 8, "b": 3, "c": 1}))
    assert {group: {hints for _, hints in members} for group, members in groups(world).items()} == {
        "a": {"a"},
        "b": {"b"},
        "c": {"c"},
    }
    assert sizes(world) == {"a": 4, "b": 4, "c": 4}


def test_what_several_zones_consume_is_shared() -> None:
    world = synced(PREFER | AT_ONCE | {ALGORITHM: "optimal"}, pods_in({"a": 6, "b": 3}))
    assert sizes(world) == {"b": 3, CONSUMER_SHARED: 6}
    assert {hints for _, hints in groups(world)[CONSUMER_SHARED]} == {"ac"}


def told_weights(world: World) -> list[dict[str, float]]:
    said = (read_weights(seen.metadata.annotations.get(WEIGHTS, "")) for seen in world.slices)
    return sorted((dict(zones) for weights in said for zones in weights.values()), key=str)


def test_weights_stand_beside_the_slices_that_are_shared() -> None:
    weighted = PREFER | {ALGORITHM: "local-weighted"}
    world = synced(weighted, pods_in({"a": 7, "b": 4, "c": 2}))
    assert len(groups(world)[CONSUMER_SHARED]) == len(told_weights(world)) > 0
    assert all(sum(weights.values()) == 1 for weights in told_weights(world))
    assert world.sync(service(weighted), pods_in({"a": 7, "b": 4, "c": 2})).writes == 0, "said once"
    world.sync(service(weighted), pods_in({"a": 4, "b": 4, "c": 4}))
    assert told_weights(world) == [], "nothing is left of it"


def test_more_zones_than_hints_can_name_stand_there_too() -> None:
    names = "abcdefghij"
    world = synced(
        PREFER | AT_ONCE | {ALGORITHM: "local-opt"}, pods_in(dict.fromkeys(names, 4) | {"a": 7}), zones(*names)
    )
    assert [set(each) for each in told_weights(world)] == [set(names)] * 3


def test_a_region_is_shared_by_its_zones() -> None:
    pods = [pod(f"{zone}-{n}", f"10.{n}.0.{ord(zone)}", node_name=f"{zone}1") for zone in "abcd" for n in range(3)]
    world = synced({SAME_REGION: "Require"}, pods, TWO_REGIONS)
    assert sizes(world) == {CONSUMER_SHARED: 12}
    assert {hints for _, hints in groups(world)[CONSUMER_SHARED]} == {"ab", "cd"}


def test_an_endpoint_for_nobody_is_in_the_group_of_all_and_the_others_keep_theirs() -> None:
    """Stock proxies then heed no hints, as the expression tells; node proxies still watch their own zone only."""
    pods = [pod("lost", "10.9.0.1", node_name="nowhere"), *pods_in({"a": 2, "b": 2})]
    world = World(TWO_REGIONS)
    plan = world.sync(service(REQUIRE), pods)
    assert sizes(world) == {"a": 2, "b": 2, CONSUMER_ALL: 1}
    assert groups(world)[CONSUMER_ALL] == [("lost", "")]
    assert any("no endpoint can be hinted" in loss.sentence for loss in plan.expressions["IPv4"].losses)


# What is not ready


def unready(*names: str) -> list[Pod]:
    return [one if one.metadata.name not in names else _asleep(one) for one in TWELVE]


def _asleep(one: Pod) -> Pod:
    return pod(one.metadata.name, one.status.pod_ip, node_name=one.spec.node_name, ready=False)


@pytest.mark.parametrize("annotations", [REQUIRE, PREFER | AT_ONCE], ids=["require", "prefer"])
def test_what_is_not_ready_waits_in_its_own_zone(annotations: Mapping[str, str]) -> None:
    world = synced(annotations, unready("web-a-0", "web-b-0"))
    assert sizes(world) == AT_HOME
    assert ("web-a-0", "a") in groups(world)["a"]
    assert world.sync(service(annotations), TWELVE).writes == 2
    assert sizes(world) == AT_HOME


def test_what_was_lent_stays_lent_while_it_is_not_ready() -> None:
    imbalanced = pods_in({"a": 8, "b": 3, "c": 1})
    world = synced(PREFER, imbalanced)
    lent = next(name for name, _ in groups(world)["c"] if name.startswith("web-a"))
    before = groups(world)
    drowsy = [_asleep(one) if one.metadata.name == lent else one for one in imbalanced]
    for pods in (drowsy, imbalanced):
        plan = world.sync(service(PREFER), pods)
        assert (len(plan.updates), plan.writes, groups(world)) == (1, 1, before)


def test_nothing_ready_for_a_moment_changes_no_group() -> None:
    world = synced(PREFER, TWELVE)
    before = groups(world)
    asleep = [_asleep(one) for one in TWELVE]
    assert world.sync(service(PREFER), asleep).writes == 3
    assert groups(world) == before
    world.sync(service(PREFER), TWELVE[:8])
    assert sizes(world) == {"a": 3, "b": 3, "c": 2}, "8 endpoints are enough to go on, not to begin"


def test_nothing_ready_from_the_start_waits_at_home_if_that_is_required() -> None:
    asleep = [_asleep(one) for one in TWELVE]
    assert sizes(synced(REQUIRE, asleep)) == AT_HOME
    assert sizes(synced(PREFER, asleep)) == {CONSUMER_ALL: 12}


# Memory


def test_a_preference_that_had_to_stop_has_not_ended() -> None:
    """With 7 endpoints it goes on but would not begin; in between the zones are too uneven for any split."""
    tuned = PREFER | {"zonewise.dev/overload-threshold": "0.1"}
    world = synced(tuned, TWELVE)
    uneven = pods_in({"a": 4, "b": 4, "c": 3})
    world.sync(service(tuned), uneven)
    assert sizes(world) == {CONSUMER_ALL: 11}
    assert any(found.metadata.annotations.get(STARTED) for found in world.slices)
    assert world.plan(service(tuned), uneven).writes == 0
    world.sync(service(tuned), pods_in({"a": 3, "b": 3, "c": 3}))
    assert sizes(world) == {"a": 3, "b": 3, "c": 3}


def test_nine_endpoints_do_not_begin() -> None:
    assert sizes(synced(PREFER, pods_in({"a": 3, "b": 3, "c": 3}))) == {CONSUMER_ALL: 9}


def test_what_another_policy_hinted_is_no_memory() -> None:
    world = World(THREE)
    nine = pods_in({"a": 3, "b": 3, "c": 3})
    world.sync(service(traffic_distribution="PreferClose"), nine)
    world.sync(service(PREFER), nine)
    assert sizes(world) == {CONSUMER_ALL: 9}


@pytest.mark.parametrize("after", [{}, REQUIRE, {OLD_HINTS: "auto"}], ids=["nothing", "require", "hints"])
def test_a_preference_that_is_taken_back_leaves_no_trace(after: Mapping[str, str]) -> None:
    world = synced(PREFER, TWELVE)
    world.sync(service(after), TWELVE)
    fresh = synced(after, TWELVE)
    assert sizes(world) == sizes(fresh)
    assert all(STARTED not in found.metadata.annotations for found in world.slices)


# Few writes


def test_an_update_that_breaks_no_threshold_moves_nothing_else() -> None:
    world = synced(PREFER, TWELVE)
    before = groups(world)
    plan = world.sync(service(PREFER), [*TWELVE, *pods_in({"a": 5})[4:]])
    assert (len(plan.updates), plan.writes, plan.reallocated) == (1, 1, 0)
    assert groups(world) == before | {"a": sorted([*before["a"], ("web-a-4", "a")])}


def test_reallocated_endpoints_are_counted() -> None:
    world = synced(PREFER, TWELVE)
    plan = world.sync(service(PREFER), pods_in({"a": 10, "b": 4, "c": 0}))
    assert plan.added == 6
    assert plan.removed == 4
    assert plan.reallocated == 0, "the six that came took over"
    plan = world.sync(service(PREFER), pods_in({"a": 10, "b": 0, "c": 0}))
    assert plan.reallocated > 0


def test_regrouping_uses_the_slices_that_are_there() -> None:
    world = synced({}, TWELVE)
    plan = world.sync(service(PREFER), TWELVE)
    assert (len(plan.creates), len(plan.updates), len(plan.deletes)) == (2, 1, 0)
    plan = world.sync(service(), TWELVE)
    assert (len(plan.creates), len(plan.updates), len(plan.deletes)) == (0, 1, 2)
    assert sizes(world) == {"none": 12}


def test_a_label_alone_tells_balanced_from_not_started() -> None:
    world = synced({}, TWELVE[:6])
    assert world.sync(service(PREFER), TWELVE[:6]).writes == 1
    assert sizes(world) == {CONSUMER_ALL: 6}
    assert [len(found.endpoints or ()) for found in world.slices] == [6]
