"""Dumps of a cluster (`kubectl get -o yaml` or `json`), read into views object by object.

`plan`, `explain` and the simulator read them. Measured on pods as kubectl prints them, PyYAML's C loader takes forty
times as long as rapidyaml does; a dump of a large cluster is read in seconds because a list in kubectl's own form is cut
at its items and only items of the requested kinds are parsed. Everything else, and broken input, goes through
PyYAML, whose messages say where.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, NamedTuple

import msgspec
import ryml
import yaml

from zonewise.errors import UsageError
from zonewise.objects import View

Views = Mapping[str, type[View]]
"""The kinds to be read and what is read of them."""

_REFUSED: Final = (ryml.ExceptionBasic, ryml.ExceptionParse, ryml.ExceptionVisit)
_DOCUMENT_END: Final = re.compile(rb"\n---[ \t]*\r?(?=\n|\Z)")
_KUBECTL_LIST: Final = re.compile(rb"\s*(?:---[ \t]*\r?\n)?apiVersion: v1\n(?:kind: [A-Za-z]*List\n)?items:(?=\n- )")
_LIST_END: Final = re.compile(rb"\nkind: [A-Za-z]*List\n(?:metadata:\n(?:  .*\n?)*)?\s*\Z")
_ITEM_KIND: Final = re.compile(rb"^  kind: (\S+)\r?$", re.MULTILINE)


class DumpError(UsageError):
    """The dump can't be read; the text says which file, where and what was expected."""


class _Kind(msgspec.Struct):
    kind: str
    items: list[msgspec.Raw] | None = None


class _Chunk(NamedTuple):
    """A part of the dump that is YAML by itself, and the line it starts on."""

    text: bytes
    line: int


def read(data: bytes, source: str, views: Views) -> dict[str, list[Any]]:
    """The objects of each kind asked for, in their order; `source` names the dump in errors."""
    objects_by_kind: dict[str, list[Any]] = {kind: [] for kind in views}
    objects = _json_objects(data, source) if data.lstrip()[:1] == b"{" else _yaml_objects(data, source, views)
    with _silenced():
        for kind, encoded in objects:
            if kind in views:
                objects_by_kind[kind].append(_view(encoded, kind, views[kind], source))
    return objects_by_kind


def _view(encoded: bytes | msgspec.Raw, kind: str, view: type[View], source: str) -> View:
    try:
        return msgspec.json.decode(encoded, type=view, strict=False)
    except msgspec.ValidationError as error:
        raise DumpError(f"{source}: {kind} {_name(encoded)} can't be read: {error}") from error


def _name(encoded: bytes | msgspec.Raw) -> str:
    metadata = msgspec.json.decode(encoded).get("metadata")
    return str(metadata.get("name", "without a name")) if isinstance(metadata, dict) else "without a name"


def _json_objects(data: bytes | msgspec.Raw, source: str) -> Iterator[tuple[str, bytes | msgspec.Raw]]:
    try:
        read = msgspec.json.decode(data, type=_Kind)
    except msgspec.ValidationError as error:
        raise DumpError(f"{source}: not a dump of Kubernetes objects: {error}") from error
    except msgspec.DecodeError as error:
        raise DumpError(f"{source}: not JSON: {error}") from error
    if read.items is None:
        yield read.kind, data
    for item in read.items or ():
        yield from _json_objects(item, source)


def _yaml_objects(data: bytes, source: str, views: Views) -> Iterator[tuple[str, bytes | msgspec.Raw]]:
    fast = _FastYaml()
    for document in _documents(data):
        listed = _KUBECTL_LIST.match(document.text)
        if listed is None:
            for parsed in _parse_slow(document, source):
                yield from _json_objects(parsed, source)
            continue
        for begin, text in _items(document.text, listed.end()):
            kind = _ITEM_KIND.search(text)
            if kind is None or (name := kind[1].decode(errors="replace")) in views:
                yield name if kind else "", _first(fast, document, begin, text, source)


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


def _items(text: bytes, start: int) -> Iterator[tuple[int, bytes]]:
    """An item begins at the start of a line; its content is indented."""
    end = _LIST_END.search(text, max(start, len(text) - 4096))
    stop = end.start() if end else len(text)
    begins = [at + 1 for at in _all(b"\n- ", text, start, stop)]
    for begin, until in zip(begins, [*begins[1:], stop], strict=True):
        yield begin, text[begin:until]


def _first(fast: _FastYaml, document: _Chunk, begin: int, item: bytes, source: str) -> msgspec.Raw:
    """The only element of a list of one."""
    objects = _parse_fast(fast, item)
    if objects is None:
        chunk = _Chunk(item, document.line + document.text.count(b"\n", 0, begin))
        objects = msgspec.json.decode(next(iter(_parse_slow(chunk, source))), type=list[msgspec.Raw])
    return objects[0]


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


def _parse_fast(fast: _FastYaml, text: bytes) -> list[msgspec.Raw] | None:
    """None if PyYAML must parse it: broken input, anchors, and what rapidyaml can't write as JSON."""
    if b": *" in text or b": &" in text:
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


def _parse_slow(chunk: _Chunk, source: str) -> Iterable[bytes]:
    try:
        documents = list(yaml.load_all(chunk.text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, UnicodeError) as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{source}:{chunk.line + mark.line + 1}" if mark else source
        problem = " ".join(str(getattr(error, "problem", None) or error).split())
        raise DumpError(f"{where}: not YAML: {problem}") from error
    for document in documents:
        if document is None:
            continue
        if not isinstance(document, dict | list) or (isinstance(document, dict) and "kind" not in document):
            raise DumpError(f"{source}: not a dump of Kubernetes objects: a `kind` is missing")
        yield msgspec.json.encode(document, enc_hook=str)
