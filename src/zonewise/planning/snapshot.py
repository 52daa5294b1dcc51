"""A cluster at one moment, as far as routing depends on it: its nodes, and for every Service what serves it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from zonewise.api.names import CONSUMER
from zonewise.errors import UsageError
from zonewise.objects import Endpoint, EndpointPort, EndpointSlice, Key, Namespace, Node, Pod, Service, View, key_of
from zonewise.objects.apps import DaemonSet, Deployment
from zonewise.planning.data_plane import STOCK, DataPlanes
from zonewise.routing import HintsForm, RoutingNodes
from zonewise.slices.decide.body import service_key
from zonewise.slices.decide.endpoints import ByPorts, endpoints_of
from zonewise.slices.decide.families import ServiceFamily, families_of
from zonewise.slices.decide.plan import has_slices
from zonewise.slices.decide.selectors import PodsByLabel

if TYPE_CHECKING:
    from zonewise.planning.forecast import ClusterForecast

KINDS: Final[Mapping[str, type[View]]] = {
    "Node": Node,
    "Namespace": Namespace,
    "Service": Service,
    "EndpointSlice": EndpointSlice,
    "Deployment": Deployment,
    "DaemonSet": DaemonSet,
}
"""What is read of a dump: nodes and Services must be there, slices or pods; namespaces tell of drained zones, workloads of
what carries Services.
"""
DUMP: Final = "kubectl get nodes,namespaces,services,endpointslices,deployments,daemonsets -A -o yaml"
"""What prints such a dump."""


def require(objects: Mapping[str, Sequence[Any]], source: str, *kinds: str) -> None:
    """Refuses a dump without any object of one of `kinds`; `source` names it."""
    for kind in kinds:
        if not objects[kind]:
            raise UsageError(f"{source}: no {kind} in it; dump `{DUMP}`")


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """A Service and its endpoints by family and ports; `slices` are there now and remember the last decision."""

    service: Service
    by_family: Mapping[ServiceFamily, ByPorts]
    slices: tuple[EndpointSlice, ...] = ()

    @property
    def key(self) -> Key:
        return key_of(self.service)

    def endpoints(self, family: ServiceFamily) -> Iterator[Endpoint]:
        for found in self.by_family[family].values():
            yield from found


@dataclass(frozen=True)
class Snapshot:
    """`changed` is empty for the cluster as it is, else what was changed in words.

    `own` where the Zonewise controller writes the slices (mode own), not the stock one; `carriers` tells who carries what.
    """

    nodes: tuple[Node, ...]
    services: tuple[ServiceSnapshot, ...]
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    own: bool = False
    carriers: DataPlanes = STOCK
    foreseen: dict[tuple[Key, HintsForm], ClusterForecast] = field(default_factory=dict, repr=False, compare=False)
    """What `outlook` found already: it is asked for more than once, and costs most of all."""

    @cached_property
    def cluster(self) -> RoutingNodes:
        return RoutingNodes.of(self.nodes)

    def recall(self, before: Snapshot, same: Container[Key]) -> None:
        """What was foreseen of the Services `same` holds here, too: neither they nor the nodes have changed since."""
        known = list(before.foreseen.items())  # at once: another thread may be looking at it, too
        self.foreseen.update((place, found) for place, found in known if place[0] in same)


def gather(
    nodes: Iterable[Node],
    services: Iterable[Service],
    slices: Iterable[EndpointSlice] = (),
    pods: Iterable[Pod] = (),
    namespaces: Iterable[Namespace] = (),
    *,
    own: bool | None = None,
    carriers: DataPlanes = STOCK,
) -> Snapshot:
    """Endpoints are those of the slices, or where there are none, of the pods.

    Who writes slices is told by those that are for one zone, unless `own` says it: no stock controller parts them so.
    """
    known = tuple(sorted(nodes, key=lambda node: node.metadata.name))
    cluster = RoutingNodes.of(known)
    by_service = _by_service(slices)
    selected = _Selected(pods)
    routed = sorted((service for service in services if has_slices(service)), key=key_of)
    served = [_served(service, by_service.get(key_of(service), []), selected, cluster) for service in routed]
    if own is None:
        own = any(is_own(found) for each in served for found in each.slices)
    told = {found.metadata.name: found for found in namespaces}
    return Snapshot(known, tuple(served), told, own=own, carriers=carriers)


def is_own(found: EndpointSlice) -> bool:
    """Whether the Zonewise controller wrote it, as far as the slice tells."""
    return CONSUMER in found.metadata.labels


def _by_service(slices: Iterable[EndpointSlice]) -> dict[Key, list[EndpointSlice]]:
    found: dict[Key, list[EndpointSlice]] = {}
    for one in slices:
        found.setdefault(service_key(one), []).append(one)
    return found


def _served(
    service: Service, slices: Sequence[EndpointSlice], selected: _Selected, cluster: RoutingNodes
) -> ServiceSnapshot:
    if slices:
        return served_by(service, slices)
    return ServiceSnapshot(
        service, endpoints_of(service, selected.by(service), cluster, families_of(service)).by_family
    )


def served_by(service: Service, slices: Iterable[EndpointSlice]) -> ServiceSnapshot:
    in_order = tuple(sorted(slices, key=lambda found: found.metadata.name))
    return ServiceSnapshot(service, {family: _by_ports(in_order, family) for family in families_of(service)}, in_order)


def _by_ports(slices: Sequence[EndpointSlice], family: ServiceFamily) -> ByPorts:
    found: dict[tuple[EndpointPort, ...], list[Endpoint]] = {}
    for one in slices:
        if one.address_type == family and one.endpoints:
            found.setdefault(one.ports or (), []).extend(one.endpoints)
    return found


class _Selected:
    """Pods by the Services that select them."""

    def __init__(self, pods: Iterable[Pod]) -> None:
        self._pods = {key_of(pod): pod for pod in pods}
        self._by_label = PodsByLabel()
        for key, pod in self._pods.items():
            self._by_label.put(key, pod.metadata.labels)

    def by(self, service: Service) -> list[Pod]:
        matching = self._by_label.matching(service.metadata.namespace, service.spec.selector or {})
        return [self._pods[key] for key in matching]
