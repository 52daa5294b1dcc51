"""JSON decoding of API objects, lists and watch events. Pure. One decoder per view type, made once.

A watch is a stream of JSON lines cut anywhere by the network: `WatchLines` puts them together, `read_event` decodes
each in one typed pass. An ERROR event carries a Status instead of the object, so it is decoded again as one and raised.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Generic, TypeVar

import msgspec

from zonewise.kube.wire.errors import ApiError, ErrorStatus, Undecodable, from_status

T = TypeVar("T")

END_OF_INITIAL_EVENTS = "k8s.io/initial-events-end"


class EventType(StrEnum):
    ADDED = "ADDED"
    MODIFIED = "MODIFIED"
    DELETED = "DELETED"
    BOOKMARK = "BOOKMARK"
    ERROR = "ERROR"


class WatchEvent(msgspec.Struct, Generic[T], frozen=True, gc=False):
    type: EventType
    object: T
    end_of_initial_events: bool = False
    """On a bookmark: all objects that existed when the watch began have been sent."""


class _ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")
    remaining_item_count: int | None = None


class _ListBody(msgspec.Struct, Generic[T], frozen=True):
    metadata: _ListMeta = _ListMeta()
    items: list[T] | None = None


class ListPage(msgspec.Struct, Generic[T], frozen=True):
    """One answer of a list. `next` is empty on the last page."""

    items: list[T]
    resource_version: str
    next: str
    remaining: int | None = None


class ObjectList(msgspec.Struct, Generic[T], frozen=True):
    """All items as of one resource version."""

    items: list[T]
    resource_version: str


class _ErrorEvent(msgspec.Struct, frozen=True):
    type: str
    object: ErrorStatus


class _BookmarkMeta(msgspec.Struct, frozen=True):
    annotations: dict[str, str] = {}


class _BookmarkObject(msgspec.Struct, frozen=True):
    metadata: _BookmarkMeta = _BookmarkMeta()


class _Bookmark(msgspec.Struct, frozen=True):
    object: _BookmarkObject


UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError)
"""What a decoder raises at bytes that are no JSON of its type; text that is not UTF-8 is the second."""


class _BareObject(msgspec.Struct, frozen=True):
    metadata: msgspec.Raw = msgspec.Raw(b"{}")


class _BareEvent(msgspec.Struct, frozen=True):
    type: str
    object: _BareObject


_decoders: dict[Any, Any] = {}


def _decoder(of: Any) -> Any:
    if of not in _decoders:
        _decoders[of] = msgspec.json.Decoder(of)
    return _decoders[of]


def event_decoder(view: type[T]) -> msgspec.json.Decoder[WatchEvent[T]]:
    decoder: msgspec.json.Decoder[WatchEvent[T]] = _decoder(WatchEvent[view])  # type: ignore[valid-type]
    return decoder


def read_object(body: bytes, view: type[T], action: str) -> T:
    try:
        read: T = _decoder(view).decode(body)
    except UNREADABLE as error:
        raise _undecodable(error, view, action) from error
    return read


def read_page(body: bytes, view: type[T], action: str) -> ListPage[T]:
    try:
        page: _ListBody[T] = _decoder(_ListBody[view]).decode(body)  # type: ignore[valid-type]
    except UNREADABLE as error:
        raise _undecodable(error, view, action) from error
    meta = page.metadata
    return ListPage(page.items or [], meta.resource_version, meta.continue_, meta.remaining_item_count)


def read_event(line: bytes, decoder: msgspec.json.Decoder[WatchEvent[T]], action: str) -> WatchEvent[T]:
    try:
        event = decoder.decode(line)
    except UNREADABLE as error:
        bare = _bare_bookmark(line)
        if bare is None:
            raise _error_event(line, action) or _undecodable(error, decoder.type, action) from error
        event = decoder.decode(bare)
    match event.type:
        case EventType.BOOKMARK:
            marks = msgspec.json.decode(line, type=_Bookmark).object.metadata.annotations
            return msgspec.structs.replace(event, end_of_initial_events=marks.get(END_OF_INITIAL_EVENTS) == "true")
        case EventType.ERROR:
            raise _error_event(line, action) or Undecodable("an ERROR event without a Status", action=action)
        case _:
            return event


def _bare_bookmark(line: bytes) -> bytes | None:
    """A bookmark's object is empty but for its metadata: where a pod must have containers, it has null."""
    try:
        event = msgspec.json.decode(line, type=_BareEvent)
    except UNREADABLE:
        return None
    return msgspec.json.encode(event) if event.type == EventType.BOOKMARK else None


def _error_event(line: bytes, action: str) -> ApiError | None:
    try:
        event = msgspec.json.decode(line, type=_ErrorEvent)
    except UNREADABLE:
        return None
    return from_status(event.object, action) if event.type == EventType.ERROR else None


def _undecodable(error: Exception, view: Any, action: str) -> Undecodable:
    return Undecodable(f"does not fit {getattr(view, '__name__', view)}: {error}", action=action)


class WatchLines:
    """Whole lines out of chunks. A long line in many chunks is joined once, not chunk by chunk."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def feed(self, chunk: bytes) -> list[bytes]:
        *whole, rest = chunk.split(b"\n")
        if whole:
            self._pieces.append(whole[0])
            whole[0] = b"".join(self._pieces)
            self._pieces.clear()
        if rest:
            self._pieces.append(rest)
        return [line for line in whole if line]

    @property
    def unfinished(self) -> bool:
        """The last line has no end yet: at the end of a stream, it was cut."""
        return bool(self._pieces)
