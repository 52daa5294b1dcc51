"""Backlog rules: each key once, in order, in progress once at a time."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from zonewise.kube.controller.workqueue import Backoff
from zonewise.kube.decide.backlog import Backlog

KEYS = st.sampled_from("abcde")


def take_key(backlog: Backlog[str], now: float = 0.0) -> str | None:
    item = backlog.take(now)
    return item.key if item else None


def filled(*keys: str) -> Backlog[str]:
    backlog: Backlog[str] = Backlog()
    for key in keys:
        backlog.add(key, 0.0)
    return backlog


def test_keys_are_deduplicated_in_fifo_order() -> None:
    backlog = filled("a", "b", "a", "c", "b")
    assert [take_key(backlog) for _ in range(4)] == ["a", "b", "c", None]


def test_key_added_while_in_progress_is_queued_again_last() -> None:
    backlog = filled("a", "b")
    assert take_key(backlog) == "a"
    assert backlog.add("a", 1.0)
    assert take_key(backlog) == "b"
    assert take_key(backlog) is None
    backlog.add("c", 2.0)
    backlog.done("a", 3.0)
    assert [take_key(backlog), take_key(backlog)] == ["c", "a"]


def test_done_key_without_a_new_add_is_removed() -> None:
    backlog = filled("a")
    take_key(backlog)
    backlog.done("a", 1.0)
    assert take_key(backlog) is None


def test_earlier_of_two_delayed_adds_wins() -> None:
    for dues in ([5.0, 9.0], [9.0, 5.0]):
        backlog = filled()
        for due in dues:
            backlog.add_later("a", due)
        assert backlog.add_due(4.9) == 0
        assert backlog.add_due(5.0) == 1
        assert backlog.add_due(10.0) == 0, "the later one is dropped"


def test_delayed_keys_become_due_in_time_order() -> None:
    backlog = filled()
    for key, due in [("c", 3.0), ("a", 1.0), ("b", 2.0)]:
        backlog.add_later(key, due)
    assert backlog.next_due() == 1.0
    backlog.add_due(10.0)
    assert [take_key(backlog) for _ in range(3)] == ["a", "b", "c"]


def test_due_key_that_is_queued_is_not_added_twice() -> None:
    backlog = filled("a")
    backlog.add_later("a", 1.0)
    assert backlog.add_due(2.0) == 0
    assert [take_key(backlog), take_key(backlog)] == ["a", None]


def test_shut_down_queue_hands_out_the_rest_and_accepts_none() -> None:
    backlog = filled("a", "b")
    take_key(backlog)
    backlog.add("a", 0.0)
    backlog.add_later("d", 1.0)
    backlog.shut_down()
    assert not backlog.add("c", 0.0)
    backlog.add_later("e", 1.0)
    assert backlog.add_due(9.0) == 0
    assert take_key(backlog) == "b"
    assert not backlog.exhausted, "a was added again before the shutdown"
    backlog.done("a", 1.0)
    backlog.done("b", 1.0)
    assert take_key(backlog) == "a"
    assert backlog.exhausted
    assert not backlog.drained
    backlog.done("a", 2.0)
    assert backlog.drained


def test_queue_and_work_durations_are_measured() -> None:
    backlog = filled("a", "b")
    first = backlog.take(2.0)
    assert first is not None
    assert first.waited_seconds == 2.0
    backlog.take(3.0)
    assert backlog.unfinished_seconds(5.0) == 3.0 + 2.0
    assert backlog.longest_running_seconds(5.0) == 3.0
    assert backlog.done("a", 6.0) == 4.0
    backlog.done("b", 6.0)
    assert backlog.longest_running_seconds(7.0) == 0.0


@pytest.mark.parametrize(
    ("failures", "seconds"),
    [(0, 0.5), (1, 1.0), (2, 2.0), (3, 4.0), (4, 5.0), (10_000, 5.0)],
)
def test_back_off_doubles_up_to_a_limit(failures: int, seconds: float) -> None:
    assert Backoff(first_seconds=0.5, longest_seconds=5.0).delay_seconds(failures) == seconds


def test_failures_are_counted_per_key_until_forgotten() -> None:
    backlog = filled()
    assert [backlog.fail("a"), backlog.fail("a"), backlog.fail("b")] == [0, 1, 0]
    backlog.forget("a")
    assert (backlog.failures("a"), backlog.failures("b")) == (0, 1)


@given(st.lists(KEYS, min_size=1), st.integers(min_value=1, max_value=50))
def test_noisy_key_cannot_starve_the_others(keys: list[str], rounds: int) -> None:
    """However often `noisy` is added, every other queued key has a turn between two of its turns."""
    backlog = filled("noisy", *keys)
    order = []
    for now in range(rounds):
        key = take_key(backlog, now)
        assert key is not None
        order.append(key)
        backlog.add("noisy", now)
        backlog.done(key, now)
        backlog.add("noisy", now)
    other_keys = list(dict.fromkeys(keys))
    assert order[: len(other_keys) + 1] == ["noisy", *other_keys][: len(order)]


class BacklogRules(RuleBasedStateMachine):
    """Random use, compared with a model: keys that need work, due times, and keys in progress."""

    def __init__(self) -> None:
        super().__init__()
        self.backlog: Backlog[str] = Backlog()
        self.now = 0.0
        self.needed: list[str] = []
        self.in_progress: set[str] = set()
        self.due: dict[str, float] = {}
        self.shut_down = False

    def _mark_needed(self, key: str) -> None:
        if key not in self.needed:
            self.needed.append(key)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        new = self.backlog.add(key, self.now)
        assert new == (not self.shut_down and key not in self.needed)
        if not self.shut_down:
            self._mark_needed(key)

    @rule(key=KEYS, delay=st.integers(min_value=1, max_value=10))
    def add_later(self, key: str, delay: int) -> None:
        self.backlog.add_later(key, self.now + delay)
        if not self.shut_down:
            self.due[key] = min(self.now + delay, self.due.get(key, float("inf")))

    @rule(seconds=st.integers(min_value=0, max_value=12))
    def time_passes(self, seconds: int) -> None:
        self.now += seconds
        self.backlog.add_due(self.now)
        for key in sorted((key for key, due in self.due.items() if due <= self.now), key=lambda key: self.due[key]):
            del self.due[key]
            self._mark_needed(key)

    @rule()
    def take(self) -> None:
        item = self.backlog.take(self.now)
        free = [key for key in self.needed if key not in self.in_progress]
        assert (item is not None) == bool(free), "a needed key that is not in progress is handed out"
        if item is not None:
            assert item.key not in self.in_progress, "never in progress twice"
            assert item.key in free
            self.needed.remove(item.key)
            self.in_progress.add(item.key)

    @precondition(lambda self: self.in_progress)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.in_progress)))
        self.backlog.done(key, self.now)
        self.in_progress.remove(key)

    @precondition(lambda self: not self.shut_down)
    @rule()
    def stop(self) -> None:
        self.backlog.shut_down()
        self.shut_down = True
        self.due.clear()

    @invariant()
    def nothing_is_lost(self) -> None:
        assert len(self.backlog) == len([key for key in self.needed if key not in self.in_progress])
        assert self.backlog.exhausted == (self.shut_down and not self.needed)
        assert self.backlog.drained == (self.shut_down and not self.needed and not self.in_progress)
        next_due = self.backlog.next_due()
        assert not self.due or (next_due is not None and next_due <= min(self.due.values()))

    @invariant()
    def container_invariants_hold(self) -> None:
        ready, dirty, processing = self.backlog._ready, self.backlog._dirty, self.backlog._processing
        assert len(set(ready)) == len(ready)
        assert set(ready) == set(dirty) - set(processing)


TestBacklogRules = BacklogRules.TestCase
TestBacklogRules.settings = settings(max_examples=50, deadline=None)
