"""Routing decisions: which rule decides, the reason, and independence of everything but the arguments."""

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import cluster, endpoint, endpoints, node, service
from zonewise.api.names import (
    ALGORITHM,
    OLD_HINTS,
    PADDING,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    STARTING_THRESHOLD,
    TOPOLOGY_KEYS,
)
from zonewise.objects import Endpoint, Service
from zonewise.routing import HintsForm, RoutingCode, RoutingNodes, choose, decide
from zonewise.routing.endpoints import usable
from zonewise.routing.routing_nodes import NODE_NAME
from zonewise.routing.tuning import PREFER_ALGORITHMS
from zonewise.topology import REGION, ZONE

THREE = cluster({"a": 2, "b": 2, "c": 2}, region="r")
NINE = endpoints({"a": 3, "b": 3, "c": 3})
AT_ONCE = {STARTING_THRESHOLD: "0", PADDING: "0"}

RULES = {
    "nothing": (service(), RoutingCode.NO_POLICY),
    "balanced": (service({SAME_ZONE: "Balanced"}), RoutingCode.BALANCED),
    "keys": (service({TOPOLOGY_KEYS: '["*"]'}), RoutingCode.TOPOLOGY_KEYS),
    "keys before zone": (service({TOPOLOGY_KEYS: '["*"]', SAME_ZONE: "Require"}), RoutingCode.TOPOLOGY_KEYS),
    "zone before hints": (service({SAME_ZONE: "Require", OLD_HINTS: "Auto"}), RoutingCode.REQUIRED),
    "hints before distribution": (service({OLD_HINTS: "Auto"}, traffic_distribution="PreferClose"), RoutingCode.HINTED),
    "distribution": (service(traffic_distribution="PreferClose"), RoutingCode.DISTRIBUTED),
    "prefer": (service({SAME_ZONE: "Prefer"} | AT_ONCE), RoutingCode.PREFERRED),
    "prefer, too few": (service({SAME_ZONE: "Prefer"}), RoutingCode.BELOW_START),
}


@pytest.mark.parametrize("name", RULES)
def test_rule(name: str) -> None:
    svc, code = RULES[name]
    assert decide(svc, NINE, THREE).reason.code is code


@pytest.mark.parametrize("name", RULES)
def test_no_endpoints_no_choice(name: str) -> None:
    decision = decide(RULES[name][0], [endpoint("X", ready=False)], THREE)
    choice = choose(decision, THREE, "a1")
    assert (decision.reason.code, choice.shares, choice.reason.code) == (
        RoutingCode.NO_ENDPOINTS,
        {},
        RoutingCode.NO_ENDPOINTS,
    )


def test_strict_hints_match_upstream() -> None:
    uneven = endpoints({"a": 9})
    decision = decide(service({OLD_HINTS: "Auto"}), uneven, THREE, hints=HintsForm.STRICT)
    assert sorted(consumers[0].domain for consumers in decision.memory[ZONE].values()) == [*"aaabbbccc"]


def test_valid_strict_hints_are_kept() -> None:
    hinted = [endpoint(f"e{number}", "a1", "a", zones="abc"[number % 3]) for number in range(9)]
    decision = decide(service({OLD_HINTS: "Auto"}), hinted, THREE, hints=HintsForm.STRICT)
    assert [consumers[0].domain for consumers in decision.memory[ZONE].values()] == [*"abcabcabc"]


@pytest.mark.parametrize("svc", [service({OLD_HINTS: "Auto"}), service(traffic_distribution="PreferClose")])
def test_only_terminating_endpoints_are_used_without_preference(svc: Service) -> None:
    draining = [endpoint(f"10.0.0.{n}", "a1", "a", ready=False, serving=True, terminating=True) for n in range(9)]
    decision = decide(svc, draining, THREE)
    assert (decision.reason.code, len(choose(decision, THREE, "b1").shares)) == (RoutingCode.ONLY_TERMINATING, 9)


def test_decision_has_the_complaints() -> None:
    decision = decide(service({SAME_ZONE: "near"}), NINE, THREE)
    assert [complaint.code for complaint in decision.complaints] == [RoutingCode.INVALID_VALUE]


def test_choice_reason_has_count_and_domain() -> None:
    reason = choose(decide(RULES["prefer"][0], NINE, THREE), THREE, "b2").reason
    assert (reason.code, reason.sentence) == (RoutingCode.CHOSEN, f"3 of 9 endpoints, for {ZONE}=b")
    assert reason.facts == {"client": "b2", "chosen": 3, "endpoints": 9, "tier": ZONE}


USABLE: dict[str, tuple[list[Endpoint], str, bool]] = {
    "unset means ready": ([endpoint("A", ready=None)], "A", False),
    "ready before draining": (
        [endpoint("A"), endpoint("B", ready=False, serving=True, terminating=True)],
        "A",
        False,
    ),
    "draining when nothing is ready": (
        [endpoint("A", ready=False), endpoint("B", ready=False, terminating=True)],
        "B",
        True,
    ),
    "one address, a new pod after an old": (
        [endpoint("A", "old", ready=False, serving=True, terminating=True), endpoint("A", "new")],
        "A",
        False,
    ),
    "no address": ([Endpoint()], "", False),
}


@pytest.mark.parametrize("name", USABLE)
def test_usable_endpoints(name: str) -> None:
    candidates, addresses, draining = USABLE[name]
    result = usable(candidates)
    assert (" ".join(result.by_address), result.draining) == (addresses, draining)


CLIENTS = {
    "ready workers": (
        [node("w"), node("x", ready=False), node("m", labels={"node-role.kubernetes.io/master": ""})],
        "w",
    ),
    "no worker, so all that are ready": (
        [node("m", labels={"node-role.kubernetes.io/control-plane": ""}), node("x", ready=False)],
        "m",
    ),
    "nothing ready, so all": ([node("x", ready=False), node("y", ready=False)], "x y"),
}


@pytest.mark.parametrize("name", CLIENTS)
def test_client_nodes(name: str) -> None:
    nodes, clients = CLIENTS[name]
    assert " ".join(RoutingNodes.of(nodes).clients) == clients


def test_demand_by_any_key() -> None:
    assert THREE.demand(ZONE) == {"a": 2, "b": 2, "c": 2}
    assert THREE.demand(REGION) == {"r": 6}
    assert set(THREE.demand(NODE_NAME).values()) == {1}


def test_memory_of_another_policy_is_dropped() -> None:
    """Eight endpoints are too few to start at nine, but enough to continue with a padding of three."""
    prefer = {SAME_ZONE: "Prefer", PADDING: "3"}
    first = decide(service(prefer), endpoints({"a": 4, "b": 4, "c": 4}), THREE)
    eight = endpoints({"a": 3, "b": 3, "c": 2})
    assert decide(service(prefer), eight, THREE, first).reason.code is RoutingCode.PREFERRED
    assert decide(service(prefer), eight, THREE, first.memory).reason.code is RoutingCode.PREFERRED
    assert decide(service(prefer | {ALGORITHM: "optimal"}), eight, THREE, first).reason.code is RoutingCode.BELOW_START


SERVICES = st.builds(
    service,
    st.fixed_dictionaries(
        {},
        optional={
            SAME_NODE: st.sampled_from(["Balanced", "Prefer", "Require"]),
            SAME_ZONE: st.sampled_from(["Balanced", "Prefer", "Require"]),
            SAME_REGION: st.sampled_from(["Balanced", "Prefer", "Require"]),
            TOPOLOGY_KEYS: st.sampled_from(['["kubernetes.io/hostname"]', '["topology.kubernetes.io/zone", "*"]']),
            OLD_HINTS: st.just("Auto"),
            ALGORITHM: st.sampled_from(sorted(PREFER_ALGORITHMS)),
            STARTING_THRESHOLD: st.sampled_from(["0", "1x"]),
            PADDING: st.integers(0, 3).map(str),
        },
    ),
    traffic_distribution=st.none() | st.sampled_from(["PreferSameZone", "PreferSameNode"]),
)
NODES = st.lists(st.tuples(st.sampled_from(["a", "b", "c", None]), st.sampled_from(["r", "s", None])), max_size=6).map(
    lambda domains: [node(str(number), zone, region=region) for number, (zone, region) in enumerate(domains)]
)
ENDPOINTS = st.lists(
    st.builds(
        endpoint,
        st.integers(1, 30).map("10.0.0.{}".format),
        st.none() | st.integers(0, 6).map(str),
        st.sampled_from(["a", "b", None]),
        ready=st.sampled_from([True, True, True, False, None]),
        terminating=st.sampled_from([None, None, True]),
    ),
    max_size=25,
)


@given(SERVICES, NODES, ENDPOINTS, ENDPOINTS, st.sampled_from(HintsForm))
def test_choice_is_usable_and_soft_rules_serve_every_client(
    svc: Service, nodes: list[Any], before: list[Endpoint], current: list[Endpoint], hints: HintsForm
) -> None:
    routing_nodes = RoutingNodes.of(nodes)
    memory = decide(svc, before, routing_nodes, hints=hints).memory
    decision = decide(svc, current, routing_nodes, memory, hints=hints)
    usable_now = usable(current).by_address
    for name in (*routing_nodes.nodes, "stranger"):
        choice = choose(decision, routing_nodes, name)
        assert set(choice.shares) <= set(usable_now)
        assert all(weight > 0 for weight in choice.shares.values())
        if usable_now and decision.walls is None and decision.tiers[-1].key == "*":
            assert choice.shares


@given(SERVICES, NODES, ENDPOINTS, st.randoms(use_true_random=False))
def test_decision_is_independent_of_input_order(
    svc: Service, nodes: list[Any], current: list[Endpoint], random: Any
) -> None:
    current = list({candidate.addresses[0]: candidate for candidate in current}.values())
    first = decide(svc, current, RoutingNodes.of(nodes))
    random.shuffle(current)
    random.shuffle(nodes)
    again = decide(svc, current, RoutingNodes.of(nodes))
    assert (again.tiers, again.reason.sentence, again.endpoints) == (
        first.tiers,
        first.reason.sentence,
        first.endpoints,
    )


def test_deciding_loads_no_compiler() -> None:
    """The controller must start fast and small: numba belongs to the simulator."""
    code = "import sys, zonewise.routing; sys.exit(bool({'numba', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
