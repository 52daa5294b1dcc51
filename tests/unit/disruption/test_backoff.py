"""Rollout backoff on a virtual clock: how long waves wait, and how rarely a blocked workload retries."""

from hypothesis import given
from hypothesis import strategies as st

from zonewise.disruption.decide.backoff import REFUSALS_AN_HOUR, STUCK_SECONDS, RolloutBackoff

HOUR = 3600.0


def test_first_wave_does_not_wait() -> None:
    assert RolloutBackoff().seconds_to_gather(5.0) == 0


def test_next_wave_waits_half_as_long_as_the_wave_took() -> None:
    backoff = RolloutBackoff()
    backoff.started(100.0)
    assert backoff.seconds_to_gather(120.0) == 10.0
    assert backoff.seconds_to_gather(126.0) == 4.0
    assert backoff.seconds_to_gather(130.0) == 0


def test_next_wave_waits_at_least_a_second() -> None:
    backoff = RolloutBackoff()
    backoff.started(100.0)
    assert backoff.seconds_to_gather(100.1) == 1.0


def test_ended_wave_is_not_waited_for() -> None:
    backoff = RolloutBackoff()
    backoff.started(100.0)
    backoff.ended()
    assert backoff.seconds_to_gather(101.0) == 0


def test_refusal_closes_its_domain_longer_each_time() -> None:
    backoff = RolloutBackoff()
    backoff.refused("a", "1", 0.0)
    assert backoff.is_closed("a", 0.9)
    assert not backoff.is_closed("a", 1.0)
    assert not backoff.is_closed("b", 0.0)
    backoff.went("b")
    backoff.refused("a", "2", 1.0)
    assert backoff.is_closed("a", 4.9)
    assert not backoff.is_closed("a", 5.0)


def test_retry_after_of_the_server_is_respected() -> None:
    backoff = RolloutBackoff()
    backoff.refused("a", "1", 0.0, retry_after_seconds=30)
    assert backoff.is_closed("a", 29.0)


def test_server_errors_close_all_domains_and_count_once() -> None:
    backoff = RolloutBackoff()
    for number, domain_key in enumerate("abcdef"):
        backoff.failed(domain_key, str(number), 0.1 * number)
    assert backoff.is_closed("z", 2.9)
    assert not any(backoff.is_closed(domain_key, 3.0) for domain_key in "abcdefz")
    backoff.failed("a", "0", 3.0)
    assert backoff.is_closed("z", 32.9)
    assert not backoff.is_closed("a", 33.0)
    backoff.failed("b", "1", 33.0)
    assert backoff.is_closed("a", 900.0), "blocked"


def test_lost_race_after_a_failure_closes_only_its_domain() -> None:
    """Drains take what was free; an update that a webhook's death made doubtful must not be blocked for that."""
    backoff = RolloutBackoff()
    backoff.failed("a", "0", 0.0)
    for number, domain_key in enumerate("abcab"):
        backoff.lost_race(domain_key, str(number), 4.0)
    assert backoff.is_doubtful
    assert not any(backoff.is_closed(domain_key, 9.0) for domain_key in "abc")
    backoff.lost_race("c", "5", 9.0)
    backoff.lost_race("c", "6", 30.0)
    assert backoff.is_closed("z", 900.0), "again and again: blocked"
    backoff.went("a")
    backoff.lost_race("b", "7", 1000.0)
    assert not backoff.is_closed("a", 1000.0)


def test_eviction_opens_its_domain_and_resets_refusals() -> None:
    backoff = RolloutBackoff()
    backoff.refused("a", "1", 0.0)
    assert backoff.refusal_rank("a") > backoff.refusal_rank("b")
    assert backoff.is_probing("a")
    assert backoff.is_doubtful
    backoff.went("a")
    assert not backoff.is_doubtful
    assert not backoff.is_closed("a", 0.0)
    assert not backoff.is_probing("a")
    assert not backoff.refusal_rank("a")


def test_refused_pod_stays_last_after_another_pod_went() -> None:
    backoff = RolloutBackoff()
    backoff.refused("a", "1", 0.0)
    backoff.refused("a", "2", 1.0)
    backoff.went("a")
    assert backoff.pod_refusal_rank("3") < backoff.pod_refusal_rank("1") < backoff.pod_refusal_rank("2")


def test_domain_waits_at_most_five_minutes_while_others_go() -> None:
    backoff = RolloutBackoff()
    now = 0.0
    for _ in range(20):
        backoff.refused("a", "1", now)
        backoff.went("b")
        now += 300.0
        assert not backoff.is_closed("a", now)


def test_wait_ends_when_the_first_domain_opens() -> None:
    backoff = RolloutBackoff()
    backoff.refused("a", "1", 0.0)
    backoff.refused("b", "2", 0.5)
    assert backoff.seconds_until_open(("a", "b"), 0.5) == 0.5
    assert backoff.seconds_until_open(("a", "c"), 0.5) is None
    assert backoff.seconds_until_open((), 0.5) is None


@given(
    domains=st.integers(1, 8),
    wakes=st.lists(st.floats(0, 4 * HOUR), max_size=60),
    retry_after=st.sampled_from([0.0, 2.0, 10.0]),
    fails=st.booleans(),
)
def test_blocked_workload_retries_at_most_four_times_an_hour(
    domains: int, wakes: list[float], retry_after: float, fails: bool
) -> None:
    backoff = RolloutBackoff()
    owner_slots = [f"zone-{number}" for number in range(domains)]
    calls: list[float] = []
    for now in sorted(wakes) + [4 * HOUR + second for second in range(0, 4 * int(HOUR), 59)]:
        for domain_key in owner_slots:
            if not backoff.is_closed(domain_key, now):
                calls.append(now)
                (backoff.failed if fails else backoff.refused)(domain_key, f"pod in {domain_key}", now, retry_after)
    assert calls
    assert all(sum(start <= call < start + HOUR for call in calls) <= REFUSALS_AN_HOUR for start in calls)
    assert calls[-1] > 7 * HOUR, "it still asks"


def test_wave_is_stuck_after_a_minute() -> None:
    backoff = RolloutBackoff()
    assert not backoff.is_stuck(1000.0)
    backoff.started(100.0)
    assert not backoff.is_stuck(159.9)
    assert backoff.is_stuck(160.0)
    backoff.ended()
    assert not backoff.is_stuck(1000.0)


def test_retry_is_at_opening_and_within_a_minute() -> None:
    backoff = RolloutBackoff()
    backoff.refused("a", "1", 0.0)
    backoff.refused("b", "2", 0.0, retry_after_seconds=300.0)
    assert backoff.seconds_until_retry(("a", "b"), 0.25) == 0.75
    assert backoff.seconds_until_retry(("b",), 0.25) == STUCK_SECONDS
    assert backoff.seconds_until_retry(("a", "c"), 0.25) == STUCK_SECONDS, "one is open: only an event can help"
    assert backoff.seconds_until_retry((), 0.25) == STUCK_SECONDS


def test_wave_limits_try_a_refused_domain_last_and_alone() -> None:
    backoff = RolloutBackoff()
    backoff.refused("a", "1", 0.0)
    before, after = backoff.wave_limits(3, 0.5), backoff.wave_limits(3, 1.5)
    assert before.most == 3
    assert (before.closed("a"), after.closed("a"), before.closed("b")) == (True, False, False)
    assert (after.single("a"), after.single("b")) == (True, False)
    assert after.refusal_rank("a") > after.refusal_rank("b")
