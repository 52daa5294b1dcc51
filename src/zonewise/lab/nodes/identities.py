"""Service account tokens of pods: bound to the pod, in a kubeconfig of its own.

On a machine the kubelet mounts a token where in-cluster clients look; a lab's pods share this machine's files, so they are
through $KUBECONFIG instead. Only pods that name a service account need one.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from zonewise.kube.client.client import Client
from zonewise.lab.decide.podspec import RunPod
from zonewise.lab.records import write_private
from zonewise.objects import SERVICE_ACCOUNTS

_FILE = "kubeconfig"
_NOBODY = ("", "default")
_A_YEAR_SECONDS = 365 * 24 * 3600
"""Longer than labs live: it is not renewed."""


def needed(pod: RunPod) -> bool:
    return pod.spec.service_account_name not in _NOBODY


async def write(client: Client, pod: RunPod, like: Path, directory: Path, deadline_seconds: float) -> Path:
    """The kubeconfig of the pod, for the cluster of the one that is given."""
    request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"expirationSeconds": _A_YEAR_SECONDS, "boundObjectRef": _reference(pod)},
    }
    path = SERVICE_ACCOUNTS.path(pod.metadata.namespace, pod.spec.service_account_name, "token")
    body = msgspec.json.encode(request)
    answer = msgspec.json.decode(await client.request("POST", path, body=body, deadline_seconds=deadline_seconds))
    return _save(directory / _FILE, with_token(_read(like), answer["status"]["token"]))


def _read(path: Path) -> dict[str, Any]:
    return msgspec.json.decode(path.read_bytes(), type=dict[str, Any])


def _save(path: Path, document: dict[str, Any]) -> Path:
    write_private(path, msgspec.json.encode(document))
    return path


def with_token(document: dict[str, Any], token: str) -> dict[str, Any]:
    """The same clusters and contexts, with the token as credential."""
    return document | {"users": [{"name": user["name"], "user": {"token": token}} for user in document["users"]]}


def _reference(pod: RunPod) -> dict[str, str]:
    return {"apiVersion": "v1", "kind": "Pod", "name": pod.metadata.name, "uid": pod.metadata.uid}
