"""Overlay of hints on slices of the stock controller: the hints, and that they are stable at once."""

import json
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import cluster, endpoint, node, service
from zonewise.api.names import (
    ALGORITHM,
    MANAGED_BY,
    OLD_HINTS,
    OVERLOAD_THRESHOLD,
    PADDING,
    ROUTING_STATE,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTING_THRESHOLD,
    STOCK_MANAGER,
    TOPOLOGY_KEYS,
)
from zonewise.objects import Endpoint, EndpointSlice, Metadata, Service, key_of
from zonewise.routing import NO_DRAIN, Drain, HintsForm, RoutingNodes, RoutingSubject, read_policy
from zonewise.routing.policy import policy_name
from zonewise.routing.tuning import PREFER_ALGORITHMS
from zonewise.slices.decide.overlay import Overlay, as_remembered, is_stock, overlay
from zonewise.slices.decide.service_status import ServiceRoutingState
from zonewise.topology import HOSTNAME, REGION, ZONE

AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
THREE = cluster({"a": 2, "b": 2, "c": 2}, region="r")


def slice_of(name: str, endpoints: Iterable[Endpoint], family: str = "IPv4", **metadata: Any) -> EndpointSlice:
    labels = {MANAGED_BY: STOCK_MANAGER}
    named = Metadata(name=name, namespace="shop", **{"labels": labels, **metadata})
    return EndpointSlice(metadata=named, address_type=family, endpoints=tuple(endpoints))


def state(policy: str) -> dict[str, str]:
    """The state annotation while the policy is in force."""
    in_force = ServiceRoutingState(
        policy=policy, active=True, code="x", sentence="", since="", as_of="", endpoints=3, in_zone=1, worst_overload=0
    )
    return {ROUTING_STATE: msgspec.json.encode(in_force).decode()}


def drain(*zones: str) -> Drain:
    return Drain(dict.fromkeys(zones, (RoutingSubject("Service", "shop/web"),)))


def patched(endpoint_slice: EndpointSlice, answer: Overlay) -> EndpointSlice:
    """The slice after the API server has applied the patch."""
    body = msgspec.to_builtins(endpoint_slice)
    for operation in answer.operations_on(endpoint_slice):
        _, field, index, name = operation["path"].split("/")
        assert (field, name) == ("endpoints", "hints")
        if operation["op"] == "remove":
            del body["endpoints"][int(index)]["hints"]
        else:
            body["endpoints"][int(index)]["hints"] = operation["value"]
    return msgspec.convert(body, EndpointSlice)


def stripped(endpoint_slice: EndpointSlice) -> EndpointSlice:
    """As the stock controller writes it."""
    bare = tuple(msgspec.structs.replace(end, hints=None) for end in endpoint_slice.endpoints or ())
    return msgspec.structs.replace(endpoint_slice, endpoints=bare)


def hints_by_address(endpoint_slice: EndpointSlice) -> dict[str, str]:
    """`zones/nodes` by address."""
    return {
        end.addresses[
            0
        ]: f"{'+'.join(h.name for h in end.hints.for_zones)}/{'+'.join(h.name for h in end.hints.for_nodes)}"
        if end.hints
        else ""
        for end in endpoint_slice.endpoints or ()
    }


ONE_EACH = (endpoint("A", "a1", "a"), endpoint("B", "b1", "b"), endpoint("C", "c1", "c"))

CASES = {
    # name: Service, endpoints, hints afterwards
    "no policy": (service(), ONE_EACH, {"A": "", "B": "", "C": ""}),
    "zone preferred": (service({SAME_ZONE: "Prefer"} | AT_ONCE), ONE_EACH, {"A": "a/", "B": "b/", "C": "c/"}),
    "below the start": (service({SAME_ZONE: "Prefer"}), ONE_EACH, {"A": "", "B": "", "C": ""}),
    "zone required": (service({SAME_ZONE: "Require"}), ONE_EACH[:2], {"A": "a/", "B": "b/"}),
    "node required": (service({SAME_NODE: "Require"}), ONE_EACH[:2], {"A": "/a1", "B": "/b1"}),
    "automatic": (service({OLD_HINTS: "auto"}), ONE_EACH, {"A": "a/", "B": "b/", "C": "c/"}),
    "as the stock controller distributes": (
        service(traffic_distribution="PreferSameNode"),
        ONE_EACH[:2],
        {"A": "a/a1", "B": "b/b1"},
    ),
    "an unknown value": (service({SAME_ZONE: "prefer"}), ONE_EACH, {"A": "", "B": "", "C": ""}),
    "hints of an unready endpoint are removed": (
        service({SAME_ZONE: "Require"}),
        (ONE_EACH[0], endpoint("B", "b1", "b", ready=False, zones=["b"])),
        {"A": "a/", "B": ""},
    ),
    "hints without a policy are removed": (service(), (endpoint("A", "a1", "a", zones=["b"]),), {"A": ""}),
    "other hints are replaced": (
        service({SAME_ZONE: "Require"}),
        (endpoint("A", "a1", "a", zones=["b"], nodes=["b1"]),),
        {"A": "a/"},
    ),
    "no endpoints": (service({SAME_ZONE: "Require"}), (), {}),
}


@pytest.mark.parametrize("name", CASES)
def test_overlay_hints(name: str) -> None:
    svc, endpoints, expected = CASES[name]
    endpoint_slice = slice_of("web-1", endpoints)
    assert hints_by_address(patched(endpoint_slice, overlay(svc, [endpoint_slice], THREE))) == expected


def test_families_are_decided_separately() -> None:
    svc = service({SAME_ZONE: "Require"})
    slices = [
        slice_of("four", [endpoint("10.0.0.1", "a1", "a")]),
        slice_of("six", [endpoint("fd::1", "b1", "b")], "IPv6"),
    ]
    answer = overlay(svc, slices, THREE)
    assert set(answer.decisions) == set(answer.expressions) == {"IPv4", "IPv6"}
    assert [hints_by_address(patched(endpoint_slice, answer)) for endpoint_slice in slices] == [
        {"10.0.0.1": "a/"},
        {"fd::1": "b/"},
    ]


def test_drain_sets_hints_without_a_policy() -> None:
    endpoint_slice = slice_of("web-1", ONE_EACH)
    answer = overlay(service(), [endpoint_slice], THREE, drained=drain("a"))
    assert not answer.is_silent
    hinted = hints_by_address(patched(endpoint_slice, answer))
    assert (hinted["B"], hinted["C"]) == ("a+b+c/", "a+b+c/")
    assert not set(hinted["A"].rstrip("/").split("+")) & {"a", "b", "c"}


def test_slice_without_endpoints_is_unchanged() -> None:
    empty = EndpointSlice(metadata=Metadata(name="web-0", namespace="shop"), endpoints=None)
    assert overlay(service({SAME_ZONE: "Require"}), [empty], THREE).operations_on(empty) == ()


def test_overlay_is_silent_without_a_policy() -> None:
    endpoint_slice = slice_of("web-1", ONE_EACH)
    assert overlay(service(), [endpoint_slice], THREE).is_silent
    assert overlay(service(), [], THREE).is_silent
    assert not overlay(service({SAME_ZONE: "Balanced"}), [endpoint_slice], THREE).is_silent
    assert not overlay(service({SAME_ZONE: "Require"}), [endpoint_slice], THREE).is_silent


def test_only_live_slices_of_the_stock_controller_are_overlaid() -> None:
    assert is_stock(slice_of("web-1", ()))
    assert not is_stock(slice_of("web-1", (), deletion_timestamp="2026-01-01T00:00:00Z"))
    assert not is_stock(slice_of("web-1", (), labels={MANAGED_BY: "other.example"}))
    assert not is_stock(slice_of("web-1", (), labels={}))


BETWEEN = {STARTING_THRESHOLD: "3", PADDING: "2"}
"""Three endpoints are too few to start, and enough to continue."""

REMEMBERED = {
    "no state annotation": (None, ""),
    "of the same policy": ("same-zone Prefer", "a/"),
    "of another policy": ("same-zone Require", ""),
}


@pytest.mark.parametrize("name", REMEMBERED)
def test_hints_of_another_policy_are_ignored(name: str) -> None:
    policy, expected = REMEMBERED[name]
    svc = service({SAME_ZONE: "Prefer"} | BETWEEN | (state(policy) if policy else {}))
    endpoint_slice = slice_of("web-1", [endpoint(f"{zone.upper()}", f"{zone}1", zone, zones=[zone]) for zone in "abc"])
    assert hints_by_address(patched(endpoint_slice, overlay(svc, [endpoint_slice], THREE)))["A"] == expected


def test_hints_of_traffic_distribution_start_no_preference() -> None:
    """Nine endpoints are too few to start, whoever has hinted them."""
    nine = [endpoint(f"{zone.upper()}{n}", f"{zone}1", zone, zones=[zone]) for zone in "abc" for n in range(3)]
    svc = service({SAME_ZONE: "Prefer"}, traffic_distribution="PreferSameZone")
    answer = overlay(svc, [slice_of("web-1", nine)], THREE)
    assert answer.decisions["IPv4"].reason.code == "BelowStart"


def test_ambiguous_hints_are_stable_at_once() -> None:
    """If no split over zones is good enough, the hints of the region read like hints of zones."""
    svc = service(
        {SAME_ZONE: "Prefer", SAME_REGION: "Prefer", ALGORITHM: "local-opt", OVERLOAD_THRESHOLD: "10%"} | AT_ONCE
    )
    nodes = RoutingNodes.of(
        [
            node("b0", "b", region="west"),
            *(node(f"d{n}", "d", region="east") for n in range(2)),
            node("d2", region="east"),
        ]
    )
    endpoint_slice = slice_of(
        "web-1", [*(endpoint(f"A{n}", "a0", "a") for n in range(5)), *(endpoint(f"B{n}", "b0", "b") for n in range(2))]
    )
    stable = patched(endpoint_slice, overlay(svc, [endpoint_slice], nodes, drained=drain("a")))
    assert any(hints_by_address(stable).values())
    assert overlay(svc, [stable], nodes, drained=drain("a")).operations_on(stable) == ()


def test_endpoint_keeps_its_hints_in_another_slice() -> None:
    before = slice_of("web-1", [endpoint("A", "a1", "a", zones=["b"])])
    moved = as_remembered(slice_of("", [endpoint("A", "a1", "a"), endpoint("B", "b1", "b")]), [before])
    assert hints_by_address(moved) == {"A": "b/", "B": ""}
    of_another_family = as_remembered(slice_of("", [endpoint("A")], "IPv6"), [before])
    assert hints_by_address(of_another_family) == {"A": ""}


ZONES = "abcd"
ANNOTATIONS = st.one_of(
    st.just({}),
    st.sampled_from(["Prefer", "Require", "Balanced", "PREFER"]).map(lambda word: {SAME_ZONE: word}),
    st.builds(
        lambda levels, algorithm, tuning: {**levels, ALGORITHM: algorithm, **tuning},
        st.dictionaries(
            st.sampled_from([SAME_NODE, SAME_ZONE, SAME_REGION]), st.sampled_from(["Prefer", "Require"]), min_size=1
        ),
        st.sampled_from(sorted(PREFER_ALGORITHMS)),
        st.sampled_from([AT_ONCE, {}, {STARTING_THRESHOLD: "2", PADDING: "2"}, {OVERLOAD_THRESHOLD: "10%", **AT_ONCE}]),
    ),
    st.just({OLD_HINTS: "auto"}),
    st.lists(st.sampled_from([HOSTNAME, ZONE, REGION, "rack"]), min_size=1, max_size=3, unique=True).map(
        lambda keys: {TOPOLOGY_KEYS: json.dumps([*keys, "*"])}
    ),
)
STATES = st.sampled_from([{}, *map(state, ["same-zone Prefer", "same-zone Require", "automatic hints"])])
SERVICES = st.builds(
    lambda annotations, state, distribution: service(annotations | state, traffic_distribution=distribution),
    ANNOTATIONS,
    STATES,
    st.sampled_from([None, None, "PreferClose", "PreferSameNode"]),
)


@st.composite
def clusters(draw: st.DrawFn) -> RoutingNodes:
    counts = draw(st.lists(st.integers(0, 3), min_size=4, max_size=4))
    return RoutingNodes.of(
        node(
            f"{zone}{number}",
            draw(st.sampled_from([zone, zone, zone, zone, zone, zone, None])),
            region="west" if zone in "ab" else "east",
            cpu=draw(st.sampled_from(["4", "4", "8", None])),
        )
        for zone, count in zip(ZONES, counts, strict=True)
        for number in range(count)
    )


@st.composite
def slices(draw: st.DrawFn) -> list[EndpointSlice]:
    """Up to three slices of two families, with any hints."""
    locations = draw(st.lists(st.sampled_from(ZONES), max_size=14))
    endpoints = [
        endpoint(
            f"{zone}-{number}",
            f"{zone}{draw(st.integers(0, 2))}",
            zone,
            ready=draw(st.sampled_from([True, True, True, False])),
            serving=True,
            terminating=draw(st.booleans()),
            zones=draw(st.lists(st.sampled_from(ZONES + "x"), max_size=3, unique=True)),
        )
        for number, zone in enumerate(locations)
    ]
    cut = draw(st.integers(0, len(endpoints)))
    return [slice_of("one", endpoints[:cut]), slice_of("two", endpoints[cut:]), slice_of("six", endpoints[::2], "IPv6")]


DRAINS = st.one_of(
    st.just(NO_DRAIN), st.lists(st.sampled_from(ZONES), min_size=1, max_size=2).map(lambda zones: drain(*zones))
)


@given(SERVICES, slices(), clusters(), st.sampled_from(HintsForm), DRAINS)
def test_second_overlay_changes_nothing(
    svc: Service, given_slices: list[EndpointSlice], nodes: RoutingNodes, form: HintsForm, drained: Drain
) -> None:
    answer = overlay(svc, given_slices, nodes, hints=form, drained=drained)
    stable = [patched(endpoint_slice, answer) for endpoint_slice in given_slices]
    for next_svc in (svc, _with_state(svc)):
        again = overlay(next_svc, stable, nodes, hints=form, drained=drained)
        assert [again.operations_on(endpoint_slice) for endpoint_slice in stable] == [(), (), ()]


def _with_state(svc: Service) -> Service:
    """The Service once its state is reported."""
    annotations = svc.metadata.annotations | state(policy_name(read_policy(svc).policy))
    return service(annotations, traffic_distribution=svc.spec.traffic_distribution)


@given(SERVICES, slices(), clusters(), st.randoms(use_true_random=False))
def test_overlay_is_independent_of_slice_order(
    svc: Service, given_slices: list[EndpointSlice], nodes: RoutingNodes, chance: Any
) -> None:
    shuffled = chance.sample(given_slices, len(given_slices))
    assert overlay(svc, given_slices, nodes).hints == overlay(svc, shuffled, nodes).hints


@given(SERVICES, slices(), clusters(), st.sampled_from(HintsForm), DRAINS)
def test_review_of_one_slice_restores_its_hints(
    svc: Service, given_slices: list[EndpointSlice], nodes: RoutingNodes, form: HintsForm, drained: Drain
) -> None:
    """The stock controller writes one slice after the other without hints, and each is stored unchanged."""
    answer = overlay(svc, given_slices, nodes, hints=form, drained=drained)
    stable = [patched(endpoint_slice, answer) for endpoint_slice in given_slices]
    for stored in stable:
        written = stripped(stored)
        other_slices = [endpoint_slice for endpoint_slice in stable if key_of(endpoint_slice) != key_of(written)]
        all_slices = [*other_slices, as_remembered(written, stable)]
        assert patched(written, overlay(svc, all_slices, nodes, hints=form, drained=drained)) == stored
