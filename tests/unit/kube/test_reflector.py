"""Reflector state machine: inputs, and the exact commands and changes they produce."""

from __future__ import annotations

import pytest

from unit.kube.reflector_script import GONE, RESET, Play, added, bookmark, config, event, key, resumed, streamed
from zonewise.kube.decide.reflector import PAGE_SIZE, List, Wait
from zonewise.kube.wire.codec import EventType, WatchEvent
from zonewise.kube.wire.errors import ApiError, BadRequest, ServerTimeout
from zonewise.objects import ConfigMap, Metadata
from zonewise.objects.change import Change


def test_first_command_is_a_streaming_list() -> None:
    assert Play().next() == streamed("")


def test_streaming_list_becomes_visible_at_its_end() -> None:
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


def test_streaming_list_continues_as_a_watch() -> None:
    play = Play().synced_by_stream("a")
    assert play.watched(added("b", 11)) == [Change(key("b"), None, config("b", 11))]
    assert play.reflector.resource_version == "11"


def test_paged_list_becomes_visible_with_the_last_page() -> None:
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


def test_refused_streaming_list_is_not_requested_again() -> None:
    play = Play().synced_by_pages("a", version=10)
    assert play.next() == resumed(10)
    play.failed(GONE)
    assert play.next_request() == List("10", PAGE_SIZE)


@pytest.mark.parametrize("error", [RESET, ServerTimeout("busy", status=504)])
def test_failing_streaming_lists_fall_back_to_pages_once(error: ApiError) -> None:
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


def test_streaming_list_closed_early_is_discarded() -> None:
    play = Play()
    play.next()
    play.watched(added("a", 3))
    play.closed()
    assert isinstance(play.next(), Wait)
    assert play.next() == streamed("")
    assert play.watched(added("b", 4), bookmark(5, ends_list=True)) == [Change(key("b"), None, config("b", 4))]


def test_streaming_lists_closed_early_fall_back_to_pages() -> None:
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


def test_non_numeric_resource_versions_are_accepted() -> None:
    play = Play().synced_by_stream("a")
    play.watched(WatchEvent(EventType.BOOKMARK, ConfigMap(metadata=Metadata(resource_version="v-b"))))
    play.watched(WatchEvent(EventType.BOOKMARK, ConfigMap(metadata=Metadata(resource_version="v-a"))))
    assert play.reflector.resource_version == "v-a"


def test_watch_ended_by_the_server_resumes_at_once() -> None:
    play = Play().synced_by_stream("a")
    play.closed(after=300)
    assert play.next() == resumed(10)
    play.closed(after=300)
    assert play.next() == resumed(10)


def test_watch_that_ends_immediately_is_a_failure() -> None:
    play = Play().synced_by_stream("a")
    play.closed()
    assert play.next() == resumed(10)
    play.reflector.opened(play.now)
    play.watched(bookmark(10))
    play.closed(after=0.1)
    assert isinstance(play.next(), Wait)
    assert play.next() == resumed(10)
