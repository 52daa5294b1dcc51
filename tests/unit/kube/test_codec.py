"""Watch codec: chunks to lines, lines to typed events, ERROR events to exceptions."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from zonewise.kube.wire.codec import (
    EventType,
    WatchEvent,
    WatchLines,
    event_decoder,
    read_event,
    read_object,
    read_page,
)
from zonewise.kube.wire.errors import ApiError, Gone, ServerError, TooManyRequests, Undecodable
from zonewise.objects import NODES, PODS, Pod


def line(kind: str, body: dict[str, Any]) -> bytes:
    return json.dumps({"type": kind, "object": body}).encode()


def read(kind: str, body: dict[str, Any]) -> WatchEvent[Pod]:
    return read_event(line(kind, body), event_decoder(Pod), "watch of pods")


@given(st.lists(st.binary(max_size=40), max_size=20), st.data())
def test_lines_are_reassembled_from_any_chunks(parts: list[bytes], data: st.DataObject) -> None:
    whole = [part.replace(b"\n", b"") for part in parts]
    stream = b"".join(part + b"\n" for part in whole)
    lines, got = WatchLines(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        got += lines.feed(stream[:size])
        stream = stream[size:]
    assert got == [part for part in whole if part]
    assert not lines.unfinished


def test_line_without_newline_is_incomplete() -> None:
    lines = WatchLines()
    assert lines.feed(b'{"a":1}\n{"b"') == [b'{"a":1}']
    assert lines.unfinished
    assert lines.feed(b":2}\n") == [b'{"b":2}']
    assert not lines.unfinished


def test_event_is_decoded_through_the_view() -> None:
    event = read("MODIFIED", {"metadata": {"name": "a", "managedFields": []}, "spec": {"nodeName": "n"}, "new": 1})
    assert event.type is EventType.MODIFIED
    assert (event.object.metadata.name, event.object.spec.node_name) == ("a", "n")


def test_event_can_be_decoded_in_full() -> None:
    body = {"metadata": {"name": "a"}, "unknown": {"deep": [1]}}
    assert read_event(line("ADDED", body), event_decoder(PODS.whole().view), "watch").object == body


@pytest.mark.parametrize(
    ("annotations", "ended"), [({}, False), ({"k8s.io/initial-events-end": "true"}, True), ({"other": "true"}, False)]
)
def test_bookmark_marks_the_end_of_initial_events(annotations: dict[str, str], ended: bool) -> None:
    for rest in ({}, {"spec": {"containers": None}}):  # as the server sends it for pods
        event = read("BOOKMARK", {"metadata": {"resourceVersion": "7", "annotations": annotations}, **rest})
        assert event.object.metadata.resource_version == "7"
        assert event.end_of_initial_events is ended


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [(410, "Expired", Gone), (429, "TooManyRequests", TooManyRequests), (500, "InternalError", ServerError)],
)
def test_error_event_raises_its_error(code: int, reason: str, kind: type[ApiError]) -> None:
    failure = {"kind": "Status", "status": "Failure", "metadata": {}, "code": code, "reason": reason, "message": "old"}
    with pytest.raises(kind, match="watch of pods: old"):
        read("ERROR", failure)
    with pytest.raises(kind):
        read_event(line("ERROR", failure), event_decoder(PODS.whole().view), "watch of pods")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        pytest.param(b'{"type":"ADDED","object":{"spec":{"nodeName":5}}}', "nodeName", id="another type"),
        pytest.param(b'{"type":"RENAMED","object":{}}', "RENAMED", id="unknown event"),
        pytest.param(b'{"type":"ERROR","object":{"metadata":{}, "code": "x"}}', "without a Status", id="no Status"),
        pytest.param(b"<html>", "malformed", id="not JSON"),
        pytest.param(b'{"type":"ADDED","object":{"metadata":{"name":"\xff"}}}', "can't decode", id="not UTF-8"),
    ],
)
def test_decode_error_names_the_field(text: bytes, says: str) -> None:
    with pytest.raises(Undecodable, match=says):
        read_event(text, event_decoder(Pod), "watch of pods")


def test_page_has_continue_token_and_remaining_count() -> None:
    body = {"metadata": {"resourceVersion": "9", "continue": "abc", "remainingItemCount": 4}, "items": [{}, {}]}
    page = read_page(json.dumps(body).encode(), PODS.view, "list of pods")
    assert (len(page.items), page.resource_version, page.next, page.remaining) == (2, "9", "abc", 4)


def test_empty_list_has_no_items() -> None:
    page = read_page(b'{"metadata":{"resourceVersion":"9"},"items":null}', NODES.view, "list of nodes")
    assert (page.items, page.next, page.remaining) == ([], "", None)


def test_decode_error_names_the_view() -> None:
    with pytest.raises(Undecodable, match=r"get of pods a/b: does not fit Pod: .*metadata"):
        read_object(b'{"metadata":[]}', Pod, "get of pods a/b")
    with pytest.raises(Undecodable, match="list of pods: does not fit Pod"):
        read_page(b'{"items":[{"metadata":[]}]}', Pod, "list of pods")
