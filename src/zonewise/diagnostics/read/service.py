"""Reads what it takes to explain one Service, once: from a cluster, or from the objects of a dump."""

from __future__ import annotations

import asyncio
import difflib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from zonewise.diagnostics.decide.explain import service as service_
from zonewise.diagnostics.decide.explain.service_report import ServiceReport
from zonewise.diagnostics.read import plan
from zonewise.errors import ZonewiseError
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden, NotFound
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
from zonewise.planning.data_plane import UNTOLD, DataPlanes, Overrides, carriers_of
from zonewise.planning.snapshot import require
from zonewise.routing import HintsForm
from zonewise.slices.decide.body import service_key


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReadings:
    """`pod` or `node` is where the client is, or neither for all clients."""

    service: Key
    pod: Key | None = None
    node: str = ""
    told: Overrides = UNTOLD
    hints: HintsForm = HintsForm.STABLE


async def inquire(client: Client, inquiry: ServiceReadings) -> ServiceReport:
    key = inquiry.service
    try:
        service = await client.get(SERVICES, key.name, key.namespace)
    except NotFound:
        known = [key_of(each) for each in (await client.list(SERVICES)).items]
        raise ZonewiseError(_missing(key, known)) from None
    nodes, slices, namespace, carriers = await asyncio.gather(
        client.list(NODES),
        client.list(ENDPOINT_SLICES, key.namespace, selector=f"{SERVICE_NAME}={key.name}"),
        _namespace(client, key.namespace),
        plan.read_carriers(client),
    )
    home = await _home(client, inquiry.pod)
    return _explain(inquiry, service, slices.items, nodes.items, namespace, home, carriers)


async def _namespace(client: Client, name: str) -> list[Namespace]:
    """Who may not read it takes it to drain no zone."""
    try:
        return [await client.get(NAMESPACES, name)]
    except Forbidden:
        return []


async def _home(client: Client, pod: Key | None) -> str:
    if pod is None:
        return ""
    try:
        found = await client.get(PODS, pod.name, pod.namespace)
    except NotFound:
        raise ZonewiseError(f"no pod {pod}; `kubectl get pods -n {pod.namespace}` lists them") from None
    return _node_of(found)


def from_dump(objects: Mapping[str, Sequence[Any]], source: str, inquiry: ServiceReadings) -> ServiceReport:
    """`objects` by kind, as `dump.read` gives them."""
    services: Sequence[Service] = objects["Service"]
    service = next((each for each in services if key_of(each) == inquiry.service), None)
    if service is None:
        raise ZonewiseError(f"{source}: {_missing(inquiry.service, map(key_of, services))}")
    require(objects, source, "Node", "EndpointSlice")
    slices = [each for each in objects["EndpointSlice"] if service_key(each) == inquiry.service]
    home = _home_in(objects.get("Pod", ()), source, inquiry.pod) if inquiry.pod else ""
    carriers = carriers_of([*objects["Deployment"], *objects["DaemonSet"]])
    return _explain(inquiry, service, slices, objects["Node"], objects["Namespace"], home, carriers)


def _home_in(pods: Iterable[Pod], source: str, pod: Key) -> str:
    found = next((each for each in pods if key_of(each) == pod), None)
    if found is None:
        raise ZonewiseError(f"{source}: no pod {pod} in it; add pods to the dump, or say --from-node")
    return _node_of(found)


def _node_of(pod: Pod) -> str:
    if not pod.spec.node_name:
        raise ZonewiseError(f"pod {key_of(pod)} is on no node yet: ask when it is scheduled")
    return pod.spec.node_name


def _explain(
    inquiry: ServiceReadings,
    service: Service,
    slices: Sequence[EndpointSlice],
    nodes: Sequence[Node],
    namespaces: Sequence[Namespace],
    home: str,
    carriers: DataPlanes,
) -> ServiceReport:
    node = home or inquiry.node
    names = [each.metadata.name for each in nodes]
    if node and node not in names:
        near = difflib.get_close_matches(node, names, n=1)
        raise ZonewiseError(
            f"no node {node}{f'; did you mean {near[0]}?' if near else ''}; `kubectl get nodes` lists them"
        )
    who = f"pod {inquiry.pod} on node {node}" if inquiry.pod else f"node {node}" if node else ""
    return service_.explain(
        service,
        slices,
        nodes,
        namespaces,
        client=who,
        node=node,
        carriers=inquiry.told.over(carriers),
        hints=inquiry.hints,
    )


def _missing(key: Key, known: Iterable[Key]) -> str:
    """Says where there is one of that name, or the nearest name."""
    names = list(known)
    elsewhere = [str(each) for each in names if each.name == key.name]
    here = [each.name for each in names if each.namespace == key.namespace]
    near = difflib.get_close_matches(key.name, here, n=1)
    if elsewhere:
        return f"no Service {key}; there is {', '.join(elsewhere[:3])}: name its namespace with -n"
    if near:
        return f"no Service {key}; did you mean {key.namespace}/{near[0]}?"
    some = ", ".join(map(str, names[:3]))
    return f"no Service {key}; there {'are' if len(names) > 1 else 'is'} {some or 'none'}{' and others' if len(names) > 3 else ''}"
