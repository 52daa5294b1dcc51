"""Which endpoints a node's clients get: every rule of topology keys, same-zone, hints and traffic policies, by case."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.proxy.build import NODES, cluster, endpoint, node, service, slice_of
from zonewise.api.names import CONSUMER, CONSUMER_SHARED, WEIGHTS
from zonewise.objects import Key, Service
from zonewise.proxy.decide import targets as module
from zonewise.proxy.decide.service_rules import ServiceRules
from zonewise.proxy.decide.targets import EndpointTarget, NodePlace, PortTargets, find_targets, is_stranded, ready_on
from zonewise.proxy.wire.family import IPV4
from zonewise.routing import decide
from zonewise.routing.weights_annotation import write_weights

EVERYWHERE = [endpoint("10.1.0.1", "a1"), endpoint("10.1.0.2", "a2"), endpoint("10.2.0.1", "b1")]
HINTED = [endpoint("10.1.0.1", "a1", zones=["a"]), endpoint("10.2.0.1", "b1", zones=["b"])]
KEYS = "zonewise.dev/topology-keys"
SAME_ZONE = "endpointslice.kubernetes.io/same-zone"
SAME_NODE = "endpointslice.kubernetes.io/same-node"


def find(asked: Service, *slices: Any, at: str = "a1", **nodes: Any) -> PortTargets:
    place = NodePlace(at, cluster(**nodes))
    return find_targets(asked, asked.spec.ports[0], slices, place, "IPv4")


def addresses(found: PortTargets) -> list[str]:
    return sorted(target.address for target in found.cluster)


def keys(*listed: str) -> Service:
    return service(annotations={KEYS: json.dumps(listed)})


@pytest.mark.parametrize(
    ("listed", "at", "expected"),
    [
        pytest.param(["kubernetes.io/hostname"], "a1", ["10.1.0.1"], id="same host"),
        pytest.param(["kubernetes.io/hostname"], "c1", [], id="hard same host, none there"),
        pytest.param(["kubernetes.io/hostname", "*"], "c1", ["10.1.0.1", "10.1.0.2", "10.2.0.1"], id="soft, star"),
        pytest.param(["kubernetes.io/hostname", ""], "c1", ["10.1.0.1", "10.1.0.2", "10.2.0.1"], id="soft, empty key"),
        pytest.param(
            ["example.com/none", "failure-domain.beta.kubernetes.io/zone"],
            "a2",
            ["10.1.0.1", "10.1.0.2"],
            id="next key",
        ),
        pytest.param(["topology.kubernetes.io/zone"], "b1", ["10.2.0.1"], id="same zone"),
    ],
)
def test_topology_keys(listed: list[str], at: str, expected: list[str]) -> None:
    assert addresses(find(keys(*listed), slice_of(*EVERYWHERE), at=at)) == expected


def test_any_node_label_is_a_topology_key() -> None:
    racks = {"a1": node("a1", "a", rack="r1"), "b1": node("b1", "b", rack="r1"), "a2": node("a2", "a", rack="r2")}
    assert addresses(find(keys("rack"), slice_of(*EVERYWHERE), at="a1", **racks)) == ["10.1.0.1", "10.2.0.1"]


def test_a_hard_rule_without_an_endpoint_leaves_none_and_says_why() -> None:
    found = find(keys("kubernetes.io/hostname"), slice_of(*EVERYWHERE), at="c1")
    assert not found.has_any
    assert "the rule is hard" in found.reason.sentence


def test_require_keeps_to_the_zone_and_prefer_falls_back() -> None:
    slices = slice_of(*EVERYWHERE)
    assert addresses(find(service(annotations={SAME_ZONE: "Require"}), slices)) == ["10.1.0.1", "10.1.0.2"]
    assert addresses(find(service(annotations={SAME_ZONE: "Require"}), slices, at="c1")) == []
    assert len(addresses(find(service(annotations={SAME_ZONE: "Prefer"}), slices, at="c1"))) == 3


def test_weights_of_an_algorithm_become_shares() -> None:
    counts = {"a1": 7, "b1": 4, "c1": 2}
    many = [endpoint(f"10.1.{net}.{n}", at) for net, (at, count) in enumerate(counts.items()) for n in range(count)]
    asked = service(annotations={SAME_ZONE: "Prefer", "zonewise.dev/algorithm": "local-weighted"})
    shares = {at: set(find(asked, slice_of(*many), at=at).cluster.values()) for at in counts}
    assert shares == {"a1": {0.5, 1.0}, "b1": {0.25, 1.0}, "c1": {0.5, 0.75, 1.0}}


@pytest.mark.parametrize(
    ("at", "endpoints", "expected"),
    [
        pytest.param("a1", HINTED, ["10.1.0.1"], id="own zone"),
        pytest.param("c1", HINTED, ["10.1.0.1", "10.2.0.1"], id="a zone without hints uses all"),
        pytest.param("a1", [*HINTED, endpoint("10.3.0.1")], ["10.1.0.1", "10.2.0.1", "10.3.0.1"], id="partial: all"),
        pytest.param(
            "a1",
            [endpoint("10.1.0.1", zones=["a"], nodes=["a1"]), endpoint("10.1.0.2", zones=["a"], nodes=["a2"])],
            ["10.1.0.1"],
            id="own node",
        ),
        pytest.param(
            "a2",
            [endpoint("10.1.0.1", zones=["a", "b"]), endpoint("10.2.0.1", zones=["b"])],
            ["10.1.0.1"],
            id="several",
        ),
    ],
)
def test_hints_as_kube_proxy_reads_them(at: str, endpoints: list[Any], expected: list[str]) -> None:
    assert addresses(find(service(), slice_of(*endpoints), at=at)) == expected


def test_terminating_endpoints_serve_only_where_none_is_ready() -> None:
    leaving = endpoint("10.1.0.9", ready=False, serving=True, terminating=True)
    assert addresses(find(service(), slice_of(leaving))) == ["10.1.0.9"]
    assert addresses(find(service(), slice_of(leaving, *EVERYWHERE))) == ["10.1.0.1", "10.1.0.2", "10.2.0.1"]


def test_local_policy_takes_those_on_the_node() -> None:
    found = find(service(internalTrafficPolicy="Local"), slice_of(*EVERYWHERE), at="a2")
    assert found.local == (EndpointTarget("10.1.0.2", 8080),)
    assert found.has_any
    far = find(service(internalTrafficPolicy="Local"), slice_of(*EVERYWHERE), at="c1")
    assert (far.local, far.has_any) == ((), True)


def test_groups_of_the_controller_are_obeyed() -> None:
    prefer, require = service(annotations={SAME_ZONE: "Prefer"}), service(annotations={SAME_ZONE: "Require"})
    own = slice_of(endpoint("10.1.0.1", "a1", zones=["a"]), consumer="a")
    shared = slice_of(
        endpoint("10.2.0.1", "b1", zones=["a", "c"]),
        endpoint("10.2.0.2", "b1", zones=["b", "c"]),
        name="web-2",
        consumer="zonewise-shared",
    )
    everyone = slice_of(endpoint("10.3.0.1", "c1"), name="web-3", consumer="zonewise-all")
    assert addresses(find(prefer, own, shared, everyone)) == ["10.1.0.1", "10.2.0.1"]
    assert addresses(find(prefer, shared, everyone, at="b1")) == ["10.2.0.2"]
    assert addresses(find(prefer, everyone)) == ["10.3.0.1"]
    assert addresses(find(require, own, shared, everyone)) == ["10.1.0.1"]
    assert addresses(find(require, everyone)) == []


STRANDED = {
    "groups of others only": ({SAME_ZONE: "Prefer"}, ["a", "b"], True),
    "none yet": ({SAME_ZONE: "Prefer"}, [], True),
    "one of its own": ({SAME_ZONE: "Prefer"}, ["a", "d"], False),
    "one that is shared": ({SAME_ZONE: "Prefer"}, ["a", "zonewise-shared"], False),
    "one for everyone": ({SAME_ZONE: "Prefer"}, ["zonewise-all"], False),
    "no groups": ({SAME_ZONE: "Prefer"}, [""], False),
    "a hard rule": ({SAME_ZONE: "Require"}, ["a"], False),
    "a wall around regions": ({"endpointslice.kubernetes.io/same-region": "Require"}, ["a"], True),
    "no rule": ({}, ["a"], False),
}


@pytest.mark.parametrize(("annotations", "groups", "expected"), STRANDED.values(), ids=STRANDED)
def test_who_has_only_groups_of_others(annotations: dict[str, str], groups: list[str], expected: bool) -> None:
    slices = [slice_of(endpoint("10.1.0.1"), consumer=group) for group in groups]
    assert is_stranded(service(annotations=annotations, selector={"app": "web"}), slices, "d") is expected


WEIGHTED = {
    "algorithm by algorithm": ("local-weighted", {"a1": 7, "b1": 4, "c1": 2}),
    "evenly lent": ("local-opt", {"a1": 7, "b1": 4, "c1": 2}),
    "a zone without endpoints": ("local-weighted", {"a1": 9, "b1": 4, "c1": 0}),
}


@pytest.mark.parametrize(("algorithm", "counts"), WEIGHTED.values(), ids=WEIGHTED)
def test_groups_give_the_shares_that_were_decided(algorithm: str, counts: dict[str, int]) -> None:
    """What a node makes of the controller's groups is what it would decide by itself from all endpoints."""
    many = [endpoint(f"10.1.{net}.{n}", at) for net, (at, count) in enumerate(counts.items()) for n in range(count)]
    asked = service(annotations={SAME_ZONE: "Prefer", "zonewise.dev/algorithm": algorithm})
    (tier, _) = decide(asked, slice_of(*many).endpoints or (), cluster(), {}).tiers
    slices = []
    for group in ("a", "b", "c", "zonewise-shared"):
        inside = [
            {**each, "hints": {"forZones": [{"name": share.domain} for share in consumers]}}
            for each in many
            if (consumers := tier.consumers[each["addresses"][0]])
            and group == (consumers[0].domain if len(consumers) == 1 else "zonewise-shared")
        ]
        found = slice_of(*inside, name=f"web-{group}", consumer=group)
        found.metadata.annotations[WEIGHTS] = write_weights(tier.consumers, [e["addresses"][0] for e in inside])
        slices.append(found)
    for at in counts:
        seen = [each for each in slices if each.metadata.labels[CONSUMER] in {NODES[at], CONSUMER_SHARED}]
        assert find(asked, *seen, at=at).cluster == find(asked, slice_of(*many), at=at).cluster


def test_a_drained_zone_gets_no_traffic_while_others_can_take_it() -> None:
    drained = {"zonewise.dev/drain-zone": "a"}
    soft = service(annotations={KEYS: '["topology.kubernetes.io/zone", "*"]'} | drained)
    assert addresses(find(soft, slice_of(*EVERYWHERE))) == ["10.2.0.1"]
    place = NodePlace("a1", cluster(), {"shop": drained})
    asked = keys("topology.kubernetes.io/zone", "*")
    found = find_targets(asked, asked.spec.ports[0], [slice_of(*EVERYWHERE)], place, "IPv4")
    assert addresses(found) == ["10.2.0.1"]


def test_same_node_within_groups() -> None:
    own = slice_of(endpoint("10.1.0.1", "a1", zones=["a"]), endpoint("10.1.0.2", "a2", zones=["a"]), consumer="a")
    asked = {SAME_ZONE: "Prefer", SAME_NODE: "Prefer"}
    assert addresses(find(service(annotations=asked), own)) == ["10.1.0.1"]


def test_named_ports_may_have_other_numbers_in_other_slices() -> None:
    other = slice_of(endpoint("10.1.0.2"), name="web-2", ports=[{"name": "http", "port": 9090, "protocol": "TCP"}])
    foreign = slice_of(endpoint("10.1.0.3"), name="web-3", ports=[{"name": "admin", "port": 1, "protocol": "TCP"}])
    found = find(service(), slice_of(endpoint("10.1.0.1")), other, foreign)
    assert set(found.cluster) == {EndpointTarget("10.1.0.1", 8080), EndpointTarget("10.1.0.2", 9090)}


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["a1", "b1"]), st.booleans()), max_size=8))
def test_the_short_way_is_the_long_way(chosen: list[tuple[int, str, bool]]) -> None:
    endpoints = [endpoint(f"10.1.0.{number}", at, ready=ready) for number, at, ready in chosen]
    asked, slices = service(), [slice_of(*endpoints)]
    place = NodePlace("a1", cluster())
    short = find_targets(asked, asked.spec.ports[0], slices, place, "IPv4")
    policies = module.traffic_policies(asked, asked.spec.ports[0], "IPv4")
    long = module._by_hints(slices, asked.spec.ports[0], policies, place)
    assert short.cluster == long.cluster
    assert short.has_any == long.has_any


def test_many_ports_are_found_as_few_are() -> None:
    """Also those of several numbers in several slices, and those that no slice has."""
    listed = [{"name": f"p{number}", "port": 1 + number} for number in range(60)]
    offers = [{"name": f"p{number}", "port": 8000 + number % 7, "protocol": "TCP"} for number in range(55)]
    slices = [
        slice_of(endpoint("10.1.0.1"), ports=offers),
        slice_of(endpoint("10.1.0.2"), name="web-2", ports=[{**each, "port": 9000} for each in offers[::2]]),
    ]
    together, alone = ServiceRules((IPV4,), all_services=True), ServiceRules((IPV4,), all_services=True)
    place = NodePlace("a1", cluster())
    wide = together.decide(Key("shop", "web"), service(ports=listed), slices, place)[IPV4]
    for port in listed:
        single = alone.decide(Key("shop", "web"), service(ports=[port]), slices, place)[IPV4]
        assert {name: rules for name, rules in single.items() if rules} == {
            name: rules for name, rules in wide.items() if name.port == port["name"]
        }


def test_a_load_balancer_counts_on_those_that_stay() -> None:
    """As kube-proxy tells it: ready ones of this node, each once however many addresses it has."""
    leaving = endpoint("10.1.0.3", "a1", ready=False, serving=True, terminating=True)
    four = slice_of(endpoint("10.1.0.1", "a1"), endpoint("10.1.0.2", "a2"), leaving)
    six = slice_of(endpoint("fd00::1", "a1"), name="web-2", addressType="IPv6")
    assert ready_on("a1", [four, six]) == 1
    assert ready_on("a1", [slice_of(leaving)]) == 0
    assert ready_on("c1", [four, six]) == 0
