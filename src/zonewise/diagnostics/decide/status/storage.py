"""Volumes per domain and takeovers, from what Kubernetes knows of them: volumes' node affinity and nodes' labels. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from zonewise.api.names import CSI_DRIVER, CSI_TAKEOVER_PREFIX, CSI_TOPOLOGY_PREFIX
from zonewise.diagnostics.decide.status.report import TakeoverStatus, VolumeDomain
from zonewise.objects import Node
from zonewise.objects.storage import NodeTerm, PersistentVolume
from zonewise.topology import zone_of
from zonewise.topology.quantity import QuantityError, milli_value

EVERYWHERE: Final = "everywhere"


def volumes(found: Iterable[PersistentVolume], nodes: Sequence[Node]) -> tuple[VolumeDomain, ...]:
    by_domain: dict[str, list[PersistentVolume]] = {}
    for volume in found:
        if volume.spec.csi and volume.spec.csi.driver == CSI_DRIVER:
            by_domain.setdefault(domain_of(volume), []).append(volume)
    labels = [node.metadata.labels for node in nodes]
    return tuple(
        VolumeDomain(
            domain=domain,
            volumes=len(held),
            bound=sum(volume.status.phase == "Bound" for volume in held),
            bytes=sum(_bytes(volume) for volume in held),
            nodes=sum(_reaches(held[0], each) for each in labels),
        )
        for domain, held in sorted(by_domain.items())
    )


def domain_of(volume: PersistentVolume) -> str:
    """Such as `zone=eu-1a`: the term of the domain itself, not those of who takes it over."""
    for term in _terms(volume):
        said = [
            f"{each.key.removeprefix(CSI_TOPOLOGY_PREFIX)}={','.join(each.values)}"
            for each in term.match_expressions
            if each.key.startswith(CSI_TOPOLOGY_PREFIX)
        ]
        if said:
            return ", ".join(said)
    return EVERYWHERE


def _terms(volume: PersistentVolume) -> tuple[NodeTerm, ...]:
    affinity = volume.spec.node_affinity
    return affinity.required.node_selector_terms if affinity and affinity.required else ()


def _reaches(volume: PersistentVolume, labels: Mapping[str, str]) -> bool:
    """Drivers' terms only ever say In."""
    terms = _terms(volume)
    return not terms or any(
        all(labels.get(each.key) in each.values for each in term.match_expressions) for term in terms
    )


def _bytes(volume: PersistentVolume) -> int:
    try:
        return milli_value(volume.spec.capacity.get("storage", "0")) // 1000
    except QuantityError:
        return 0


def takeovers(nodes: Iterable[Node]) -> tuple[TakeoverStatus, ...]:
    serving: dict[str, list[Node]] = {}
    for node in nodes:
        for label in node.metadata.labels:
            if label.startswith(CSI_TAKEOVER_PREFIX):
                kind, _, domain = label.removeprefix(CSI_TAKEOVER_PREFIX).partition(".")
                serving.setdefault(f"{kind}={domain}", []).append(node)
    return tuple(
        TakeoverStatus(
            domain=domain,
            targets=tuple(sorted({zone for node in by if (zone := zone_of(node.metadata.labels))})),
            nodes=len(by),
        )
        for domain, by in sorted(serving.items())
    )
