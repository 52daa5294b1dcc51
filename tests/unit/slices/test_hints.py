"""Hints on slices without groups: traffic distribution and automatic hints, as stock and stable, and drained zones."""

from collections import Counter

import pytest

from unit.slices.build import PREFER, SliceStore, node, pod, pods_in, service, zones
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
def test_traffic_distribution_hints_every_ready_endpoint(
    value: str | None, expected: dict[str, tuple[str, str]]
) -> None:
    store = SliceStore(PARTLY)
    store.sync(service(traffic_distribution=value), PODS)
    hints_by_pod = {name: hinted(endpoint) for name, endpoint in store.by_pod.items()}
    assert hints_by_pod == expected | {"unready": ("", ""), "leaving": ("", "")}
    assert all(CONSUMER not in endpoint_slice.metadata.labels for endpoint_slice in store.slices)


def test_automatic_hints_override_traffic_distribution() -> None:
    store = SliceStore(THREE)
    store.sync(service(AUTO, traffic_distribution="PreferSameNode"), pods_in({"a": 6, "b": 3}))
    assert Counter(hinted(endpoint) for endpoint in store.endpoints) == {("a,c", ""): 6, ("b", ""): 3}


@pytest.mark.parametrize("form", HintsForm)
def test_disabled_automatic_hints_are_removed_everywhere(form: HintsForm) -> None:
    store = SliceStore(THREE, most=4, form=form)
    pods = pods_in({"a": 4, "b": 4, "c": 4})
    store.sync(service(AUTO), pods)
    assert all(endpoint.hints for endpoint in store.endpoints)
    plan = store.sync(service(), pods)
    assert (len(plan.updates), plan.writes) == (3, 3)
    assert not any(endpoint.hints for endpoint in store.endpoints)


def test_strict_hints_keep_a_slice_with_valid_hints() -> None:
    """Eight of zone a in two slices: one is written anyway, and provides the endpoints that zone c lacks."""
    store = SliceStore(THREE, most=4, form=HintsForm.STRICT)
    pods = pods_in({"a": 4, "b": 4, "c": 4})
    store.sync(service(AUTO), pods)
    plan = store.sync(service(AUTO), [*pods[:8], *pods_in({"a": 8})[4:]])
    assert plan.decisions["IPv4"].reason.code is RoutingCode.HINTED
    untouched = {update.existing.metadata.name for update in plan.updates} ^ set(store.stored)
    assert len(untouched) == 2
    assert Counter(hinted(endpoint) for endpoint in store.endpoints) == {("a", ""): 4, ("b", ""): 4, ("c", ""): 4}


def test_strict_hints_are_refused_like_stock_hints() -> None:
    """4, 4 and 3 endpoints: stock refuses, the stable form shares endpoints."""
    for form, expected in ((HintsForm.STRICT, False), (HintsForm.STABLE, True)):
        store = SliceStore(THREE, form=form)
        plan = store.sync(service(AUTO), pods_in({"a": 4, "b": 4, "c": 3}))
        assert any(endpoint.hints for endpoint in store.endpoints) is expected
        assert (plan.decisions["IPv4"].reason.code is RoutingCode.WOULD_OVERLOAD) is not expected


def test_strict_decision_matches_the_hints_in_slices() -> None:
    store = SliceStore(THREE, most=3, form=HintsForm.STRICT)
    plan = store.sync(service(AUTO), pods_in({"a": 6, "b": 3, "c": 3}))
    expressed = {address: hints.for_zones for address, hints in plan.expressions["IPv4"].hints.items()}
    assert expressed == {
        endpoint.addresses[0]: endpoint.hints.for_zones for endpoint in store.endpoints if endpoint.hints
    }


@pytest.mark.parametrize("annotations", [{}, AUTO, PREFER], ids=["nothing", "hints", "prefer"])
def test_drained_zone_gets_no_traffic_until_the_drain_ends(annotations: dict[str, str]) -> None:
    store = SliceStore(THREE)
    pods = pods_in({"a": 5, "b": 5, "c": 5})
    store.sync(service(annotations), pods)
    before = {endpoint.addresses: endpoint.hints for endpoint in store.endpoints}
    draining = service(annotations | {DRAIN_ZONE: "a"})
    drain = drained_zones(draining, {}, THREE.node_drains)
    store.sync(draining, pods, drained=drain)
    for endpoint in store.endpoints:
        assert endpoint.hints is not None
        assert ("zonewise-drained" in hinted(endpoint)[0]) is (endpoint.zone == "a")
    assert store.plan(draining, pods, drained=drain).writes == 0
    store.sync(service(annotations), pods)
    assert {endpoint.addresses: endpoint.hints for endpoint in store.endpoints} == before
