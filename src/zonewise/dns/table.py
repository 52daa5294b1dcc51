"""What a serving process knows: names to answers that are ready to send. Grown by updates, read by `reply`.

Every entry is replaced as a whole, in one assignment, so a thread that applies updates never shows half of one to the
thread that answers. An entry keeps the grouping of nodes that its own answers were made for.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
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
    names: dict[bytes, Entry] = field(default_factory=dict)
    wild: dict[bytes, Entry] = field(default_factory=dict)
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
            case ("names", changes):
                for name, written in changes:
                    self._put(self.names, name, written)
            case ("wild", changes):
                for name, written in changes:
                    self._put(self.wild, name, written)
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

    def _put(self, names: dict[bytes, Entry], name: bytes, written: Any) -> None:
        if written is None:
            names.pop(name, None)
        else:
            names[name] = self._entry(*written)

    def _entry(self, contents: Mapping[int, Any], foreign: bool) -> Entry:
        if not contents and not foreign:
            return EMPTY
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

    def find(self, name: bytes) -> Entry | None:
        """The entry of a name in our domain that is not written out, or None if it does not exist."""
        if b"\x05_zone" in name and (entry := self._below_wild(name)):
            return entry
        return self._pod(name) if self.namespaces_of_pods else None

    def _below_wild(self, name: bytes) -> Entry | None:
        at = 0
        while name[at]:
            at += name[at] + 1
            if entry := self.wild.get(name[at:]):
                return entry
        return None

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
