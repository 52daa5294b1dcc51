"""Record table of a DNS worker: encoded records of all Services, and the answers to questions asked so far.

An answer is derived for the first query of its type and node group, and kept until its Service changes. Answers are
replaced as a whole, so a thread that serves never sees half of an update by another thread. `fast_path` looks answers
up by the question's own bytes; all others call `find`.
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
from zonewise.dns.decide.service_records import AliasRecord, RecordReader
from zonewise.dns.wire import ipc, records
from zonewise.dns.wire.ipc import Update
from zonewise.dns.wire.message import IN, Rcode, RecordType
from zonewise.dns.wire.names import labels_of
from zonewise.dns.wire.records import WireAnswer

Headers = tuple[bytes, bytes, bytes, bytes]
"""Headers without the id: without and with recursion desired, then both for a reply with an OPT record."""

Slot = tuple[Headers | None, bytes, int, bytes, Any]
"""Headers, records, stride, glue; then None, or `AnswerChoices`, or the target of an alias to be followed."""

Reply = tuple[int, bytes, bytes, int, bytes]
"""For `fast_path`: kind, bytes after the id, and, if records rotate, the records, the size of one, and the bytes after
them."""

NO_DATA: Final[Slot] = (None, b"", 0, b"", None)
"""The name exists, but has no records of that type, or none for that group."""

NO_NAME: Final[Slot] = (None, b"", -1, b"", None)
"""Kept as well: search paths query the same names that don't exist again and again."""

QUESTIONS: Final[Mapping[int, bytes]] = {
    type_: struct.pack(">HH", type_, IN) for type_ in (RecordType.A, RecordType.AAAA, RecordType.SRV)
}
"""The bytes after the name in a question, by type, for types whose answers are kept. None of these bytes is a letter,
so that a whole question can be put in lower case to look it up."""

MAX_ANSWERS: Final = 100_000
"""When reached, all answers are dropped."""
MAX_DENIALS: Final = 10_000
"""When reached, all denials are dropped, and only those: clients can make up any number of names."""
MAX_REPLIES: Final = 8192
"""When reached, all complete replies are dropped; about 400 bytes each."""
_MAX_READERS: Final = 8
_MAX_NEAR: Final = 64


class NegativeAnswer(Enum):
    NO_NAME = "no such name"
    NOT_OURS = "not authoritative for the name, or for the type"


@dataclass(frozen=True, slots=True)
class AnswerChoices:
    """Answers by node group; None for groups without a query so far."""

    groups: Mapping[str, int]
    near: tuple[bool, ...]
    slots: list[Slot | None]


@dataclass(slots=True)
class RecordTable:
    domain: bytes
    recursive: bool = False
    """Whether other names are forwarded; sets the RA flag."""
    partial: bool = False
    """Without reverse zones, which few clients query: another worker has them."""
    answers: dict[bytes, Slot] = field(default_factory=dict)
    """By question, in lower case."""
    replies: dict[bytes, Reply] = field(default_factory=dict)
    """By the client's node and the query without its id."""
    services: dict[bytes, bytes] = field(default_factory=dict)
    """Encoded `ServiceRecords` by the name of the Service."""
    names: dict[bytes, bytes] = field(default_factory=dict)
    """Encoded records of names that belong to no Service."""
    namespaces_of_pods: set[bytes] = field(default_factory=set)
    """Names `namespace.pod.domain` below which every address has a record."""
    ttl: int = 5
    authority: bytes = b""
    locations: ClientLocations = field(default_factory=lambda: ClientLocations({}, {}))
    loaded: bool = False
    """False until the cluster was read once: until then no name can be denied."""
    locations_version: int = 0
    """Incremented when locations of nodes change: workers then forget their clients."""
    lock: AbstractContextManager[object] = field(default_factory=nullcontext)
    """A real lock if one thread applies updates and another one serves."""
    _reverse: ReverseRecords = field(default_factory=ReverseRecords)
    _answered: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Questions with an answer, by Service."""
    _denied: dict[bytes, list[bytes]] = field(default_factory=dict)
    """Questions for names that don't exist, by the name of the Service they would belong to; empty if to none."""
    _denials: int = 0
    _readers: dict[bytes, RecordReader] = field(default_factory=dict)
    _groups: dict[int, Mapping[str, int]] = field(default_factory=dict)
    _near: dict[tuple[bool, ...], tuple[bool, ...]] = field(default_factory=dict)
    """Shares equal tuples: with node groups, each is as long as there are nodes."""
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
        self._apply(update)
        self.replies.clear()

    def _apply(self, update: Update) -> None:
        match update:
            case ("services", changes):
                with self.lock:
                    for name, encoded in changes:
                        self._set_service(name, encoded)
            case ("names", changes):
                with self.lock:
                    for name, encoded in changes:
                        self._set_name(name, encoded)
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
                    self._drop_answers()
            case ("ttl", seconds):
                self.ttl = seconds
            case ("authority", record):
                self.authority = record
            case ("loaded",):
                self.loaded = True
            case _:
                raise ValueError(f"unknown update of the record table: {update!r}")

    def _set_service(self, name: bytes, encoded: bytes | None) -> None:
        for question in (*self._answered.pop(name, ()), *self._denied.pop(name, ())):
            self.answers.pop(question, None)
        self._readers.pop(name, None)
        old = self.services.pop(name, None)
        if encoded is not None:
            self.services[name] = encoded
        if not self.partial:
            before = service_records.decode(old) if old else None
            self._reverse.replace(name, before, service_records.decode(encoded) if encoded else None)

    def _set_name(self, name: bytes, encoded: bytes | None) -> None:
        for tail in QUESTIONS.values():
            self.answers.pop(name + tail, None)
        if encoded is None:
            self.names.pop(name, None)
        else:
            self.names[name] = encoded

    def find(self, name: bytes, type_: int) -> Slot | NegativeAnswer:
        """The answer of a name, in lower case, for a type."""
        tail = QUESTIONS.get(type_)
        kept = self.answers.get(name + tail) if tail else None
        if kept is not None:
            return kept if kept is not NO_NAME else NegativeAnswer.NO_NAME
        if self.partial and is_reverse(name):
            return NegativeAnswer.NOT_OURS
        with self.lock:  # an answer from old records must not be stored after an update
            slot = self._find(name, type_)
            if slot is NegativeAnswer.NO_NAME and tail and self.loaded and not self.namespaces_of_pods:
                self._keep_denial(name, type_)
            return slot

    def choose(self, name: bytes, type_: int, choices: AnswerChoices, group: int) -> Slot:
        """The answer for the first query of a group."""
        with self.lock:
            at = self._service_at(name)
            reader = self._reader(name[at:]) if name[at:] in self.services else None
            if reader is None:
                return NO_DATA
            if self._groups.get(reader.service.profile) is not choices.groups:
                group = 0  # the Service has just changed, and its groups with it
            result = reader.find(labels_of(name[:at] + b"\0"), type_, group)
            slot = choices.slots[group] = self._slot(result.content) if result and result.content else NO_DATA
            return slot

    def _find(self, name: bytes, type_: int) -> Slot | NegativeAnswer:
        if (encoded := self.names.get(name)) is not None:
            answer = ipc.decode_records(encoded).get(type_)
            return self._keep(b"", name, type_, self._slot(answer) if answer else NO_DATA)
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
        """Names below `_zone` are not kept: clients can make up any number of them."""
        owner, labels = name[at:], labels_of(name[:at] + b"\0")
        zonal = bool(labels) and labels[-1] == b"_zone"
        if not zonal and len(labels) > 2:
            return NegativeAnswer.NO_NAME
        if not zonal and len(labels) == 1 and not service_records.may_contain(self.services[owner], labels[0]):
            return NegativeAnswer.NO_NAME
        reader = self._reader(owner)
        result = reader.find(labels, type_)
        if result is None:
            return NegativeAnswer.NO_NAME
        slot = self._slot(result.content) if result.content and not result.varies else NO_DATA
        if result.varies:
            if len(self._near) >= _MAX_NEAR:
                self._near.clear()
            service = reader.service
            near = self._near.setdefault(service.near, service.near)
            slot = (None, b"", 0, b"", AnswerChoices(self._groups[service.profile], near, [None] * len(near)))
        return slot if zonal else self._keep(owner, name, type_, slot)

    def _keep(self, owner: bytes, name: bytes, type_: int, slot: Slot) -> Slot:
        tail = QUESTIONS.get(type_)
        if tail:
            if len(self.answers) >= MAX_ANSWERS:
                self._drop_answers()
            self.answers[name + tail] = slot
            if owner:
                self._answered.setdefault(owner, []).append(name + tail)
        return slot

    def _keep_denial(self, name: bytes, type_: int) -> None:
        """Until the Service that the name would belong to is created or changes."""
        if self._denials >= MAX_DENIALS:
            self._drop_denials()
        self._denials += 1
        at, question = self._service_at(name), name + QUESTIONS[type_]
        self.answers[question] = NO_NAME
        self._denied.setdefault(name[at:] if at >= 0 else b"", []).append(question)

    def _drop_denials(self) -> None:
        for questions in self._denied.values():
            for question in questions:
                self.answers.pop(question, None)
        self._denied.clear()
        self._denials = 0

    def _drop_answers(self) -> None:
        self._drop_denials()
        self.answers.clear()
        self._answered.clear()

    def _reader(self, name: bytes) -> RecordReader:
        """The last few are kept: clients query several names, types and groups of a Service in succession."""
        reader = self._readers.pop(name, None)
        if reader is None:
            reader = RecordReader(name, service_records.decode(self.services[name]), self.ttl)
        self._readers[name] = reader
        if len(self._readers) > _MAX_READERS:
            del self._readers[next(iter(self._readers))]
        return reader

    def _slot(self, content: WireAnswer | AliasRecord) -> Slot:
        if isinstance(content, AliasRecord):
            headers, alias, *_ = self._slot(content.answer)
            return headers, alias, 0, b"", content.target
        headers = self.headers(Rcode.NOERROR, content.record_count, 0, content.glue_count)
        return headers, content.records, content.stride, content.glue, None

    def _service_at(self, name: bytes) -> int:
        """The offset of the Service's name in a name that may belong to a Service; else -1."""
        end = len(name) - len(self.domain) - 4  # before `svc`
        before, last, at = -1, -1, 0
        while at < end:
            before, last, at = last, at, at + name[at] + 1
        return before if before >= 0 and at == end and name.endswith(self.domain) else -1

    def _targets(self, name: bytes) -> tuple[bytes, ...]:
        """PTR targets: the Service with that cluster IP, or every endpoint with the address."""
        address = address_of(name)
        if address is None:
            return ()
        if services := self._reverse.cluster_ips.of(address):
            return services[:1]
        owners = self._reverse.endpoints.of(address)
        return tuple(
            dict.fromkeys(host for owner in owners for ip, host in self._reader(owner).hosts() if ip == address)
        )

    def _pod(self, name: bytes, type_: int) -> Slot | NegativeAnswer:
        from zonewise.dns.decide.pod_records import pod_answer  # noqa: PLC0415 - few servers need it

        label, parent = name[1 : name[0] + 1], name[name[0] + 1 :]
        content = pod_answer(label, self.ttl) if parent in self.namespaces_of_pods else None
        if content is None:
            return NegativeAnswer.NO_NAME
        return self._slot(content[type_]) if type_ in content else NO_DATA

    def is_ours(self, name: bytes) -> bool:
        """Whether a name is in the cluster's domain. Comparing the last bytes is not enough: a label may contain them."""
        if not name.endswith(self.domain):
            return False
        at, begin = 0, len(name) - len(self.domain)
        while at < begin:
            at += name[at] + 1
        return at == begin


def _locate_pods(pods: dict[bytes, str], changes: list[tuple[bytes, bytes]]) -> None:
    """Workers don't forget their clients for it: they do so every second, and a pod does not move."""
    for address, node in changes:
        if node:
            pods[address] = intern(node.decode())
        else:
            pods.pop(address, None)
