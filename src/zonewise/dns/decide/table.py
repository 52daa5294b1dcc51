"""What a serving process knows: the sheets of all Services, and the answers that were asked for, ready to send.

An answer is written when it is first asked for, for the type and the group of nodes that ask, and kept until its
Service changes. Answers are replaced as a whole, so a thread that applies updates never shows half of one to the thread
that answers. `quick` looks answers up by the question's own bytes; `reply` and everybody else ask `find`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from enum import Enum
from sys import intern
from typing import Any, Final

from zonewise.dns.decide import service_records
from zonewise.dns.decide.client_location import ClientLocations
from zonewise.dns.decide.reverse import ReverseRecords, address_of, is_reverse
from zonewise.dns.decide.service_records import AliasRecord, LookupResult, RecordReader
from zonewise.dns.wire import ipc, records
from zonewise.dns.wire.ipc import Update
from zonewise.dns.wire.message import IN, Rcode, RecordType
from zonewise.dns.wire.names import labels_of
from zonewise.dns.wire.records import WireAnswer

Headers = tuple[bytes, bytes, bytes, bytes]
"""The header after the id: without and with recursion desired, then the same for a reply with an OPT record."""

Slot = tuple[Headers | None, bytes, int, bytes, Any]
"""Headers, records, stride, glue; then None, or what has to be asked further: `AnswerChoices`, or the target of an alias."""

Reply = tuple[int, bytes, bytes, int, bytes]
"""As `quick` has it: as what it counts, what stands behind the id, and of records that take turns these, the size of
one, and what stands behind them."""

NO_DATA: Final[Slot] = (None, b"", 0, b"", None)
"""The name exists, but not with that type, or not for that group."""

NO_NAME: Final[Slot] = (None, b"", -1, b"", None)
"""Kept, too: search paths ask for the same names that don't exist again and again."""

QUESTIONS: Final[Mapping[int, bytes]] = {
    type_: struct.pack(">HH", type_, IN) for type_ in (RecordType.A, RecordType.AAAA, RecordType.SRV)
}
"""The types whose answers are kept, as a question has them behind the name. None of these bytes is a letter, so that a
whole question can be put in lower case to look it up."""

MAX_ANSWERS: Final = 100_000
"""Before all that was written is given up."""
MAX_DENIALS: Final = 10_000
"""Before all denials are given up, and only those: people can make up any number of names."""
MAX_REPLIES: Final = 8192
"""Before all that are kept whole are given up; some 400 bytes each."""
_MOST_PAGES: Final = 8
_MOST_NEAR: Final = 64


class NegativeAnswer(Enum):
    NO_NAME = "no such name"
    NOT_OURS = "the name, or the type, is somebody else's"


@dataclass(frozen=True, slots=True)
class AnswerChoices:
    """What the client's group gets, by the groups of nodes; groups that nobody asked for yet have None."""

    groups: Mapping[str, int]
    near: tuple[bool, ...]
    slots: list[Slot | None]


@dataclass(slots=True)
class RecordTable:
    domain: bytes
    recursive: bool = False
    """Whether names of others are looked up for the client; said in every header."""
    partial: bool = False
    """Another process of ours knows more than this one: names of reverse zones, which few ask for."""
    answers: dict[bytes, Slot] = field(default_factory=dict)
    """By question, in lower case."""
    replies: dict[bytes, Reply] = field(default_factory=dict)
    """By the node of who asks and the query without its id."""
    services: dict[bytes, bytes] = field(default_factory=dict)
    """Sheets by the name of the Service."""
    names: dict[bytes, bytes] = field(default_factory=dict)
    """Names that belong to no Service, with what `feed` has written of them."""
    namespaces_of_pods: set[bytes] = field(default_factory=set)
    """Where every pod address is taken to be a pod: the names that stand for `namespace.pod.domain`."""
    ttl: int = 5
    authority: bytes = b""
    locations: ClientLocations = field(default_factory=lambda: ClientLocations({}, {}))
    loaded: bool = False
    """False until the cluster was read once: until then nothing can be denied."""
    locations_version: int = 0
    """Counts what clears memories of clients: where nodes and their addresses are."""
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    """Given where one thread applies updates and another one reads."""
    _pointers: ReverseRecords = field(default_factory=ReverseRecords)
    _asked: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Questions with an answer, by Service."""
    _denied: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Questions for names that don't exist, by the Service whose they would be; by nothing where they would be nobody's."""
    _denials: int = 0
    _pages: dict[bytes, RecordReader] = field(default_factory=dict)
    _groups: dict[int, Mapping[str, int]] = field(default_factory=dict)
    _near: dict[tuple[bool, ...], tuple[bool, ...]] = field(default_factory=dict)
    """Equal ones once: by zones there are few, by nodes any number, each as long as there are nodes."""
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
        self._take(update)
        self.replies.clear()

    def _take(self, update: Update) -> None:
        match update:
            case ("services", changes):
                with self.lock:
                    for name, written in changes:
                        self._set_service(name, written)
            case ("names", changes):
                with self.lock:
                    for name, written in changes:
                        self._set_name(name, written)
            case ("profile", number, groups):
                self._groups[number] = groups
            case ("forget", number):
                self._groups.pop(number, None)
            case ("locations", exact, ranges):
                self.locations = ClientLocations(exact, ranges, self.locations.pods)
                self.locations_version += 1
            case ("pod locations", changes):
                _locate_pods(self.locations.pods, changes)
            case ("pods", namespaces):
                with self.lock:
                    self.namespaces_of_pods = set(namespaces)
                    self._forget()
            case ("ttl", seconds):
                self.ttl = seconds
            case ("authority", record):
                self.authority = record
            case ("loaded",):
                self.loaded = True
            case _:
                raise ValueError(f"no update of the table: {update!r}")

    def _set_service(self, name: bytes, written: bytes | None) -> None:
        for question in (*self._asked.pop(name, ()), *self._denied.pop(name, ())):
            self.answers.pop(question, None)
        self._pages.pop(name, None)
        old = self.services.pop(name, None)
        if written is not None:
            self.services[name] = written
        if not self.partial:
            self._pointers.replace(name, *(service_records.decode(each) if each else None for each in (old, written)))

    def _set_name(self, name: bytes, written: bytes | None) -> None:
        for type_ in QUESTIONS.values():
            self.answers.pop(name + type_, None)
        if written is None:
            self.names.pop(name, None)
        else:
            self.names[name] = written

    def find(self, name: bytes, type_: int) -> Slot | NegativeAnswer:
        """What a name in lower case says for a type."""
        tail = QUESTIONS.get(type_)
        kept = self.answers.get(name + tail) if tail else None
        if kept is not None:
            return kept if kept is not NO_NAME else NegativeAnswer.NO_NAME
        if self.partial and is_reverse(name):
            return NegativeAnswer.NOT_OURS
        with self.lock:  # what is written here must not replace what comes meanwhile
            found = self._find(name, type_)
            if found is NegativeAnswer.NO_NAME and tail and self.loaded and not self.namespaces_of_pods:
                self._keep_denial(name, type_)
            return found

    def choose(self, name: bytes, type_: int, choices: AnswerChoices, group: int) -> Slot:
        """What a group gets that has not asked yet."""
        with self.lock:
            at = self._service_at(name)
            page = self._opened(name[at:]) if name[at:] in self.services else None
            if page is None:
                return NO_DATA
            if self._groups.get(page.sheet.profile) is not choices.groups:
                group = 0  # the Service has changed this very moment, and with it what groups there are
            found = page.find(labels_of(name[:at] + b"\0"), type_, group)
            slot = choices.slots[group] = self._slot(found.content) if found and found.content else NO_DATA
            return slot

    def _find(self, name: bytes, type_: int) -> Slot | NegativeAnswer:
        if (written := self.names.get(name)) is not None:
            found = LookupResult(ipc.decode_records(written).get(type_))
            return self._keep(b"", name, type_, self._slot(found.content) if found.content else NO_DATA)
        at = self._service_at(name)
        if name[at:] in self.services:
            return self._of_service(name, at, type_)
        if not self.partial and is_reverse(name) and (targets := self._targets(name)):
            return (
                self._slot(records.pointers(targets, self.ttl)) if type_ == RecordType.PTR else NegativeAnswer.NOT_OURS
            )
        if not self.is_ours(name):
            return NegativeAnswer.NOT_OURS
        return self._pod(name, type_) if self.namespaces_of_pods else NegativeAnswer.NO_NAME

    def _of_service(self, name: bytes, at: int, type_: int) -> Slot | NegativeAnswer:
        """What stands below `_zone` is not kept: there are as many such names as people make up."""
        owner, labels = name[at:], labels_of(name[:at] + b"\0")
        written = self.services[owner]
        zonal = bool(labels) and labels[-1] == b"_zone"
        if not zonal and (
            len(labels) > 2 or (len(labels) == 1 and not service_records.may_contain(written, labels[0]))
        ):
            return NegativeAnswer.NO_NAME
        page = self._opened(owner)
        found = page.find(labels, type_)
        if found is None:
            return NegativeAnswer.NO_NAME
        slot = self._slot(found.content) if found.content and not found.varies else NO_DATA
        if found.varies:
            if len(self._near) >= _MOST_NEAR:
                self._near.clear()
            near = self._near.setdefault(page.sheet.near, page.sheet.near)
            slot = (None, b"", 0, b"", AnswerChoices(self._groups[page.sheet.profile], near, [None] * len(near)))
        return slot if zonal else self._keep(owner, name, type_, slot)

    def _keep(self, owner: bytes, name: bytes, type_: int, slot: Slot) -> Slot:
        tail = QUESTIONS.get(type_)
        if tail:
            if len(self.answers) >= MAX_ANSWERS:
                self._forget()
            self.answers[name + tail] = slot
            if owner:
                self._asked.setdefault(owner, []).append(name + tail)
        return slot

    def _keep_denial(self, name: bytes, type_: int) -> None:
        """Until the Service comes, or changes, whose the name would be."""
        if self._denials >= MAX_DENIALS:
            self._forget_denials()
        self._denials += 1
        at, question = self._service_at(name), name + QUESTIONS[type_]
        self.answers[question] = NO_NAME
        self._denied.setdefault(name[at:] if at >= 0 else b"", []).append(question)

    def _forget_denials(self) -> None:
        for questions in self._denied.values():
            for question in questions:
                self.answers.pop(question, None)
        self._denied.clear()
        self._denials = 0

    def _forget(self) -> None:
        self._forget_denials()
        self.answers.clear()
        self._asked.clear()

    def _opened(self, name: bytes) -> RecordReader:
        """The last few stay open: several of their names, types and groups may be asked for."""
        page = self._pages.pop(name, None) or RecordReader(name, service_records.decode(self.services[name]), self.ttl)
        self._pages[name] = page
        if len(self._pages) > _MOST_PAGES:
            del self._pages[next(iter(self._pages))]
        return page

    def _slot(self, content: WireAnswer | AliasRecord) -> Slot:
        if isinstance(content, AliasRecord):
            headers, written, *_ = self._slot(content.answer)
            return headers, written, 0, b"", content.target
        headers = self.headers(Rcode.NOERROR, content.how_many, 0, content.glue_count)
        return headers, content.records, content.stride, content.glue, None

    def _service_at(self, name: bytes) -> int:
        """Where the name of a Service, which there may be or not, begins in a name that ends with it; else -1."""
        end = len(name) - len(self.domain) - 4  # before `svc`
        before, last, at = -1, -1, 0
        while at < end:
            before, last, at = last, at, at + name[at] + 1
        return before if before >= 0 and at == end and name.endswith(self.domain) else -1

    def _targets(self, name: bytes) -> tuple[bytes, ...]:
        """Of a PTR record: a Service for its cluster IP, or every endpoint with the address."""
        address = address_of(name)
        if address is None:
            return ()
        if virtual := self._pointers.virtual.of(address):
            return virtual[:1]
        owners = self._pointers.endpoints.of(address)
        return tuple(
            dict.fromkeys(host for owner in owners for ip, host in self._opened(owner).hosts() if ip == address)
        )

    def _pod(self, name: bytes, type_: int) -> Slot | NegativeAnswer:
        from zonewise.dns.decide.pod_records import pod_answer  # noqa: PLC0415 - few servers answer for pods so

        label, parent = name[1 : name[0] + 1], name[name[0] + 1 :]
        content = pod_answer(label, self.ttl) if parent in self.namespaces_of_pods else None
        if content is None:
            return NegativeAnswer.NO_NAME
        return self._slot(content[type_]) if type_ in content else NO_DATA

    def is_ours(self, name: bytes) -> bool:
        """Whether a whole name lies in our domain; the bytes of its end could be inside a label."""
        if not name.endswith(self.domain):
            return False
        at, begin = 0, len(name) - len(self.domain)
        while at < begin:
            at += name[at] + 1
        return at == begin


def _locate_pods(pods: dict[bytes, str], changes: list[tuple[bytes, bytes]]) -> None:
    """Memories of clients are kept: they last a second, and a pod does not move."""
    for address, node in changes:
        if node:
            pods[address] = intern(node.decode())
        else:
            pods.pop(address, None)
