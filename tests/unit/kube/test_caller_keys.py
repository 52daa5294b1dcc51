"""Keys of our callers: the stored form, and a rotation in which no caller is refused."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.kube.server.caller_keys import KEY, KEYS_FIELD, CallerKey, CallerKeys, KeyLifetimes
from zonewise.objects.stored import NewerError

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


STORED = f"v1\n{'a' * 64} 2026-11-18T00:00:00+00:00"
TORN = {
    "empty": b"",
    "no version": b"\xff\xfe\0",
    "a cut version": b"v",
    "not a key": b"v1\nabc 2026-11-18T00:00:00+00:00",
    "no time": b"v1\n" + b"a" * 64,
    "a time without zone": b"v1\n" + b"a" * 64 + b" 2026-11-18T00:00:00",
}


@pytest.mark.parametrize("stored", TORN.values(), ids=TORN)
def test_torn_keys_are_none_and_new_ones_are_due(stored: bytes) -> None:
    keys = CallerKeys.from_secret({KEYS_FIELD: stored})
    assert keys.is_torn
    assert keys.members == ()
    assert keys.renewal_due(NOW, LIFETIMES)
    (made,) = (renewed := keys.renewed(NOW, LIFETIMES)).members
    assert made.made == NOW
    assert CallerKeys.from_secret(renewed.to_secret()) == renewed
    assert not renewed.is_torn


@given(st.integers(0, len(STORED)), st.binary(max_size=8))
def test_nothing_is_accepted_from_torn_keys_but_whole_ones(length: int, rest: bytes) -> None:
    keys = CallerKeys.from_secret({KEYS_FIELD: STORED.encode()[:length] + b"\n" + rest})
    assert {key.text for key in keys.members} <= {"a" * 64}


def test_whole_keys_beside_a_torn_one_stay_and_are_written_again() -> None:
    keys = CallerKeys.from_secret({KEYS_FIELD: FIRST.to_secret()[KEYS_FIELD] + b"\n" + b"b" * 60})
    assert keys.is_torn
    assert keys.members == FIRST.members
    assert keys.renewal_due(NOW, LIFETIMES, text(FIRST)), "the damage is not left in the Secret"
    assert keys.renewed(NOW, LIFETIMES, text(FIRST)) == FIRST


@pytest.mark.parametrize("stored", [b"v2\nwhatever", b"v12", STORED.replace("v1", "v3").encode()])
def test_keys_of_a_newer_release_are_refused_and_not_shown(stored: bytes) -> None:
    with pytest.raises(
        NewerError, match=r"caller-keys has format version \d+, .* run the release that wrote it"
    ) as caught:
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
