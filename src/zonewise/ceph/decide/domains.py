"""CSI topology: what a node advertises, what a request requires, and from where a volume is accessible. Pure.

A node's domains are its Kubernetes labels, read by `zonewise.topology`. CSI calls them segments:
`topology.ceph.zonewise.dev/zone: zone-a`. Inside the driver they are pairs of a short name and a value, widest domain
first, so `(("region", "eu"), ("zone", "eu-1"))` is within `(("region", "eu"),)`.

Kubernetes stores a volume's accessible topology in its PersistentVolume, which is immutable, and a node has one value
per label. So that nodes of another domain can take over a failed one, a volume gets two topologies when it is created:
its own domain, or any node with the takeover label of that domain. No node has that label until a takeover is
requested; `zonewise.ceph.decide.takeover` decides which nodes get it.
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
"""The value of every takeover label; the key names the domain."""

UNLABELLED: Final = f"{CSI_TOPOLOGY_PREFIX}unlabelled"
"""Advertised by a node without domains: csi-provisioner rejects nodes without any topology key."""

Segments = tuple[tuple[str, str], ...]
"""Pairs of a label's short name and value, widest domain first."""

_LONGEST_NAME: Final = 63
_DIGEST_LENGTH: Final = 10


@dataclass(frozen=True, slots=True)
class DomainLabels:
    """The node labels that define domains, widest first, under their current (not beta) keys."""

    keys: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> DomainLabels:
        """From `--domain-labels "a;b;c"`."""
        keys = tuple(canonical_key(part.strip()) for part in text.split(";") if part.strip())
        if not keys:
            raise UsageError(f"--domain-labels {text!r} names no label: list label keys, separated by ';'")
        keys_by_name: dict[str, str] = {}
        for key in keys:
            if problem := key_problem(key):
                raise UsageError(f"--domain-labels: {problem}")
            short = short_name(key)
            if short in keys_by_name:
                clash = (
                    "twice" if keys_by_name[short] == key else f"and {keys_by_name[short]}, which both end in {short!r}"
                )
                raise UsageError(f"--domain-labels names {key} {clash}: the part after the slash must be unique")
            if f"{CSI_TOPOLOGY_PREFIX}{short}" == UNLABELLED:
                raise UsageError(f"--domain-labels: {key} ends in a name that the driver reserves")
            keys_by_name[short] = key
        return cls(keys)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(short_name(key) for key in self.keys)

    def segments(self, labels: Mapping[str, str]) -> Segments:
        """The domains of a node; domains without a label on the node are left out."""
        pairs = ((short_name(key), domain_of(labels, key)) for key in self.keys)
        return tuple((name, value) for name, value in pairs if value)

    def advertised(self, labels: Mapping[str, str]) -> dict[str, str]:
        """The topology of a node with these labels; never empty."""
        return topology_of(self.segments(labels)) or {UNLABELLED: "true"}


def short_name(label: str) -> str:
    """A domain label's key without its prefix: `zone` for `topology.kubernetes.io/zone`."""
    return canonical_key(label).rpartition("/")[2]


def topology_of(segments: Segments) -> dict[str, str]:
    return {f"{CSI_TOPOLOGY_PREFIX}{name}": value for name, value in segments}


def segments_of(topology: Mapping[str, str], names: Collection[str] = ()) -> Segments:
    """From a topology term of a request, in any order, since CSI uses a map. Keys of other drivers are ignored.

    A class's `allowedTopologies` are passed on unchanged and may use the nodes' own labels: with the `names` of the
    domain labels, `topology.kubernetes.io/zone` is accepted as well.
    """
    node_labels = {short_name(key): value for key, value in topology.items() if "/" in key and short_name(key) in names}
    driver_labels = {
        key.removeprefix(CSI_TOPOLOGY_PREFIX): value
        for key, value in topology.items()
        if key.startswith(CSI_TOPOLOGY_PREFIX) and key != UNLABELLED
    }
    return tuple((node_labels | driver_labels).items())


def unknown_key(topology: Mapping[str, str], names: Collection[str]) -> str:
    """The first key of a topology term that is no domain of this driver; "" if there is none."""
    for key in topology:
        if not key.startswith((CSI_TOPOLOGY_PREFIX, CSI_TAKEOVER_PREFIX)) and not (
            "/" in key and short_name(key) in names
        ):
            return key
    return ""


def is_within(inner: Segments, outer: Segments) -> bool:
    """Whether `inner` is part of `outer`: eu-1 of eu is within eu."""
    return set(outer) <= set(inner)


def accessible_topology(segments: Segments) -> list[dict[str, str]]:
    """The accessible topology of a volume: its domains, or a node that took one of them over.

    Empty without a domain: such a volume is accessible from every node.
    """
    if not segments:
        return []
    return [topology_of(segments), *({takeover_key(*segment): ACTIVE} for segment in reversed(segments))]


def takeover_key(name: str, value: str) -> str:
    """The label of nodes that take over a domain; a name too long for a label is cut and ends in a digest."""
    label = f"{name}.{value}"
    if len(label) > _LONGEST_NAME:
        digest = hashlib.sha256(label.encode()).hexdigest()[:_DIGEST_LENGTH]
        label = f"{label[: _LONGEST_NAME - _DIGEST_LENGTH - 1]}.{digest}"
    return f"{CSI_TAKEOVER_PREFIX}{label}"


def describe(segments: Iterable[tuple[str, str]]) -> str:
    """For messages: "region=eu, zone=eu-1", or "no domain"."""
    return ", ".join(f"{name}={value}" for name, value in segments) or "no domain"
