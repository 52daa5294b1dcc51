"""What a node receives of Services whose endpoints are in many zones: all of them, or only its zone's slice groups."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any

from bench.proxy.cluster import PORT, TARGET_PORT, like, pod_address, service_name, store
from bench.proxy.contestants import OURS, Running, run
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane import etcd
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, SERVICES

ZONES, PER_ZONE, SERVICES_WANTED = 30, 20, 100
REPLACED = 2
"""Of each zone's endpoints, one after the other, for every Service."""
_NAMESPACE = "groups"
_OWN_ZONE = "zone-a"
_LARGEST_SLICE = 100
_LABEL = {"service.kubernetes.io/service-proxy-name": "zonewise"}
_QUIET_SECONDS = 2.0

Figures = dict[str, float]


async def compared(lab: Lab, client: Client) -> dict[str, Figures]:
    """Bytes at the start and while endpoints are replaced, by whether there are groups."""
    await client.create(NAMESPACES, {"metadata": {"name": _NAMESPACE}})
    for number in range(SERVICES_WANTED):
        await client.create(SERVICES, _service(number), _NAMESPACE)
    found = {}
    for grouped in (False, True):
        pattern = await client.create(ENDPOINT_SLICES.whole(), _slice(0, 0, "", []), _NAMESPACE)
        await _write_slices(lab, pattern, grouped=grouped)
        found["groups" if grouped else "no groups"] = await _received(lab, client, pattern, grouped=grouped)
        await client.delete_collection(ENDPOINT_SLICES, _NAMESPACE, deadline_seconds=300.0)
    for number in range(SERVICES_WANTED):
        await client.delete(SERVICES, service_name(number), _NAMESPACE)
    return found


async def _received(lab: Lab, client: Client, pattern: dict[str, Any], *, grouped: bool) -> Figures:
    with run(OURS, lab, options=()) as running:
        before = running.received_bytes()
        address = (await client.get(SERVICES, service_name(0), _NAMESPACE)).spec.cluster_ip
        await running.until_it_has(address)
        at_start = await _when_quiet(running)
        for generation in range(1, REPLACED + 1):
            await _write_slices(lab, pattern, grouped=grouped, generation=generation)
        return {"start": at_start - before, "replaced": await _when_quiet(running) - at_start}


async def _when_quiet(running: Running) -> int:
    last, since = running.received_bytes(), time.monotonic()
    while time.monotonic() - since < _QUIET_SECONDS:
        await asyncio.sleep(0.1)
        now = running.received_bytes()
        if now - last > 4096:  # heartbeats and bookmarks are less
            last, since = now, time.monotonic()
    return running.received_bytes()


def _service(number: int) -> dict[str, Any]:
    metadata = {
        "name": service_name(number),
        "labels": _LABEL,
        "annotations": {"endpointslice.kubernetes.io/same-zone": "Prefer"},
    }
    ports = [{"name": "http", "port": PORT, "targetPort": TARGET_PORT}]
    return {"metadata": metadata, "spec": {"ports": ports}}


async def _write_slices(lab: Lab, pattern: dict[str, Any], *, grouped: bool, generation: int = 0) -> None:
    """With `generation`, so many endpoints of each zone are others than at first."""
    objects = {}
    for number in range(SERVICES_WANTED):
        by_zone = {zone: _endpoints(number, index, generation) for index, zone in enumerate(_zones())}
        if grouped:
            parts = list(by_zone.items())
        else:
            together = [endpoint for endpoints in by_zone.values() for endpoint in endpoints]
            parts = [("", together[at : at + _LARGEST_SLICE]) for at in range(0, len(together), _LARGEST_SLICE)]
        bodies = [_slice(number, index, zone, endpoints) for index, (zone, endpoints) in enumerate(parts)]
        for body in bodies:
            made = like(pattern, body["metadata"]["name"])
            made["metadata"]["labels"] = body["metadata"]["labels"]
            key = f"/registry/endpointslices/{_NAMESPACE}/{body['metadata']['name']}"
            objects[key] = made | {"endpoints": body["endpoints"]}
    await asyncio.to_thread(etcd.write, store(lab), objects)


def _zones() -> list[str]:
    return [_OWN_ZONE, *(f"zone-{number:02}" for number in range(1, ZONES))]


def _endpoints(number: int, zone_index: int, generation: int) -> list[dict[str, Any]]:
    first = (number * ZONES + zone_index) * PER_ZONE * 2
    chosen = range(first + generation, first + generation + PER_ZONE)
    zone = _zones()[zone_index]
    return [_endpoint(each, zone) for each in chosen]


def _endpoint(number: int, zone: str) -> dict[str, Any]:
    """With all that a controller writes into it."""
    uid = str(uuid.uuid5(uuid.NAMESPACE_OID, f"pod {number}"))
    return {
        "addresses": [pod_address(number)],
        "nodeName": f"{zone}-{number % 7}",
        "zone": zone,
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "namespace": _NAMESPACE, "name": f"web-{uid[:8]}-{uid[-5:]}", "uid": uid},
    }


def _slice(number: int, index: int, zone: str, endpoints: list[dict[str, Any]]) -> dict[str, Any]:
    name = service_name(number)
    consumer = {"zonewise.dev/consumer": zone} if zone else {}
    return {
        "metadata": {"name": f"{name}-{index}", "labels": {"kubernetes.io/service-name": name} | _LABEL | consumer},
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": TARGET_PORT, "protocol": "TCP"}],
        "endpoints": endpoints,
    }
