"""Routing of one Service, explained from a live cluster or from the objects of a dump."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.diagnostics.decide.explain.service import build_service_report
from zonewise.diagnostics.decide.explain.service_report import ServiceReport
from zonewise.diagnostics.read.plan import read_data_planes
from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.errors import ZonewiseError
from zonewise.objects import (
    ENDPOINT_SLICES,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_NAME,
    SERVICES,
    EndpointSlice,
    Key,
    Namespace,
    Node,
    Pod,
    Service,
    key_of,
)
from zonewise.objects.discovery import service_key
from zonewise.planning.data_plane import NO_OVERRIDES, DataPlanes, Overrides, find_data_planes
from zonewise.planning.snapshot import require_kinds
from zonewise.routing import HintsForm


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceQuery:
    """`pod` or `node` is where the client runs; neither stands for all clients."""

    service: Key
    pod: Key | None = None
    node: str = ""
    overrides: Overrides = NO_OVERRIDES
    hints: HintsForm = HintsForm.STABLE


async def explain_service(reader: ClusterReader, query: ServiceQuery) -> ServiceReport:
    key = query.service
    service = await reader.find(SERVICES, key.name, key.namespace)
    if service is None:
        raise ZonewiseError(_no_service(key, map(key_of, await reader.list(SERVICES))))
    nodes, slices, namespace, data_planes, client_node = await asyncio.gather(
        reader.list(NODES),
        reader.list(ENDPOINT_SLICES, key.namespace, selector=f"{SERVICE_NAME}={key.name}"),
        reader.get_or_none(NAMESPACES, key.namespace),  # if forbidden, assume no drained zones
        read_data_planes(reader),
        _read_client_node(reader, query),
    )
    namespaces = [namespace] if namespace else []
    return _explain(query, service, slices, nodes, namespaces, client_node, data_planes)


async def _read_client_node(reader: ClusterReader, query: ServiceQuery) -> str:
    if query.pod is None:
        return query.node
    missing = f"no pod {query.pod}; `kubectl get pods -n {query.pod.namespace}` lists them"
    return _node_of(await reader.get(PODS, query.pod.name, query.pod.namespace, missing=missing))


def explain_service_from_dump(objects: Mapping[str, Sequence[Any]], source: str, query: ServiceQuery) -> ServiceReport:
    """`objects` by kind, as `dump.read` returns them."""
    services: Sequence[Service] = objects["Service"]
    service = next((service for service in services if key_of(service) == query.service), None)
    if service is None:
        raise ZonewiseError(f"{source}: {_no_service(query.service, map(key_of, services))}")
    require_kinds(objects, source, "Node", "EndpointSlice")
    slices = [slice_ for slice_ in objects["EndpointSlice"] if service_key(slice_) == query.service]
    client_node = _client_node_in(objects.get("Pod", ()), source, query.pod) if query.pod else query.node
    data_planes = find_data_planes([*objects["Deployment"], *objects["DaemonSet"]])
    return _explain(query, service, slices, objects["Node"], objects["Namespace"], client_node, data_planes)


def _client_node_in(pods: Iterable[Pod], source: str, key: Key) -> str:
    pod = next((pod for pod in pods if key_of(pod) == key), None)
    if pod is None:
        raise ZonewiseError(f"{source}: no pod {key} in it; add pods to the dump, or use --from-node")
    return _node_of(pod)


def _node_of(pod: Pod) -> str:
    if not pod.spec.node_name:
        raise ZonewiseError(f"pod {key_of(pod)} is not scheduled to a node yet; try again when it is")
    return pod.spec.node_name


def _explain(
    query: ServiceQuery,
    service: Service,
    slices: Sequence[EndpointSlice],
    nodes: Sequence[Node],
    namespaces: Sequence[Namespace],
    client_node: str,
    data_planes: DataPlanes,
) -> ServiceReport:
    names = [node.metadata.name for node in nodes]
    if client_node and client_node not in names:
        near = difflib.get_close_matches(client_node, names, n=1)
        suggestion = f"; did you mean {near[0]}?" if near else ""
        raise ZonewiseError(f"no node {client_node}{suggestion}; `kubectl get nodes` lists them")
    client = f"node {client_node}" if client_node else ""
    return build_service_report(
        service,
        slices,
        nodes,
        namespaces,
        client=f"pod {query.pod} on {client}" if query.pod else client,
        node=client_node,
        data_planes=query.overrides.apply_to(data_planes),
        hints=query.hints,
    )


def _no_service(key: Key, services: Iterable[Key]) -> str:
    """Names a Service of that name in another namespace, or the one with the nearest name."""
    keys = list(services)
    same_name = [str(other) for other in keys if other.name == key.name]
    same_namespace = [other.name for other in keys if other.namespace == key.namespace]
    near = difflib.get_close_matches(key.name, same_namespace, n=1)
    if same_name:
        return f"no Service {key}; there is {', '.join(same_name[:3])}: name its namespace with -n"
    if near:
        return f"no Service {key}; did you mean {key.namespace}/{near[0]}?"
    some = ", ".join(map(str, keys[:3]))
    return f"no Service {key}; there {'are' if len(keys) > 1 else 'is'} {some or 'none'}{' and others' if len(keys) > 3 else ''}"
