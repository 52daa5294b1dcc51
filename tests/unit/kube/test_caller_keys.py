"""Keys of our callers: the stored form, and a rotation in which no caller is refused."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.kube.server.caller_keys import KEY, KEYS_FIELD, CallerKey, CallerKeyError, CallerKeys, KeyLifetimes

NOW = dt.datetime(2026, 11, 18, tzinfo=dt.UTC)
MINUTE = dt.timedelta(minutes=1)
LIFETIMES = KeyLifetimes()
FIRST = CallerKeys().renewed(NOW, LIFETIMES)


def text(keys: CallerKeys, index: int = -1) -> str:
    return keys.members[index].text


def test_stored_keys_are_read_back() -> None:
    both = FIRST.renewed(NOW + 60 * MINUTE, LIFETIMES, text(FIRST))
    assert len(both.members) == 2
    assert CallerKeys.from_secret(both.to_secret()) == both
    assert CallerKeys.from_secret({}) == CallerKeys()
    assert all(KEY.fullmatch(key.text) for key in both.members)
    assert text(both) not in repr(both)


UNREADABLE = {
    "a newer version": (b"v2\nwhatever", "version 'v2', not v1"),
    "empty": (b"", "version ''"),
    "not a key": (b"v1\nabc 2026-11-18T00:00:00+00:00", "can't be read"),
    "no time": (b"v1\n" + b"a" * 64, "can't be read"),
    "a time without zone": (b"v1\n" + b"a" * 64 + b" 2026-11-18T00:00:00", "can't be read"),
}


@pytest.mark.parametrize(("stored", "problem"), UNREADABLE.values(), ids=UNREADABLE)
def test_unreadable_keys_are_named_and_not_shown(stored: bytes, problem: str) -> None:
    with pytest.raises(CallerKeyError, match=problem) as caught:
        CallerKeys.from_secret({KEYS_FIELD: stored})
    assert "a" * 64 not in str(caught.value)


@given(st.text())
def test_only_a_whole_key_is_accepted(given_text: str) -> None:
    assert not FIRST.accepts(given_text)
    assert FIRST.accepts(text(FIRST))
    assert not CallerKeys().accepts(given_text)


def test_key_is_accepted_before_it_is_published_and_after_it_is_replaced() -> None:
    old = text(FIRST)
    both = FIRST.renewed(NOW + 60 * MINUTE, LIFETIMES, old)
    new = text(both)
    assert both.publishable(NOW + 64 * MINUTE, LIFETIMES) == both.members, "old first"
    assert [key.text for key in both.publishable(NOW + 65 * MINUTE, LIFETIMES)] == [new]
    late = NOW + 70 * MINUTE
    assert both.renewed(late, LIFETIMES, old) is both, "a configuration carries the old one still"
    assert both.renewed(late - MINUTE, LIFETIMES, new) is both
    assert [key.text for key in both.renewed(late, LIFETIMES, new).members] == [new]


def test_successor_is_due_soon_after_a_start() -> None:
    assert FIRST.renewed(NOW + 9 * MINUTE, LIFETIMES) is FIRST
    assert len(FIRST.renewed(NOW + 10 * MINUTE, LIFETIMES).members) == 2
    assert FIRST.renewed(NOW + 59 * MINUTE, LIFETIMES, text(FIRST)) is FIRST


def test_keys_do_not_pile_up_while_no_configuration_can_be_written() -> None:
    keys = FIRST
    for hours in range(1, 50):
        keys = keys.renewed(NOW + hours * 60 * MINUTE, LIFETIMES)
    assert len(keys.members) == 3
    assert keys.members[0] == FIRST.members[0]


def test_clock_that_is_behind_changes_nothing() -> None:
    ahead = CallerKeys((CallerKey("a" * 64, NOW + 60 * MINUTE),))
    assert ahead.renewed(NOW, LIFETIMES, "a" * 64) is ahead
    assert ahead.publishable(NOW, LIFETIMES) == ahead.members
