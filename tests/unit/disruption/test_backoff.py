"""A rollout's pace on a virtual clock: waves wait for their slowest within reason, and a blocked workload hardly asks."""

from hypothesis import given
from hypothesis import strategies as st

from zonewise.disruption.decide.backoff import REFUSALS_AN_HOUR, RolloutBackoff

HOUR = 3600.0


def test_nothing_is_waited_for_before_the_first_wave() -> None:
    assert RolloutBackoff().seconds_to_gather(5.0) == 0


def test_the_rest_of_a_wave_gets_half_of_the_time_it_took_so_far() -> None:
    pace = RolloutBackoff()
    pace.started(100.0)
    assert pace.seconds_to_gather(120.0) == 10.0
    assert pace.seconds_to_gather(126.0) == 4.0
    assert pace.seconds_to_gather(130.0) == 0


def test_and_at_least_a_second() -> None:
    pace = RolloutBackoff()
    pace.started(100.0)
    assert pace.seconds_to_gather(100.1) == 1.0


def test_a_wave_that_has_ended_is_not_waited_for() -> None:
    pace = RolloutBackoff()
    pace.started(100.0)
    pace.ended()
    assert pace.seconds_to_gather(101.0) == 0


def test_a_refusal_closes_its_domain_only_and_longer_each_time() -> None:
    pace = RolloutBackoff()
    pace.refused("a", "1", 0.0)
    assert pace.is_closed("a", 0.9)
    assert not pace.is_closed("a", 1.0)
    assert not pace.is_closed("b", 0.0)
    pace.went("b")
    pace.refused("a", "2", 1.0)
    assert pace.is_closed("a", 4.9)
    assert not pace.is_closed("a", 5.0)


def test_the_server_may_ask_for_more_time() -> None:
    pace = RolloutBackoff()
    pace.refused("a", "1", 0.0, retry_after_seconds=30)
    assert pace.is_closed("a", 29.0)


def test_a_failing_server_closes_everything_and_counts_once_for_all_that_were_asked() -> None:
    pace = RolloutBackoff()
    for number, place in enumerate("abcdef"):
        pace.failed(place, str(number), 0.1 * number)
    assert pace.is_closed("z", 2.9)
    assert not any(pace.is_closed(place, 3.0) for place in "abcdefz")
    pace.failed("a", "0", 3.0)
    assert pace.is_closed("z", 32.9)
    assert not pace.is_closed("a", 33.0)
    pace.failed("b", "1", 33.0)
    assert pace.is_closed("a", 900.0), "blocked"


def test_who_is_outrun_after_a_failure_waits_for_its_domain_only() -> None:
    """Drains take what was free; an update that a webhook's death made doubtful must not be blocked for that."""
    pace = RolloutBackoff()
    pace.failed("a", "0", 0.0)
    for number, place in enumerate("abcab"):
        pace.outrun(place, str(number), 4.0)
    assert pace.is_doubtful
    assert not any(pace.is_closed(place, 9.0) for place in "abc")
    pace.outrun("c", "5", 9.0)
    pace.outrun("c", "6", 30.0)
    assert pace.is_closed("z", 900.0), "again and again: blocked"
    pace.went("a")
    pace.outrun("b", "7", 1000.0)
    assert not pace.is_closed("a", 1000.0)


def test_what_went_opens_its_domain_and_forgets_the_refusals() -> None:
    pace = RolloutBackoff()
    pace.refused("a", "1", 0.0)
    assert pace.turn("a") > pace.turn("b")
    assert pace.is_probing("a")
    assert pace.is_doubtful
    pace.went("a")
    assert not pace.is_doubtful
    assert not pace.is_closed("a", 0.0)
    assert not pace.is_probing("a")
    assert not pace.turn("a")


def test_a_refused_pod_stays_behind_others_though_one_of_its_domain_went() -> None:
    pace = RolloutBackoff()
    pace.refused("a", "1", 0.0)
    pace.refused("a", "2", 1.0)
    pace.went("a")
    assert pace.turn_of_pod("3") < pace.turn_of_pod("1") < pace.turn_of_pod("2")


def test_no_domain_waits_longer_than_five_minutes_while_others_go_on() -> None:
    pace = RolloutBackoff()
    now = 0.0
    for _ in range(20):
        pace.refused("a", "1", now)
        pace.went("b")
        now += 300.0
        assert not pace.is_closed("a", now)


def test_the_time_to_come_back_is_that_of_the_first_domain_to_open() -> None:
    pace = RolloutBackoff()
    pace.refused("a", "1", 0.0)
    pace.refused("b", "2", 0.5)
    assert pace.seconds_until_open(("a", "b"), 0.5) == 0.5
    assert pace.seconds_until_open(("a", "c"), 0.5) is None
    assert pace.seconds_until_open((), 0.5) is None


@given(
    domains=st.integers(1, 8),
    wakes=st.lists(st.floats(0, 4 * HOUR), max_size=60),
    retry_after=st.sampled_from([0.0, 2.0, 10.0]),
    fails=st.booleans(),
)
def test_a_blocked_workload_asks_four_times_an_hour_however_often_it_is_woken(
    domains: int, wakes: list[float], retry_after: float, fails: bool
) -> None:
    pace = RolloutBackoff()
    places = [f"zone-{number}" for number in range(domains)]
    calls: list[float] = []
    for now in sorted(wakes) + [4 * HOUR + second for second in range(0, 4 * int(HOUR), 59)]:
        for place in places:
            if not pace.is_closed(place, now):
                calls.append(now)
                (pace.failed if fails else pace.refused)(place, f"pod in {place}", now, retry_after)
    assert calls
    assert all(sum(start <= call < start + HOUR for call in calls) <= REFUSALS_AN_HOUR for start in calls)
    assert calls[-1] > 7 * HOUR, "it still asks"
