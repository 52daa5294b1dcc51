"""`Prefer`: thresholds, padding, downgrade, repair, and invariants."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from zonewise.routing.algorithms import Algorithm
from zonewise.routing.assign import compose, moves, pick
from zonewise.routing.load import Consumers, LoadShare, consumed_by, loads, names
from zonewise.routing.prefer import Preference, PreferLimits, prefer
from zonewise.routing.reason import RoutingCode, RoutingSubject
from zonewise.routing.rebalance import OUTSIDE
from zonewise.routing.tuning import DEFAULT_START, PREFER_ALGORITHMS, StartingPoint

AT_ONCE = StartingPoint(0, per_domain=False)
LOCAL = PreferLimits(Algorithm.LOCAL, AT_ONCE, 0)
EQUAL = {"a": 1, "b": 1, "c": 1}


def homes(**counts: int) -> dict[str, str]:
    """Endpoints a0, a1, ... in a, and so on."""
    return {f"{domain}{number}": domain for domain, count in counts.items() for number in range(count)}


def shape(preference: Preference) -> dict[str, str]:
    """The assignment in short: consumer zones, and the home letters of their endpoints."""
    assert preference.consumers is not None
    members: dict[str, list[str]] = {}
    for address, consumers in preference.consumers.items():
        members.setdefault("+".join(names(consumers)), []).append(address[0])
    return {domains: "".join(sorted(addresses)) for domains, addresses in sorted(members.items())}


SHAPES = {
    "everyone at home": (EQUAL, homes(a=3, b=3, c=3), {"a": "aaa", "b": "bbb", "c": "ccc"}, 1.0, 0.0),
    "a zone without endpoints": (EQUAL, homes(b=3, c=6), {"a": "ccc", "b": "bbb", "c": "ccc"}, 2 / 3, 0.0),
    "in proportion to nodes": ({"a": 2, "b": 1}, homes(b=9), {"a": "bbbbbb", "b": "bbb"}, 1 / 3, 0.0),
    "a little overload is taken": (EQUAL, homes(a=4, b=3, c=3), {"a": "aaaa", "b": "bbb", "c": "ccc"}, 1.0, 1 / 9),
    "endpoints from nowhere go where they lack": (
        EQUAL,
        homes(a=3, b=3) | {"x0": "x", "y0": "", "z0": None},
        {"a": "aaa", "b": "bbb", "c": "xyz"},
        2 / 3,
        0.0,
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_shape(name: str) -> None:
    demand, home_of, expected, in_domain, overload = SHAPES[name]
    preference = prefer(demand, home_of, LOCAL)
    assert shape(preference) == expected
    assert preference.in_domain == pytest.approx(in_domain)
    assert preference.worst_overload == pytest.approx(overload)
    assert preference.reason.code is RoutingCode.PREFERRED


REFUSALS = {
    "no endpoints": (EQUAL, {}, RoutingCode.NO_ENDPOINTS, ""),
    "no nodes": ({}, homes(a=3), RoutingCode.NO_NODES, "label the nodes"),
    "one zone": ({"a": 3}, homes(a=20), RoutingCode.ONE_DOMAIN, "all nodes are in zone a"),
    "below the start": (EQUAL, homes(a=4, b=4, c=3), RoutingCode.BELOW_START, "12 are needed"),
}


@pytest.mark.parametrize("name", REFUSALS)
def test_refusal(name: str) -> None:
    demand, home_of, code, words = REFUSALS[name]
    preference = prefer(demand, home_of, PreferLimits(Algorithm.LOCAL, DEFAULT_START, 3))
    assert (preference.consumers, preference.reason.code) == (None, code)
    assert words in f"{preference.reason.sentence} {preference.reason.remedy}"


def test_downgrade_names_the_zone_that_lacks_endpoints() -> None:
    preference = prefer(EQUAL, homes(a=1, b=1), LOCAL)
    assert (preference.consumers, preference.reason.code) == (None, RoutingCode.WOULD_OVERLOAD)
    assert preference.reason.blame == (RoutingSubject("Zone", "c"),)
    assert "c sends the traffic of 0.7 endpoints and has 0" in preference.reason.sentence
    assert preference.in_domain == pytest.approx(1 / 3)


def test_algorithm_without_its_own_limit_is_downgraded() -> None:
    """nodes 1, 10, 10 and endpoints 0, 0, 19: local-opt alone would overload by 55 %."""
    preference = prefer({"a": 1, "b": 10, "c": 10}, homes(c=19), PreferLimits(Algorithm.LOCAL_OPT, AT_ONCE, 0))
    assert preference.consumers is None


@pytest.mark.parametrize(
    ("endpoints", "active", "preferred"),
    [
        (6, False, False),
        (9, False, False),
        (11, False, False),
        (12, False, True),
        (12, True, True),
        (9, True, True),
        (7, True, True),
        (6, True, False),
    ],
)
def test_padding_around_the_starting_threshold(endpoints: int, active: bool, preferred: bool) -> None:
    """Threshold 9, padding 3: starts at 12, ends at 6."""
    home_of = {f"e{number:02}": "abc"[number % 3] for number in range(endpoints)}
    previous = {address: consumed_by(home) for address, home in home_of.items()} if active else None
    preference = prefer(EQUAL, home_of, PreferLimits(Algorithm.LOCAL, DEFAULT_START, 3), previous)
    assert (preference.consumers is not None) is preferred


@pytest.mark.parametrize("active", [False, True])
@pytest.mark.parametrize(("endpoints", "preferred"), [(8, False), (9, True)])
def test_without_padding_the_threshold_is_one_number(endpoints: int, preferred: bool, active: bool) -> None:
    home_of = {f"e{number}": "abc"[number % 3] for number in range(endpoints)}
    previous = {address: consumed_by(home) for address, home in home_of.items()} if active else None
    preference = prefer(EQUAL, home_of, PreferLimits(Algorithm.LOCAL, DEFAULT_START, 0), previous)
    assert (preference.consumers is not None) is preferred


@pytest.mark.parametrize("start", [StartingPoint(2, per_domain=False), StartingPoint(1, per_domain=True)])
def test_padding_above_the_threshold_counts_as_the_threshold(start: StartingPoint) -> None:
    """Otherwise the preference would never end."""
    demand = {"a": 1, "b": 1}
    limits = PreferLimits(Algorithm.LOCAL, start, 5)
    assert prefer(demand, homes(a=2, b=1), limits).reason.sentence == (
        "3 endpoints are too few: 4 are needed (starting threshold 2, padding 2)"
    )
    assert prefer(demand, homes(a=2, b=2), limits).started


def test_remedy_for_too_few_names_what_counts() -> None:
    limits = PreferLimits(Algorithm.LOCAL, DEFAULT_START, 3)
    starts, ends = prefer(EQUAL, homes(a=3, b=3, c=3), limits), prefer(EQUAL, homes(a=2, b=2, c=2), limits, {})
    assert starts.reason.remedy == (
        "run 3 more, or lower zonewise.dev/starting-threshold or zonewise.dev/padding: their sum counts"
    )
    assert ends.reason.remedy == "run 1 more, or lower zonewise.dev/starting-threshold"


def test_memory_distinguishes_not_started_from_refused() -> None:
    limits = PreferLimits(Algorithm.LOCAL, DEFAULT_START, 3)
    assert prefer(EQUAL, homes(a=3, b=3, c=3), limits).memory is None
    assert prefer(EQUAL, homes(a=1, b=1), LOCAL).memory == {}
    assert prefer({"a": 1}, homes(a=9), limits, {}).memory == {}
    assert prefer({"a": 1}, homes(a=9), limits, None).memory is None
    assert prefer(EQUAL, homes(a=1, b=1, c=1), LOCAL).memory == {zone + "0": consumed_by(zone) for zone in "abc"}


def test_new_endpoint_serves_its_zone_and_moves_no_other() -> None:
    first = prefer(EQUAL, homes(a=3, b=3, c=6), LOCAL)
    second = prefer(EQUAL, homes(a=4, b=3, c=6), LOCAL, first.consumers)
    assert second.consumers is not None
    assert first.consumers is not None
    assert {address: second.consumers[address] for address in first.consumers} == first.consumers
    assert second.consumers["a3"] == consumed_by("a")
    assert second.moved == 0


def test_lent_endpoint_returns_only_if_a_threshold_breaks() -> None:
    lent = prefer(EQUAL, homes(b=3, c=6), LOCAL)
    returned = prefer(EQUAL, homes(a=2, b=3, c=6), LOCAL, lent.consumers)
    assert shape(returned) == {"a": "aaccc", "b": "bbb", "c": "ccc"}
    assert returned.moved == 0


def test_broken_threshold_is_repaired_with_the_fewest_moves() -> None:
    first = prefer(EQUAL, homes(a=6, b=6, c=6), LOCAL)
    after = prefer(EQUAL, homes(a=6, b=6, c=2), LOCAL, first.consumers)
    assert shape(after)["c"].count("c") == 2
    assert after.moved == 2
    assert after.worst_overload < 0.5


def test_new_endpoints_are_moved_before_old_ones() -> None:
    first = prefer(EQUAL, homes(a=6, b=6, c=6), LOCAL)
    after = prefer(EQUAL, homes(a=8, b=6, c=2), LOCAL, first.consumers)
    assert after.moved <= 1
    assert after.worst_overload < 0.5


def test_endpoints_of_a_removed_zone_serve_the_others() -> None:
    first = prefer(EQUAL, homes(a=4, b=4, c=4), LOCAL)
    after = prefer({"a": 1, "b": 1}, homes(a=4, b=4, c=4), LOCAL, first.consumers)
    assert shape(after) == {"a": "aaaacc", "b": "bbbbcc"}
    assert after.moved == 0


def test_kept_assignment_may_exceed_the_limit_of_a_new_one() -> None:
    limits = PreferLimits(Algorithm.LOCAL, AT_ONCE, 0, overload=0.2, keep_overload=0.3)
    first = prefer({"a": 1, "b": 1}, homes(a=9, b=9), limits)
    within = prefer({"a": 1, "b": 1}, homes(a=9, b=6), limits, first.consumers)
    assert within.worst_overload == pytest.approx(0.25)
    assert within.moved == 0
    beyond = prefer({"a": 1, "b": 1}, homes(a=9, b=5), limits, first.consumers)
    assert beyond.worst_overload < 0.2
    assert beyond.moved


def test_lazy_assignment_stays_where_regain_takes_a_better_one() -> None:
    """Two zones share three endpoints; with a second endpoint of its own, each zone could keep all its traffic."""
    lazy = PreferLimits(Algorithm.OPTIMAL, AT_ONCE, 0, overload=0.2, keep_overload=0.3)
    shared = prefer(EQUAL, homes(a=2, b=1, c=2), lazy)
    kept = prefer(EQUAL, homes(a=2, b=2, c=2), lazy, shared.memory)
    regained = prefer(EQUAL, homes(a=2, b=2, c=2), replace(lazy, regain=True), shared.memory)
    assert (kept.in_domain, kept.moved) == (pytest.approx(2 / 3), 0)
    assert shape(regained) == {"a": "aa", "b": "bb", "c": "cc"}
    assert regained.moved == 3


# What always holds.

ALGORITHMS = st.sampled_from(list(PREFER_ALGORITHMS.values()))
LIMITS = st.builds(
    PreferLimits,
    ALGORITHMS,
    st.just(AT_ONCE),
    st.just(0),
    threshold := st.shared(st.sampled_from([0.1, 0.2, 0.5, 1.0])),
    threshold,
)
DEMAND = st.dictionaries(st.sampled_from("abcde"), st.integers(1, 20), min_size=2)
HOMES = st.dictionaries(
    st.integers(0, 60).map("e{:02}".format), st.sampled_from([*"abcde", None, "nowhere"]), min_size=1, max_size=40
)


def check(preference: Preference, demand: Mapping[str, int], home_of: Mapping[str, Any], limits: PreferLimits) -> None:
    """Nothing is lost or invented, every zone is served, and the limit holds."""
    if preference.consumers is None:
        assert preference.reason.code in {RoutingCode.WOULD_OVERLOAD, RoutingCode.BALANCED}
        return
    assert set(preference.consumers) == set(home_of)
    assert all(consumers and set(names(consumers)) <= set(demand) for consumers in preference.consumers.values())
    assert {share.domain for consumers in preference.consumers.values() for share in consumers} == set(demand)
    measured = loads(Counter(preference.consumers.values()), demand)
    assert measured.within(max(limits.overload, limits.keep_overload))
    assert measured.worst_overload == pytest.approx(preference.worst_overload)
    assert 0 <= preference.in_domain <= 1 + 1e-9


@given(DEMAND, HOMES, LIMITS)
def test_limit_holds_or_result_is_downgraded(
    demand: dict[str, int], home_of: dict[str, Any], limits: PreferLimits
) -> None:
    check(prefer(demand, home_of, limits), demand, home_of, limits)


@given(DEMAND, HOMES, DEMAND, HOMES, LIMITS)
def test_repair_holds_limits_and_moves_no_more_than_a_new_one(
    demand: dict[str, int],
    home_of: dict[str, Any],
    later_demand: dict[str, int],
    later: dict[str, Any],
    limits: PreferLimits,
) -> None:
    previous = prefer(demand, home_of, limits).consumers
    assume(previous is not None)
    assert previous is not None
    lazy = prefer(later_demand, later, limits, previous)
    check(lazy, later_demand, later, limits)
    fresh = prefer(later_demand, later, replace(limits, lazy=False), previous)
    check(fresh, later_demand, later, limits)
    assert lazy.moved <= fresh.moved or fresh.consumers is None


@given(DEMAND, HOMES, HOMES, LIMITS)
def test_nothing_moves_while_no_threshold_breaks(
    demand: dict[str, int], home_of: dict[str, Any], added: dict[str, Any], limits: PreferLimits
) -> None:
    previous = prefer(demand, home_of, limits).consumers
    assume(previous is not None)
    assert previous is not None
    assert prefer(demand, home_of, limits, previous).consumers == previous
    later = home_of | {f"new-{address}": home for address, home in added.items() if home in demand}
    groups = set(previous.values())
    at_home = {
        address: previous.get(address) or min((g for g in groups if home in names(g)), key=lambda g: (len(g), g))
        for address, home in later.items()
    }
    lazy = prefer(demand, later, limits, previous)
    if loads(Counter(at_home.values()), demand).within(limits.keep_overload):
        assert lazy.moved == 0


@given(DEMAND, HOMES, DEMAND, HOMES)
def test_regained_assignment_is_no_worse_and_stays(
    demand: dict[str, int], home_of: dict[str, Any], later_demand: dict[str, int], later: dict[str, Any]
) -> None:
    lazy = PreferLimits(Algorithm.OPTIMAL, AT_ONCE, 0, overload=0.2, keep_overload=0.3)
    limits = replace(lazy, regain=True)
    memory = prefer(demand, home_of, limits).memory
    regained = prefer(later_demand, later, limits, memory)
    check(regained, later_demand, later, limits)
    assert regained.in_domain >= prefer(later_demand, later, lazy, memory).in_domain - 1e-9
    again = prefer(later_demand, later, limits, regained.memory)
    assert (again.consumers, again.moved) == (regained.consumers, 0)


@given(DEMAND, HOMES, LIMITS, st.randoms(use_true_random=False))
def test_preference_is_independent_of_item_order(
    demand: dict[str, int], home_of: dict[str, Any], limits: PreferLimits, random: Any
) -> None:
    first = prefer(demand, home_of, limits)
    shuffled = random.sample(sorted(home_of.items()), len(home_of))
    again = prefer(dict(random.sample(sorted(demand.items()), len(demand))), dict(shuffled), limits)
    assert again == first


@pytest.mark.parametrize("algorithm", [Algorithm.LOCAL_WEIGHTED, Algorithm.OPTIMAL])
@given(data=st.data())
def test_renamed_zones_get_an_equally_good_result(algorithm: Algorithm, data: st.DataObject) -> None:
    demand = data.draw(DEMAND)
    home_of = data.draw(
        st.dictionaries(st.integers(0, 60).map("e{:02}".format), st.sampled_from(sorted(demand)), min_size=1)
    )
    renamed = dict(zip(sorted(demand), data.draw(st.permutations(sorted(demand))), strict=True))
    limits = PreferLimits(algorithm, AT_ONCE, 0)
    first = prefer(demand, home_of, limits)
    second = prefer(
        {renamed[domain]: count for domain, count in demand.items()},
        {address: renamed[home] for address, home in home_of.items()},
        limits,
    )
    assert second.in_domain == pytest.approx(first.in_domain)
    assert second.worst_overload == pytest.approx(first.worst_overload)


@given(DEMAND, HOMES, LIMITS)
def test_pick_accounts_for_every_endpoint(
    demand: dict[str, int], home_of: dict[str, Any], limits: PreferLimits
) -> None:
    preference = prefer(demand, home_of, limits)
    assume(preference.consumers is not None)
    assert preference.consumers is not None
    placed = {address: home or OUTSIDE for address, home in home_of.items()}
    composition = compose(preference.consumers, placed)
    picked = pick(composition, placed, {})
    assert compose(picked, placed) == composition
    assert pick(composition, placed, preference.consumers) == preference.consumers


def test_pick_keeps_endpoints_that_may_stay() -> None:
    placed = {f"e{number}": "a" for number in range(4)}
    settled: dict[str, Consumers] = {"e3": consumed_by("b"), "e0": consumed_by("a"), "e1": consumed_by("a", "b")}
    picked = pick({consumed_by("a"): {"a": 2}, consumed_by("b"): {"a": 2}}, placed, settled)
    assert picked["e3"] == consumed_by("b")
    assert picked["e0"] == consumed_by("a")
    assert moves(picked, settled) == 1


def test_a_new_weight_is_no_move() -> None:
    settled: dict[str, Consumers] = {"e0": (LoadShare("a", 0.5), LoadShare("b", 0.5))}
    assert moves({"e0": (LoadShare("a", 0.25), LoadShare("b", 0.75))}, settled) == 0


@pytest.mark.parametrize("strangers", [0, 1, 4])
def test_full_rebalance_by_optimal_moves_nothing_without_changes(strangers: int) -> None:
    """Endpoints from outside count for a zone, and stay counted there."""
    demand = {"a": 3, "b": 4, "c": 5}
    home_of = homes(a=20, b=3, c=17) | {f"x{number}": None for number in range(strangers)}
    limits = PreferLimits(Algorithm.OPTIMAL, AT_ONCE, 0, lazy=False)
    first = prefer(demand, home_of, limits)
    assert first.consumers
    assert prefer(demand, home_of, limits, first.memory).moved == 0


def moved_by_one_more(algorithm: Algorithm) -> int:
    limits = PreferLimits(algorithm, AT_ONCE, 0, lazy=False)
    moved = 0
    for shift in range(24):
        demand = {"a": 1 + shift % 5, "b": 3, "c": 2 + shift % 7}
        home_of = homes(a=5 + shift, b=30 - shift, c=9)
        first = prefer(demand, home_of, limits)
        for home in demand:
            moved += prefer(demand, home_of | {"new": home}, limits, first.memory).moved
    return moved


def test_optimal_with_memory_moves_no_more_than_local() -> None:
    assert moved_by_one_more(Algorithm.OPTIMAL) <= moved_by_one_more(Algorithm.LOCAL)
