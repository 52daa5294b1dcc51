"""Zone drains: their sources, their effect with every policy, and that stock proxies follow them."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import cluster, endpoint, endpoints, node, service
from zonewise.api.names import (
    ALGORITHM,
    DRAINED,
    DRAINED_EVENLY,
    OLD_HINTS,
    PADDING,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTING_THRESHOLD,
    TOPOLOGY_KEYS,
)
from zonewise.objects import (
    Endpoint,
    EndpointHints,
    EndpointPort,
    EndpointSlice,
    Metadata,
    Node,
    Service,
    ServicePort,
)
from zonewise.routing import (
    DRAIN_ZONE,
    Decision,
    Drain,
    HintsExpression,
    HintsForm,
    RoutingCode,
    RoutingNodes,
    RoutingSubject,
    choose,
    decide,
    drained_zones,
    express,
    forecast,
    recall,
    stock_choice,
)
from zonewise.topology import HOSTNAME, ZONE

AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}
THREE = cluster({"a": 1, "b": 1, "c": 1}, region="r")
NINE = endpoints({"a": 3, "b": 3, "c": 3})
MANY = cluster({f"z{number:02}": 1 for number in range(12)})
BY_SERVICE = RoutingSubject("Service", "shop/web")


def marked(unmarked: Node, value: str) -> Node:
    return Node(
        metadata=Metadata(
            name=unmarked.metadata.name, labels=unmarked.metadata.labels, annotations={DRAIN_ZONE: value}
        ),
        status=unmarked.status,
    )


def drain(*zones: str) -> Drain:
    return Drain(dict.fromkeys(zones, (BY_SERVICE,)))


SAID: dict[str, tuple[str | None, str | None, list[Node], dict[str, list[str]]]] = {
    # name: on the Service, on the namespace, nodes, drained zones with their sources
    "none": (None, None, [], {}),
    "the Service": ("a", None, [], {"a": ["Service shop/web"]}),
    "the namespace": (None, "b", [], {"b": ["Namespace shop"]}),
    "two of them, one zone": ("a", "a", [], {"a": ["Namespace shop", "Service shop/web"]}),
    "a list with spaces": (" a , b", None, [], {"a": ["Service shop/web"], "b": ["Service shop/web"]}),
    "one node of the zone": (None, None, [marked(node("a9", "a"), "a")], {"a": ["Node a9"]}),
    "a node of another zone": (None, None, [marked(node("b9", "b"), "a")], {}),
    "a node names its own and another": (None, None, [marked(node("b9", "b"), "a,b")], {"b": ["Node b9"]}),
    "a node without a zone": (None, None, [marked(node("x9"), "a")], {}),
}


@pytest.mark.parametrize("name", SAID)
def test_sources_of_drains(name: str) -> None:
    on_service, on_namespace, nodes, expected = SAID[name]
    routing_nodes = RoutingNodes.of([*THREE.nodes.values(), *nodes])
    requested = drained_zones(annotated(on_service), namespace(on_namespace), routing_nodes.node_drains)
    assert {zone: sorted(map(str, by)) for zone, by in requested.zones.items()} == expected
    assert not requested.complaints


def annotated(value: str | None, **spec: object) -> Service:
    return service({} if value is None else {DRAIN_ZONE: value}, **spec)


def namespace(value: str | None) -> dict[str, str]:
    return {} if value is None else {DRAIN_ZONE: value}


BAD = {
    "empty": ("", RoutingCode.INVALID_VALUE, "''"),
    "a comma too many": ("a,", RoutingCode.INVALID_VALUE, "'a,'"),
    "no name of a zone": ("zone a!", RoutingCode.INVALID_VALUE, "'zone a!'"),
    "a megabyte": ("x" * 1_000_000, RoutingCode.INVALID_VALUE, "xxx..."),
    "a zone that no node is in": ("A", RoutingCode.NO_EFFECT, "no node is in such a zone"),
    "a hundred thousand zones": (
        ",".join(map(str, range(100_000))),
        RoutingCode.NO_EFFECT,
        "no node is in such a zone",
    ),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("on_service", [True, False])
def test_bad_values_make_one_complaint_and_drain_nothing(name: str, on_service: bool) -> None:
    text, code, words = BAD[name]
    svc = annotated(text if on_service else None)
    requested = drained_zones(svc, {} if on_service else {DRAIN_ZONE: text}, THREE.node_drains)
    decision = decide(svc, NINE, THREE, drained=requested)
    (complaint,) = decision.complaints
    assert (complaint.code, complaint.blame[0].kind) == (code, "Service" if on_service else "Namespace")
    assert words in complaint.sentence
    assert len(complaint.sentence) < 400
    assert len(choose(decision, THREE, "a1").shares) == (6 if name == "a comma too many" else 9)


def test_node_that_names_another_zone_makes_a_complaint() -> None:
    routing_nodes = RoutingNodes.of([*THREE.nodes.values(), marked(node("b9", "b"), "a")])
    (complaint,) = routing_nodes.node_drains.drain.complaints
    assert (complaint.blame, complaint.code) == ((RoutingSubject("Node", "b9"),), RoutingCode.NO_EFFECT)
    assert "the node is in zone b" in complaint.sentence


# What every policy makes of it.

POLICIES: dict[str, dict[str, Any]] = {
    "nothing service_with": {},
    "keys, hard": {"annotations": {TOPOLOGY_KEYS: json.dumps([ZONE])}},
    "keys, soft": {"annotations": {TOPOLOGY_KEYS: json.dumps([HOSTNAME, ZONE, "*"])}},
    "balanced": {"annotations": {SAME_ZONE: "Balanced"}},
    "zone required": {"annotations": {SAME_ZONE: "Require"}},
    "node required": {"annotations": {SAME_NODE: "Require"}},
    "zone preferred": {"annotations": {SAME_ZONE: "Prefer"} | AT_ONCE},
    "zone preferred, too few": {"annotations": {SAME_ZONE: "Prefer"}},
    "node preferred": {"annotations": {SAME_NODE: "Prefer"}},
    "region preferred": {"annotations": {SAME_REGION: "Prefer"} | AT_ONCE},
    "hints": {"annotations": {OLD_HINTS: "Auto"}},
    "distribution by zone": {"traffic_distribution": "PreferSameZone"},
    "distribution by node": {"traffic_distribution": "PreferSameNode"},
}
HARD = {"keys, hard", "zone required", "node required"}


def service_with(name: str) -> Service:
    fields = dict(POLICIES[name])
    return service(fields.pop("annotations", {}), cluster_ip="10.96.0.1", **fields)


def stock(
    decision: Decision, expression: HintsExpression, routing_nodes: RoutingNodes, svc: Service
) -> dict[str, set[str]]:
    """The endpoints that a stock proxy on each node would use."""
    everything = {**decision.endpoints, **decision.drained}
    hinted = tuple(
        with_hints(candidate, expression.hints.get(address)) for address, candidate in sorted(everything.items())
    )
    metadata = Metadata(name="web-1", namespace="shop", labels={"kubernetes.io/service-name": "web"})
    slices = [EndpointSlice(metadata=metadata, endpoints=hinted, ports=(EndpointPort(name="http", port=1),))]
    return {
        name: {
            target.rpartition(":")[0] for target in stock_choice(svc, ServicePort(name="http"), slices, client).cluster
        }
        for name, client in routing_nodes.nodes.items()
    }


def with_hints(unhinted: Endpoint, hints: EndpointHints | None) -> Endpoint:
    return Endpoint(
        addresses=unhinted.addresses,
        node_name=unhinted.node_name,
        zone=unhinted.zone,
        conditions=unhinted.conditions,
        hints=hints,
    )


@pytest.mark.parametrize("hints", HintsForm)
@pytest.mark.parametrize("name", POLICIES)
def test_no_client_uses_a_drained_zone(name: str, hints: HintsForm) -> None:
    """Neither components that follow the decision nor stock proxies; clients in the drained zone go elsewhere."""
    decision = decide(service_with(name), NINE, THREE, hints=hints, drained=drain("a"))
    expression = express(decision, THREE)
    assert set(expression.hints) == {candidate.addresses[0] for candidate in NINE}
    for client, used in stock(decision, expression, THREE, service_with(name)).items():
        chosen = set(choose(decision, THREE, client).shares)
        assert not any(address.startswith("a") for address in chosen | used)
        assert used
        assert chosen or (name in HARD and client == "a1")
        if not expression.losses:
            assert used == chosen
    assert RoutingCode.ZONE_DRAINED in {reason.code for reason in decision.reasons}
    assert forecast(decision, THREE).cut_off == (("a1",) if name in HARD else ())


@pytest.mark.parametrize("name", POLICIES)
def test_hints_are_as_before_when_the_drain_ends(name: str) -> None:
    svc = service_with(name)
    before = decide(svc, NINE, THREE)
    during = decide(svc, NINE, THREE, before, drained=drain("a"))
    hinted = [with_hints(candidate, express(during, THREE).hints[candidate.addresses[0]]) for candidate in NINE]
    for memory in (recall(hinted, THREE), during):
        after = decide(svc, hinted, THREE, memory)
        assert after.reason.code is before.reason.code
        assert {name: set(choose(after, THREE, name).shares) for name in THREE.nodes} == {
            name: set(choose(before, THREE, name).shares) for name in THREE.nodes
        }


@pytest.mark.parametrize("name", POLICIES)
def test_traffic_stays_if_all_endpoints_are_in_the_drained_zone(name: str) -> None:
    in_zone_a = endpoints({"a": 3})
    decision = decide(service_with(name), in_zone_a, THREE, drained=drain("a"))
    undrained = decide(service_with(name), in_zone_a, THREE)
    assert (decision.tiers, decision.endpoints, decision.drained) == (undrained.tiers, undrained.endpoints, {})
    (reason,) = [reason for reason in decision.reasons if reason.code is RoutingCode.NOT_DRAINED]
    assert reason.sentence == (
        "zone a is not drained, though Service shop/web asks for it: all 3 endpoints are there, so traffic stays"
    )
    assert express(decision, THREE).hints == express(undrained, THREE).hints


def test_drain_of_a_zone_without_endpoints_changes_nothing() -> None:
    elsewhere = endpoints({"b": 3, "c": 3})
    decision = decide(service(), elsewhere, THREE, drained=drain("a"))
    assert (decision.reason.code, express(decision, THREE).hints) == (RoutingCode.NO_POLICY, {})


def test_reason_names_requesters_endpoints_and_local_traffic() -> None:
    by = Drain({"a": (BY_SERVICE, RoutingSubject("Node", "a1"))})
    svc = service({SAME_ZONE: "Balanced"}, internal_traffic_policy="Local")
    reason = decide(svc, NINE, THREE, drained=by).reasons[-1]
    assert reason.sentence == (
        "zone a is drained by Service shop/web and 1 more: 3 endpoints there get no traffic, 6 elsewhere take it; "
        "what internalTrafficPolicy Local keeps on its node is not moved"
    )
    assert reason.blame == (BY_SERVICE, RoutingSubject("Node", "a1"))


def test_without_a_policy_the_drain_is_the_reason() -> None:
    assert decide(service(), NINE, THREE, drained=drain("a", "b")).reason.sentence.startswith(
        "zones a, b are drained by Service shop/web: 6 endpoints"
    )


def words(hints: EndpointHints) -> str:
    return "+".join(hint.name for hint in hints.for_zones)


EXPRESSED: dict[str, tuple[Service, Iterable[str], Mapping[str, str]]] = {
    "spread evenly, the others are for all zones": (
        service(),
        "a",
        {"a-1": DRAINED_EVENLY, "b-1": "a+b+c", "c-1": "a+b+c"},
    ),
    "by the policy's own assignment": (
        service({SAME_ZONE: "Require"}),
        "a",
        {"a-1": DRAINED, "b-1": "a+b", "c-1": "a+c"},
    ),
    "two zones": (service(traffic_distribution="PreferClose"), "ab", {"a-1": DRAINED, "b-1": DRAINED, "c-1": "a+b+c"}),
}


@pytest.mark.parametrize("name", EXPRESSED)
def test_hints(name: str) -> None:
    svc, zones, expected = EXPRESSED[name]
    decision = decide(svc, endpoints({"a": 1, "b": 1, "c": 1}), THREE, drained=drain(*zones))
    assert {address: words(hints) for address, hints in express(decision, THREE).hints.items()} == expected


def test_too_many_zones_are_spread_over_endpoints_and_reported() -> None:
    candidates = endpoints({"z00": 1, "z01": 2, "z02": 1})
    decision = decide(service(), candidates, MANY, drained=drain("z00"))
    expression = express(decision, MANY)
    assert all(len(hints.for_zones) <= 8 for hints in expression.hints.values())
    assert [loss.sentence for loss in expression.losses] == [
        "an endpoint can serve 8 zones at most, so some zones use only part of them"
    ]
    assert not any(
        "z00-1" in used for used in stock(decision, expression, MANY, service_with("nothing service_with")).values()
    )


def test_zones_that_hints_cannot_name_are_reported() -> None:
    decision = decide(service(), endpoints({"z00": 1, "z01": 1}), MANY, drained=drain("z00"))
    (loss,) = express(decision, MANY).losses
    assert loss.sentence == "hints have no room for z08, z09, z10, z11, which use drained endpoints too"


LOST = {
    "a node without a zone": (
        RoutingNodes.of([*THREE.nodes.values(), node("x1")]),
        NINE,
        "1 nodes have no zone label, among them x1, and use drained endpoints too",
    ),
    "only terminating endpoints": (
        THREE,
        [endpoint(f"{zone}-1", f"{zone}1", zone, ready=False, serving=True, terminating=True) for zone in "abc"],
        "stock proxies ignore hints while no endpoint is ready",
    ),
}


@pytest.mark.parametrize("name", LOST)
def test_losses_of_stock_proxies_are_reported(name: str) -> None:
    routing_nodes, candidates, sentence = LOST[name]
    assert [
        loss.sentence
        for loss in express(decide(service(), candidates, routing_nodes, drained=drain("a")), routing_nodes).losses
    ] == [sentence]


def test_preference_survives_a_drain_and_a_restart() -> None:
    """Ten endpoints are too few to start at nine with a padding of three, and so are six; both may continue from seven on."""
    svc = service({SAME_ZONE: "Prefer"})
    first = decide(svc, endpoints({"a": 4, "b": 4, "c": 4}), THREE)
    candidates = endpoints({"a": 3, "b": 4, "c": 4})
    during = decide(svc, candidates, THREE, first, drained=drain("a"))
    assert (during.reasons[0].code, during.reasons[1].code) == (RoutingCode.PREFERRED, RoutingCode.ZONE_DRAINED)
    hinted = [with_hints(candidate, express(during, THREE).hints[candidate.addresses[0]]) for candidate in candidates]
    restarted = decide(svc, hinted, THREE, recall(hinted, THREE), drained=drain("a"))
    assert express(restarted, THREE).hints == express(during, THREE).hints
    after = decide(svc, hinted, THREE, recall(hinted, THREE))
    assert after.reason.code is RoutingCode.PREFERRED
    assert {"a-1", "a-2", "a-3"} <= set(choose(after, THREE, "a1").shares)


PLACES = st.lists(st.sampled_from(sorted(THREE.nodes)), min_size=1, max_size=20)


@given(st.sampled_from(sorted(POLICIES)), PLACES, st.sets(st.sampled_from("abc")), st.sampled_from(HintsForm))
def test_every_endpoint_is_used_or_drained(name: str, node_names: list[str], zones: set[str], hints: HintsForm) -> None:
    candidates = [
        endpoint(f"{node_name}.{number}", node_name, node_name[0]) for number, node_name in enumerate(node_names)
    ]
    decision = decide(service_with(name), candidates, THREE, hints=hints, drained=drain(*zones))
    assert {**decision.endpoints, **decision.drained}.keys() == {candidate.addresses[0] for candidate in candidates}
    assert decision.endpoints
    expression = express(decision, THREE)
    if decision.drained:
        assert set(expression.hints) == set(decision.endpoints) | set(decision.drained)
        for used in stock(decision, expression, THREE, service_with(name)).values():
            assert used
            assert not used & set(decision.drained)


AFTER_A_DRAIN = {
    "automatic hints": {OLD_HINTS: "Auto"},
    "Prefer, local": {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "3", PADDING: "0"},
    "Prefer, optimal": {SAME_ZONE: "Prefer", STARTING_THRESHOLD: "3", PADDING: "0", ALGORITHM: "optimal"},
}


@pytest.mark.parametrize("annotations", AFTER_A_DRAIN.values(), ids=AFTER_A_DRAIN.keys())
def test_preference_is_restored_when_a_drain_ends(annotations: dict[str, str]) -> None:
    """The assignment during the drain is not kept."""
    svc = service(annotations)
    routing_nodes, candidates = cluster({"a": 1, "b": 2, "c": 1}), endpoints({"a": 2, "b": 2, "c": 2})
    fresh = decide(svc, candidates, routing_nodes)
    assert len(fresh.tiers) > 1
    drained = decide(svc, candidates, routing_nodes, fresh, drained=Drain({"c": (RoutingSubject("Node", "n"),)}))
    assert decide(svc, candidates, routing_nodes, drained).tiers == fresh.tiers
