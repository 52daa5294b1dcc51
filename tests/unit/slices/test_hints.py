"""Hints on slices without groups: traffic distribution and automatic hints, as stock and stable, and drained zones."""

from collections import Counter

import pytest

from unit.slices.build import PREFER, World, node, pod, pods_in, service, zones
from zonewise.api.names import CONSUMER, DRAIN_ZONE, OLD_HINTS
from zonewise.objects import Endpoint
from zonewise.routing import HintsForm, RoutingCode, RoutingNodes, drained_zones

THREE = zones("a", "b", "c")
PARTLY = RoutingNodes.of([node("a1", "a"), node("b1", "b"), node("nowhere")])
AUTO = {OLD_HINTS: "Auto"}


def hinted(endpoint: Endpoint) -> tuple[str, str]:
    """The zones and the nodes."""
    if endpoint.hints is None:
        return "", ""
    zones, nodes = endpoint.hints.for_zones, endpoint.hints.for_nodes
    return ",".join(hint.name for hint in zones), ",".join(hint.name for hint in nodes)


PODS = [
    pod("at-a", "10.0.0.1", node_name="a1"),
    pod("nowhere", "10.0.0.2", node_name="nowhere"),
    pod("unready", "10.0.0.3", node_name="b1", ready=False),
    pod("leaving", "10.0.0.4", node_name="b1", terminating=True),
]
DISTRIBUTIONS = {
    None: {"at-a": ("", ""), "nowhere": ("", "")},
    "PreferClose": {"at-a": ("a", ""), "nowhere": ("", "")},
    "PreferSameZone": {"at-a": ("a", ""), "nowhere": ("", "")},
    "PreferSameNode": {"at-a": ("a", "a1"), "nowhere": ("", "nowhere")},
    "PreferMoon": {"at-a": ("", ""), "nowhere": ("", "")},
}


@pytest.mark.parametrize(("value", "expected"), DISTRIBUTIONS.items(), ids=map(str, DISTRIBUTIONS))
def test_traffic_distribution_hints_every_ready_endpoint_by_itself(
    value: str | None, expected: dict[str, tuple[str, str]]
) -> None:
    world = World(PARTLY)
    world.sync(service(traffic_distribution=value), PODS)
    found = {name: hinted(endpoint) for name, endpoint in world.by_pod.items()}
    assert found == expected | {"unready": ("", ""), "leaving": ("", "")}
    assert all(CONSUMER not in seen.metadata.labels for seen in world.slices)


def test_automatic_hints_come_before_traffic_distribution() -> None:
    world = World(THREE)
    world.sync(service(AUTO, traffic_distribution="PreferSameNode"), pods_in({"a": 6, "b": 3}))
    assert Counter(hinted(endpoint) for endpoint in world.endpoints) == {("a,c", ""): 6, ("b", ""): 3}


@pytest.mark.parametrize("form", HintsForm)
def test_automatic_hints_that_go_are_removed_everywhere(form: HintsForm) -> None:
    world = World(THREE, most=4, form=form)
    pods = pods_in({"a": 4, "b": 4, "c": 4})
    world.sync(service(AUTO), pods)
    assert all(endpoint.hints for endpoint in world.endpoints)
    plan = world.sync(service(), pods)
    assert (len(plan.updates), plan.writes) == (3, 3)
    assert not any(endpoint.hints for endpoint in world.endpoints)


def test_strict_hints_leave_a_slice_alone_that_is_fine() -> None:
    """Eight of zone a in two slices: one of them is written anyway, and gives what zone c lacks."""
    world = World(THREE, most=4, form=HintsForm.STRICT)
    pods = pods_in({"a": 4, "b": 4, "c": 4})
    world.sync(service(AUTO), pods)
    plan = world.sync(service(AUTO), [*pods[:8], *pods_in({"a": 8})[4:]])
    assert plan.decisions["IPv4"].reason.code is RoutingCode.HINTED
    untouched = {update.existing.metadata.name for update in plan.updates} ^ set(world.stored)
    assert len(untouched) == 2
    assert Counter(hinted(endpoint) for endpoint in world.endpoints) == {("a", ""): 4, ("b", ""): 4, ("c", ""): 4}


def test_strict_hints_are_refused_as_stock_refuses_them() -> None:
    """Four, four and three: stock gives up, the stable form shares."""
    for form, expected in ((HintsForm.STRICT, False), (HintsForm.STABLE, True)):
        world = World(THREE, form=form)
        plan = world.sync(service(AUTO), pods_in({"a": 4, "b": 4, "c": 3}))
        assert any(endpoint.hints for endpoint in world.endpoints) is expected
        assert (plan.decisions["IPv4"].reason.code is RoutingCode.WOULD_OVERLOAD) is not expected


def test_a_strict_decision_says_what_the_slices_say() -> None:
    world = World(THREE, most=3, form=HintsForm.STRICT)
    plan = world.sync(service(AUTO), pods_in({"a": 6, "b": 3, "c": 3}))
    told = {address: hints.for_zones for address, hints in plan.expressions["IPv4"].hints.items()}
    assert told == {endpoint.addresses[0]: endpoint.hints.for_zones for endpoint in world.endpoints if endpoint.hints}


@pytest.mark.parametrize("annotations", [{}, AUTO, PREFER], ids=["nothing", "hints", "prefer"])
def test_a_drained_zone_is_left_and_returned_to(annotations: dict[str, str]) -> None:
    world = World(THREE)
    pods = pods_in({"a": 5, "b": 5, "c": 5})
    world.sync(service(annotations), pods)
    before = {endpoint.addresses: endpoint.hints for endpoint in world.endpoints}
    asked = service(annotations | {DRAIN_ZONE: "a"})
    drain = drained_zones(asked, {}, THREE.node_drains)
    world.sync(asked, pods, drained=drain)
    for endpoint in world.endpoints:
        assert endpoint.hints is not None
        assert ("zonewise-drained" in hinted(endpoint)[0]) is (endpoint.zone == "a")
    assert world.plan(asked, pods, drained=drain).writes == 0
    world.sync(service(annotations), pods)
    assert {endpoint.addresses: endpoint.hints for endpoint in world.endpoints} == before
