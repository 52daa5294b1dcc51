"""Nodes, Services and slices in three zones, for planning tests."""

from __future__ import annotations

import msgspec

from zonewise.objects import Endpoint, EndpointPort, EndpointSlice, Node, Service
from zonewise.planning.snapshot import Snapshot, build_snapshot

PORTS = (EndpointPort(name="http", port=8080, protocol="TCP"),)


def node(name: str, zone: str) -> Node:
    return msgspec.convert(
        {
            "metadata": {"name": name, "labels": {"topology.kubernetes.io/zone": zone}},
            "status": {"conditions": [{"type": "Ready", "status": "True"}]},
        },
        Node,
    )


ZONEWISE_PROXY = {"service.kubernetes.io/service-proxy-name": "zonewise"}


def labelled(of: Service, labels: dict[str, str]) -> Service:
    return msgspec.structs.replace(
        of, metadata=msgspec.structs.replace(of.metadata, labels={**of.metadata.labels, **labels})
    )


def headless(of: Service) -> Service:
    return msgspec.structs.replace(of, spec=msgspec.structs.replace(of.spec, cluster_ip="None"))


def service(name: str, namespace: str = "default", **annotations: str) -> Service:
    return msgspec.convert(
        {
            "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}, "annotations": annotations},
            "spec": {"selector": {"app": name}, "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"]},
        },
        Service,
    )


def slice_of(of: Service, counts: dict[str, int]) -> EndpointSlice:
    endpoints = tuple(
        Endpoint(addresses=(f"10.1.{ord(zone)}.{index}",), node_name=f"{zone}{index % 2}", zone=zone)
        for zone, count in counts.items()
        for index in range(count)
    )
    metadata = msgspec.structs.replace(
        of.metadata, name=f"{of.metadata.name}-x", labels={"kubernetes.io/service-name": of.metadata.name}
    )
    return EndpointSlice(metadata=metadata, address_type="IPv4", ports=PORTS, endpoints=endpoints)


def make_snapshot(*, own: bool | None = None, **counts: dict[str, int]) -> Snapshot:
    services = [service(name) for name in counts]
    nodes = [node(f"{zone}{index}", zone) for zone in "abc" for index in range(2)]
    return build_snapshot(nodes, services, [slice_of(item, counts[item.metadata.name]) for item in services], own=own)
