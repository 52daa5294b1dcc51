"""Dumps of a cluster (`kubectl get -o yaml` or `json`, or JSON Lines), read into views object by object.

`plan`, `explain` and the simulator read them. Measured on pods as kubectl prints them, PyYAML's C loader takes forty
times as long as rapidyaml does; a dump of a large cluster is read in seconds because a list in kubectl's own form is cut
at its items and only items of the requested kinds are parsed. An item is passed over only if its lines say for certain
that it is of another kind. Everything that kubectl does not write, and broken input, goes through PyYAML, whose messages
say where.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from io import BytesIO
from typing import Any, Final, NamedTuple

import msgspec
import ryml
import yaml

from zonewise import yaml_reader
from zonewise.errors import UsageError
from zonewise.objects import View

_Object = tuple[str, bytes | msgspec.Raw]
"""Its kind, and itself in JSON."""

Views = Mapping[str, type[View]]
"""The kinds to be read and what is read of them."""

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeError, RecursionError)
_REFUSED: Final = (ryml.ExceptionBasic, ryml.ExceptionParse, ryml.ExceptionVisit)
_JSON: Final = re.compile(rb'\s*\{(?=\s*(?:["}]|\Z))')
_TEXT: Final = re.compile(rb"\S")
_DOCUMENT_END: Final = re.compile(rb"\n---[ \t]*\r?(?=\n|\Z)")
_KUBECTL_LIST: Final = re.compile(rb"\s*(?:---[ \t]*\r?\n)?apiVersion: v1\n(kind: [A-Za-z]*List\n)?items:(?=\n- )")
_LIST_END: Final = re.compile(rb"\nkind: [A-Za-z]*List\n(?:metadata:\n(?:  .*\n?)*)?\s*\Z")
_NO_ITEM: Final = re.compile(rb"\n(?! |- |\n|\Z)")
_ITEM_LINE: Final = re.compile(
    rb"\n(?:- |  )(?=[^ \r\n])(?:kind: ([A-Za-z]+)\r?(?=\n|\Z)|(?!kind:)[A-Za-z]+:(?=\s|\Z)|(- ))?"
)
"""A line of an item's own fields, of a list among them, or, without a last group, one whose meaning is not certain."""

_FOREIGN: Final = tuple(
    re.compile(
        before
        + rb"""\ *(?=[@`%!&*+?<\[{yYnNoOtTfF~=.\d-])(?:
            [@`%!&*+] | \?[ ] | <<
            | [\[{](?![\]}]\ *(?:\r?\n|\Z))
            | (?:
                (?i:yes|no|on|off) | True | TRUE | False | FALSE | Null | NULL | [~=]
                | (?:true|false|null)(?=\ *:)
                | -?(?:
                    0(?:[\d_][\d_:.]*(?:[eE][-+]?\d+)? | [xX][\da-fA-F_]+ | [bB][01_]+ | o[0-7_]+) | \.(?:\d|(?i:inf|nan)\b)[\w:.+-]*
                    | \d[\d_]*(?:[_:][\d_:.]* | \.?[\d_]*[eE][-+]?\d+ | \.[\d]*_[\d_]*)
                )
                | \d{4}-\d\d?-\d\d?\S*
            )\ *(?:\r?\n|\Z|:[ \r\n]|\ \#)
        )""",
        re.VERBOSE,
    )
    for before in (rb":\ ", rb"-\ ", rb"\n\ ")
)
"""What rapidyaml reads otherwise than PyYAML, or may: indicators, flow style, words and numbers of YAML 1.1. kubectl quotes
all of these. One expression for each beginning, because a fixed one is found several times as fast."""
_CONTROL: Final = bytes({*range(32), 127} - {10, 13})
_SEPARATOR: Final = re.compile(rb"\xc2[\x80-\x9f]|\xe2\x80[\xa8\xa9]|\xef\xbb\xbf|\xef\xbf[\xbe\xbf]")
_DEEP: Final = b" " * yaml_reader.MAX_DEPTH, b"- " * (yaml_reader.MAX_DEPTH // 2)


class DumpError(UsageError):
    """The dump can't be read; the text says which file, where and what was expected."""


class _Kind(msgspec.Struct):
    kind: str
    items: msgspec.Raw = msgspec.Raw(b"null")


class _Chunk(NamedTuple):
    """A part of the dump that is YAML by itself. It starts on `line`, after as many lines as `before` has.

    Those are counted only for an error: to count them for every item takes a time that grows with the square of a dump.
    """

    text: bytes
    line: int
    before: memoryview = memoryview(b"")


def read(data: bytes, source: str, views: Views) -> dict[str, list[Any]]:
    """The objects of each kind asked for, in their order; `source` names the dump in errors."""
    objects_by_kind: dict[str, list[Any]] = {kind: [] for kind in views}
    with _silenced():
        for kind, encoded in _objects(data, source, views):
            if kind in views:
                objects_by_kind[kind].append(_view(encoded, kind, views[kind], source))
    return objects_by_kind


def _view(encoded: bytes | msgspec.Raw, kind: str, view: type[View], source: str) -> View:
    try:
        return msgspec.json.decode(encoded, type=view, strict=False)
    except _UNREADABLE as error:
        raise DumpError(f"{source}: {kind} {_name(encoded)} can't be read: {' '.join(str(error).split())}") from error


class _Name(msgspec.Struct):
    name: str


class _Named(msgspec.Struct):
    metadata: _Name


def _name(encoded: bytes | msgspec.Raw) -> str:
    try:
        return repr(msgspec.json.decode(encoded, type=_Named).metadata.name)
    except _UNREADABLE:
        return "without a name"


def _objects(data: bytes, source: str, views: Views) -> Iterator[_Object]:
    begin = _JSON.match(data)
    if begin is None:
        return _yaml_objects(data, source, views)
    end = data.find(b"\n", begin.end())
    lines = end > 0 and _TEXT.search(data, end) and _is_json(data[:end])
    return _json_lines(data, source) if lines else _json_objects(data, source)


def _is_json(data: bytes) -> bool:
    try:
        msgspec.json.decode(data, type=msgspec.Raw)
    except _UNREADABLE:
        return False
    return True


def _json_lines(data: bytes, source: str) -> Iterator[_Object]:
    for number, line in enumerate(BytesIO(data), 1):
        if line.strip():
            yield from _json_objects(line, f"{source}:{number}")


def _json_objects(data: bytes | msgspec.Raw, source: str) -> Iterator[_Object]:
    try:
        read = msgspec.json.decode(data, type=_Kind)
        items = msgspec.json.decode(read.items, type=list[msgspec.Raw] | None) if read.kind.endswith("List") else None
    except msgspec.ValidationError as error:
        raise DumpError(f"{source}: not a dump of Kubernetes objects: {error}") from error
    except _UNREADABLE as error:
        raise DumpError(f"{source}: not JSON: {error}") from error
    if items is None:
        yield read.kind, data
    for item in items or ():
        yield from _json_objects(item, source)


def _yaml_objects(data: bytes, source: str, views: Views) -> Iterator[_Object]:
    fast = _FastYaml()
    for document in _documents(data):
        start, stop = _kubectl_items(document.text)
        if not stop:
            for parsed in _parse_slow(document, source):
                yield from _json_objects(parsed, source)
            continue
        for begin, end in _items(document.text, start, stop):
            kind = _certain_kind(document.text, begin, end)
            if not kind or kind in views or kind.endswith("List"):
                yield from _item(fast, document, begin, end, source)


def _kubectl_items(document: bytes) -> tuple[int, int]:
    """Where the items of a list in kubectl's form begin and end; zeros for what is not in that form throughout."""
    begin = _KUBECTL_LIST.match(document)
    if begin is None:
        return 0, 0
    end = _LIST_END.search(document, max(begin.end(), len(document) - 4096))
    stop = end.start() + 1 if end else len(document)
    certain = (end or begin[1]) and not _NO_ITEM.search(document, begin.end(), stop)
    return (begin.end(), stop) if certain else (0, 0)


def _certain_kind(text: bytes, begin: int, end: int) -> str:
    """Empty if only a parser can say: the item is in flow style, begins with more spaces, or says it twice or otherwise."""
    kinds = []
    for line in _ITEM_LINE.finditer(text, begin - 1, end):
        kind, element = line.groups()
        if line.end() <= line.start() + 3 and not element:
            return ""
        if kind:
            kinds.append(kind)
    return kinds[0].decode() if len(kinds) == 1 else ""


def _documents(data: bytes) -> Iterator[_Chunk]:
    start = line = 0
    for begin in _all(b"\n---", data):
        if mark := _DOCUMENT_END.match(data, begin):
            yield _Chunk(data[start : begin + 1], line)
            line += data.count(b"\n", start, mark.end())
            start = mark.end()
    yield _Chunk(data[start:] if start else data, line)


def _all(sought: bytes, data: bytes, start: int = 0, stop: int | None = None) -> Iterator[int]:
    """Positions of `sought`: on hundreds of megabytes ten times as fast as a regular expression."""
    at = data.find(sought, start, stop)
    while at >= 0:
        yield at
        at = data.find(sought, at + 1, stop)


def _items(text: bytes, start: int, stop: int) -> Iterator[tuple[int, int]]:
    """An item begins at the start of a line; its content is indented."""
    begins = [at + 1 for at in _all(b"\n- ", text, start, stop)]
    return zip(begins, [*begins[1:], stop], strict=True)


def _item(fast: _FastYaml, document: _Chunk, begin: int, end: int, source: str) -> Iterable[_Object]:
    """The objects in the only element of a list of one. What the quick way can't make sense of, PyYAML has to say."""
    item = document.text[begin:end]
    if objects := _parse_fast(fast, item):
        with suppress(DumpError):
            return list(_json_objects(objects[0], source))
    chunk = _Chunk(item, document.line, memoryview(document.text)[:begin])
    (parsed,) = _parse_slow(chunk, source)
    return _json_objects(msgspec.json.decode(parsed, type=list[msgspec.Raw])[0], source)


class _FastYaml:
    """rapidyaml, with one tree and one buffer for all items: it never frees a buffer of its own."""

    def __init__(self) -> None:
        self._tree = ryml.Tree()
        self._buffer = bytearray(2**16)

    def json(self, text: bytes) -> str:
        self._tree.clear()
        self._tree.clear_arena()
        ryml.parse_in_arena(text, self._tree)
        while True:
            try:
                return str(ryml.emit_json_in_place(self._tree, self._buffer, self._tree.root_id()), "utf-8")
            except IndexError:  # it is too small
                self._buffer = bytearray(2 * len(self._buffer))


def _is_foreign(text: bytes) -> bool:
    """Whether kubectl would have written it otherwise."""
    if len(text.translate(None, _CONTROL)) != len(text) or any(deep in text for deep in _DEEP):
        return True
    return any(form.search(text) for form in _FOREIGN) or (not text.isascii() and bool(_SEPARATOR.search(text)))


def _parse_fast(fast: _FastYaml, text: bytes) -> list[msgspec.Raw] | None:
    """None if PyYAML must parse it: broken input, what kubectl does not write, and what rapidyaml can't write as JSON."""
    if _is_foreign(text):
        return None
    try:
        return msgspec.json.decode(fast.json(text), type=list[msgspec.Raw])
    except (*_REFUSED, TypeError, UnicodeError, msgspec.DecodeError):
        return None


@contextmanager
def _silenced() -> Iterator[None]:
    """rapidyaml prints its errors to the terminal before it raises them; we show PyYAML's."""
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def _parse_slow(chunk: _Chunk, source: str) -> Iterator[bytes]:
    try:
        documents = yaml_reader.load_all(chunk.text)
    except (yaml.YAMLError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = chunk.line + bytes(chunk.before).count(b"\n")
        where = f"{source}:{line + mark.line + 1}" if mark else source
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DumpError(f"{where}: not YAML: {problem}") from error
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict | list) or (isinstance(document, dict) and "kind" not in document):
            raise DumpError(f"{source}: not a dump of Kubernetes objects: a `kind` is missing")
        try:
            yield msgspec.json.encode(document, enc_hook=str)
        except (TypeError, ValueError, OverflowError) as error:  # keys that JSON does not have, half characters
            raise DumpError(f"{source}: not a dump of Kubernetes objects: {error}") from error
