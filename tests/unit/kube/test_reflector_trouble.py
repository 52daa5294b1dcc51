"""Reflector state machine under errors: resume or relist, kept state, and waits."""

from __future__ import annotations

import pytest

from unit.kube.reflector_script import (
    GONE,
    RESET,
    TOO_LARGE,
    Play,
    added,
    bookmark,
    config,
    event,
    key,
    resumed,
    streamed,
)
from zonewise.disruption.webhook.leader_monitor import SILENT_SECONDS
from zonewise.kube.decide.reflector import (
    BOOKMARKS_DUE_SECONDS,
    HEALTHY_SECONDS,
    LONGEST_RETRY_AFTER_SECONDS,
    LONGEST_WAIT_SECONDS,
    PAGE_SIZE,
    RELIST_WITHIN_SECONDS,
    List,
    Reflector,
    StaleList,
    Wait,
    Watch,
)
from zonewise.kube.wire.codec import EventType
from zonewise.kube.wire.errors import (
    ApiError,
    BadRequest,
    DeadlineExceeded,
    ErrorDetails,
    Forbidden,
    ServerError,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Undecodable,
    Unreachable,
)
from zonewise.objects import ConfigMap
from zonewise.objects.change import Change


def test_lost_connection_resumes_from_the_last_version_after_a_wait() -> None:
    play = Play().synced_by_stream("a")
    play.watched(added("b", 11))
    play.failed(RESET)
    assert play.next() == Wait(0.25)
    assert play.next() == resumed(11)


@pytest.mark.parametrize(
    ("error", "resumes"),
    [
        (RESET, True),
        (DeadlineExceeded("no answer within 30 s"), True),
        (TooManyRequests("busy", status=429), True),
        (Unavailable("starting", status=503), True),
        (Unauthorized("expired token", status=401), True),
        (Forbidden("not yet", status=403), True),
        (GONE, False),
        (ServerError("etcd event received with PrevKv=nil", status=500), False),
        (Undecodable("does not fit ConfigMap"), False),
        (BadRequest("no such version", status=400), False),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, ApiError) else "",
)
def test_transient_error_resumes_and_any_other_relists(error: ApiError, resumes: bool) -> None:
    play = Play().synced_by_stream("a")
    play.closed()
    play.next_request()
    play.failed(error)
    assert isinstance(play.next(), Wait)
    assert play.next() == (resumed(10) if resumes else streamed("10"))


@pytest.mark.parametrize(
    ("bookmarked", "silent_seconds", "resumes"),
    [(False, BOOKMARKS_DUE_SECONDS, False), (False, BOOKMARKS_DUE_SECONDS - 1, True), (True, 90.0, True)],
    ids=["no bookmark when due", "not due yet", "silent later"],
)
def test_watch_without_any_bookmark_relists(bookmarked: bool, silent_seconds: float, resumes: bool) -> None:
    """A server whose history ends before our version, as after a restored backup, accepts the watch and sends nothing."""
    play = Play().synced_by_stream("a")
    play.closed()
    play.next_request()
    play.reflector.opened(play.now)
    if bookmarked:
        play.now += 1
        play.watched(bookmark(10))
    play.now += silent_seconds
    play.failed(Unreachable("nothing came"))
    assert play.next_request() == (resumed(10) if resumes else streamed("10"))


def test_410_relists_and_keeps_the_old_state_until_then() -> None:
    play = Play().synced_by_stream("kept", "changed", "removed")
    unchanged = play.reflector.objects[key("kept")]
    play.failed(GONE)
    assert play.next() == Wait(0.25)
    assert play.next() == streamed("10")
    play.watched(added("kept", 10), added("changed", 15), added("new", 16))
    assert play.names() == {"kept", "changed", "removed"}
    assert play.reflector.synced
    assert play.watched(bookmark(20, ends_list=True)) == [
        Change(key("removed"), config("removed", 10), None),
        Change(key("changed"), config("changed", 10), config("changed", 15)),
        Change(key("new"), None, config("new", 16)),
    ]
    assert play.names() == {"kept", "changed", "new"}
    assert play.reflector.objects[key("kept")] is unchanged


def test_object_recreated_during_an_outage_is_removed_then_added() -> None:
    play = Play().synced_by_stream("a")
    play.failed(GONE)
    play.next_request()
    reborn = config("a", 15, uid="another")
    play.watched(event(EventType.ADDED, reborn))
    assert play.watched(bookmark(20, ends_list=True)) == [
        Change(key("a"), config("a", 10), None),
        Change(key("a"), None, reborn),
    ]


def test_incomplete_relist_changes_nothing() -> None:
    play = Play().synced_by_stream("a")
    play.failed(GONE)
    play.next_request()
    play.watched(added("half", 12))
    play.failed(RESET)
    assert play.next_request() == streamed("10")
    assert play.watched(added("a", 10), bookmark(14, ends_list=True)) == []


def test_expired_pages_fall_back_to_an_unpaged_list() -> None:
    play = Play().synced_by_pages("a", version=10)
    play.next()
    play.failed(GONE)
    assert play.next_request() == List("10", PAGE_SIZE)
    play.reflector.page([config("a", 10)], play.now)
    play.failed(GONE)
    assert play.next_request() == List("10", page_size=0)
    play.reflector.page([config("b", 12)], play.now)
    play.reflector.listed("13")
    assert play.names() == {"b"}
    play.failed(GONE)
    assert play.next_request() == List("13", PAGE_SIZE)


@pytest.mark.parametrize("error", [GONE, TOO_LARGE, StaleList("older")], ids=["gone", "too large", "stale"])
def test_list_at_an_unknown_version_becomes_a_consistent_read(error: ApiError) -> None:
    play = Play().synced_by_pages("a", version=10)
    play.next()
    play.failed(GONE)
    assert play.next_request() == List("10", PAGE_SIZE)
    play.failed(error)
    assert play.next_request() == List("", PAGE_SIZE)


def test_list_older_than_the_cache_is_rejected() -> None:
    play = Play().synced_by_stream("a")
    play.failed(GONE)
    play.next_request()
    play.watched(added("from-the-past", 4))
    with pytest.raises(StaleList, match="listed at 9, after it had shown 10"):
        play.watched(bookmark(9, ends_list=True))
    assert (play.names(), play.reflector.resource_version) == ({"a"}, "10")


def test_consistent_read_is_accepted_even_if_older() -> None:
    """An etcd restored from a backup continues from an older version."""
    play = Play().synced_by_stream("a", "lost")
    play.failed(GONE)
    play.next_request()
    play.failed(TOO_LARGE)
    assert play.next_request() == streamed("")
    assert play.watched(added("a", 4), bookmark(5, ends_list=True)) == [
        Change(key("lost"), config("lost", 10), None),
        Change(key("a"), config("a", 10), config("a", 4)),
    ]
    play.closed()
    assert play.next() == resumed(5)


def test_waits_double_up_to_a_limit_and_never_overflow() -> None:
    play = Play()
    waits = []
    for _ in range(2000):
        play.next_request()
        play.failed(RESET)
        wait = play.next()
        assert isinstance(wait, Wait)
        waits.append(wait.seconds)
    assert waits[:6] == [0.25, 0.5, 1.0, 2.0, 4.0, 7.5]
    assert set(waits[6:]) == {LONGEST_WAIT_SECONDS / 2}


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 0.25), (0.5, 0.375), (0.999, 0.49975)])
def test_waits_are_jittered(chance: float, seconds: float) -> None:
    reflector: Reflector[ConfigMap] = Reflector()
    reflector.next(0.0, 0.0)
    reflector.failed(RESET, 0.0, chance)
    assert reflector.next(0.0, 0.0) == Wait(pytest.approx(seconds))


def test_watch_lifetimes_are_jittered() -> None:
    reflector: Reflector[ConfigMap] = Reflector()
    assert reflector.next(0.0, 0.5) == Watch("", initial_events=True, timeout_seconds=450)


@pytest.mark.parametrize(
    ("healthy_seconds", "wait"), [(HEALTHY_SECONDS - 1, 1.0), (HEALTHY_SECONDS, 0.25)], ids=["too short", "healthy"]
)
def test_back_off_resets_after_a_healthy_period(healthy_seconds: float, wait: float) -> None:
    play = Play()
    for _ in range(2):
        play.next_request()
        play.failed(RESET)
    play.next_request()
    play.reflector.listed("10")
    play.next()
    play.watched(bookmark(11))
    play.closed(after=healthy_seconds)
    play.next()
    play.failed(RESET)
    assert play.next() == Wait(wait)


def test_long_outage_does_not_reset_the_back_off() -> None:
    play = Play().synced_by_stream("a")
    waits = []
    for _ in range(4):
        play.failed(RESET)
        wait = play.next()
        assert isinstance(wait, Wait)
        waits.append(wait.seconds)
        play.next()
        play.now += HEALTHY_SECONDS
    assert waits == [0.25, 0.5, 1.0, 2.0]


def test_repeated_410s_back_off() -> None:
    play = Play().synced_by_stream("a")
    waits = []
    for version in range(11, 16):
        play.failed(GONE)
        wait = play.next()
        assert isinstance(wait, Wait)
        waits.append(wait.seconds)
        play.synced_by_stream("a", version=version)
    assert waits == [0.25, 0.5, 1.0, 2.0, 4.0]


def test_410_after_an_outage_relists_soon() -> None:
    play = Play().synced_by_stream("a")
    for _ in range(10):
        play.failed(RESET)
        play.next()
        play.next()
    waits = []
    for _ in range(2):
        play.failed(GONE)
        wait = play.next()
        assert isinstance(wait, Wait)
        waits.append(wait.seconds)
        play.synced_by_stream("a", version=11)
    assert waits == [RELIST_WITHIN_SECONDS / 2, LONGEST_WAIT_SECONDS / 2]


def test_a_leader_sees_changes_again_before_it_gives_up() -> None:
    assert LONGEST_WAIT_SECONDS + RELIST_WITHIN_SECONDS < SILENT_SECONDS


@pytest.mark.parametrize(("retry_after_seconds", "wait"), [(7, 7.25), (86_400, LONGEST_RETRY_AFTER_SECONDS + 0.25)])
def test_retry_after_is_honoured_up_to_a_limit(retry_after_seconds: int, wait: float) -> None:
    play = Play()
    play.next()
    play.failed(TooManyRequests("busy", status=429, details=ErrorDetails(retry_after_seconds=retry_after_seconds)))
    assert play.next() == Wait(wait)


def test_every_event_resets_staleness() -> None:
    play = Play()
    assert play.reflector.heard_at is None
    play.next()
    play.now = 1.0
    play.watched(added("a", 1))
    play.now = 2.0
    play.watched(bookmark(2, ends_list=True))
    assert play.reflector.heard_at == 2.0
    play.now = 3.0
    play.watched(bookmark(3))
    assert play.reflector.heard_at == 3.0
    play.reflector.page([], 4.0)
    assert play.reflector.heard_at == 4.0
    play.reflector.opened(5.0)
    assert play.reflector.heard_at == 5.0


def test_pages_can_be_requested() -> None:
    machine: Reflector[ConfigMap] = Reflector(page_size=2000)
    assert machine.next(0.0, 0.0) == List("", 2000)
    machine.page([config("a", 3)], 1.0)
    assert machine.listed("7") == [Change(key("a"), None, config("a", 3))]
    assert machine.next(2.0, 0.0) == Watch("7", initial_events=False, timeout_seconds=300)
