"""What is to be said about a claim's volume: its pool and why, who reaches it, and what a takeover would change. Pure.

From Kubernetes' objects alone: the driver leaves pool, domain and reason in the volume's attributes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from zonewise.api.names import CSI_TAKEOVER_PREFIX
from zonewise.ceph.decide import takeover
from zonewise.ceph.decide.domains import ACTIVE, DomainLabels, Segments, describe, lies_in, segments_of
from zonewise.ceph.decide.takeover import TakeoverDomain, TakeoverMap
from zonewise.objects import Node
from zonewise.topology import NodeSelector, is_ready


class VolumeReach(msgspec.Struct, frozen=True, rename="camel"):
    """The nodes of one domain that reach a volume. `by` says how: its domain, a takeover, or from everywhere."""

    domain: str
    by: str
    nodes: tuple[str, ...]
    ready: int


class TakeoverReport(msgspec.Struct, frozen=True, rename="camel"):
    """`entry` is who takes the volume's domain over now, as the map says it; `would` what the rest could add."""

    domain: str
    entry: str = ""
    would: tuple[VolumeReach, ...] = ()


class VolumeReport(msgspec.Struct, frozen=True, rename="camel"):
    """The JSON of `zonewise explain volume -o json`: a field is never renamed, only added."""

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
    """Of a claim without a volume: which pool a pod in which domain would get."""
    problems: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class VolumeFacts:
    """What the cluster says. `volume` is whole, since its node selector is judged as a scheduler does."""

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
"""For people: the codes that the driver leaves in volumes' attributes."""


def build_volume_report(facts: VolumeFacts) -> VolumeReport:
    spec = facts.volume["spec"]
    csi = spec["csi"]
    attributes: Mapping[str, str] = csi.get("volumeAttributes") or {}
    required = (spec.get("nodeAffinity") or {}).get("required")
    selector = NodeSelector.parse_as_scheduler(required) if required else None
    reach = _reach(facts, selector)
    domain = _domain_of(required)
    ready = sum(each.ready for each in reach)
    pool = attributes.get("pool", "")
    name = facts.volume["metadata"]["name"]
    where = f"lies in pool {pool or 'unknown'}"
    whose = f" of {describe(domain)}" if domain else ", which is reached from everywhere"
    count = sum(len(each.nodes) for each in reach)
    return VolumeReport(
        claim=facts.claim,
        sentence=f"{where}{whose}: {count} of {len(facts.nodes)} nodes reach it, {ready} of them ready",
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
        problems=(*facts.problems, *_silent(facts, domain, selector)),
    )


def _silent(facts: VolumeFacts, domain: Segments, selector: NodeSelector | None) -> list[str]:
    """Nodes that should reach it and do not say so."""
    return [
        f"{node.metadata.name} is in {describe(domain)} and does not advertise it: does the node plugin run there?"
        for node in facts.nodes
        if domain and selector and lies_in(facts.labels.segments(node.metadata.labels), domain)
        if not selector.matches(node.metadata.labels)
    ]


def _domain_of(required: Mapping[str, Any] | None) -> Segments:
    """From the term that speaks of domains; takeovers of them stand in others."""
    for term in (required or {}).get("nodeSelectorTerms", []):
        said = {each["key"]: (each.get("values") or [""])[0] for each in term.get("matchExpressions") or []}
        if segments := segments_of(said):
            return segments
    return ()


def _reach(facts: VolumeFacts, selector: NodeSelector | None) -> tuple[VolumeReach, ...]:
    found: dict[tuple[str, str], list[Node]] = {}
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
        found.setdefault((by, describe(facts.labels.segments(labels))), []).append(node)
    return tuple(_reached(domain, by, nodes) for (by, domain), nodes in sorted(found.items()))


def _reached(domain: str, by: str, nodes: Sequence[Node]) -> VolumeReach:
    return VolumeReach(domain, by, tuple(sorted(node.metadata.name for node in nodes)), sum(map(is_ready, nodes)))


def _takeover(facts: VolumeFacts, domain: TakeoverDomain, selector: NodeSelector | None) -> TakeoverReport:
    """Who would reach the volume besides, if all took its domain over."""
    everyone = TakeoverMap({domain: ()})
    added: dict[str, list[Node]] = {}
    for node in facts.nodes:
        labels = node.metadata.labels
        own = facts.labels.segments(labels)
        adopted = dict.fromkeys(takeover.adopted(everyone, own, facts.labels.names), ACTIVE)
        if selector and not selector.matches(labels) and selector.matches({**labels, **adopted}):
            added.setdefault(describe(own), []).append(node)
    return TakeoverReport(
        str(domain),
        next(
            (
                ", ".join(map(str, targets)) or takeover.ALL
                for source, targets in facts.takeovers.entries.items()
                if source.holds(((domain.name, domain.value),))
            ),
            "",
        ),
        tuple(_reached(where, "takeover", nodes) for where, nodes in sorted(added.items())),
    )


def build_unbound_report(
    claim: str, storage_class: str, pools: Sequence[tuple[str, str]], problems: Sequence[str]
) -> VolumeReport:
    """Of a claim that has no volume yet."""
    return VolumeReport(
        claim=claim,
        sentence=f"has no volume yet: class {storage_class or 'none'} makes one when a pod asks for it, or at once",
        is_reached=False,
        storage_class=storage_class,
        pools=tuple(pools),
        problems=tuple(problems),
    )
