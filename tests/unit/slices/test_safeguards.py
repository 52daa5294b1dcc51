"""The five safeguards of automatic hints, from pods to what a stock proxy does, and where the stable form does better.

Then the three values of trafficDistribution: which hints each makes the slices carry.
"""

from collections.abc import Mapping
from itertools import pairwise

import pytest

from unit.slices.build import SliceStore, node, pods_in, service
from zonewise.api.names import OLD_HINTS
from zonewise.objects import EndpointSlice, Node, Service, ServicePort
from zonewise.routing import DRAIN_ZONE, HintsForm, RoutingCode, RoutingNodes, drained_zones, stock_choice
from zonewise.slices.decide.plan import SlicesPlan

AUTO = service({OLD_HINTS: "Auto"})
HTTP = ServicePort(name="http", port=80)
WORKERS = tuple(node(f"{zone}{number}", zone) for zone in "abc" for number in (1, 2))


def hinted(
    counts: Mapping[str, int], *nodes: Node, form: HintsForm = HintsForm.STRICT, svc: Service = AUTO
) -> tuple[SliceStore, SlicesPlan]:
    store = SliceStore(RoutingNodes.of(nodes or WORKERS), form=form)
    return store, store.sync(svc, pods_in(counts))


def zone_hints(store: SliceStore) -> set[str]:
    return {
        "+".join(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else ""
        for endpoint in store.endpoints
    }


def used_by(slices: list[EndpointSlice], client: Node) -> tuple[int, RoutingCode]:
    """How many endpoints a stock proxy on that node uses, and why."""
    choice = stock_choice(AUTO, HTTP, slices, client)
    return len(choice.cluster), choice.reason.code


def test_hints_where_no_safeguard_applies() -> None:
    store, plan = hinted({"a": 3, "b": 3, "c": 3})
    assert plan.decisions["IPv4"].reason.code is RoutingCode.HINTED
    assert [used_by(store.slices, client) for client in WORKERS] == [(3, RoutingCode.PROXY_SAME_ZONE)] * 6


def test_1_insufficient_number_of_endpoints() -> None:
    store, plan = hinted({"a": 1, "b": 1})
    assert plan.decisions["IPv4"].reason.code is RoutingCode.TOO_FEW_ENDPOINTS
    assert zone_hints(store) == {""}
    assert used_by(store.slices, WORKERS[0]) == (2, RoutingCode.BALANCED)


def test_2_impossible_to_achieve_balanced_allocation() -> None:
    """Zone a is twice as large as b, and there are two endpoints: one would get twice as much as the other."""
    store, plan = hinted({"a": 1, "b": 1}, node("a1", "a"), node("a2", "a"), node("b1", "b"))
    assert plan.decisions["IPv4"].reason.code is RoutingCode.WOULD_OVERLOAD
    assert zone_hints(store) == {""}


def test_3_one_or_more_nodes_has_insufficient_information() -> None:
    store, plan = hinted({"a": 3, "b": 3, "c": 3}, *WORKERS, node("x1"))
    reason = plan.decisions["IPv4"].reason
    assert (reason.code, [str(subject) for subject in reason.blame]) == (
        RoutingCode.INSUFFICIENT_NODE_INFO,
        ["Node x1"],
    )
    assert zone_hints(store) == {""}


def test_4_one_or_more_endpoints_does_not_have_a_zone_hint() -> None:
    store, _ = hinted({"a": 3, "b": 3, "c": 3})
    name = next(iter(store.stored))
    store.stored[name]["endpoints"][0].pop("hints")
    assert used_by(store.slices, WORKERS[0]) == (9, RoutingCode.MISSING_HINTS)
    assert store.sync(AUTO, pods_in({"a": 3, "b": 3, "c": 3})).writes == 1
    assert used_by(store.slices, WORKERS[0]) == (3, RoutingCode.PROXY_SAME_ZONE)


def test_5_a_zone_is_not_represented_in_hints() -> None:
    twelve = {"a": 4, "b": 4, "c": 4}
    store, _ = hinted(twelve)
    newcomers = (node("d1", "d"), node("d2", "d"))
    assert used_by(store.slices, newcomers[0]) == (12, RoutingCode.ZONE_NOT_HINTED)
    store.cluster = RoutingNodes.of([*WORKERS, *newcomers])
    store.sync(AUTO, pods_in(twelve))
    assert [used_by(store.slices, client) for client in newcomers] == [(3, RoutingCode.PROXY_SAME_ZONE)] * 2


def test_hints_are_removed_when_a_safeguard_applies() -> None:
    store, _ = hinted({"a": 3, "b": 3, "c": 3})
    store.sync(AUTO, pods_in({"a": 3, "b": 1}))
    assert zone_hints(store) == {""}


def test_not_ready_nodes_do_not_count() -> None:
    """Ready workers of two zones only: hints are for these two."""
    unready = unready_copy(node("c1", "c"))
    store, _ = hinted({"a": 3, "b": 3}, node("a1", "a"), node("b1", "b"), unready)
    assert zone_hints(store) == {"a", "b"}


def unready_copy(ready_node: Node) -> Node:
    return Node(metadata=ready_node.metadata, status=type(ready_node.status)(allocatable=ready_node.status.allocatable))


STABLE = {
    "a node without a zone is left out and named": ({"a": 3, "b": 3, "c": 3}, (*WORKERS, node("x1")), {"a", "b", "c"}),
    "4, 4 and 3 keep their zones": ({"a": 4, "b": 4, "c": 3}, WORKERS, {"a", "b", "c"}),
}


@pytest.mark.parametrize("name", STABLE)
def test_stable_form_hints_where_the_strict_form_refuses(name: str) -> None:
    counts, nodes, expected = STABLE[name]
    strict, _ = hinted(counts, *nodes)
    stable, plan = hinted(counts, *nodes, form=HintsForm.STABLE)
    assert zone_hints(strict) == {""}
    assert {zone for hints in zone_hints(stable) for zone in hints.split("+")} == expected
    assert plan.decisions["IPv4"].reason.code is RoutingCode.HINTED


def test_strict_hints_flap_between_9_and_12_endpoints_stable_do_not() -> None:
    """As with an autoscaler: the strict form refuses 11, so hints are removed and restored twice."""
    flips = {}
    for form in HintsForm:
        store = SliceStore(RoutingNodes.of(WORKERS), form=form)
        active = []
        for count in (9, 10, 11, 12, 11, 10, 9):
            counts = {zone: count // 3 + (number < count % 3) for number, zone in enumerate("abc")}
            plan = store.sync(AUTO, pods_in(counts))
            active.append(plan.decisions["IPv4"].reason.code is RoutingCode.HINTED)
        flips[form] = sum(before != after for before, after in pairwise(active))
    assert flips == {HintsForm.STRICT: 4, HintsForm.STABLE: 0}


def test_hints_return_when_all_nodes_have_a_zone_again() -> None:
    """A node joins without a zone label; when only the nodes change back, the hints are restored."""
    store, _ = hinted({"a": 3, "b": 3, "c": 3})
    pods = pods_in({"a": 3, "b": 3, "c": 3})
    store.cluster = RoutingNodes.of([*WORKERS, node("x1")])
    store.sync(AUTO, pods)
    assert zone_hints(store) == {""}
    store.cluster = RoutingNodes.of([*WORKERS, *(node(f"{zone}3", zone) for zone in "abc")])
    store.sync(AUTO, pods)
    assert zone_hints(store) == {"a", "b", "c"}


DISTRIBUTION = {
    # value: zones and nodes that a ready endpoint in zone a on node a1 is hinted for
    "PreferClose": ("a", ""),
    "PreferSameZone": ("a", ""),
    "PreferSameNode": ("a", "a1"),
    None: ("", ""),
}


@pytest.mark.parametrize("value", DISTRIBUTION)
def test_hints_of_traffic_distribution(value: str | None) -> None:
    """For any counts: no share, no minimum, no threshold."""
    store, _ = hinted({"a": 1}, svc=service(traffic_distribution=value))
    (endpoint,) = store.endpoints
    zones = "+".join(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else ""
    nodes = "+".join(hint.name for hint in endpoint.hints.for_nodes) if endpoint.hints else ""
    assert (zones, nodes) == DISTRIBUTION[value]


def test_automatic_hints_override_traffic_distribution() -> None:
    store, plan = hinted({"a": 1}, svc=service({OLD_HINTS: "Auto"}, traffic_distribution="PreferClose"))
    assert (zone_hints(store), plan.decisions["IPv4"].reason.code) == ({""}, RoutingCode.TOO_FEW_ENDPOINTS)


@pytest.mark.parametrize("form", HintsForm)
def test_impossible_drain_is_a_reason_with_automatic_hints(form: HintsForm) -> None:
    store = SliceStore(RoutingNodes.of(WORKERS), form=form)
    svc = service({OLD_HINTS: "Auto", DRAIN_ZONE: "a"})
    plan = store.sync(svc, pods_in({"a": 6}), drained=drained_zones(svc, {}, store.cluster.node_drains))
    assert [reason.code for reason in plan.decisions["IPv4"].reasons][1:] == [RoutingCode.NOT_DRAINED]
