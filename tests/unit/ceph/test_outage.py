"""When a domain counts as failed and when as back: days of domains, minute by minute."""

import pytest

from zonewise.ceph.decide.domains import DomainLabels
from zonewise.ceph.decide.outage import NodeCount, Outages, OutageTiming, TakeoverAction, count
from zonewise.ceph.decide.takeover import NOTHING, TakeoverDomain, TakeoverMap

PATIENCE = OutageTiming(takeover_after_seconds=300, giveback_after_seconds=600, back_share=0.5)
A = TakeoverDomain("a", "zone")
TAKEN = TakeoverMap({A: ()})


def counts(**ready: int) -> dict[str, NodeCount]:
    return {domain: NodeCount(4, number, "region=eu") for domain, number in ready.items()}


def outages(*seen: tuple[float, dict[str, NodeCount]]) -> Outages:
    found = Outages("zone", PATIENCE)
    for now, each in seen:
        found.observe(each, now)
    return found


def test_nodes_are_counted_by_domain_within_the_wider_one() -> None:
    labels = DomainLabels.parse("topology.kubernetes.io/region;topology.kubernetes.io/zone;example.com/rack")
    region, zone = "topology.kubernetes.io/region", "topology.kubernetes.io/zone"
    nodes = [
        ({region: "eu", zone: "a"}, True),
        ({region: "eu", zone: "a"}, False),
        ({zone: "b"}, True),
        ({region: "eu"}, True),
        ({}, False),
    ]
    assert count(nodes, labels, "zone") == {"a": NodeCount(2, 1, "region=eu"), "b": NodeCount(1, 1, "")}


def test_a_domain_fails_after_its_time_and_not_before() -> None:
    seen = outages((0, counts(a=4, b=4, c=4)), (100, counts(a=0, b=4, c=4)))
    assert seen.judge(NOTHING, 399) == []
    assert seen.next_look_seconds(399) == pytest.approx(1)
    (verdict,) = seen.judge(NOTHING, 400)
    assert (verdict.act, verdict.domain, verdict.targets) == (TakeoverAction.TAKE_OVER, A, ("zone=b", "zone=c"))
    assert verdict.reason.code == "DomainFailed"
    assert "none of its 4 nodes" in verdict.reason.sentence


def test_one_node_that_is_ready_for_a_moment_begins_it_anew() -> None:
    seen = outages((0, counts(a=0, b=4)), (200, counts(a=1, b=4)), (201, counts(a=0, b=4)))
    assert seen.judge(NOTHING, 500) == []
    assert seen.judge(NOTHING, 501)[0].act is TakeoverAction.TAKE_OVER


def test_what_is_in_the_map_is_not_said_again() -> None:
    seen = outages((0, counts(a=0, b=4)))
    assert seen.judge(TAKEN, 1000) == []
    assert seen.judge(TakeoverMap({TakeoverDomain("a"): ()}), 1000) == []


def test_a_domain_is_back_when_half_of_it_was_for_long() -> None:
    seen = outages((0, counts(a=0, b=4)), (1000, counts(a=1, b=4)))
    assert seen.judge(TAKEN, 5000) == [], "one of four is not enough"
    seen.observe(counts(a=2, b=4), 5000)
    assert seen.judge(TAKEN, 5599) == []
    (verdict,) = seen.judge(TAKEN, 5600)
    assert (verdict.act, verdict.domain) == (TakeoverAction.GIVE_BACK, A)
    assert seen.judge(NOTHING, 5600) == []


def test_a_domain_that_comes_and_goes_moves_nothing() -> None:
    seen = outages((0, counts(a=0, b=4)))
    for minute in range(1, 200):
        seen.observe(counts(a=4 if minute % 2 else 0, b=4), minute * 60)
        assert seen.judge(TAKEN, minute * 60) == []
        assert seen.judge(NOTHING, minute * 60) == []


def test_when_most_seem_to_have_failed_nothing_is_taken_over() -> None:
    seen = outages((0, counts(a=0, b=0, c=4)))
    assert [verdict.act for verdict in seen.judge(NOTHING, 300)] == [TakeoverAction.HOLD, TakeoverAction.HOLD]
    assert outages((0, counts(a=0))).judge(NOTHING, 300)[0].act is TakeoverAction.HOLD
    assert outages((0, counts(a=0, b=4))).judge(NOTHING, 300)[0].act is TakeoverAction.TAKE_OVER


def test_those_around_take_over_first() -> None:
    far = {"a": NodeCount(1, 0, "region=eu"), "b": NodeCount(1, 1, "region=us"), "c": NodeCount(1, 1, "region=eu")}
    assert outages((0, far)).judge(NOTHING, 300)[0].targets == ("zone=c",)
    alone = {"a": NodeCount(1, 0, "region=eu"), "b": NodeCount(1, 1, "region=us")}
    assert outages((0, alone)).judge(NOTHING, 300)[0].targets == ("all",)


def test_a_failed_domain_whose_nodes_are_removed_stays_failed_until_others_come() -> None:
    seen = outages((0, counts(a=0, b=4)), (10, counts(b=4)))
    (verdict,) = seen.judge(NOTHING, 300)
    assert "no node left" in verdict.reason.sentence
    seen.observe(counts(a=4, b=4), 400)
    assert seen.judge(TAKEN, 1000)[0].act is TakeoverAction.GIVE_BACK


def test_nodes_that_worked_and_are_removed_are_meant_to_be() -> None:
    seen = outages((0, counts(a=4, b=4)), (10, counts(b=4)))
    assert seen.judge(NOTHING, 5000) == []
    assert seen.judge(TAKEN, 5000) == []
    assert seen.next_look_seconds(5000) is None
