"""A small cluster for status and doctor: six nodes in three zones, a few Services, and components of Zonewise."""

from __future__ import annotations

import base64
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec

from support.planning.cluster import ZONEWISE_PROXY, node, service, slice_of
from support.planning.cluster import labelled as with_labels
from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot
from zonewise.objects import Lease, Node
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import Deployment

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SAME_ZONE = "endpointslice.kubernetes.io/same-zone"
REGION = "topology.kubernetes.io/region"


def convert(kind: type, **body: Any) -> Any:
    return msgspec.convert(body, kind)


def workload(name: str, **status: int) -> Deployment:
    item: Deployment = convert(
        Deployment,
        metadata={"name": name, "namespace": "zonewise-system", "labels": {"app.kubernetes.io/name": name}},
        spec={"replicas": 2},
        status=status,
    )
    return item


def lease(name: str, seconds_ago: float, holder: str = "me") -> Lease:
    renewed = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    item: Lease = convert(Lease, metadata={"name": name, "namespace": "zonewise-system"}, spec=spec)
    return item


def webhook(bundle: bytes = b"x") -> WebhookConfiguration:
    client_config = {
        "caBundle": base64.b64encode(bundle).decode(),
        "service": {"namespace": "zonewise-system", "name": "zonewise-webhook"},
    }
    item: WebhookConfiguration = convert(
        WebhookConfiguration,
        metadata={"name": "zonewise-overlay"},
        webhooks=[{"name": "overlay.zonewise.dev", "clientConfig": client_config, "failurePolicy": "Ignore"}],
    )
    return item


def labelled(name: str, zone: str, **labels: str) -> Node:
    plain = node(name, zone)
    more = {**plain.metadata.labels, REGION: "eu", **labels}
    status = msgspec.structs.replace(plain.status, allocatable={"cpu": "4"})
    return msgspec.structs.replace(plain, metadata=msgspec.structs.replace(plain.metadata, labels=more), status=status)


def make_cluster_snapshot() -> ClusterSnapshot:
    web, hard = service("web"), with_labels(service("hard", **{SAME_ZONE: "Require"}), ZONEWISE_PROXY)
    soft, gone = service("soft", **{SAME_ZONE: "Prefer"}), service("gone")
    hook = service("zonewise-webhook", "zonewise-system")
    return ClusterSnapshot(
        version="v1.36.3",
        nodes=[labelled(f"{zone}{index}", zone) for zone in "abc" for index in range(2)],
        services=[web, hard, soft, gone],
        slices=[
            slice_of(web, {"a": 1, "b": 1}),
            slice_of(hard, {"a": 1, "b": 1}),
            slice_of(soft, {"a": 1}),
            slice_of(hook, {"a": 2}),
        ],
        deployments=[workload("zonewise-controller", readyReplicas=2, updatedReplicas=2)],
        leases=[lease("zonewise-endpointslices", 3)],
        webhooks=[webhook()],
    )
