"""Shaping as one value, and the text it becomes for nftables and `ip`."""

from __future__ import annotations

import pytest

from zonewise.lab.decide.addresses import PlanError, plan
from zonewise.lab.network import shaping
from zonewise.lab.network.shaping import Shaping, ZonePath

PLAN = plan("lab", 0, ("a", "b", "c"), 1)


def _rules(wanted: Shaping) -> list[str]:
    lines = [line.strip() for line in shaping.ruleset(PLAN, wanted).splitlines()]
    return [line for line in lines if line.endswith("drop")]


def test_a_plain_network_has_a_table_without_rules() -> None:
    assert _rules(Shaping()) == []


def test_cutting_drops_what_leaves_and_what_enters() -> None:
    assert _rules(Shaping().with_cut("b")) == ['iifname "zone1" drop', 'oifname "zone1" drop']
    assert _rules(Shaping().with_cut("b").with_healed("b")) == []


def test_loss_is_a_share_of_each_direction_in_both_families() -> None:
    assert _rules(Shaping().with_path(ZonePath("a", "c", 0, 12.5))) == [
        'iifname "zone0" ip daddr 100.64.192.0/18 numgen random mod 10000 < 1250 drop',
        'iifname "zone0" ip6 daddr fd7a:6f6e:6500:300::/56 numgen random mod 10000 < 1250 drop',
        'iifname "zone2" ip daddr 100.64.64.0/18 numgen random mod 10000 < 1250 drop',
        'iifname "zone2" ip6 daddr fd7a:6f6e:6500:100::/56 numgen random mod 10000 < 1250 drop',
    ]


def test_latency_is_a_detour_that_replaces_earlier_ones() -> None:
    slow = Shaping().with_path(ZonePath("a", "b", 5, 0)).with_path(ZonePath("b", "c", 0, 1))
    assert shaping.detours(PLAN, slow, 4) == [
        "rule flush proto 122",
        "route replace default dev delay0 table 1000",
        "rule add pref 1000 iif zone0 to 100.64.128.0/18 lookup 1000 proto 122",
        "rule add pref 1000 iif zone1 to 100.64.64.0/18 lookup 1000 proto 122",
    ]
    assert shaping.detours(PLAN, Shaping(), 6) == ["rule flush proto 122"]


def test_the_last_setting_of_a_path_counts_in_either_order() -> None:
    first = Shaping().with_path(ZonePath("a", "b", 5, 1))
    assert first.with_path(ZonePath("b", "a", 7, 0)).paths == (ZonePath("b", "a", 7, 0),)
    assert first.with_path(ZonePath("b", "a", 0, 0)).paths == ()


REFUSED = {
    "an unknown zone": (ZonePath("a", "x", 1, 1), "no zone 'x'"),
    "a path within a zone": (ZonePath("a", "a", 1, 1), "between two zones"),
    "more loss than there is": (ZonePath("a", "b", 1, 101), "0 to 100 percent"),
    "less than no latency": (ZonePath("a", "b", -1, 1), "0 to 10000 ms"),
}


@pytest.mark.parametrize(("path", "why"), REFUSED.values(), ids=REFUSED)
def test_refusals_say_what_is_allowed(path: ZonePath, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        shaping.check(PLAN, path)
