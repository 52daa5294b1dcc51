"""Pods as in real clusters: 4 to 6 KB each, mostly fields that controllers do not read."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, Final

PAGE_SIZE: Final = 500


def pod(index: int, rng: random.Random) -> dict[str, Any]:
    name = f"web-{index % 997:03d}-{index:06d}"
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": _metadata(name, index, rng),
        "spec": _spec(index, rng),
        "status": _status(index),
    }


def pages(count: int) -> Iterator[bytes]:
    """The bodies of a paged list of `count` pods."""
    rng = random.Random(7)
    for start in range(0, count, PAGE_SIZE):
        items = [pod(index, rng) for index in range(start, min(start + PAGE_SIZE, count))]
        yield json.dumps(
            {"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "1"}, "items": items}
        ).encode()


def _metadata(name: str, index: int, rng: random.Random) -> dict[str, Any]:
    digest = f"{rng.getrandbits(40):x}"
    return {
        "name": name,
        "generateName": name[:-6],
        "namespace": f"team-{index % 40}",
        "uid": f"{rng.getrandbits(128):032x}",
        "resourceVersion": str(1_000_000 + index),
        "creationTimestamp": "2026-01-01T00:00:00Z",
        "labels": {
            "app": f"web-{index % 997}",
            "pod-template-hash": digest,
            "team": f"team-{index % 40}",
            "tier": "front",
        },
        "annotations": {
            "prometheus.io/scrape": "true",
            "checksum/config": f"{rng.getrandbits(256):064x}",
            "kubectl.kubernetes.io/restartedAt": "2026-01-01T00:00:00Z",
        },
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": name[:-7],
                "uid": f"{rng.getrandbits(128):032x}",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "managedFields": [
            {
                "manager": manager,
                "operation": "Update",
                "apiVersion": "v1",
                "time": "2026-01-01T00:00:00Z",
                "fieldsType": "FieldsV1",
                "fieldsV1": _managed(),
            }
            for manager in ("kube-controller-manager", "kubelet")
        ],
    }


def _managed() -> dict[str, Any]:
    keys = ("f:name", "f:image", "f:imagePullPolicy", "f:resources", "f:terminationMessagePath", "f:ports", "f:env")
    return {
        "f:metadata": {"f:labels": {".": {}, "f:app": {}, "f:team": {}}},
        "f:spec": {'k:{"name":"web"}': {key: {} for key in keys}},
    }


def _spec(index: int, rng: random.Random) -> dict[str, Any]:
    return {
        "nodeName": f"node-{index % 1000}",
        "serviceAccountName": "web",
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "schedulerName": "default-scheduler",
        "tolerations": [
            {"key": f"node.kubernetes.io/{what}", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            for what in ("not-ready", "unreachable")
        ],
        "volumes": [
            {
                "name": "token",
                "projected": {
                    "defaultMode": 420,
                    "sources": [{"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}}],
                },
            }
        ],
        "containers": [_container(name, rng) for name in ("web", "sidecar")],
    }


def _container(name: str, rng: random.Random) -> dict[str, Any]:
    return {
        "name": name,
        "image": f"registry.example/{name}@sha256:{rng.getrandbits(256):064x}",
        "args": ["--listen=:8080", "--log-level=info"],
        "env": [{"name": f"SETTING_{number}", "value": "x" * rng.randint(20, 60)} for number in range(8)],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": {"cpu": "1", "memory": "512Mi"}, "requests": {"cpu": "250m", "memory": "256Mi"}},
        "readinessProbe": {"httpGet": {"path": "/ready", "port": 8080, "scheme": "HTTP"}, "periodSeconds": 5},
        "volumeMounts": [{"name": "token", "mountPath": "/var/run/secrets/tokens", "readOnly": True}],
    }


def _status(index: int) -> dict[str, Any]:
    address = f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"
    when = "2026-01-01T00:00:05Z"
    return {
        "phase": "Running",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "hostIP": f"192.0.2.{index % 250}",
        "startTime": when,
        "qosClass": "Burstable",
        "conditions": [
            {"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": when}
            for kind in ("PodScheduled", "Initialized", "ContainersReady", "Ready")
        ],
        "containerStatuses": [
            {
                "name": name,
                "ready": True,
                "restartCount": 0,
                "started": True,
                "image": name,
                "imageID": f"sha256:{index:064x}",
                "state": {"running": {"startedAt": when}},
            }
            for name in ("web", "sidecar")
        ],
    }
