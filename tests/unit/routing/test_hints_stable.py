"""Stable automatic hints: counts that upstream refuses, memory, and nodes left out."""

from collections import Counter
from collections.abc import Iterable
from itertools import permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unit.routing.build import endpoint, endpoints, node, service
from zonewise.api.names import OLD_HINTS, OVERLOAD_THRESHOLD
from zonewise.objects import Endpoint
from zonewise.routing import Decision, HintsForm, RoutingCode, RoutingNodes, RoutingSubject, decide
from zonewise.routing.hints_stable import hint_stably
from zonewise.routing.load import names
from zonewise.topology import ZONE

AUTO = service({OLD_HINTS: "Auto"})
THREE = RoutingNodes.of(node(f"{zone}{number}", zone) for zone in "abc" for number in range(3))


@pytest.mark.parametrize("count", [5, 8, 11])
def test_counts_that_upstream_refuses_keep_traffic_in_zone(count: int) -> None:
    candidates = [endpoint(f"e{number:02}", f"{'abc'[number % 3]}0", "abc"[number % 3]) for number in range(count)]
    assert decide(AUTO, candidates, THREE, hints=HintsForm.STRICT).reason.code is RoutingCode.WOULD_OVERLOAD
    decision = decide(AUTO, candidates, THREE)
    assert decision.reason.code is RoutingCode.HINTED
    assert decision.reason.facts["in_domain"] > 1 / 3
    assert decision.reason.facts["worst_overload"] < 0.2


def test_node_without_zone_is_left_out_and_named() -> None:
    nodes = RoutingNodes.of([*THREE.nodes.values(), node("bare"), node("idle", "a", cpu=None)])
    candidates = endpoints({"a": 3, "b": 3, "c": 3})
    assert decide(AUTO, candidates, nodes, hints=HintsForm.STRICT).reason.code is RoutingCode.INSUFFICIENT_NODE_INFO
    decision = decide(AUTO, candidates, nodes)
    assert decision.reason.code is RoutingCode.HINTED
    assert decision.reason.blame == (RoutingSubject("Node", "bare"), RoutingSubject("Node", "idle"))
    assert "2 nodes are left out: node bare has no label" in decision.reason.sentence


def test_endpoint_without_zone_serves_the_zone_that_lacks_most() -> None:
    candidates = [*endpoints({"a": 3, "b": 3, "c": 2}), endpoint("X")]
    decision = decide(AUTO, candidates, THREE)
    assert names(decision.tiers[0].consumers["X"]) == ("c",)


def test_hints_stay_until_the_overload_is_half_as_large_again() -> None:
    """Two zones; b shrinks from 9 endpoints to 6 (25 % overload) and to 5 (40 %)."""
    two = RoutingNodes.of([node("a1", "a"), node("b1", "b")])
    first = decide(AUTO, endpoints({"a": 9, "b": 9}), two)
    kept = decide(AUTO, endpoints({"a": 9, "b": 6}), two, first.memory)
    assert kept.reason.facts["worst_overload"] == pytest.approx(0.25)
    mended = decide(AUTO, endpoints({"a": 9, "b": 5}), two, first.memory)
    assert mended.reason.facts["worst_overload"] < 0.2


def own_zones(decision: Decision) -> bool:
    """Whether every endpoint is hinted for its own zone, and for no other."""
    consumers = decision.memory.get(ZONE) or {}
    return bool(consumers) and all(
        names(consumers[end.addresses[0]]) == (end.zone,) for end in decision.endpoints.values()
    )


def test_zones_end_sharing_when_each_has_enough_of_its_own() -> None:
    shared = decide(AUTO, endpoints({"a": 2, "b": 1, "c": 2}), THREE)
    assert shared.reason.facts["in_domain"] == pytest.approx(2 / 3, abs=1e-3)
    own = decide(AUTO, endpoints({"a": 2, "b": 2, "c": 2}), THREE, shared)
    assert own_zones(own)
    assert own.reason.facts["in_domain"] == 1


def test_lent_endpoint_returns_when_its_borrower_has_enough() -> None:
    home = decide(AUTO, endpoints({"a": 6, "b": 6, "c": 6}), THREE)
    lent = decide(AUTO, endpoints({"a": 6, "b": 6, "c": 4}), THREE, home)
    assert lent.reason.facts["moved"] == 1
    returned = decide(AUTO, endpoints({"a": 6, "b": 6, "c": 6}), THREE, lent)
    assert own_zones(returned)
    assert returned.reason.facts["moved"] == 1


DAEMON_SETS = st.tuples(st.integers(2, 4), st.integers(1, 4)).map(
    lambda size: tuple(
        endpoint(f"{zone}{number}", f"{zone}{number}", zone) for zone in "abcd"[: size[0]] for number in range(size[1])
    )
)
"""One pod on each node, and as many nodes in each zone."""


def nodes_of(pods: Iterable[Endpoint]) -> RoutingNodes:
    return RoutingNodes.of(node(pod.node_name or "", pod.zone) for pod in pods)


@given(DAEMON_SETS.flatmap(st.permutations))
def test_daemon_set_keeps_its_zones_whatever_order_its_pods_come_in(arrivals: list[Endpoint]) -> None:
    cluster = nodes_of(arrivals)
    decision = decide(AUTO, arrivals[:1], cluster)
    for count in range(2, len(arrivals) + 1):
        decision = decide(AUTO, arrivals[:count], cluster, decision)
    assert own_zones(decision)
    assert decision.reason.facts["in_domain"] == 1


def test_six_pods_keep_their_zones_in_all_orders() -> None:
    for order in sorted(set(permutations("aabbcc"))):
        pods = [endpoint(f"{zone}-{at}", f"{zone}{order[:at].count(zone)}", zone) for at, zone in enumerate(order)]
        decision = decide(AUTO, pods[:1], THREE)
        for count in range(2, 7):
            decision = decide(AUTO, pods[:count], THREE, decision)
        assert own_zones(decision), order


def rewritten(before: Decision, after: Decision) -> int:
    """The endpoints of both decisions whose hints differ."""
    first, second = (decision.memory.get(ZONE) or {} for decision in (before, after))
    both = before.endpoints.keys() & after.endpoints.keys()
    return sum(first.get(address) != second.get(address) for address in both)


@given(DAEMON_SETS.flatmap(st.permutations))
def test_rolling_update_rewrites_no_more_hints_than_upstream(order: list[Endpoint]) -> None:
    """Pods end one by one, and another takes the place of each."""
    cluster = nodes_of(order)
    pods = {pod.addresses[0]: pod for pod in order}
    last = {form: decide(AUTO, pods.values(), cluster, hints=form) for form in HintsForm}
    count = Counter[HintsForm]()
    for old in order:
        del pods[old.addresses[0]]
        for replaced in (False, True):
            if replaced:
                pods[f"{old.addresses[0]}-new"] = endpoint(f"{old.addresses[0]}-new", old.node_name, old.zone)
            for form in HintsForm:
                decision = decide(AUTO, pods.values(), cluster, last[form], hints=form)
                count[form] += rewritten(last[form], decision)
                last[form] = decision
        assert own_zones(last[HintsForm.STABLE])
    assert count[HintsForm.STABLE] <= count[HintsForm.STRICT]


def test_service_can_set_the_threshold() -> None:
    two = RoutingNodes.of([node("a1", "a"), node("b1", "b")])
    generous = service({OLD_HINTS: "Auto", OVERLOAD_THRESHOLD: "100%"})
    decision = decide(generous, endpoints({"a": 3, "b": 2}), two)
    assert {address: names(consumers) for address, consumers in decision.tiers[0].consumers.items()} == {
        "a-1": ("a",),
        "a-2": ("a",),
        "a-3": ("a",),
        "b-1": ("b",),
        "b-2": ("b",),
    }


def test_zones_share_by_cpu() -> None:
    uneven = RoutingNodes.of([node("a1", "a", cpu="8"), node("b1", "b", cpu="4")])
    preference = hint_stably(uneven.capacities, {f"{zone}{number}": zone for zone in "ab" for number in range(6)})
    assert preference.consumers is not None
    served = Counter(names(consumers) for consumers in preference.consumers.values())
    assert served == {("a",): 8, ("b",): 4}


def test_one_zone_needs_no_hints() -> None:
    decision = decide(AUTO, endpoints({"a": 3}), RoutingNodes.of([node("a1", "a")]))
    assert decision.reason.code is RoutingCode.ONE_DOMAIN


@given(st.lists(st.integers(0, 8), min_size=3, max_size=3), st.lists(st.integers(1, 16), min_size=3, max_size=3))
def test_hints_fit_the_api_and_reach_every_zone(counts: list[int], cores: list[int]) -> None:
    nodes = RoutingNodes.of(node(f"{zone}1", zone, cpu=str(cpu)) for zone, cpu in zip("abc", cores, strict=True))
    candidates = endpoints(dict(zip("abc", counts, strict=True)))
    decision = decide(AUTO, candidates, nodes)
    if decision.reason.code is RoutingCode.HINTED:
        consumers = decision.memory[ZONE]
        assert set(consumers) == {candidate.addresses[0] for candidate in candidates}
        assert {zone for shares in consumers.values() for zone in names(shares)} == {"a", "b", "c"}
        assert all(share.weight == 1 for shares in consumers.values() for share in shares)
