"""Targets on a node by topology keys, same-zone policies, hints and traffic policies."""

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
from zonewise.proxy.decide.targets import EndpointTarget, NodeLocation, PortTargets, find_targets, is_stranded, ready_on
from zonewise.proxy.wire.family import IPV4
from zonewise.routing import decide
from zonewise.routing.weights_annotation import write_weights

EVERYWHERE = [endpoint("10.1.0.1", "a1"), endpoint("10.1.0.2", "a2"), endpoint("10.2.0.1", "b1")]
HINTED = [endpoint("10.1.0.1", "a1", zones=["a"]), endpoint("10.2.0.1", "b1", zones=["b"])]
KEYS = "zonewise.dev/topology-keys"
SAME_ZONE = "endpointslice.kubernetes.io/same-zone"
SAME_NODE = "endpointslice.kubernetes.io/same-node"


def find(svc: Service, *slices: Any, at: str = "a1", **nodes: Any) -> PortTargets:
    location = NodeLocation(at, cluster(**nodes))
    return find_targets(svc, svc.spec.ports[0], slices, location, "IPv4")


def addresses(targets: PortTargets) -> list[str]:
    return sorted(target.address for target in targets.cluster)


def keys(*names: str) -> Service:
    return service(annotations={KEYS: json.dumps(names)})


@pytest.mark.parametrize(
    ("names", "at", "expected"),
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
def test_topology_keys(names: list[str], at: str, expected: list[str]) -> None:
    assert addresses(find(keys(*names), slice_of(*EVERYWHERE), at=at)) == expected


def test_any_node_label_is_a_topology_key() -> None:
    racks = {"a1": node("a1", "a", rack="r1"), "b1": node("b1", "b", rack="r1"), "a2": node("a2", "a", rack="r2")}
    assert addresses(find(keys("rack"), slice_of(*EVERYWHERE), at="a1", **racks)) == ["10.1.0.1", "10.2.0.1"]


def test_hard_rule_without_an_endpoint_has_no_target_and_a_reason() -> None:
    targets = find(keys("kubernetes.io/hostname"), slice_of(*EVERYWHERE), at="c1")
    assert not targets.has_any
    assert "the rule is hard" in targets.reason.sentence


def test_require_stays_in_the_zone_and_prefer_falls_back() -> None:
    slices = slice_of(*EVERYWHERE)
    assert addresses(find(service(annotations={SAME_ZONE: "Require"}), slices)) == ["10.1.0.1", "10.1.0.2"]
    assert addresses(find(service(annotations={SAME_ZONE: "Require"}), slices, at="c1")) == []
    assert len(addresses(find(service(annotations={SAME_ZONE: "Prefer"}), slices, at="c1"))) == 3


def test_weights_of_an_algorithm_become_shares() -> None:
    counts = {"a1": 7, "b1": 4, "c1": 2}
    many = [endpoint(f"10.1.{net}.{n}", at) for net, (at, count) in enumerate(counts.items()) for n in range(count)]
    svc = service(annotations={SAME_ZONE: "Prefer", "zonewise.dev/algorithm": "local-weighted"})
    shares = {at: set(find(svc, slice_of(*many), at=at).cluster.values()) for at in counts}
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
def test_hints_are_read_as_by_kube_proxy(at: str, endpoints: list[Any], expected: list[str]) -> None:
    assert addresses(find(service(), slice_of(*endpoints), at=at)) == expected


def test_terminating_endpoints_serve_only_if_none_is_ready() -> None:
    leaving = endpoint("10.1.0.9", ready=False, serving=True, terminating=True)
    assert addresses(find(service(), slice_of(leaving))) == ["10.1.0.9"]
    assert addresses(find(service(), slice_of(leaving, *EVERYWHERE))) == ["10.1.0.1", "10.1.0.2", "10.2.0.1"]


def test_local_policy_selects_endpoints_on_the_node() -> None:
    near = find(service(internalTrafficPolicy="Local"), slice_of(*EVERYWHERE), at="a2")
    assert near.local == (EndpointTarget("10.1.0.2", 8080),)
    assert near.has_any
    far = find(service(internalTrafficPolicy="Local"), slice_of(*EVERYWHERE), at="c1")
    assert (far.local, far.has_any) == ((), True)


def test_slice_groups_of_the_controller_are_used() -> None:
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
    "groups of other zones only": ({SAME_ZONE: "Prefer"}, ["a", "b"], True),
    "none yet": ({SAME_ZONE: "Prefer"}, [], True),
    "own group": ({SAME_ZONE: "Prefer"}, ["a", "d"], False),
    "shared group": ({SAME_ZONE: "Prefer"}, ["a", "zonewise-shared"], False),
    "group that other zones share": ({SAME_ZONE: "Prefer"}, ["a", "zonewise-shared of a"], True),
    "group for all zones": ({SAME_ZONE: "Prefer"}, ["zonewise-all"], False),
    "no groups": ({SAME_ZONE: "Prefer"}, [""], False),
    "hard rule": ({SAME_ZONE: "Require"}, ["a"], False),
    "required region": ({"endpointslice.kubernetes.io/same-region": "Require"}, ["a"], True),
    "no rule": ({}, ["a"], False),
    "topology keys beside groups of a former policy": ({KEYS: '["*"]'}, ["a"], True),
    "topology keys": ({KEYS: '["*"]'}, ["zonewise-all"], False),
}


@pytest.mark.parametrize(("annotations", "groups", "expected"), STRANDED.values(), ids=STRANDED)
def test_stranded_without_a_group_for_the_zone(annotations: dict[str, str], groups: list[str], expected: bool) -> None:
    names = [group.partition(" of ") for group in groups]
    slices = [slice_of(endpoint("10.1.0.1", zones=[zone or "d"]), consumer=group) for group, _, zone in names]
    assert is_stranded(service(annotations=annotations, selector={"app": "web"}), slices, "d") is expected


WEIGHTED = {
    "weighted": ("local-weighted", {"a1": 7, "b1": 4, "c1": 2}),
    "even": ("local-opt", {"a1": 7, "b1": 4, "c1": 2}),
    "a zone without endpoints": ("local-weighted", {"a1": 9, "b1": 4, "c1": 0}),
}


@pytest.mark.parametrize(("algorithm", "counts"), WEIGHTED.values(), ids=WEIGHTED)
def test_shares_from_groups_equal_shares_from_the_decision(algorithm: str, counts: dict[str, int]) -> None:
    """The controller's groups give the node the targets that it would decide from all endpoints."""
    many = [endpoint(f"10.1.{net}.{n}", at) for net, (at, count) in enumerate(counts.items()) for n in range(count)]
    svc = service(annotations={SAME_ZONE: "Prefer", "zonewise.dev/algorithm": algorithm})
    (tier, _) = decide(svc, slice_of(*many).endpoints or (), cluster(), {}).tiers
    slices = []
    for group in ("a", "b", "c", "zonewise-shared"):
        members = [
            {**item, "hints": {"forZones": [{"name": share.domain} for share in consumers]}}
            for item in many
            if (consumers := tier.consumers[item["addresses"][0]])
            and group == (consumers[0].domain if len(consumers) == 1 else "zonewise-shared")
        ]
        grouped = slice_of(*members, name=f"web-{group}", consumer=group)
        grouped.metadata.annotations[WEIGHTS] = write_weights(
            tier.consumers, [member["addresses"][0] for member in members]
        )
        slices.append(grouped)
    for at in counts:
        watched = [item for item in slices if item.metadata.labels[CONSUMER] in {NODES[at], CONSUMER_SHARED}]
        assert find(svc, *watched, at=at).cluster == find(svc, slice_of(*many), at=at).cluster


def test_drained_zone_gets_no_traffic_if_others_can_serve() -> None:
    drained = {"zonewise.dev/drain-zone": "a"}
    soft = service(annotations={KEYS: '["topology.kubernetes.io/zone", "*"]'} | drained)
    assert addresses(find(soft, slice_of(*EVERYWHERE))) == ["10.2.0.1"]
    location = NodeLocation("a1", cluster(), {"shop": drained})
    svc = keys("topology.kubernetes.io/zone", "*")
    targets = find_targets(svc, svc.spec.ports[0], [slice_of(*EVERYWHERE)], location, "IPv4")
    assert addresses(targets) == ["10.2.0.1"]


@pytest.mark.parametrize(("hinted", "expected"), [("a1", ["10.1.0.1"]), ("zonewise-no-node", ["10.1.0.1", "10.1.0.2"])])
def test_node_keeps_to_its_own_if_the_group_says_so(hinted: str, expected: list[str]) -> None:
    one, two = (
        endpoint("10.1.0.1", "a1", zones=["a"], nodes=[hinted]),
        endpoint("10.1.0.2", "a2", zones=["a"], nodes=["a2"]),
    )
    svc = {SAME_ZONE: "Prefer", SAME_NODE: "Prefer"}
    assert addresses(find(service(annotations=svc), slice_of(one, two, consumer="a"))) == expected


def test_topology_keys_hold_while_slices_have_groups_of_a_former_policy() -> None:
    own = slice_of(endpoint("10.1.0.1", "a1", zones=["a"]), consumer="a")
    others = slice_of(endpoint("10.2.0.1", "b1", zones=["b"]), name="web-2", consumer="b")
    assert addresses(find(keys("topology.kubernetes.io/zone", "*"), own, others)) == ["10.1.0.1"]
    assert addresses(find(keys("kubernetes.io/hostname"), own, others, at="b1")) == ["10.2.0.1"]


def test_named_port_may_differ_between_slices() -> None:
    other = slice_of(endpoint("10.1.0.2"), name="web-2", ports=[{"name": "http", "port": 9090, "protocol": "TCP"}])
    foreign = slice_of(endpoint("10.1.0.3"), name="web-3", ports=[{"name": "admin", "port": 1, "protocol": "TCP"}])
    targets = find(service(), slice_of(endpoint("10.1.0.1")), other, foreign)
    assert set(targets.cluster) == {EndpointTarget("10.1.0.1", 8080), EndpointTarget("10.1.0.2", 9090)}


@given(st.lists(st.tuples(st.integers(1, 6), st.sampled_from(["a1", "b1"]), st.booleans()), max_size=8))
def test_fast_path_equals_selection_by_hints(chosen: list[tuple[int, str, bool]]) -> None:
    endpoints = [endpoint(f"10.1.0.{number}", at, ready=ready) for number, at, ready in chosen]
    svc, slices = service(), [slice_of(*endpoints)]
    location = NodeLocation("a1", cluster())
    fast = find_targets(svc, svc.spec.ports[0], slices, location, "IPv4")
    policies = module.traffic_policies(svc, svc.spec.ports[0], "IPv4")
    by_hints = module._by_hints(slices, svc.spec.ports[0], policies, location)
    assert fast.cluster == by_hints.cluster
    assert fast.has_any == by_hints.has_any


def test_many_ports_get_the_same_rules_as_single_ports() -> None:
    """Includes ports with several numbers in several slices, and ports without a slice."""
    ports = [{"name": f"p{number}", "port": 1 + number} for number in range(60)]
    slice_ports = [{"name": f"p{number}", "port": 8000 + number % 7, "protocol": "TCP"} for number in range(55)]
    slices = [
        slice_of(endpoint("10.1.0.1"), ports=slice_ports),
        slice_of(endpoint("10.1.0.2"), name="web-2", ports=[{**port, "port": 9000} for port in slice_ports[::2]]),
    ]
    together, alone = ServiceRules((IPV4,), all_services=True), ServiceRules((IPV4,), all_services=True)
    location = NodeLocation("a1", cluster())
    wide = together.decide(Key("shop", "web"), service(ports=ports), slices, location)[IPV4]
    for port in ports:
        single = alone.decide(Key("shop", "web"), service(ports=[port]), slices, location)[IPV4]
        assert {name: rules for name, rules in single.items() if rules} == {
            name: rules for name, rules in wide.items() if name.port == port["name"]
        }


def test_ready_on_counts_ready_endpoints_of_the_node_once() -> None:
    """As kube-proxy counts: an endpoint with several addresses counts once."""
    leaving = endpoint("10.1.0.3", "a1", ready=False, serving=True, terminating=True)
    ipv4 = slice_of(endpoint("10.1.0.1", "a1"), endpoint("10.1.0.2", "a2"), leaving)
    ipv6 = slice_of(endpoint("fd00::1", "a1"), name="web-2", addressType="IPv6")
    assert ready_on("a1", [ipv4, ipv6]) == 1
    assert ready_on("a1", [slice_of(leaving)]) == 0
    assert ready_on("c1", [ipv4, ipv6]) == 0
