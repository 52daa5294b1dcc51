"""Slice groups: the consumers of each slice, matching hints, and no needless moves."""

from collections.abc import Mapping

import pytest

from unit.slices.build import PREFER, REQUIRE, SliceStore, node, pod, pods_in, service, zones
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


def groups(store: SliceStore) -> Grouped:
    """The pods of each group with the zones they are hinted for."""
    members_of: Grouped = {}
    for endpoint_slice in store.slices:
        for end in endpoint_slice.endpoints or ():
            hinted = "".join(hint.name for hint in end.hints.for_zones) if end.hints else ""
            name = end.target_ref.name if end.target_ref else ""
            members_of.setdefault(endpoint_slice.metadata.labels.get(CONSUMER, "none"), []).append((name, hinted))
    return {group: sorted(members) for group, members in sorted(members_of.items())}


def sizes(store: SliceStore) -> dict[str, int]:
    return {group: len(members) for group, members in groups(store).items()}


def synced(annotations: Mapping[str, str], pods: list[Pod], cluster: RoutingNodes = THREE) -> SliceStore:
    store = SliceStore(cluster)
    store.sync(service(annotations), pods)
    return store


TWELVE = pods_in({"a": 4, "b": 4, "c": 4})
BY_ZONE = {"a": 4, "b": 4, "c": 4}
SPREAD: dict[str, tuple[Mapping[str, str], dict[str, int]]] = {
    "nothing": ({}, {"none": 12}),
    "balanced": ({SAME_ZONE: "Balanced"}, {"none": 12}),
    "an unknown value": ({SAME_ZONE: "require"}, {"none": 12}),
    "hints": ({OLD_HINTS: "Auto"}, {"none": 12}),
    "keys": ({TOPOLOGY_KEYS: '["topology.kubernetes.io/zone"]'}, {"none": 12}),
    "keys over require": ({TOPOLOGY_KEYS: '["*"]'} | REQUIRE, {"none": 12}),
    "require": (REQUIRE, BY_ZONE),
    "prefer": (PREFER, BY_ZONE),
    "prefer, not started": (PREFER | {STARTING_THRESHOLD: "20"}, {CONSUMER_ALL: 12}),
    "require the node": ({SAME_NODE: "Require"}, BY_ZONE),
    "prefer the node": ({SAME_NODE: "Prefer"}, {CONSUMER_ALL: 12}),
}


@pytest.mark.parametrize(("annotations", "expected"), SPREAD.values(), ids=SPREAD)
def test_policies_with_groups(annotations: Mapping[str, str], expected: dict[str, int]) -> None:
    assert sizes(synced(annotations, TWELVE)) == expected


def test_single_consumer_zone_is_in_label_and_hints() -> None:
    store = synced(REQUIRE, pods_in({"a": 1, "b": 2}))
    assert groups(store) == {"a": [("web-a-0", "a")], "b": [("web-b-0", "b"), ("web-b-1", "b")]}


def test_lent_endpoints_are_in_the_group_of_their_consumers() -> None:
    store = synced(PREFER, pods_in({"a": 8, "b": 3, "c": 1}))
    assert {group: {hints for _, hints in members} for group, members in groups(store).items()} == {
        "a": {"a"},
        "b": {"b"},
        "c": {"c"},
    }
    assert sizes(store) == {"a": 4, "b": 4, "c": 4}


def test_endpoints_for_several_zones_are_in_the_shared_group() -> None:
    store = synced(PREFER | AT_ONCE | {ALGORITHM: "optimal"}, pods_in({"a": 6, "b": 3}))
    assert sizes(store) == {"b": 3, CONSUMER_SHARED: 6}
    assert {hints for _, hints in groups(store)[CONSUMER_SHARED]} == {"ac"}


def weights_of(store: SliceStore) -> list[dict[str, float]]:
    annotations = (
        read_weights(endpoint_slice.metadata.annotations.get(WEIGHTS, "")) for endpoint_slice in store.slices
    )
    return sorted((dict(zones) for weights in annotations for zones in weights.values()), key=str)


def test_weights_are_annotated_on_shared_slices() -> None:
    weighted = PREFER | {ALGORITHM: "local-weighted"}
    store = synced(weighted, pods_in({"a": 7, "b": 4, "c": 2}))
    assert len(groups(store)[CONSUMER_SHARED]) == len(weights_of(store)) > 0
    assert all(sum(weights.values()) == 1 for weights in weights_of(store))
    assert store.sync(service(weighted), pods_in({"a": 7, "b": 4, "c": 2})).writes == 0, "written once"
    store.sync(service(weighted), pods_in({"a": 4, "b": 4, "c": 4}))
    assert weights_of(store) == [], "annotations removed"


def test_more_zones_than_hints_can_name_are_annotated() -> None:
    names = "abcdefghij"
    store = synced(
        PREFER | AT_ONCE | {ALGORITHM: "local-opt"}, pods_in(dict.fromkeys(names, 4) | {"a": 7}), zones(*names)
    )
    assert [set(weights) for weights in weights_of(store)] == [set(names)] * 3


def test_a_region_is_shared_by_its_zones() -> None:
    pods = [pod(f"{zone}-{n}", f"10.{n}.0.{ord(zone)}", node_name=f"{zone}1") for zone in "abcd" for n in range(3)]
    store = synced({SAME_REGION: "Require"}, pods, TWO_REGIONS)
    assert sizes(store) == {CONSUMER_SHARED: 12}
    assert {hints for _, hints in groups(store)[CONSUMER_SHARED]} == {"ab", "cd"}


def test_endpoint_without_zone_is_in_the_group_of_all() -> None:
    """Stock proxies then ignore hints, as the losses say; node proxies still watch only their own zone."""
    pods = [pod("lost", "10.9.0.1", node_name="nowhere"), *pods_in({"a": 2, "b": 2})]
    store = SliceStore(TWO_REGIONS)
    plan = store.sync(service(REQUIRE), pods)
    assert sizes(store) == {"a": 2, "b": 2, CONSUMER_ALL: 1}
    assert groups(store)[CONSUMER_ALL] == [("lost", "")]
    assert any("no endpoint can be hinted" in loss.sentence for loss in plan.expressions["IPv4"].losses)


# Endpoints that are not ready


def unready(*names: str) -> list[Pod]:
    return [pod_ if pod_.metadata.name not in names else _unready(pod_) for pod_ in TWELVE]


def _unready(ready_pod: Pod) -> Pod:
    return pod(ready_pod.metadata.name, ready_pod.status.pod_ip, node_name=ready_pod.spec.node_name, ready=False)


@pytest.mark.parametrize("annotations", [REQUIRE, PREFER | AT_ONCE], ids=["require", "prefer"])
def test_unready_endpoints_wait_in_their_own_zone(annotations: Mapping[str, str]) -> None:
    store = synced(annotations, unready("web-a-0", "web-b-0"))
    assert sizes(store) == BY_ZONE
    assert ("web-a-0", "a") in groups(store)["a"]
    assert store.sync(service(annotations), TWELVE).writes == 2
    assert sizes(store) == BY_ZONE


def test_lent_endpoint_keeps_its_group_while_unready() -> None:
    imbalanced = pods_in({"a": 8, "b": 3, "c": 1})
    store = synced(PREFER, imbalanced)
    lent = next(name for name, _ in groups(store)["c"] if name.startswith("web-a"))
    before = groups(store)
    with_unready = [_unready(pod_) if pod_.metadata.name == lent else pod_ for pod_ in imbalanced]
    for pods in (with_unready, imbalanced):
        plan = store.sync(service(PREFER), pods)
        assert (len(plan.updates), plan.writes, groups(store)) == (1, 1, before)


def test_no_ready_endpoints_for_a_moment_changes_no_group() -> None:
    store = synced(PREFER, TWELVE)
    before = groups(store)
    unready_pods = [_unready(pod_) for pod_ in TWELVE]
    assert store.sync(service(PREFER), unready_pods).writes == 3
    assert groups(store) == before
    store.sync(service(PREFER), TWELVE[:8])
    assert sizes(store) == {"a": 3, "b": 3, "c": 2}, "8 endpoints are enough to continue, not to start"


def test_initially_unready_endpoints_wait_at_home_if_required() -> None:
    unready_pods = [_unready(pod_) for pod_ in TWELVE]
    assert sizes(synced(REQUIRE, unready_pods)) == BY_ZONE
    assert sizes(synced(PREFER, unready_pods)) == {CONSUMER_ALL: 12}


# Memory


def test_interrupted_preference_resumes_without_a_new_start() -> None:
    """With 9 endpoints it continues but would not start; in between the zones are too uneven for any split."""
    tuned = PREFER | {"zonewise.dev/overload-threshold": "0.1"}
    store = synced(tuned, TWELVE)
    uneven = pods_in({"a": 4, "b": 4, "c": 3})
    store.sync(service(tuned), uneven)
    assert sizes(store) == {CONSUMER_ALL: 11}
    assert any(endpoint_slice.metadata.annotations.get(STARTED) for endpoint_slice in store.slices)
    assert store.plan(service(tuned), uneven).writes == 0
    store.sync(service(tuned), pods_in({"a": 3, "b": 3, "c": 3}))
    assert sizes(store) == {"a": 3, "b": 3, "c": 3}


def test_nine_endpoints_do_not_start_a_preference() -> None:
    assert sizes(synced(PREFER, pods_in({"a": 3, "b": 3, "c": 3}))) == {CONSUMER_ALL: 9}


def test_hints_of_another_policy_are_ignored() -> None:
    store = SliceStore(THREE)
    nine = pods_in({"a": 3, "b": 3, "c": 3})
    store.sync(service(traffic_distribution="PreferClose"), nine)
    store.sync(service(PREFER), nine)
    assert sizes(store) == {CONSUMER_ALL: 9}


@pytest.mark.parametrize("after", [{}, REQUIRE, {OLD_HINTS: "auto"}], ids=["nothing", "require", "hints"])
def test_removed_preference_leaves_no_trace(after: Mapping[str, str]) -> None:
    store = synced(PREFER, TWELVE)
    store.sync(service(after), TWELVE)
    fresh = synced(after, TWELVE)
    assert sizes(store) == sizes(fresh)
    assert all(STARTED not in endpoint_slice.metadata.annotations for endpoint_slice in store.slices)


def test_none_waits_for_a_zone_without_clients() -> None:
    """Nodes of a zone without workers watch all groups, unless there is one of their zone."""
    control_plane = node("c1", "c")
    control_plane.metadata.labels["node-role.kubernetes.io/control-plane"] = ""
    nodes = RoutingNodes.of([node("a1", "a"), node("b1", "b"), control_plane])
    pods = pods_in({"a": 2, "b": 2, "c": 2})
    store = synced(PREFER | AT_ONCE, [*pods[:-1], _unready(pods[-1])], nodes)
    assert sizes(store) == {"a": 4, "b": 2}
    assert store.by_pod["web-c-1"].hints is None


# Few writes


def test_new_endpoint_within_thresholds_moves_no_other() -> None:
    store = synced(PREFER, TWELVE)
    before = groups(store)
    plan = store.sync(service(PREFER), [*TWELVE, *pods_in({"a": 5})[4:]])
    assert (len(plan.updates), plan.writes, plan.reallocated) == (1, 1, 0)
    assert groups(store) == before | {"a": sorted([*before["a"], ("web-a-4", "a")])}


def test_reallocated_endpoints_are_counted() -> None:
    store = synced(PREFER, TWELVE)
    plan = store.sync(service(PREFER), pods_in({"a": 10, "b": 4, "c": 0}))
    assert plan.added == 6
    assert plan.removed == 4
    assert plan.reallocated == 0, "the six new ones took over"
    plan = store.sync(service(PREFER), pods_in({"a": 10, "b": 0, "c": 0}))
    assert plan.reallocated > 0


def test_regrouping_reuses_existing_slices() -> None:
    store = synced({}, TWELVE)
    plan = store.sync(service(PREFER), TWELVE)
    assert (len(plan.creates), len(plan.updates), len(plan.deletes)) == (2, 1, 0)
    plan = store.sync(service(), TWELVE)
    assert (len(plan.creates), len(plan.updates), len(plan.deletes)) == (0, 1, 2)
    assert sizes(store) == {"none": 12}


def test_policy_that_has_not_started_only_adds_a_label() -> None:
    store = synced({}, TWELVE[:6])
    assert store.sync(service(PREFER), TWELVE[:6]).writes == 1
    assert sizes(store) == {CONSUMER_ALL: 6}
    assert [len(endpoint_slice.endpoints or ()) for endpoint_slice in store.slices] == [6]
