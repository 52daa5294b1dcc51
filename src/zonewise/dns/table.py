"""What a serving process knows: names to answers that are ready to send. Grown by updates, read by `reply`.

A name's records stay as bytes until it is asked for: most never are, and keeping them so costs a fraction of the memory.
Entries are replaced as a whole, so a thread that applies updates never shows half of one to the thread that answers. An
entry keeps the grouping of nodes that its own answers were made for.
"""

from __future__ import annotations

import marshal
import struct
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from zonewise.dns.clients import Places
from zonewise.dns.message import Rcode, Type
from zonewise.dns.names import ROOT

Update = tuple[Any, ...]
"""What `feed` makes: a kind and its values, of plain types only."""

Headers = tuple[bytes, bytes, bytes, bytes]
"""The header after the id: without and with recursion desired, then the same for a reply with an OPT record."""

Slot = tuple[Headers | None, bytes, int, bytes, Any]
"""Headers, records, stride, glue; then None, or what has to be asked further: `Choices`, or the target of an alias."""

Entry = tuple[Slot | None, Slot | None, Slot | None, Mapping[int, Slot] | None, bool]
"""A, AAAA, SRV, other types; and whether other types are somebody else's: those of names in reverse zones."""

LEFT_OUT_OF_PARTIAL: Final = frozenset({"zonal", "pointers"})
"""The updates that a partial table is not told."""

_ZONAL: Final = b"\x05_zone"
EMPTY: Final[Entry] = (None, None, None, None, False)
POSITIONS: Final[Mapping[int, Literal[0, 1, 2]]] = {Type.A: 0, Type.AAAA: 1, Type.SRV: 2}


@dataclass(frozen=True, slots=True)
class Choices:
    """What the client's group gets, by the groups of nodes; None is NODATA."""

    groups: Mapping[str, int]
    slots: tuple[Slot | None, ...]
    near: tuple[bool, ...]


@dataclass(slots=True)
class Table:
    domain: bytes
    recursive: bool = False
    """Whether names of others are looked up for the client; said in every header."""
    partial: bool = False
    """Another process of ours knows more than this one: zonal names and those of reverse zones, which few ask for."""
    names: dict[bytes, Entry | bytes] = field(default_factory=dict)
    zonal: dict[bytes, bytes] = field(default_factory=dict)
    namespaces_of_pods: set[bytes] = field(default_factory=set)
    """Where every pod address is taken to be a pod: the names that stand for `namespace.pod.domain`."""
    pod_ttl: int = 5
    authority: bytes = b""
    places: Places = field(default_factory=lambda: Places({}, {}))
    loaded: bool = False
    """False until the cluster was read once: until then nothing can be denied."""
    changes: int = 0
    """Counts what clears memories of clients: where nodes and their addresses are."""
    _groups: dict[int, Mapping[str, int]] = field(default_factory=dict)
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Given where one thread applies updates and another one reads."""
    _headers: dict[tuple[int, int, int, int], Headers] = field(default_factory=dict)

    def headers(self, rcode: Rcode, answers: int, authorities: int = 0, additional: int = 0) -> Headers:
        key = (rcode, answers, authorities, additional)
        if key not in self._headers:
            self._headers[key] = self._make_headers(*key)
        return self._headers[key]

    def _make_headers(self, rcode: int, answers: int, authorities: int, additional: int) -> Headers:
        flags = 0x80 if self.recursive else 0

        def header(edns: int, recursion_desired: int) -> bytes:
            parts = (0x84 | recursion_desired, flags | rcode & 15, 1, answers, authorities, additional + edns)
            return struct.pack(">BBHHHH", *parts)

        return header(0, 0), header(0, 1), header(1, 0), header(1, 1)

    def apply(self, update: Update) -> None:
        match update:
            case ("names" | "pointers", changes):
                with self.lock:
                    _put_all(self.names, changes)
            case ("zonal", changes):
                _put_all(self.zonal, changes)
            case ("profile", number, groups):
                self._groups[number] = groups
            case ("forget", number):
                self._groups.pop(number, None)
            case ("places", exact, ranges):
                self.places = Places(exact, ranges)
                self.changes += 1
            case ("pods", namespaces, ttl):
                self.namespaces_of_pods, self.pod_ttl = set(namespaces), ttl
            case ("authority", record):
                self.authority = record
            case ("loaded",):
                self.loaded = True
            case _:
                raise ValueError(f"no update of the table: {update!r}")

    def get(self, name: bytes) -> Entry | None:
        """What a written name says, read now if nobody has asked for it before."""
        found = self.names.get(name)
        return self.read(name) if isinstance(found, bytes) else found

    def read(self, name: bytes) -> Entry | None:
        """Under the lock: what was read must not replace what came meanwhile."""
        with self.lock:
            found = self.names.get(name)
            if isinstance(found, bytes):
                found = self.names[name] = self._entry(*_loads(found)) if found else EMPTY
            return found

    def _entry(self, contents: Mapping[int, Any], foreign: bool) -> Entry:
        slots = {type_: self._slot(content) for type_, content in contents.items()}
        a, aaaa, srv = (slots.pop(type_, None) for type_ in POSITIONS)
        return a, aaaa, srv, slots or None, foreign

    def _slot(self, content: tuple[Any, ...]) -> Slot:
        match content:
            case (count, records, stride, glue_count, glue):
                return self.headers(Rcode.NOERROR, count, 0, glue_count), records, stride, glue, None
            case (profile, answers, near):
                slots = tuple(self._slot(answer) if answer else None for answer in answers)
                return None, b"", 0, b"", Choices(self._groups[profile], slots, near)
            case (target, answer):
                headers, records, *_ = self._slot(answer)
                return headers, records, 0, b"", target
            case _:
                raise ValueError(f"no content of a name: {content!r}")

    def leaves(self, name: bytes) -> bool:
        """Whether a name is left to that other process."""
        return self.partial and _ZONAL in name

    def find(self, name: bytes) -> Entry | None:
        """The entry of a name in our domain that is not written out, or None if it does not exist."""
        if _ZONAL in name and (entry := self._in_zone(name)):
            return entry
        return self._pod(name) if self.namespaces_of_pods else None

    def _in_zone(self, name: bytes) -> Entry | None:
        """`<zone>.pin._zone...` or `<zone>.prefer._zone...`; a zone's name may have dots, so it may be several labels."""
        labels: list[bytes] = []
        at = 0
        while name[at] and (label := name[at + 1 : at + 1 + name[at]]) != b"_zone":
            labels.append(label)
            at += name[at] + 1
        written = self.zonal.get(name[at:])
        if written is None or len(labels) < 2 or labels[-1] not in {b"pin", b"prefer"}:
            return None
        by_zone, everything = _loads(written)
        there = by_zone.get(b".".join(labels[:-1])) or (everything if labels[-1] == b"prefer" else None)
        return self._entry(*there) if there else EMPTY

    def _pod(self, name: bytes) -> Entry | None:
        from zonewise.dns.pods import pod_answer  # noqa: PLC0415 - few servers answer for pods so

        label, parent = name[1 : name[0] + 1], name[name[0] + 1 :]
        if parent not in self.namespaces_of_pods:
            return None
        content = pod_answer(label, self.pod_ttl)
        return self._entry(content, foreign=False) if content else None

    def is_ours(self, name: bytes) -> bool:
        """Whether a whole name lies in our domain; the bytes of its end could be inside a label."""
        if not name.endswith(self.domain):
            return False
        at, begin = 0, len(name) - len(self.domain)
        while at < begin:
            at += name[at] + 1
        return at == begin or self.domain == ROOT


def _put_all(names: dict[bytes, Any], changes: list[tuple[bytes, bytes | None]]) -> None:
    for name, written in changes:
        if written is None:
            names.pop(name, None)
        else:
            names[name] = written


def _loads(written: bytes) -> Any:
    return marshal.loads(written)  # noqa: S302 - from our own watcher only
