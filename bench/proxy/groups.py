"""Bytes that a node receives for Services with endpoints in many zones: all slices, or only its zone's groups."""

from __future__ import annotations

import asyncio
import time
import uuid
from typing import Any, Final

from bench.proxy.cluster import PORT, TARGET_PORT, copy_of, pod_address, service_name, store
from bench.proxy.contestants import OURS, RunningProxy, run
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane import etcd
from zonewise.lab.state import Lab
from zonewise.objects import ENDPOINT_SLICES, NAMESPACES, SERVICES

ZONES, PER_ZONE, SERVICE_COUNT = 30, 20, 100
REPLACED: Final = 2
"""Endpoints replaced per zone and Service, one after the other."""
_NAMESPACE: Final = "groups"
_OWN_ZONE: Final = "zone-a"
_SLICE_CAPACITY: Final = 100
_LABEL: Final = {"service.kubernetes.io/service-proxy-name": "zonewise"}
_QUIET_SECONDS: Final = 2.0

Figures = dict[str, float]


async def compare_groups(lab: Lab, client: Client) -> dict[str, Figures]:
    """Bytes at the start and while endpoints are replaced, with and without groups."""
    await client.create(NAMESPACES, {"metadata": {"name": _NAMESPACE}})
    for number in range(SERVICE_COUNT):
        await client.create(SERVICES, _service(number), _NAMESPACE)
    by_mode = {}
    for grouped in (False, True):
        template = await client.create(ENDPOINT_SLICES.whole(), _slice(0, 0, "", []), _NAMESPACE)
        await _write_slices(lab, template, grouped=grouped)
        by_mode["groups" if grouped else "no groups"] = await _received(lab, client, template, grouped=grouped)
        await client.delete_collection(ENDPOINT_SLICES, _NAMESPACE, deadline_seconds=300.0)
    for number in range(SERVICE_COUNT):
        await client.delete(SERVICES, service_name(number), _NAMESPACE)
    return by_mode


async def _received(lab: Lab, client: Client, template: dict[str, Any], *, grouped: bool) -> Figures:
    with run(OURS, lab, options=()) as running:
        before = running.received_bytes()
        address = (await client.get(SERVICES, service_name(0), _NAMESPACE)).spec.cluster_ip
        await running.wait_for_rules(address)
        at_start = await _received_when_quiet(running)
        for generation in range(1, REPLACED + 1):
            await _write_slices(lab, template, grouped=grouped, generation=generation)
        return {"start": at_start - before, "replaced": await _received_when_quiet(running) - at_start}


async def _received_when_quiet(running: RunningProxy) -> int:
    last, since = running.received_bytes(), time.monotonic()
    while time.monotonic() - since < _QUIET_SECONDS:
        await asyncio.sleep(0.1)
        now = running.received_bytes()
        if now - last > 4096:  # ignore bookmarks
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


async def _write_slices(lab: Lab, template: dict[str, Any], *, grouped: bool, generation: int = 0) -> None:
    """With `generation`, this number of endpoints of each zone is replaced."""
    objects = {}
    for number in range(SERVICE_COUNT):
        by_zone = {zone: _endpoints(number, index, generation) for index, zone in enumerate(_zones())}
        if grouped:
            parts = list(by_zone.items())
        else:
            together = [endpoint for endpoints in by_zone.values() for endpoint in endpoints]
            parts = [("", together[at : at + _SLICE_CAPACITY]) for at in range(0, len(together), _SLICE_CAPACITY)]
        bodies = [_slice(number, index, zone, endpoints) for index, (zone, endpoints) in enumerate(parts)]
        for body in bodies:
            copied = copy_of(template, body["metadata"]["name"])
            copied["metadata"]["labels"] = body["metadata"]["labels"]
            key = f"/registry/endpointslices/{_NAMESPACE}/{body['metadata']['name']}"
            objects[key] = copied | {"endpoints": body["endpoints"]}
    await asyncio.to_thread(etcd.write, store(lab), objects)


def _zones() -> list[str]:
    return [_OWN_ZONE, *(f"zone-{number:02}" for number in range(1, ZONES))]


def _endpoints(number: int, zone_index: int, generation: int) -> list[dict[str, Any]]:
    first = (number * ZONES + zone_index) * PER_ZONE * 2
    indexes = range(first + generation, first + generation + PER_ZONE)
    zone = _zones()[zone_index]
    return [_endpoint(index, zone) for index in indexes]


def _endpoint(number: int, zone: str) -> dict[str, Any]:
    """With all fields that a controller writes."""
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
