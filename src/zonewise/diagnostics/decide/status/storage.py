"""Volumes per domain, and takeovers, from the volumes' node affinity and the nodes' labels. Pure."""

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


def volume_domains(volumes: Iterable[PersistentVolume], nodes: Sequence[Node]) -> tuple[VolumeDomain, ...]:
    by_domain: dict[str, list[PersistentVolume]] = {}
    for volume in volumes:
        if volume.spec.csi and volume.spec.csi.driver == CSI_DRIVER:
            by_domain.setdefault(domain_of(volume), []).append(volume)
    labels = [node.metadata.labels for node in nodes]
    return tuple(
        VolumeDomain(
            domain=domain,
            volumes=len(members),
            bound=sum(volume.status.phase == "Bound" for volume in members),
            bytes=sum(_bytes(volume) for volume in members),
            nodes=sum(_reaches(members[0], node_labels) for node_labels in labels),
        )
        for domain, members in sorted(by_domain.items())
    )


def domain_of(volume: PersistentVolume) -> str:
    """Such as `zone=eu-1a`: from the term of the domain itself, not from those of takeovers."""
    for term in _terms(volume):
        segments = [
            f"{requirement.key.removeprefix(CSI_TOPOLOGY_PREFIX)}={','.join(requirement.values)}"
            for requirement in term.match_expressions
            if requirement.key.startswith(CSI_TOPOLOGY_PREFIX)
        ]
        if segments:
            return ", ".join(segments)
    return EVERYWHERE


def _terms(volume: PersistentVolume) -> tuple[NodeTerm, ...]:
    affinity = volume.spec.node_affinity
    return affinity.required.node_selector_terms if affinity and affinity.required else ()


def _reaches(volume: PersistentVolume, labels: Mapping[str, str]) -> bool:
    """The driver's terms use only the operator In."""
    terms = _terms(volume)
    return not terms or any(
        all(labels.get(requirement.key) in requirement.values for requirement in term.match_expressions)
        for term in terms
    )


def _bytes(volume: PersistentVolume) -> int:
    try:
        return milli_value(volume.spec.capacity.get("storage", "0")) // 1000
    except QuantityError:
        return 0


def takeover_statuses(nodes: Iterable[Node]) -> tuple[TakeoverStatus, ...]:
    serving: dict[str, list[Node]] = {}
    for node in nodes:
        for label in node.metadata.labels:
            if label.startswith(CSI_TAKEOVER_PREFIX):
                kind, _, domain = label.removeprefix(CSI_TAKEOVER_PREFIX).partition(".")
                serving.setdefault(f"{kind}={domain}", []).append(node)
    return tuple(
        TakeoverStatus(
            domain=domain,
            targets=tuple(sorted({zone for node in takers if (zone := zone_of(node.metadata.labels))})),
            nodes=len(takers),
        )
        for domain, takers in sorted(serving.items())
    )
