"""The demo application of a lab: a front and a catalog, spread over all zones, that really answer each other.

`up` applies it to a lab with namespace nodes and kube-proxy and waits until it serves; `ask` has every front pod ask the
catalog's Service and counts which zone answered whom, which is what topology-aware routing changes.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from zonewise.errors import ZonewiseError
from zonewise.kube import kubeconfig
from zonewise.kube.client import Client
from zonewise.kube.patch import Apply
from zonewise.lab import namespaces, nodes, sandbox
from zonewise.lab.nodes import Lab
from zonewise.lab.shop import UNANSWERED
from zonewise.objects import NAMESPACES, SERVICES, Resource

NAMESPACE = "shop"
FRONT, CATALOG = "front", "catalog"
DEPLOYMENTS: Resource[dict[str, Any]] = Resource(dict[str, Any], "Deployment", "deployments", "apps")
_RESOURCES: dict[str, Resource[Any]] = {"Namespace": NAMESPACES, "Service": SERVICES, "Deployment": DEPLOYMENTS}
_SERVING_WITHIN_SECONDS = 120.0
_PORT = 8080
_ZONE_LABEL = "topology.kubernetes.io/zone"

Answers = Mapping[str, Counter[str]]
"""By the zone that asked, how often each zone answered."""
Json = dict[str, Any]


def manifests(replicas: int) -> list[Json]:
    """Services come first: pods find them in their environment."""
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        _service(CATALOG),
        _service(FRONT),
        _deployment(CATALOG, replicas, {}),
        _deployment(FRONT, replicas, {"BACKEND": "$(CATALOG_SERVICE_HOST):$(CATALOG_SERVICE_PORT)"}),
    ]


def _service(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }


def _deployment(name: str, replicas: int, environment: Mapping[str, str]) -> Json:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {
                    "terminationGracePeriodSeconds": 5,
                    "topologySpreadConstraints": [
                        _spread(_ZONE_LABEL, labels),
                        _spread("kubernetes.io/hostname", labels),
                    ],
                    "containers": [_container(environment)],
                },
            },
        },
    }


def _spread(key: str, labels: Mapping[str, str]) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }


def _container(environment: Mapping[str, str]) -> Json:
    fields = {"POD": "metadata.name", "NODE": "spec.nodeName", "ZONE": f"metadata.labels['{_ZONE_LABEL}']"}
    return {
        "name": "shop",
        "image": "none",
        "command": ["python", "-m", "zonewise.lab.shop"],
        "ports": [{"name": "http", "containerPort": _PORT}],
        "env": [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
            *({"name": name, "value": value} for name, value in environment.items()),
        ],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 2},
    }


def up(lab: Lab) -> None:
    """Apply the application, one pod of each kind per node, and wait until every front is answered."""
    asyncio.run(_up(lab))


async def _up(lab: Lab) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        for manifest in manifests(len(lab.zones) * lab.nodes_per_zone):
            metadata = manifest["metadata"]
            resource = _RESOURCES[manifest["kind"]]
            await client.patch(resource, metadata["name"], Apply(manifest, force=True), metadata.get("namespace", ""))
        deadline = time.monotonic() + _SERVING_WITHIN_SECONDS
        while not await _serves(client, lab):
            if time.monotonic() > deadline:
                raise ZonewiseError(
                    f"the demo does not serve: look at `zonewise lab kubectl --name {lab.name} -- get pods -n {NAMESPACE}`"
                )
            await asyncio.sleep(0.2)


async def _serves(client: Client, lab: Lab) -> bool:
    for name in (CATALOG, FRONT):
        deployment = await client.get(DEPLOYMENTS, name, NAMESPACE)
        if deployment.get("status", {}).get("readyReplicas", 0) < deployment["spec"]["replicas"]:
            return False
    answers = await asyncio.to_thread(ask, lab, 1)
    return not any(counts[UNANSWERED] for counts in answers.values())


def ask(lab: Lab, count: int) -> Answers:
    """Have every front pod ask the catalog so often. Asked from inside the pods, so it works in a cut zone too."""
    fronts = [
        (node.zone, sandbox.namespace_of(lab.name, record.pod))
        for node in nodes.plan_of(lab).nodes
        for record in sandbox.recorded(sandbox.pods_directory(lab.directory, node.name))
        if record.pod.metadata.namespace == NAMESPACE and record.pod.metadata.labels.get("app") == FRONT
    ]
    if not fronts:
        raise ZonewiseError(f"no {FRONT} pods run in lab {lab.name}: start it with `zonewise lab up --demo`")
    answers: dict[str, Counter[str]] = {zone: Counter() for zone in lab.zones}
    with ThreadPoolExecutor(len(fronts)) as threads:
        for (zone, _), counts in zip(fronts, threads.map(lambda front: _ask(front[1], count), fronts), strict=True):
            answers[zone].update(counts)
    return answers


def _ask(namespace: str, count: int) -> Mapping[str, int]:
    def exchange() -> Mapping[str, int]:
        connection = http.client.HTTPConnection("127.0.0.1", _PORT, timeout=10 + 3 * count)
        try:
            connection.request("GET", f"/ask?n={count}")
            counts: Mapping[str, int] = json.load(connection.getresponse())["answers"]
        finally:
            connection.close()
        return counts

    try:
        return namespaces.inside(namespace, exchange)
    except (OSError, http.client.HTTPException, ValueError):
        return {UNANSWERED: count}


def table(answers: Answers, zones: Sequence[str]) -> str:
    """Who answered whom: a row for each zone that asked, in percent of its questions, and how much stayed at home."""
    lost = any(counts[UNANSWERED] for counts in answers.values())
    columns = [*zones, *([UNANSWERED] if lost else [])]
    width = max(len(column) for column in (*columns, "asked from"))
    lines = ["  ".join(["asked from".ljust(width), *(column.rjust(width) for column in columns), "same zone"])]
    for zone in zones:
        counts = answers[zone]
        total = max(1, counts.total())
        shares = [f"{100 * counts[column] / total:.0f} %".rjust(width) for column in columns]
        lines.append("  ".join([zone.ljust(width), *shares, f"{100 * counts[zone] / total:.0f} %".rjust(9)]))
    return "\n".join(lines)


def things_to_try(lab: Lab) -> list[str]:
    """Command lines that show what the lab can do, each with what to see."""
    name = "" if lab.name == "default" else f" --name {lab.name}"
    zone, other = lab.zones[0], lab.zones[-1]
    prefer = """'{"spec":{"trafficDistribution":"PreferSameZone"}}'"""
    tries = [
        (f"lab ask{name}", "which zone answers whom: every zone does"),
        (f"lab kubectl{name} -- -n {NAMESPACE} patch service {CATALOG} -p {prefer}", "ask again: answers stay at home"),
        (f"lab latency{name} {zone} {other} 20", "20 ms each way between two zones"),
        (f"lab cut{name} {other}", f"{other} is gone for all others; `heal` brings it back"),
    ]
    return [f"zonewise {command}   # {see}" for command, see in tries]
