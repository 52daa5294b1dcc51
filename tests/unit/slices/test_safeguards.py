"""The five safeguards of automatic hints, from pods to what a stock proxy does, and where the stable form does better.

Then the three values of trafficDistribution: which hints each makes the slices carry.
"""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from unit.slices.build import World, node, pods_in, service
from zonewise.api.names import OLD_HINTS
from zonewise.objects import EndpointSlice, Node, Service, ServicePort
from zonewise.routing import DRAIN_ZONE, HintsForm, RoutingCode, RoutingNodes, drained_zones, stock_choice
from zonewise.slices.decide.plan import SlicesPlan

AUTO = service({OLD_HINTS: "Auto"})
HTTP = ServicePort(name="http", port=80)
WORKERS = tuple(node(f"{zone}{number}", zone) for zone in "abc" for number in (1, 2))


def hinted(
    there: Mapping[str, int], *nodes: Node, form: HintsForm = HintsForm.STRICT, asked: Service = AUTO
) -> tuple[World, SlicesPlan]:
    world = World(RoutingNodes.of(nodes or WORKERS), form=form)
    return world, world.sync(asked, pods_in(there))


def zone_hints(world: World) -> set[str]:
    return {"+".join(hint.name for hint in found.hints.for_zones) if found.hints else "" for found in world.endpoints}


def used_by(slices: list[EndpointSlice], client: Node) -> tuple[int, RoutingCode]:
    """How many endpoints a stock proxy on that node uses, and why."""
    choice = stock_choice(AUTO, HTTP, slices, client)
    return len(choice.cluster), choice.reason.code


def test_hints_where_no_safeguard_applies() -> None:
    world, plan = hinted({"a": 3, "b": 3, "c": 3})
    assert plan.decisions["IPv4"].reason.code is RoutingCode.HINTED
    assert [used_by(world.slices, client) for client in WORKERS] == [(3, RoutingCode.PROXY_SAME_ZONE)] * 6


def test_1_insufficient_number_of_endpoints() -> None:
    world, plan = hinted({"a": 1, "b": 1})
    assert plan.decisions["IPv4"].reason.code is RoutingCode.TOO_FEW_ENDPOINTS
    assert zone_hints(world) == {""}
    assert used_by(world.slices, WORKERS[0]) == (2, RoutingCode.BALANCED)


def test_2_impossible_to_achieve_balanced_allocation() -> None:
    """Zone a is twice as large as b, and there are two endpoints: one would get twice as much as the other."""
    world, plan = hinted({"a": 1, "b": 1}, node("a1", "a"), node("a2", "a"), node("b1", "b"))
    assert plan.decisions["IPv4"].reason.code is RoutingCode.WOULD_OVERLOAD
    assert zone_hints(world) == {""}


def test_3_one_or_more_nodes_has_insufficient_information() -> None:
    world, plan = hinted({"a": 3, "b": 3, "c": 3}, *WORKERS, node("x1"))
    reason = plan.decisions["IPv4"].reason
    assert (reason.code, [str(subject) for subject in reason.blame]) == (
        RoutingCode.INSUFFICIENT_NODE_INFO,
        ["Node x1"],
    )
    assert zone_hints(world) == {""}


def test_4_one_or_more_endpoints_does_not_have_a_zone_hint() -> None:
    world, _ = hinted({"a": 3, "b": 3, "c": 3})
    name = next(iter(world.stored))
    world.stored[name]["endpoints"][0].pop("hints")
    assert used_by(world.slices, WORKERS[0]) == (9, RoutingCode.MISSING_HINTS)
    assert world.sync(AUTO, pods_in({"a": 3, "b": 3, "c": 3})).writes == 1
    assert used_by(world.slices, WORKERS[0]) == (3, RoutingCode.PROXY_SAME_ZONE)


def test_5_a_zone_is_not_represented_in_hints() -> None:
    twelve = {"a": 4, "b": 4, "c": 4}
    world, _ = hinted(twelve)
    newcomers = (node("d1", "d"), node("d2", "d"))
    assert used_by(world.slices, newcomers[0]) == (12, RoutingCode.ZONE_NOT_HINTED)
    world.cluster = RoutingNodes.of([*WORKERS, *newcomers])
    world.sync(AUTO, pods_in(twelve))
    assert [used_by(world.slices, client) for client in newcomers] == [(3, RoutingCode.PROXY_SAME_ZONE)] * 2


def test_all_hints_go_from_every_slice_when_a_safeguard_begins_to_apply() -> None:
    world, _ = hinted({"a": 3, "b": 3, "c": 3})
    world.sync(AUTO, pods_in({"a": 3, "b": 1}))
    assert zone_hints(world) == {""}


def test_not_ready_nodes_do_not_count() -> None:
    """Ready workers of two zones only: hints are for these two."""
    asleep = replace_condition(node("c1", "c"))
    world, _ = hinted({"a": 3, "b": 3}, node("a1", "a"), node("b1", "b"), asleep)
    assert zone_hints(world) == {"a", "b"}


def replace_condition(found: Node) -> Node:
    return Node(metadata=found.metadata, status=type(found.status)(allocatable=found.status.allocatable))


STABLE = {
    "a node without a zone is left out and named": ({"a": 3, "b": 3, "c": 3}, (*WORKERS, node("x1")), {"a", "b", "c"}),
    "4, 4 and 3 keep their zones": ({"a": 4, "b": 4, "c": 3}, WORKERS, {"a", "b", "c"}),
}


@pytest.mark.parametrize("name", STABLE)
def test_the_stable_form_goes_on(name: str) -> None:
    there, nodes, expected = STABLE[name]
    strict, _ = hinted(there, *nodes)
    stable, plan = hinted(there, *nodes, form=HintsForm.STABLE)
    assert zone_hints(strict) == {""}
    assert {zone for hints in zone_hints(stable) for zone in hints.split("+")} == expected
    assert plan.decisions["IPv4"].reason.code is RoutingCode.HINTED


def test_a_count_that_walks_from_9_to_12_and_back_flaps_strictly_but_not_stably() -> None:
    """As an autoscaler makes it walk: strictly 11 is refused, so hints go and come twice."""
    flips = {}
    for form in HintsForm:
        world = World(RoutingNodes.of(WORKERS), form=form)
        active = []
        for count in (9, 10, 11, 12, 11, 10, 9):
            there = {zone: count // 3 + (number < count % 3) for number, zone in enumerate("abc")}
            plan = world.sync(AUTO, pods_in(there))
            active.append(plan.decisions["IPv4"].reason.code is RoutingCode.HINTED)
        flips[form] = sum(before != after for before, after in pairwise(active))
    assert flips == {HintsForm.STRICT: 4, HintsForm.STABLE: 0}


def test_hints_come_back_when_the_nodes_are_well_again() -> None:
    """A node joins before it says its zone: nothing but the nodes changed, and the hints are there again."""
    world, _ = hinted({"a": 3, "b": 3, "c": 3})
    pods = pods_in({"a": 3, "b": 3, "c": 3})
    world.cluster = RoutingNodes.of([*WORKERS, node("x1")])
    world.sync(AUTO, pods)
    assert zone_hints(world) == {""}
    world.cluster = RoutingNodes.of([*WORKERS, *(node(f"{zone}3", zone) for zone in "abc")])
    world.sync(AUTO, pods)
    assert zone_hints(world) == {"a", "b", "c"}


DISTRIBUTION = {
    # value: zones and nodes that a ready endpoint in zone a on node a1 is hinted for
    "PreferClose": ("a", ""),
    "PreferSameZone": ("a", ""),
    "PreferSameNode": ("a", "a1"),
    None: ("", ""),
}


@pytest.mark.parametrize("value", DISTRIBUTION)
def test_hints_of_traffic_distribution(value: str | None) -> None:
    """Whatever the numbers: no share, no minimum, no threshold."""
    world, _ = hinted({"a": 1}, asked=service(traffic_distribution=value))
    (found,) = world.endpoints
    zones = "+".join(hint.name for hint in found.hints.for_zones) if found.hints else ""
    nodes = "+".join(hint.name for hint in found.hints.for_nodes) if found.hints else ""
    assert (zones, nodes) == DISTRIBUTION[value]


def test_traffic_distribution_gives_way_to_automatic_hints() -> None:
    world, plan = hinted({"a": 1}, asked=service({OLD_HINTS: "Auto"}, traffic_distribution="PreferClose"))
    assert (zone_hints(world), plan.decisions["IPv4"].reason.code) == ({""}, RoutingCode.TOO_FEW_ENDPOINTS)


@pytest.mark.parametrize("form", HintsForm)
def test_hints_say_that_a_drain_is_not_possible(form: HintsForm) -> None:
    world = World(RoutingNodes.of(WORKERS), form=form)
    asked = service({OLD_HINTS: "Auto", DRAIN_ZONE: "a"})
    plan = world.sync(asked, pods_in({"a": 6}), drained=drained_zones(asked, {}, world.cluster.node_drains))
    assert [reason.code for reason in plan.decisions["IPv4"].reasons][1:] == [RoutingCode.NOT_DRAINED]
