"""Domains as CSI speaks of them: what a node advertises, what a request asks for, where a volume can be reached. Pure.

A node says in which domains it is by its Kubernetes labels, which `zonewise.topology` reads. CSI calls them segments:
`topology.ceph.zonewise.dev/zone: zone-a`. Inside the driver they are pairs of a short name and a value, the widest
domain first, so that `(("region", "eu"), ("zone", "eu-1"))` lies in `(("region", "eu"),)`.

Kubernetes keeps where a volume can be reached in its PersistentVolume, which nobody may change afterwards, and a node
has one value per label. So that other nodes can take over a domain that failed, a volume is given two ways to be
reached from the start: from its domain, or from a node that carries the label of its domain's takeover, which no node
has until somebody asks for it. `zonewise.ceph.decide.takeover` says which nodes those are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from zonewise.api.names import CSI_TAKEOVER_PREFIX, CSI_TOPOLOGY_PREFIX
from zonewise.errors import UsageError
from zonewise.topology import canonical_key, domain_of, key_problem

ACTIVE: Final = "active"
"""The value of every takeover label: its key says which domain it is."""

UNLABELLED: Final = f"{CSI_TOPOLOGY_PREFIX}unlabelled"
"""What a node without domains advertises: whoever provisions refuses nodes that advertise nothing at all."""

Segments = tuple[tuple[str, str], ...]
"""Short names of labels and values, the widest domain first."""

_LONGEST_NAME: Final = 63
_DIGEST_LENGTH: Final = 10


@dataclass(frozen=True, slots=True)
class DomainLabels:
    """The node labels that make domains, the widest first, under today's spelling."""

    keys: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> DomainLabels:
        """Of `--domain-labels "a;b;c"`."""
        keys = tuple(canonical_key(part.strip()) for part in text.split(";") if part.strip())
        if not keys:
            raise UsageError(f"--domain-labels {text!r} names no label: write some with ';' between them")
        seen: dict[str, str] = {}
        for key in keys:
            if problem := key_problem(key):
                raise UsageError(f"--domain-labels: {problem}")
            short = short_name(key)
            if short in seen:
                same = "twice" if seen[short] == key else f"and {seen[short]}, which both end in {short!r}"
                raise UsageError(
                    f"--domain-labels names {key} {same}: each must have a name of its own after the slash"
                )
            if f"{CSI_TOPOLOGY_PREFIX}{short}" == UNLABELLED:
                raise UsageError(f"--domain-labels: {key} has a name that the driver uses itself")
            seen[short] = key
        return cls(keys)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(short_name(key) for key in self.keys)

    def segments(self, labels: Mapping[str, str]) -> Segments:
        """The domains of a node; those whose label it lacks are left out."""
        found = ((short_name(key), domain_of(labels, key)) for key in self.keys)
        return tuple((name, value) for name, value in found if value)

    def advertised(self, labels: Mapping[str, str]) -> dict[str, str]:
        """What the node plugin says of a node with these labels: never nothing."""
        return topology_of(self.segments(labels)) or {UNLABELLED: "true"}


def short_name(label: str) -> str:
    """What a domain label is called within the driver: its name without what stands before the slash."""
    return canonical_key(label).rpartition("/")[2]


def topology_of(segments: Segments) -> dict[str, str]:
    return {f"{CSI_TOPOLOGY_PREFIX}{name}": value for name, value in segments}


def segments_of(topology: Mapping[str, str], names: Collection[str] = ()) -> Segments:
    """Of a term of a request. Its order is lost on the way, as CSI has maps here; foreign keys are not ours to read.

    A class's `allowedTopologies` are passed on as somebody wrote them, and people know their nodes' own labels: with the `names` of the
    domain labels `topology.kubernetes.io/zone` is read as well.
    """
    own = {short_name(key): value for key, value in topology.items() if "/" in key and short_name(key) in names}
    said = {
        key.removeprefix(CSI_TOPOLOGY_PREFIX): value
        for key, value in topology.items()
        if key.startswith(CSI_TOPOLOGY_PREFIX) and key != UNLABELLED
    }
    return tuple((own | said).items())


def unreadable(topology: Mapping[str, str], names: Collection[str]) -> str:
    """A key of a request's term that says nothing of our domains; what it asks for can't be given. "" if there is none."""
    for key in topology:
        if not key.startswith((CSI_TOPOLOGY_PREFIX, CSI_TAKEOVER_PREFIX)) and not (
            "/" in key and short_name(key) in names
        ):
            return key
    return ""


def lies_in(inner: Segments, outer: Segments) -> bool:
    """Whether who is in all domains of `inner` is in those of `outer`: eu-1 of eu lies in eu."""
    return set(outer) <= set(inner)


def accessible(segments: Segments) -> list[dict[str, str]]:
    """From where a volume of these domains can be reached: from inside, or from who took one of them over.

    Nothing for no domain: such a volume is reached from everywhere.
    """
    if not segments:
        return []
    return [topology_of(segments), *({takeover_key(*segment): ACTIVE} for segment in reversed(segments))]


def takeover_key(name: str, value: str) -> str:
    """The node label of those who take over a domain; names too long for a label are cut and told apart by a digest."""
    written = f"{name}.{value}"
    if len(written) > _LONGEST_NAME:
        digest = hashlib.sha256(written.encode()).hexdigest()[:_DIGEST_LENGTH]
        written = f"{written[: _LONGEST_NAME - _DIGEST_LENGTH - 1]}.{digest}"
    return f"{CSI_TAKEOVER_PREFIX}{written}"


def describe(segments: Iterable[tuple[str, str]]) -> str:
    """For people: "region=eu, zone=eu-1", or "no domain"."""
    return ", ".join(f"{name}={value}" for name, value in segments) or "no domain"
