"""Playbooks of the list/watch machine: what is fed, and exactly which commands and changes come of it."""

from __future__ import annotations

import pytest

from zonewise.kube.errors import (
    ApiError,
    BadRequest,
    Cause,
    DeadlineExceeded,
    Details,
    Forbidden,
    Gone,
    Invalid,
    ServerError,
    ServerTimeout,
    TooManyRequests,
    Unauthorized,
    Unavailable,
    Undecodable,
    Unreachable,
)
from zonewise.kube.reflector import (
    BOOKMARKS_DUE_SECONDS,
    HEALTHY_SECONDS,
    LONGEST_WAIT_SECONDS,
    PAGE_SIZE,
    Change,
    Command,
    List,
    Reflector,
    StaleList,
    Wait,
    Watch,
)
from zonewise.kube.wire import EventType, WatchEvent
from zonewise.objects import ConfigMap, Key, Metadata

GONE = Gone("too old resource version", status=410)
RESET = Unreachable("connection reset")
TOO_LARGE = ServerTimeout(
    "Too large resource version: 12, current: 3",
    status=504,
    details=Details(causes=(Cause(reason="ResourceVersionTooLarge"),), retry_after_seconds=1),
)


def config(name: str, version: int, uid: str = "") -> ConfigMap:
    return ConfigMap(metadata=Metadata(name=name, namespace="n", uid=uid or name, resource_version=str(version)))


def key(name: str) -> Key:
    return Key("n", name)


def event(kind: EventType, viewed: ConfigMap) -> WatchEvent[ConfigMap]:
    return WatchEvent(kind, viewed)


def added(name: str, version: int) -> WatchEvent[ConfigMap]:
    return event(EventType.ADDED, config(name, version))


def bookmark(version: int, *, ends_list: bool = False) -> WatchEvent[ConfigMap]:
    viewed = ConfigMap(metadata=Metadata(resource_version=str(version)))
    return WatchEvent(EventType.BOOKMARK, viewed, ends_list)


class Play:
    """Drives a machine with a clock of its own and no chance (all waits are their shortest)."""

    def __init__(self) -> None:
        self.reflector: Reflector[ConfigMap] = Reflector()
        self.now = 1000.0

    def next(self) -> Command:
        return self.reflector.next(self.now, 0.0)

    def next_request(self) -> Command:
        command = self.next()
        while isinstance(command, Wait):
            self.now += command.seconds
            command = self.next()
        return command

    def watched(self, *events: WatchEvent[ConfigMap]) -> list[Change[ConfigMap]]:
        return [change for event in events for change in self.reflector.watched(event, self.now)]

    def failed(self, error: ApiError) -> None:
        self.reflector.failed(error, self.now, 0.0)

    def closed(self, after: float = 5.0) -> None:
        self.now += after
        self.reflector.closed(self.now, 0.0)

    def names(self) -> set[str]:
        return {key.name for key in self.reflector.objects}

    def synced_by_stream(self, *names: str, version: int = 10) -> Play:
        assert isinstance(self.next_request(), Watch)
        self.watched(*(added(name, version) for name in names), bookmark(version, ends_list=True))
        return self

    def synced_by_pages(self, *names: str, version: int = 10) -> Play:
        self.next_request()
        self.failed(Invalid("sendInitialEvents is forbidden", status=422))
        assert self.next() == List("", PAGE_SIZE)
        self.reflector.page([config(name, version) for name in names], self.now)
        self.reflector.listed(str(version))
        return self


def resumed(version: int) -> Watch:
    return Watch(str(version), initial_events=False, timeout_seconds=300)


def streamed(version: str) -> Watch:
    return Watch(version, initial_events=True, timeout_seconds=300)


def test_the_first_command_is_a_streaming_list_of_the_most_recent_state() -> None:
    assert Play().next() == streamed("")


def test_a_streaming_list_shows_nothing_until_its_end_then_everything() -> None:
    play = Play()
    play.next()
    assert play.watched(added("a", 3), added("b", 7), bookmark(7)) == []
    assert (play.reflector.synced, play.names(), play.reflector.resource_version) == (False, set(), "")
    changes = play.watched(bookmark(9, ends_list=True))
    assert changes == [Change(key("a"), None, config("a", 3)), Change(key("b"), None, config("b", 7))]
    assert (play.reflector.synced, play.names(), play.reflector.resource_version) == (True, {"a", "b"}, "9")


def test_changes_during_a_streaming_list_are_part_of_it() -> None:
    play = Play()
    play.next()
    play.watched(added("a", 3), added("b", 4))
    play.watched(event(EventType.DELETED, config("a", 5)), event(EventType.MODIFIED, config("b", 6)))
    play.watched(event(EventType.DELETED, config("never-seen", 7)))
    assert play.watched(bookmark(7, ends_list=True)) == [Change(key("b"), None, config("b", 6))]


def test_the_streaming_list_goes_on_as_a_watch() -> None:
    play = Play().synced_by_stream("a")
    assert play.watched(added("b", 11)) == [Change(key("b"), None, config("b", 11))]
    assert play.reflector.resource_version == "11"


def test_pages_show_nothing_until_the_last() -> None:
    play = Play()
    play.next()
    play.failed(BadRequest("unknown parameter", status=400))
    assert play.next() == List("", PAGE_SIZE)
    play.reflector.page([config("a", 3)], play.now)
    assert not play.reflector.synced
    play.reflector.page([config("b", 4)], play.now)
    assert play.reflector.listed("8") == [
        Change(key("a"), None, config("a", 3)),
        Change(key("b"), None, config("b", 4)),
    ]
    assert play.next() == resumed(8)


def test_a_refused_streaming_list_is_not_asked_for_again() -> None:
    play = Play().synced_by_pages("a", version=10)
    assert play.next() == resumed(10)
    play.failed(GONE)
    assert play.next_request() == List("10", PAGE_SIZE)


@pytest.mark.parametrize("error", [RESET, ServerTimeout("busy", status=504)])
def test_streaming_lists_that_never_end_give_way_to_pages_once(error: ApiError) -> None:
    play = Play()
    for _ in range(2):
        assert play.next_request() == streamed("")
        play.watched(added("a", 3))
        play.failed(error)
    assert play.next_request() == List("", PAGE_SIZE)
    play.reflector.listed("5")
    assert play.next() == resumed(5)
    play.failed(GONE)
    assert play.next_request() == streamed("5")


def test_a_streaming_list_closed_before_its_end_is_no_list() -> None:
    play = Play()
    play.next()
    play.watched(added("a", 3))
    play.closed()
    assert isinstance(play.next(), Wait)
    assert play.next() == streamed("")
    assert play.watched(added("b", 4), bookmark(5, ends_list=True)) == [Change(key("b"), None, config("b", 4))]


def test_streaming_lists_closed_before_their_end_give_way_to_pages() -> None:
    play = Play()
    for _ in range(2):
        assert play.next_request() == streamed("")
        play.closed()
    assert play.next_request() == List("", PAGE_SIZE)


def test_each_event_is_one_change_with_the_state_before() -> None:
    play = Play().synced_by_stream("a")
    assert play.watched(event(EventType.MODIFIED, config("a", 11))) == [
        Change(key("a"), config("a", 10), config("a", 11))
    ]
    assert play.watched(event(EventType.DELETED, config("a", 12))) == [Change(key("a"), config("a", 11), None)]
    assert play.watched(event(EventType.DELETED, config("a", 13))) == []
    assert (play.names(), play.reflector.resource_version) == (set(), "13")


def test_bookmarks_move_the_resource_version_forward_only() -> None:
    play = Play().synced_by_stream("a")
    assert play.watched(bookmark(40)) == []
    assert play.watched(bookmark(20)) == []
    play.closed()
    assert play.next() == resumed(40)


def test_resource_versions_that_are_no_numbers_are_taken_as_they_come() -> None:
    play = Play().synced_by_stream("a")
    play.watched(WatchEvent(EventType.BOOKMARK, ConfigMap(metadata=Metadata(resource_version="v-b"))))
    play.watched(WatchEvent(EventType.BOOKMARK, ConfigMap(metadata=Metadata(resource_version="v-a"))))
    assert play.reflector.resource_version == "v-a"


def test_a_watch_that_the_server_ends_is_resumed_at_once() -> None:
    play = Play().synced_by_stream("a")
    play.closed(after=300)
    assert play.next() == resumed(10)
    play.closed(after=300)
    assert play.next() == resumed(10)


def test_a_watch_that_ends_as_soon_as_it_began_is_a_failure() -> None:
    play = Play().synced_by_stream("a")
    play.closed()
    assert play.next() == resumed(10)
    play.reflector.opened(play.now)
    play.watched(bookmark(10))
    play.closed(after=0.1)
    assert isinstance(play.next(), Wait)
    assert play.next() == resumed(10)


def test_a_lost_connection_is_resumed_from_the_last_version_after_a_wait() -> None:
    play = Play().synced_by_stream("a")
    play.watched(added("b", 11))
    play.failed(RESET)
    assert play.next() == Wait(0.25)
    assert play.next() == resumed(11)


@pytest.mark.parametrize(
    ("error", "keeps_place"),
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
def test_trouble_that_passes_keeps_our_place_and_any_other_answer_loses_it(error: ApiError, keeps_place: bool) -> None:
    play = Play().synced_by_stream("a")
    play.closed()
    play.next_request()
    play.failed(error)
    assert isinstance(play.next(), Wait)
    assert play.next() == (resumed(10) if keeps_place else streamed("10"))


@pytest.mark.parametrize(
    ("told", "silent_seconds", "keeps_place"),
    [(False, BOOKMARKS_DUE_SECONDS, False), (False, BOOKMARKS_DUE_SECONDS - 1, True), (True, 90.0, True)],
    ids=["no bookmark when due", "not due yet", "silent later"],
)
def test_a_watch_without_even_a_bookmark_loses_our_place(told: bool, silent_seconds: float, keeps_place: bool) -> None:
    """A server whose history ends before our version, as after a restored backup, accepts the watch and tells nothing."""
    play = Play().synced_by_stream("a")
    play.closed()
    play.next_request()
    play.reflector.opened(play.now)
    if told:
        play.now += 1
        play.watched(bookmark(10))
    play.now += silent_seconds
    play.failed(Unreachable("nothing came"))
    assert play.next_request() == (resumed(10) if keeps_place else streamed("10"))


def test_a_410_relists_and_readers_keep_the_old_state_meanwhile() -> None:
    play = Play().synced_by_stream("kept", "changed", "removed")
    kept = play.reflector.objects[key("kept")]
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
    assert play.reflector.objects[key("kept")] is kept


def test_an_object_recreated_while_we_were_away_is_removed_then_added() -> None:
    play = Play().synced_by_stream("a")
    play.failed(GONE)
    play.next_request()
    reborn = config("a", 15, uid="another")
    play.watched(event(EventType.ADDED, reborn))
    assert play.watched(bookmark(20, ends_list=True)) == [
        Change(key("a"), config("a", 10), None),
        Change(key("a"), None, reborn),
    ]


def test_an_unfinished_relist_leaves_no_trace() -> None:
    play = Play().synced_by_stream("a")
    play.failed(GONE)
    play.next_request()
    play.watched(added("half", 12))
    play.failed(RESET)
    assert play.next_request() == streamed("10")
    assert play.watched(added("a", 10), bookmark(14, ends_list=True)) == []


def test_pages_that_expire_are_fetched_again_as_one() -> None:
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
def test_a_list_that_cannot_start_from_our_version_becomes_a_consistent_read(error: ApiError) -> None:
    play = Play().synced_by_pages("a", version=10)
    play.next()
    play.failed(GONE)
    assert play.next_request() == List("10", PAGE_SIZE)
    play.failed(error)
    assert play.next_request() == List("", PAGE_SIZE)


def test_a_list_older_than_what_we_have_seen_is_not_taken() -> None:
    play = Play().synced_by_stream("a")
    play.failed(GONE)
    play.next_request()
    play.watched(added("from-the-past", 4))
    with pytest.raises(StaleList, match="listed at 9, after it had shown 10"):
        play.watched(bookmark(9, ends_list=True))
    assert (play.names(), play.reflector.resource_version) == ({"a"}, "10")


def test_a_consistent_read_is_the_truth_even_if_older() -> None:
    """An etcd restored from a backup starts again from a version of the past."""
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
    assert waits[:7] == [0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0]
    assert set(waits[7:]) == {LONGEST_WAIT_SECONDS / 2}


@pytest.mark.parametrize(("chance", "seconds"), [(0.0, 0.25), (0.5, 0.375), (0.999, 0.49975)])
def test_waits_are_spread_by_chance(chance: float, seconds: float) -> None:
    reflector: Reflector[ConfigMap] = Reflector()
    reflector.next(0.0, 0.0)
    reflector.failed(RESET, 0.0, chance)
    assert reflector.next(0.0, 0.0) == Wait(pytest.approx(seconds))


def test_the_lifetime_of_watches_is_spread_by_chance() -> None:
    reflector: Reflector[ConfigMap] = Reflector()
    assert reflector.next(0.0, 0.5) == Watch("", initial_events=True, timeout_seconds=450)


@pytest.mark.parametrize(
    ("healthy_seconds", "wait"), [(HEALTHY_SECONDS - 1, 1.0), (HEALTHY_SECONDS, 0.25)], ids=["too short", "healthy"]
)
def test_waits_start_over_after_a_healthy_period(healthy_seconds: float, wait: float) -> None:
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


def test_a_long_outage_is_no_healthy_period() -> None:
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


@pytest.mark.parametrize(("asked", "wait"), [(7, 7.25), (86_400, LONGEST_WAIT_SECONDS + 0.25)])
def test_the_servers_retry_after_is_kept_within_reason(asked: int, wait: float) -> None:
    play = Play()
    play.next()
    play.failed(TooManyRequests("busy", status=429, details=Details(retry_after_seconds=asked)))
    assert play.next() == Wait(wait)


def test_anything_heard_counts_against_staleness() -> None:
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


def test_a_reader_may_ask_for_pages() -> None:
    machine: Reflector[ConfigMap] = Reflector(page_size=2000)
    assert machine.next(0.0, 0.0) == List("", 2000)
    machine.page([config("a", 3)], 1.0)
    assert machine.listed("7") == [Change(key("a"), None, config("a", 3))]
    assert machine.next(2.0, 0.0) == Watch("7", initial_events=False, timeout_seconds=300)
