"""Annotations of Services, namespaces, nodes and slices: they never break a Service, and each problem is one sentence."""

from __future__ import annotations

import json

import msgspec

from support.dns.cluster import FakeCluster, endpoint, nodes, slice_of
from zonewise.api import names
from zonewise.objects import Service
from zonewise.routing import drained_zones, read_policy
from zonewise.routing.drain import drained_by_nodes
from zonewise.routing.tuning import read_tuning
from zonewise.routing.weights_annotation import read_weights

NAMES = (
    names.TOPOLOGY_KEYS, names.SAME_NODE, names.SAME_ZONE, names.SAME_REGION, names.OLD_HINTS, names.TOPOLOGY_MODE, names.ALGORITHM,
    names.STARTING_THRESHOLD, names.PADDING, names.OVERLOAD_THRESHOLD, names.DRAIN_ZONE, names.WEIGHTS, names.STARTED,
)  # fmt: skip
VALUES = (
    "Require", "Prefer", "Balanced", "Auto", "auto", "Disabled", "topology.kubernetes.io/zone", "kubernetes.io/hostname", "*", "zone-a", "zone-b",
    '["topology.kubernetes.io/zone","*"]', '[{"zones":{"zone-a":1.5},"addresses":["10.0.11.1"]}]', "0.5", "3", "2x", "optimal", "original", "local", "shared",
)  # fmt: skip
WORDS = (
    *NAMES,
    "trafficDistribution",
    "PreferSameNode",
    "PreferClose",
    "internalTrafficPolicy",
    "Local",
    "topologyKeys",
    "ports",
    *VALUES,
)
SEEDS = [
    json.dumps({"annotations": {names.SAME_ZONE: "Prefer", name: value}, "spec": {"clusterIP": "None"}}).encode()
    for name in NAMES
    for value in VALUES
]
ENDPOINTS = [endpoint(f"10.0.{zone}{n}.{n}", f"zone-{'abc'[zone - 1]}-{n}") for zone in (1, 2) for n in (1, 2)]
NODES = nodes()
CLUSTER, SLICE = FakeCluster(), slice_of("web", ENDPOINTS)


def check(data: bytes) -> None:
    try:
        body = json.loads(data)
        annotations = msgspec.convert(body["annotations"], dict[str, str])
        meta = {"name": "web", "namespace": "shop", "annotations": annotations}
        service = msgspec.convert({"metadata": meta, "spec": {**body["spec"], "clusterIPs": ["None"]}}, Service)
        json.dumps(body, ensure_ascii=False).encode()  # the API server stores no half characters
    except (ValueError, KeyError, TypeError, RecursionError):
        return
    for complaint in read_policy(service).complaints:
        assert str(complaint)
    for problem in read_tuning(annotations)[1]:
        assert "\n" not in str(problem)
    for text in annotations.values():
        assert all(0 < weight < float("inf") for zones in read_weights(text).values() for weight in zones.values())
    annotated = msgspec.structs.replace(NODES[0].metadata, annotations=annotations)
    drains = drained_by_nodes([msgspec.structs.replace(NODES[0], metadata=annotated), *NODES[1:]])
    drained_zones(service, annotations, drains)
    CLUSTER.apply(CLUSTER.zone.set_namespaces({"shop": annotations}))
    CLUSTER.put(service, SLICE)
    CLUSTER.remove("web")
