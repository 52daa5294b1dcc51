"""A snapshot of the objects that routing depends on: nodes, and every Service with its endpoints. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

from zonewise.api.names import CONSUMER
from zonewise.errors import UsageError
from zonewise.objects import Endpoint, EndpointPort, EndpointSlice, Key, Namespace, Node, Pod, Service, View, key_of
from zonewise.objects.apps import DaemonSet, Deployment
from zonewise.objects.discovery import service_key
from zonewise.planning.data_plane import NO_OVERRIDES, STOCK, DataPlanes, Overrides, find_data_planes
from zonewise.routing import HintsForm, RoutingNodes
from zonewise.slices.decide.endpoints import ByPorts, endpoints_of
from zonewise.slices.decide.families import ServiceFamily, families_of
from zonewise.slices.decide.plan import has_slices
from zonewise.slices.decide.selectors import PodsByLabel

if TYPE_CHECKING:
    from zonewise.planning.forecast import ServiceForecast

PLANNING_KINDS: Final[Mapping[str, type[View]]] = {
    "Node": Node,
    "Namespace": Namespace,
    "Service": Service,
    "EndpointSlice": EndpointSlice,
    "Deployment": Deployment,
    "DaemonSet": DaemonSet,
}
"""Kinds read from a dump. Nodes, Services and either slices or pods are needed; namespaces name drained zones, and workloads
the data planes.
"""
DUMP_COMMAND: Final = "kubectl get nodes,namespaces,services,endpointslices,deployments,daemonsets -A -o yaml"

DumpObjects = Mapping[str, Sequence[Any]]
"""Objects by kind, as `dump.read` returns them."""


def require_kinds(objects: DumpObjects, source: str, *kinds: str) -> None:
    """Rejects a dump that lacks objects of one of `kinds`; `source` names it in the error."""
    for kind in kinds:
        if not objects[kind]:
            raise UsageError(f"{source}: no {kind} in it; dump `{DUMP_COMMAND}`")


@dataclass(frozen=True, slots=True)
class ServiceSnapshot:
    """A Service and its endpoints by family and ports. `slices` are the present ones; their hints show the last decision."""

    service: Service
    by_family: Mapping[ServiceFamily, ByPorts]
    slices: tuple[EndpointSlice, ...] = ()

    @property
    def key(self) -> Key:
        return key_of(self.service)

    def endpoints(self, family: ServiceFamily) -> Iterator[Endpoint]:
        for endpoints in self.by_family[family].values():
            yield from endpoints


@dataclass(frozen=True)
class Snapshot:
    """`changed` describes each what-if change; it is empty for the cluster as it is.

    `own`: the Zonewise controller writes the slices (mode own), not the stock one.
    """

    nodes: tuple[Node, ...]
    services: tuple[ServiceSnapshot, ...]
    namespaces: Mapping[str, Namespace] = field(default_factory=dict)
    changed: tuple[str, ...] = ()
    own: bool = False
    data_planes: DataPlanes = STOCK
    forecasts: dict[tuple[Key, HintsForm], ServiceForecast] = field(default_factory=dict, repr=False, compare=False)
    """Cache of `forecast_services`, the costliest computation, which several callers ask for."""

    @cached_property
    def cluster(self) -> RoutingNodes:
        return RoutingNodes.of(self.nodes)

    def reuse_forecasts(self, before: Snapshot, unchanged: Container[Key]) -> None:
        """Takes over the forecasts of `unchanged` Services. Neither they nor the nodes may have changed since."""
        forecasts = list(before.forecasts.items())  # a copy: another thread may be adding to it
        self.forecasts.update((key, forecast) for key, forecast in forecasts if key[0] in unchanged)


def build_snapshot(
    nodes: Iterable[Node],
    services: Iterable[Service],
    slices: Iterable[EndpointSlice] = (),
    pods: Iterable[Pod] = (),
    namespaces: Iterable[Namespace] = (),
    *,
    own: bool | None = None,
    data_planes: DataPlanes = STOCK,
) -> Snapshot:
    """Endpoints come from the slices; for a Service without slices, from the pods.

    Without `own`, a slice made for one zone means mode own: the stock controller never groups endpoints by consumer.
    """
    sorted_nodes = tuple(sorted(nodes, key=lambda node: node.metadata.name))
    cluster = RoutingNodes.of(sorted_nodes)
    by_service = _by_service(slices)
    pod_index = _PodIndex(pods)
    with_slices = sorted((service for service in services if has_slices(service)), key=key_of)
    snapshots = tuple(
        _snapshot(service, by_service.get(key_of(service), []), pod_index, cluster) for service in with_slices
    )
    if own is None:
        own = any(is_own(slice_) for snapshot in snapshots for slice_ in snapshot.slices)
    by_name = {namespace.metadata.name: namespace for namespace in namespaces}
    return Snapshot(sorted_nodes, snapshots, by_name, own=own, data_planes=data_planes)


def build_from_dump(
    objects: DumpObjects, pods: Iterable[Pod] = (), *, own: bool | None = None, overrides: Overrides = NO_OVERRIDES
) -> Snapshot:
    return build_snapshot(
        objects["Node"],
        objects["Service"],
        objects["EndpointSlice"],
        pods,
        objects["Namespace"],
        own=own,
        data_planes=overrides.apply_to(find_data_planes([*objects["Deployment"], *objects["DaemonSet"]])),
    )


def is_own(slice_: EndpointSlice) -> bool:
    """Whether the Zonewise controller wrote the slice, judged by its labels."""
    return CONSUMER in slice_.metadata.labels


def _by_service(slices: Iterable[EndpointSlice]) -> dict[Key, list[EndpointSlice]]:
    by_service: dict[Key, list[EndpointSlice]] = {}
    for slice_ in slices:
        by_service.setdefault(service_key(slice_), []).append(slice_)
    return by_service


def _snapshot(
    service: Service, slices: Sequence[EndpointSlice], pods: _PodIndex, cluster: RoutingNodes
) -> ServiceSnapshot:
    if slices:
        return snapshot_service(service, slices)
    endpoints = endpoints_of(service, pods.selected_by(service), cluster, families_of(service))
    return ServiceSnapshot(service, endpoints.by_family)


def snapshot_service(service: Service, slices: Iterable[EndpointSlice]) -> ServiceSnapshot:
    ordered = tuple(sorted(slices, key=lambda slice_: slice_.metadata.name))
    return ServiceSnapshot(service, {family: _by_ports(ordered, family) for family in families_of(service)}, ordered)


def _by_ports(slices: Sequence[EndpointSlice], family: ServiceFamily) -> ByPorts:
    by_ports: dict[tuple[EndpointPort, ...], list[Endpoint]] = {}
    for slice_ in slices:
        if slice_.address_type == family and slice_.endpoints:
            by_ports.setdefault(slice_.ports or (), []).extend(slice_.endpoints)
    return by_ports


class _PodIndex:
    """Finds the pods that a Service selects."""

    def __init__(self, pods: Iterable[Pod]) -> None:
        self._pods = {key_of(pod): pod for pod in pods}
        self._by_label = PodsByLabel()
        for key, pod in self._pods.items():
            self._by_label.put(key, pod.metadata.labels)

    def selected_by(self, service: Service) -> list[Pod]:
        keys = self._by_label.matching(service.metadata.namespace, service.spec.selector or {})
        return [self._pods[key] for key in keys]
