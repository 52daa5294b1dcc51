"""CPU capacity of nodes and domains.

Decides which nodes count when traffic is shared by capacity, and gives the reason for each node that does not count.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from zonewise.api.names import ZONE
from zonewise.objects import Node
from zonewise.topology.labels import domain_of
from zonewise.topology.quantity import QuantityError, milli_value
from zonewise.topology.reason import Reason

CONTROL_PLANE_LABELS: Final = ("node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master")


@dataclass(frozen=True, slots=True)
class Capacity:
    """`cpu_millis` is None where the node does not say, or says it in a way that is not a quantity."""

    ready: bool
    schedulable: bool
    control_plane: bool
    cpu_millis: int | None


class LeftOut(StrEnum):
    """Why a node does not count; the value is the reason's stable code."""

    CONTROL_PLANE = "ControlPlane"
    NOT_READY = "NotReady"
    UNSCHEDULABLE = "Unschedulable"
    NO_DOMAIN = "NoDomain"
    NO_CPU = "NoCPU"


@dataclass(frozen=True, slots=True)
class DomainTotal:
    cpu_millis: int = 0
    nodes: int = 0

    def plus(self, cpu_millis: int) -> DomainTotal:
        return DomainTotal(self.cpu_millis + cpu_millis, self.nodes + 1)


@dataclass(frozen=True, slots=True)
class DomainCapacities:
    """Totals by domain, and by node name why the others do not count."""

    domains: Mapping[str, DomainTotal]
    left_out: Mapping[str, Reason]

    @property
    def cpu_millis(self) -> int:
        return sum(total.cpu_millis for total in self.domains.values())

    def lacking(self) -> list[str]:
        """Nodes that serve but lack a zone label or a CPU figure: shares computed without them are a guess."""
        guessed = {LeftOut.NO_DOMAIN, LeftOut.NO_CPU}
        return [name for name, reason in self.left_out.items() if reason.code in guessed]


def is_ready(node: Node) -> bool:
    return any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def is_control_plane(labels: Mapping[str, str]) -> bool:
    """True for either role label, with any value."""
    return any(label in labels for label in CONTROL_PLANE_LABELS)


def capacity_of(node: Node) -> Capacity:
    return Capacity(
        ready=is_ready(node),
        schedulable=not node.spec.unschedulable,
        control_plane=is_control_plane(node.metadata.labels),
        cpu_millis=_cpu_millis(node),
    )


def capacities_by_domain(nodes: Iterable[Node], key: str = ZONE, *, only_schedulable: bool = False) -> DomainCapacities:
    """Allocatable CPU per domain over ready nodes that are not of the control plane.

    A cordoned node still runs what it ran, so it counts unless `only_schedulable`.
    """
    domains: dict[str, DomainTotal] = {}
    left_out: dict[str, Reason] = {}
    for node in nodes:
        match _place(node, key, only_schedulable=only_schedulable):
            case LeftOut() as why:
                left_out[node.metadata.name] = Reason(why, _sentence(why, node, key), {"node": node.metadata.name})
            case domain, cpu_millis:
                domains[domain] = domains.get(domain, DomainTotal()).plus(cpu_millis)
    return DomainCapacities(domains, left_out)


def _cpu_millis(node: Node) -> int | None:
    text = node.status.allocatable.get("cpu")
    if text is None:
        return None
    try:
        return milli_value(text)
    except QuantityError:
        return None


def _place(node: Node, key: str, *, only_schedulable: bool) -> LeftOut | tuple[str, int]:
    """The domain the node counts in and its CPU, or the first reason why it does not count."""
    capacity, domain = capacity_of(node), domain_of(node.metadata.labels, key)
    if capacity.control_plane:
        return LeftOut.CONTROL_PLANE
    if not capacity.ready:
        return LeftOut.NOT_READY
    if only_schedulable and not capacity.schedulable:
        return LeftOut.UNSCHEDULABLE
    if domain is None:
        return LeftOut.NO_DOMAIN
    if capacity.cpu_millis is None or capacity.cpu_millis <= 0:
        return LeftOut.NO_CPU
    return domain, capacity.cpu_millis


def _sentence(why: LeftOut, node: Node, key: str) -> str:
    name = node.metadata.name
    match why:
        case LeftOut.CONTROL_PLANE:
            return f"node {name} belongs to the control plane"
        case LeftOut.NOT_READY:
            return f"node {name} is not ready"
        case LeftOut.UNSCHEDULABLE:
            return f"node {name} is cordoned"
        case LeftOut.NO_DOMAIN:
            return f"node {name} has no label {key}; set it to the node's domain"
        case LeftOut.NO_CPU:
            cpu = node.status.allocatable.get("cpu")
            return f"node {name} reports allocatable cpu {cpu!r}; its kubelet should report a positive quantity"
