"""Builders of nodes, endpoints and Services for the tests of routing."""

from collections.abc import Iterable, Mapping

from zonewise.objects import (
    Condition,
    Endpoint,
    EndpointConditions,
    EndpointHints,
    Hint,
    Metadata,
    Node,
    NodeStatus,
    Service,
    ServiceSpec,
)
from zonewise.routing import RoutingNodes
from zonewise.topology import HOSTNAME, REGION, ZONE


def node(
    name: str,
    zone: str | None = None,
    *,
    region: str | None = None,
    labels: Mapping[str, str] | None = None,
    cpu: str | None = "4",
    ready: bool = True,
) -> Node:
    named = {HOSTNAME: name, ZONE: zone, REGION: region}
    return Node(
        metadata=Metadata(name=name, labels={key: value for key, value in named.items() if value} | dict(labels or {})),
        status=NodeStatus(
            allocatable={"cpu": cpu} if cpu is not None else {},
            conditions=(Condition(type="Ready", status="True" if ready else "False"),),
        ),
    )


def cluster(nodes_per_zone: Mapping[str, int], *, region: str | None = None) -> RoutingNodes:
    """Nodes a1, a2, ... in zone a, and so on."""
    return RoutingNodes.of(
        node(f"{zone}{number}", zone, region=region)
        for zone, count in nodes_per_zone.items()
        for number in range(1, count + 1)
    )


def endpoint(
    address: str,
    node_name: str | None = None,
    zone: str | None = None,
    *,
    ready: bool | None = True,
    serving: bool | None = None,
    terminating: bool | None = None,
    zones: Iterable[str] = (),
    nodes: Iterable[str] = (),
) -> Endpoint:
    hints = EndpointHints(
        for_zones=tuple(Hint(name=name) for name in zones), for_nodes=tuple(Hint(name=name) for name in nodes)
    )
    return Endpoint(
        addresses=(address,),
        node_name=node_name,
        zone=zone,
        conditions=EndpointConditions(ready=ready, serving=serving, terminating=terminating),
        hints=hints if hints != EndpointHints() else None,
    )


def endpoints(per_zone: Mapping[str, int]) -> list[Endpoint]:
    """Endpoints a-1, a-2, ... on node a1 of zone a, and so on."""
    return [
        endpoint(f"{zone}-{number}", f"{zone}1", zone)
        for zone, count in per_zone.items()
        for number in range(1, count + 1)
    ]


def service(annotations: Mapping[str, str] | None = None, **spec: object) -> Service:
    return Service(
        metadata=Metadata(name="web", namespace="shop", annotations=dict(annotations or {})), spec=ServiceSpec(**spec)
    )
