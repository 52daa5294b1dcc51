"""Shaping settings and their nftables rules and `ip` commands."""

from __future__ import annotations

import pytest

from zonewise.lab.decide.addresses import PlanError, plan
from zonewise.lab.network import shaping
from zonewise.lab.network.shaping import Shaping, ZonePath

PLAN = plan("lab", 0, ("a", "b", "c"), 1)


def _rules(settings: Shaping) -> list[str]:
    lines = [line.strip() for line in shaping.ruleset(PLAN, settings).splitlines()]
    return [line for line in lines if line.endswith("drop")]


def test_unshaped_network_has_no_rules() -> None:
    assert _rules(Shaping()) == []


def test_cut_drops_both_directions() -> None:
    assert _rules(Shaping().with_cut("b")) == ['iifname "zone1" drop', 'oifname "zone1" drop']
    assert _rules(Shaping().with_cut("b").with_healed("b")) == []


def test_loss_applies_to_both_directions_and_families() -> None:
    assert _rules(Shaping().with_path(ZonePath("a", "c", 0, 12.5))) == [
        'iifname "zone0" ip daddr 100.64.192.0/18 numgen random mod 10000 < 1250 drop',
        'iifname "zone0" ip6 daddr fd7a:6f6e:6500:300::/56 numgen random mod 10000 < 1250 drop',
        'iifname "zone2" ip daddr 100.64.64.0/18 numgen random mod 10000 < 1250 drop',
        'iifname "zone2" ip6 daddr fd7a:6f6e:6500:100::/56 numgen random mod 10000 < 1250 drop',
    ]


def test_latency_replaces_earlier_detours() -> None:
    slow = Shaping().with_path(ZonePath("a", "b", 5, 0)).with_path(ZonePath("b", "c", 0, 1))
    assert shaping.detours(PLAN, slow, 4) == [
        "rule flush proto 122",
        "route replace default dev delay0 table 1000",
        "rule add pref 1000 iif zone0 to 100.64.128.0/18 lookup 1000 proto 122",
        "rule add pref 1000 iif zone1 to 100.64.64.0/18 lookup 1000 proto 122",
    ]
    assert shaping.detours(PLAN, Shaping(), 6) == ["rule flush proto 122"]


def test_last_setting_of_a_path_wins_in_either_order() -> None:
    first = Shaping().with_path(ZonePath("a", "b", 5, 1))
    assert first.with_path(ZonePath("b", "a", 7, 0)).paths == (ZonePath("b", "a", 7, 0),)
    assert first.with_path(ZonePath("b", "a", 0, 0)).paths == ()


REFUSED = {
    "an unknown zone": (ZonePath("a", "x", 1, 1), "no zone 'x'"),
    "a path within a zone": (ZonePath("a", "a", 1, 1), "between two zones"),
    "loss over 100 percent": (ZonePath("a", "b", 1, 101), "0 to 100 percent"),
    "negative latency": (ZonePath("a", "b", -1, 1), "0 to 10000 ms"),
}


@pytest.mark.parametrize(("path", "why"), REFUSED.values(), ids=REFUSED)
def test_invalid_path_error_tells_what_is_allowed(path: ZonePath, why: str) -> None:
    with pytest.raises(PlanError, match=why):
        shaping.check(PLAN, path)
