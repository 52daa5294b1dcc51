"""Explanation of a claim's volume: its pool and why, the nodes that reach it, and the effect of a takeover. Pure.

It needs Kubernetes objects only: the driver stores pool, domain and reason in the volume's attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from zonewise.api.names import CSI_TAKEOVER_PREFIX
from zonewise.ceph.decide import takeover
from zonewise.ceph.decide.domains import ACTIVE, DomainLabels, Segments, describe, is_within, segments_of
from zonewise.ceph.decide.takeover import TakeoverDomain, TakeoverMap
from zonewise.objects import Node
from zonewise.topology import NodeSelector, is_ready


class VolumeReach(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes of one domain that reach a volume. `by`: its domain, a takeover, or from everywhere."""

    domain: str
    by: str
    nodes: tuple[str, ...]
    ready: int


class TakeoverReport(msgspec.Struct, frozen=True, rename="camel"):
    """`entry`: domains that take the volume's domain over now, as in the map. `would`: nodes that more takeovers would add."""

    domain: str
    entry: str = ""
    would: tuple[VolumeReach, ...] = ()


class VolumeReport(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON of `zonewise explain volume -o json`: fields are added, never renamed."""

    claim: str
    sentence: str
    is_reached: bool
    volume: str = ""
    handle: str = ""
    storage_class: str = ""
    pool: str = ""
    domain: str = ""
    reason: str = ""
    attributes: Mapping[str, str] = {}
    reach: tuple[VolumeReach, ...] = ()
    takeovers: tuple[TakeoverReport, ...] = ()
    pools: tuple[tuple[str, str], ...] = ()
    """For a claim without a volume: the pool by domain of its first pod."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """`volume` is the whole object: its node selector is evaluated as by the scheduler."""

    claim: str
    volume: Mapping[str, Any]
    nodes: Sequence[Node]
    labels: DomainLabels
    takeovers: TakeoverMap
    problems: tuple[str, ...] = ()


REASONS: Mapping[str, str] = {
    "OnlyPool": "it was the only pool that its class has for the request",
    "PreferredDomain": "it is the pool of the domain of the pod that the volume was made for",
    "AnyDomain": "no domain was asked for, so any pool would do",
    "UnknownDomain": "its class has no pool for the domain that was asked for, so any pool would do",
    "SourceDomain": "it is where the volume or snapshot lies that it was copied from",
}
"""Sentences for the codes in volumes' attributes."""


def build_volume_report(facts: VolumeFacts) -> VolumeReport:
    spec = facts.volume["spec"]
    csi = spec["csi"]
    attributes: Mapping[str, str] = csi.get("volumeAttributes") or {}
    required = (spec.get("nodeAffinity") or {}).get("required")
    selector = NodeSelector.parse_as_scheduler(required) if required else None
    reach = _reach(facts, selector)
    domain = _domain_of(required)
    ready = sum(group.ready for group in reach)
    pool = attributes.get("pool", "")
    name = facts.volume["metadata"]["name"]
    where = f"lies in pool {pool or 'unknown'}"
    of_domain = f" of {describe(domain)}" if domain else ", which is reached from everywhere"
    count = sum(len(group.nodes) for group in reach)
    return VolumeReport(
        claim=facts.claim,
        sentence=f"{where}{of_domain}: {count} of {len(facts.nodes)} nodes reach it, {ready} of them ready",
        is_reached=ready > 0,
        volume=name,
        handle=csi.get("volumeHandle", ""),
        storage_class=spec.get("storageClassName", ""),
        pool=pool,
        domain=describe(domain) if domain else "",
        reason=REASONS.get(attributes.get("reason", ""), attributes.get("reason", "")),
        attributes=dict(attributes),
        reach=reach,
        takeovers=tuple(_takeover(facts, TakeoverDomain(value, label), selector) for label, value in reversed(domain)),
        problems=(*facts.problems, *_not_advertising(facts, domain, selector)),
    )


def _not_advertising(facts: VolumeFacts, domain: Segments, selector: NodeSelector | None) -> list[str]:
    """Nodes that should reach the volume, but do not advertise its domain."""
    return [
        f"{node.metadata.name} is in {describe(domain)} and does not advertise it: does the node plugin run there?"
        for node in facts.nodes
        if domain and selector and is_within(facts.labels.segments(node.metadata.labels), domain)
        if not selector.matches(node.metadata.labels)
    ]


def _domain_of(required: Mapping[str, Any] | None) -> Segments:
    """From the term of the domain itself; takeovers are in other terms."""
    for term in (required or {}).get("nodeSelectorTerms", []):
        expressions = term.get("matchExpressions") or []
        values = {expression["key"]: (expression.get("values") or [""])[0] for expression in expressions}
        if segments := segments_of(values):
            return segments
    return ()


def _reach(facts: VolumeFacts, selector: NodeSelector | None) -> tuple[VolumeReach, ...]:
    groups: dict[tuple[str, str], list[Node]] = {}
    for node in facts.nodes:
        labels = node.metadata.labels
        if selector is None:
            by = "everywhere"
        elif selector.matches({key: value for key, value in labels.items() if not key.startswith(CSI_TAKEOVER_PREFIX)}):
            by = "its domain"
        elif selector.matches(labels, node.metadata.name):
            by = "takeover"
        else:
            continue
        groups.setdefault((by, describe(facts.labels.segments(labels))), []).append(node)
    return tuple(_volume_reach(domain, by, nodes) for (by, domain), nodes in sorted(groups.items()))


def _volume_reach(domain: str, by: str, nodes: Sequence[Node]) -> VolumeReach:
    return VolumeReach(domain, by, tuple(sorted(node.metadata.name for node in nodes)), sum(map(is_ready, nodes)))


def _takeover(facts: VolumeFacts, domain: TakeoverDomain, selector: NodeSelector | None) -> TakeoverReport:
    """The nodes that would also reach the volume if every domain took its domain over."""
    everyone = TakeoverMap({domain: ()})
    added: dict[str, list[Node]] = {}
    for node in facts.nodes:
        labels = node.metadata.labels
        own = facts.labels.segments(labels)
        adopted = dict.fromkeys(takeover.taken_over_labels(everyone, own, facts.labels.names), ACTIVE)
        if selector and not selector.matches(labels) and selector.matches({**labels, **adopted}):
            added.setdefault(describe(own), []).append(node)
    return TakeoverReport(
        str(domain),
        next(
            (
                ", ".join(map(str, targets)) or takeover.ALL
                for source, targets in facts.takeovers.entries.items()
                if source.matches(((domain.name, domain.value),))
            ),
            "",
        ),
        tuple(_volume_reach(where, "takeover", nodes) for where, nodes in sorted(added.items())),
    )


def build_unbound_report(
    claim: str, storage_class: str, pools: Sequence[tuple[str, str]], problems: Sequence[str]
) -> VolumeReport:
    """For a claim that has no volume yet."""
    return VolumeReport(
        claim=claim,
        sentence=f"has no volume yet: class {storage_class or 'none'} makes one when a pod asks for it, or at once",
        is_reached=False,
        storage_class=storage_class,
        pools=tuple(pools),
        problems=tuple(problems),
    )
