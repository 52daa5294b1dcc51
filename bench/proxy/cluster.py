"""Services and slices for both proxies, written into a lab without controllers.

The first of each is created by the API server and is the template of the others, which are written directly to etcd.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections.abc import Iterable
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any, Final

from zonewise.kube.client.client import Client
from zonewise.lab.controlplane import etcd
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, SERVICES, Resource

NAMESPACE: Final = "bench"
ENDPOINTS: Final = 10
PORT, TARGET_PORT = 80, 8080
IP_ADDRESSES: Final = Resource(dict[str, Any], "IPAddress", "ipaddresses", "networking.k8s.io", namespaced=False)
_FIRST_CLUSTER_IP: Final = int(IPv4Address("10.96.16.0"))
_FIRST_POD_IP: Final = int(IPv4Address("172.16.0.0"))
_FIRST_SPARE, _SPARE = 900_000, 50_000
_WRITE_BATCH: Final = 1000


def service_name(number: int) -> str:
    return f"s{number:05d}"


def cluster_ip(number: int) -> str:
    return str(IPv4Address(_FIRST_CLUSTER_IP + number))


def pod_address(number: int) -> str:
    return str(IPv4Address(_FIRST_POD_IP + number))


def endpoints(number: int, replaced: str = "") -> list[dict[str, Any]]:
    addresses = [pod_address(number * ENDPOINTS + index) for index in range(ENDPOINTS)]
    if replaced:
        addresses[0] = replaced
    return [{"addresses": [address], "nodeName": "far", "conditions": {"ready": True}} for address in addresses]


def service_body(number: int) -> dict[str, Any]:
    ports = [{"name": "http", "port": PORT, "targetPort": TARGET_PORT}]
    return {"metadata": {"name": service_name(number)}, "spec": {"ports": ports, "clusterIP": cluster_ip(number)}}


def spare_address(number: int, generation: int = 0) -> str:
    """A pod address of no Service, as a replacement; different for each generation."""
    return pod_address(_FIRST_SPARE + generation * _SPARE + number)


def slice_body(number: int, replaced: str = "") -> dict[str, Any]:
    """With `replaced` instead of the first endpoint, if given."""
    name = service_name(number)
    return {
        "metadata": {"name": name, "labels": {"kubernetes.io/service-name": name}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": TARGET_PORT, "protocol": "TCP"}],
        "endpoints": endpoints(number, replaced),
    }


async def fill(lab: Lab, client: Client, numbers: range) -> None:
    """Create these Services and their slices; number 0, the template, must come first."""
    if 0 in numbers:
        await client.create(NAMESPACES, {"metadata": {"name": NAMESPACE}})
        await client.create(SERVICES, service_body(0), NAMESPACE)
        await client.create(ENDPOINT_SLICES, slice_body(0), NAMESPACE)
    templates = [
        await client.get(SERVICES.whole(), service_name(0), NAMESPACE),
        await client.get(IP_ADDRESSES, cluster_ip(0)),
        await client.get(ENDPOINT_SLICES.whole(), service_name(0), NAMESPACE),
    ]
    remaining = [number for number in numbers if number != 0]
    for first in range(0, len(remaining), _WRITE_BATCH):
        part = remaining[first : first + _WRITE_BATCH]
        await asyncio.to_thread(etcd.write, store(lab), _etcd_objects(part, *templates))
    await _wait_listed(client, max(numbers))


def _etcd_objects(numbers: Iterable[int], service: Any, address: Any, slices: Any) -> dict[str, Any]:
    objects: dict[str, Any] = {}
    for number in numbers:
        name, ip = service_name(number), cluster_ip(number)
        own_service = copy_of(service, name)
        own_service["spec"] |= {"clusterIP": ip, "clusterIPs": [ip]}
        own_address = copy_of(address, ip)
        own_address["spec"]["parentRef"]["name"] = name
        own_slice = copy_of(slices, name) | {"endpoints": endpoints(number)}
        own_slice["metadata"]["labels"] = {"kubernetes.io/service-name": name}
        objects[f"/registry/services/specs/{NAMESPACE}/{name}"] = own_service
        objects[f"/registry/ipaddresses/{ip}"] = own_address
        objects[f"/registry/endpointslices/{NAMESPACE}/{name}"] = own_slice
    return objects


def copy_of(template: dict[str, Any], name: str) -> dict[str, Any]:
    copied = copy.deepcopy(template)
    copied["metadata"] |= {"name": name, "uid": str(uuid.uuid5(uuid.NAMESPACE_OID, name))}
    del copied["metadata"]["resourceVersion"]
    return copied


def store(lab: Lab) -> Path:
    return ControlPlane.attach(lab.directory).layout.etcd_socket


async def _wait_listed(client: Client, number: int) -> None:
    """Wait for the last slice in the API server's watch cache (resource version "0")."""
    last = f"metadata.name={service_name(number)}"
    for _ in range(600):
        listed = await client.list(ENDPOINT_SLICES, NAMESPACE, fields=last, resource_version="0", page_size=0)
        if listed.items:
            return
        await asyncio.sleep(0.1)
    raise TimeoutError(f"the API server does not list {service_name(number)}: see its log")
