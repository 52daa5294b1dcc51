"""Clusters for dashboard tests: of any size, and with hostile names."""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]

ZONE = "topology.kubernetes.io/zone"
REGION = "topology.kubernetes.io/region"
SAME_ZONE = "endpointslice.kubernetes.io/same-zone"


def node(name: str, zone: str, region: str = "eu-1", address: str = "") -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {ZONE: zone, REGION: region, "kubernetes.io/hostname": name}},
        "status": {
            "allocatable": {"cpu": "4"},
            "conditions": [{"type": "Ready", "status": "True"}],
            "addresses": [{"type": "InternalIP", "address": address}] if address else [],
        },
    }


def service(name: str, namespace: str, annotations: dict[str, str] | None = None) -> Json:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "labels": {"app": name}, "annotations": annotations or {}},
        "spec": {"selector": {"app": name}, "ports": [{"port": 80}], "clusterIP": "10.0.0.1", "ipFamilies": ["IPv4"]},
    }


def slice_of(name: str, namespace: str, places: list[tuple[str, str]]) -> Json:
    """An endpoint at each node and zone."""
    base = sum(map(ord, f"{namespace}/{name}")) % 200
    return {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": f"{name}-1",
            "namespace": namespace,
            "labels": {"kubernetes.io/service-name": name},
        },
        "addressType": "IPv4",
        "ports": [{"name": "", "port": 80, "protocol": "TCP"}],
        "endpoints": [
            {"addresses": [f"10.{base}.{at // 250}.{at % 250 + 1}"], "nodeName": node_name, "zone": zone}
            for at, (node_name, zone) in enumerate(places)
        ],
    }


def cluster(nodes: int, services: int) -> list[Json]:
    """Two regions of three zones. Every third Service has a policy; some are not in force."""
    zones = [
        ("eu-1a", "eu-1"),
        ("eu-1b", "eu-1"),
        ("eu-1c", "eu-1"),
        ("us-2a", "us-2"),
        ("us-2b", "us-2"),
        ("us-2c", "us-2"),
    ]
    homes = [(f"node-{at:03}", zones[at % len(zones)][0]) for at in range(nodes)]
    objects = [node(name, zone, dict(zones)[zone]) for name, zone in homes]
    for at in range(services):
        annotations = {SAME_ZONE: ("Prefer", "Require")[at % 2]} if at % 3 == 0 else {}
        name, namespace = f"service-{at:04}", f"team-{at % 20:02}"
        places = [homes[(at * 7 + step) % nodes] for step in range(2 + at % 11)]
        objects += [service(name, namespace, annotations), slice_of(name, namespace, places)]
    return objects


HOSTILE = '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>'


def hostile_cluster() -> list[Json]:
    """API servers reject such names, but a dump may have them, and annotations may have any value."""
    zone = f"zone{HOSTILE}"
    return [
        node(f"node{HOSTILE}", zone, f"region{HOSTILE}"),
        node("node-b", "zone-b"),
        service(f"service{HOSTILE}", f"space{HOSTILE}", {SAME_ZONE: HOSTILE, "zonewise.dev/drain-zone": zone}),
        slice_of(f"service{HOSTILE}", f"space{HOSTILE}", [(f"node{HOSTILE}", zone), ("node-b", "zone-b")]),
        {
            "apiVersion": "zonewise.dev/v1alpha1",
            "kind": "TopologyDisruptionBudget",
            "metadata": {"name": f"budget{HOSTILE}", "namespace": f"space{HOSTILE}"},
            "spec": {"minAvailable": HOSTILE, "selector": {"matchLabels": {"app": "x"}}},
            "status": {
                "domains": [{"name": zone, "slots": 3, "healthy": 2}],
                "charges": " ".join(word.replace(" ", "/") for word in ("uid", HOSTILE, zone)),
            },
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": f"deployment{HOSTILE}", "namespace": "x"},
            "spec": {"replicas": 3},
        },
    ]
