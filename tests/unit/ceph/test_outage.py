"""Failed and recovered domains, over time."""

import pytest

from zonewise.ceph.decide.domains import DomainLabels
from zonewise.ceph.decide.outage import NodeCount, Outages, OutageTiming, TakeoverAction, count_nodes
from zonewise.ceph.decide.takeover import NO_TAKEOVERS, TakeoverDomain, TakeoverMap

TIMING = OutageTiming(takeover_after_seconds=300, giveback_after_seconds=600, back_share=0.5)
A = TakeoverDomain("a", "zone")
TAKEN = TakeoverMap({A: ()})


def counts(**ready: int) -> dict[str, NodeCount]:
    return {domain: NodeCount(4, number, "region=eu") for domain, number in ready.items()}


def outages(*observations: tuple[float, dict[str, NodeCount]]) -> Outages:
    result = Outages("zone", TIMING)
    for now, node_counts in observations:
        result.observe(node_counts, now)
    return result


def test_nodes_are_counted_by_domain() -> None:
    labels = DomainLabels.parse("topology.kubernetes.io/region;topology.kubernetes.io/zone;example.com/rack")
    region, zone = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
    nodes = [
        ({region: "eu", zone: "a"}, True),
        ({region: "eu", zone: "a"}, False),
        ({zone: "b"}, True),
        ({region: "eu"}, True),
        ({}, False),
    ]
    assert count_nodes(nodes, labels, "zone") == {"a": NodeCount(2, 1, "region=eu"), "b": NodeCount(1, 1, "")}


def test_domain_fails_after_takeover_after_seconds() -> None:
    state = outages((0, counts(a=4, b=4, c=4)), (100, counts(a=0, b=4, c=4)))
    assert state.judge(NO_TAKEOVERS, 399) == []
    assert state.next_check_seconds(399) == pytest.approx(1)
    (verdict,) = state.judge(NO_TAKEOVERS, 400)
    assert (verdict.action, verdict.domain, verdict.targets) == (TakeoverAction.TAKE_OVER, A, ("zone=b", "zone=c"))
    assert verdict.reason.code == "DomainFailed"
    assert "none of its 4 nodes" in verdict.reason.sentence


def test_ready_node_restarts_the_takeover_timer() -> None:
    state = outages((0, counts(a=0, b=4)), (200, counts(a=1, b=4)), (201, counts(a=0, b=4)))
    assert state.judge(NO_TAKEOVERS, 500) == []
    assert state.judge(NO_TAKEOVERS, 501)[0].action is TakeoverAction.TAKE_OVER


def test_domains_in_the_map_are_not_taken_over_again() -> None:
    state = outages((0, counts(a=0, b=4)))
    assert state.judge(TAKEN, 1000) == []
    assert state.judge(TakeoverMap({TakeoverDomain("a"): ()}), 1000) == []


def test_domain_is_back_when_half_its_nodes_stay_ready() -> None:
    state = outages((0, counts(a=0, b=4)), (1000, counts(a=1, b=4)))
    assert state.judge(TAKEN, 5000) == [], "one of four is not enough"
    state.observe(counts(a=2, b=4), 5000)
    assert state.judge(TAKEN, 5599) == []
    (verdict,) = state.judge(TAKEN, 5600)
    assert (verdict.action, verdict.domain) == (TakeoverAction.GIVE_BACK, A)
    assert state.judge(NO_TAKEOVERS, 5600) == []


def test_flapping_domain_causes_no_verdict() -> None:
    state = outages((0, counts(a=0, b=4)))
    for minute in range(1, 200):
        state.observe(counts(a=4 if minute % 2 else 0, b=4), minute * 60)
        assert state.judge(TAKEN, minute * 60) == []
        assert state.judge(NO_TAKEOVERS, minute * 60) == []


def test_outage_of_most_domains_is_held() -> None:
    state = outages((0, counts(a=0, b=0, c=4)))
    assert [verdict.action for verdict in state.judge(NO_TAKEOVERS, 300)] == [TakeoverAction.HOLD, TakeoverAction.HOLD]
    assert outages((0, counts(a=0))).judge(NO_TAKEOVERS, 300)[0].action is TakeoverAction.HOLD
    assert outages((0, counts(a=0, b=4))).judge(NO_TAKEOVERS, 300)[0].action is TakeoverAction.TAKE_OVER


def test_domains_of_the_same_parent_take_over() -> None:
    far = {"a": NodeCount(1, 0, "region=eu"), "b": NodeCount(1, 1, "region=us"), "c": NodeCount(1, 1, "region=eu")}
    assert outages((0, far)).judge(NO_TAKEOVERS, 300)[0].targets == ("zone=c",)
    alone = {"a": NodeCount(1, 0, "region=eu"), "b": NodeCount(1, 1, "region=us")}
    assert outages((0, alone)).judge(NO_TAKEOVERS, 300)[0].targets == ("all",)


def test_failed_domain_without_nodes_stays_failed() -> None:
    state = outages((0, counts(a=0, b=4)), (10, counts(b=4)))
    (verdict,) = state.judge(NO_TAKEOVERS, 300)
    assert "no node left" in verdict.reason.sentence
    state.observe(counts(a=4, b=4), 400)
    assert state.judge(TAKEN, 1000)[0].action is TakeoverAction.GIVE_BACK


def test_removal_of_ready_nodes_is_no_outage() -> None:
    state = outages((0, counts(a=4, b=4)), (10, counts(b=4)))
    assert state.judge(NO_TAKEOVERS, 5000) == []
    assert state.judge(TAKEN, 5000) == []
    assert state.next_check_seconds(5000) is None
