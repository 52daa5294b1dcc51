"""Demo application of a lab: a front and a catalog, spread over all zones, that call each other.

`up` applies it to a lab with nodes and kube-proxy and waits until it serves. `shop` is what its pods run, and
`zone_answers` counts which zone answers which.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

from zonewise.api.names import ZONE
from zonewise.errors import ZonewiseError
from zonewise.install.apply import missing
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.patch import Apply
from zonewise.lab.demo import zone_answers
from zonewise.lab.demo.shop import PORT
from zonewise.lab.demo.zone_answers import CATALOG, CATALOG_PODS, FRONT, NAMESPACE, ORDERS
from zonewise.lab.retry import patiently
from zonewise.lab.state import Lab
from zonewise.objects import NAMESPACES, NODES, SERVICES, Node, Resource
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.objects.storage import PERSISTENT_VOLUME_CLAIMS

DEPLOYMENTS: Resource[dict[str, Any]] = Resource(dict[str, Any], "Deployment", "deployments", "apps")
_RESOURCES: dict[str, Resource[Any]] = {
    "Namespace": NAMESPACES,
    "Service": SERVICES,
    "Deployment": DEPLOYMENTS,
    "PersistentVolumeClaim": PERSISTENT_VOLUME_CLAIMS.whole(),
    TOPOLOGY_DISRUPTION_BUDGETS.kind: TOPOLOGY_DISRUPTION_BUDGETS.whole(),
}
SERVED_BY_ZONEWISE = {"service.kubernetes.io/service-proxy-name": "zonewise"}
_SERVING_WITHIN_SECONDS = 300.0
_SHOP_GROUP = 65532  # of the image's user
_DATA = "/data"
_NOT_READY_TAINT = "node.kubernetes.io/not-ready"
Json = dict[str, Any]


def manifests(nodes: int, *, zonewise: bool = False, volume_in: str = "", image: str) -> list[Json]:
    """Services come first: pods find them in their environment.

    Beside Zonewise the catalog is served by its proxy, which counts traffic by zone, the fronts ask all the time, and there
    are as many catalogs as a preference asks for before it starts: four in each of three zones. `volume_in` names the zone
    where the orders lie, in a volume of the storage driver.
    """
    backend = {"BACKEND": "$(CATALOG_SERVICE_HOST):$(CATALOG_SERVICE_PORT)", "BACKEND_NAME": f"{CATALOG_PODS}:{PORT}"}
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        _service(CATALOG, SERVED_BY_ZONEWISE if zonewise else {}),
        _service(FRONT, {}),
        *([_headless(CATALOG_PODS, CATALOG)] if zonewise else []),
        _deployment(CATALOG, image, nodes * (2 if zonewise else 1), {}),
        _deployment(FRONT, image, nodes, backend | ({"ASK_PER_SECOND": "4"} if zonewise else {})),
        *([_budget(CATALOG)] if zonewise else []),
        *([_claim(ORDERS), _stored(ORDERS, image, volume_in)] if volume_in else []),
    ]


def _budget(name: str) -> Json:
    term = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
    return {
        "apiVersion": TOPOLOGY_DISRUPTION_BUDGETS.api_version,
        "kind": TOPOLOGY_DISRUPTION_BUDGETS.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {"selector": {"matchLabels": {"app": name}}, "nodeSelectorTerm": term, "maxUnavailable": 1},
    }


def _service(name: str, labels: Mapping[str, str]) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": NAMESPACE, "labels": dict(labels)},
        "spec": {"selector": {"app": name}, "ports": [{"name": "http", "port": 80, "targetPort": "http"}]},
    }


def _headless(name: str, app: str) -> Json:
    service = _service(name, {})
    service["spec"] |= {"clusterIP": "None", "selector": {"app": app}}
    return service


def _deployment(name: str, image: str, replicas: int, environment: Mapping[str, str]) -> Json:
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
                        _spread(ZONE, labels),
                        _spread("kubernetes.io/hostname", labels),
                    ],
                    "containers": [_container(image, environment)],
                },
            },
        },
    }


def _claim(name: str) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "ceph-rbd",
            "resources": {"requests": {"storage": "1Gi"}},
        },
    }


def _stored(name: str, image: str, zone: str) -> Json:
    """One pod with the claim of its name. It begins in that zone, which is therefore the zone of its volume."""
    deployment = _deployment(name, image, 1, {"DATA": _DATA})
    deployment["spec"]["strategy"] = {"type": "Recreate"}
    spec = deployment["spec"]["template"]["spec"]
    spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    spec["securityContext"] = {"fsGroup": _SHOP_GROUP}
    spec["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": _DATA}]
    expression = {"key": ZONE, "operator": "In", "values": [zone]}
    preferred = [{"weight": 100, "preference": {"matchExpressions": [expression]}}]
    spec["affinity"] = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred}}
    return deployment


def _spread(key: str, labels: Mapping[str, str]) -> Json:
    return {
        "maxSkew": 1,
        "topologyKey": key,
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": labels},
    }


def _container(image: str, environment: Mapping[str, str]) -> Json:
    fields = {"POD": "metadata.name", "NODE": "spec.nodeName", "ZONE": f"metadata.labels['{ZONE}']"}
    return {
        "name": "shop",
        "image": image,
        "command": ["python", "-m", "zonewise.lab.demo.shop"],
        "ports": [{"name": "http", "containerPort": PORT}],
        "env": [
            *({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}} for name, path in fields.items()),
            *({"name": name, "value": value} for name, value in environment.items()),
        ],
        "readinessProbe": {"httpGet": {"path": "/healthz", "port": "http"}, "periodSeconds": 2},
    }


def up(lab: Lab) -> None:
    """Apply the application, spread over all nodes, and wait until every front is answered."""
    asyncio.run(_up(lab))


def until_nodes_take_pods(lab: Lab) -> None:
    async def wait() -> None:
        async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
            await patiently(lambda: _until_nodes_take_pods(client), _SERVING_WITHIN_SECONDS)

    asyncio.run(wait())


async def _up(lab: Lab) -> None:
    async with Client(kubeconfig.load(lab.node_kubeconfig)) as client:
        await patiently(lambda: _until_nodes_take_pods(client), _SERVING_WITHIN_SECONDS)
        await patiently(lambda: _apply(client, _manifests_of(lab)), _SERVING_WITHIN_SECONDS)
        deadline = time.monotonic() + _SERVING_WITHIN_SECONDS
        names = [CATALOG, FRONT, *([ORDERS] if _has_volumes(lab) else [])]
        while not await patiently(lambda: _serves(client, lab, names), _SERVING_WITHIN_SECONDS):
            if time.monotonic() > deadline:
                raise ZonewiseError(
                    f"the demo does not serve: look at `zonewise lab kubectl --name {lab.name} -- get pods -n {NAMESPACE}`"
                )
            await asyncio.sleep(0.2)


async def _apply(client: Client, manifests: Sequence[Json]) -> None:
    for manifest in manifests:
        metadata = manifest["metadata"]
        resource = _RESOURCES[manifest["kind"]]
        await client.patch(resource, metadata["name"], Apply(manifest, force=True), metadata.get("namespace", ""))


async def _until_nodes_take_pods(client: Client) -> None:
    """A ready node keeps its taint for a moment; pods scheduled in that time would all go to the other nodes."""
    deadline = time.monotonic() + _SERVING_WITHIN_SECONDS
    while tainted := [node.metadata.name for node in (await client.list(NODES)).items if _is_tainted(node)]:
        if time.monotonic() > deadline:
            raise ZonewiseError(f"node {tainted[0]} does not take pods: is its zone cut off?")
        await asyncio.sleep(0.1)


def _is_tainted(node: Node) -> bool:
    return any(taint.key == _NOT_READY_TAINT for taint in node.spec.taints)


def _manifests_of(lab: Lab) -> list[Json]:
    nodes = len(lab.zones) * lab.nodes_per_zone
    volume_in = lab.zones[-1] if _has_volumes(lab) else ""
    assert lab.image is not None, "a lab with a demo has its image"
    return manifests(nodes, zonewise=lab.options.zonewise, volume_in=volume_in, image=lab.image.name)


def _has_volumes(lab: Lab) -> bool:
    return lab.options.zonewise and lab.options.ceph


async def _serves(client: Client, lab: Lab, names: Sequence[str]) -> bool:
    for name in names:
        deployment = await client.get(DEPLOYMENTS, name, NAMESPACE)
        if missing({"kind": DEPLOYMENTS.kind, **deployment}):
            return False
    return zone_answers.complete(await asyncio.to_thread(zone_answers.ask, lab, 1))
