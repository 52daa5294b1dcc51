"""Node registration: the Node object and Lease of a namespace node, and when to send them. Pure."""

from __future__ import annotations

import datetime as dt
from typing import Any

import zonewise
from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.decide.node_labels import node_labels
from zonewise.objects import Node

LEASE_NAMESPACE = "kube-node-lease"
LEASE_SECONDS = 40
CAPACITY = {"cpu": "8", "memory": "16Gi", "ephemeral-storage": "100Gi", "pods": "110"}
"""What the scheduler may give away. Nothing is enforced: pods are plain processes of this machine."""

Json = dict[str, Any]


def labels(node: NodePlan) -> dict[str, str]:
    return node_labels(node.name, node.zone, node.rack)


def node_object(node: NodePlan, now: dt.datetime) -> Json:
    """The whole Node, as a kubelet creates it: with its status."""
    return {
        "metadata": {"name": node.name, "labels": labels(node)},
        "spec": {"podCIDR": str(node.pods.v4), "podCIDRs": [str(prefix) for prefix in node.pods]},
        "status": node_status(node, now),
    }


def node_status(node: NodePlan, now: dt.datetime) -> Json:
    return {
        "capacity": CAPACITY,
        "allocatable": CAPACITY,
        "addresses": [
            *({"type": "InternalIP", "address": str(address)} for address in node.address),
            {"type": "Hostname", "address": node.name},
        ],
        "nodeInfo": {
            "kubeletVersion": f"v{zonewise.__version__}-lab",
            "osImage": "network namespace",
            "containerRuntimeVersion": "process://",
            "operatingSystem": "linux",
        },
        **node_conditions(now),
    }


def node_conditions(now: dt.datetime) -> Json:
    """The only part of the status that other programs change."""
    return {
        "conditions": [
            _condition("Ready", True, "KubeletReady", "the node's agent runs", now),
            _condition("MemoryPressure", False, "KubeletHasSufficientMemory", "", now),
            _condition("DiskPressure", False, "KubeletHasNoDiskPressure", "", now),
            _condition("PIDPressure", False, "KubeletHasSufficientPID", "", now),
        ]
    }


def needs_conditions(node: Node) -> bool:
    """The controller manager writes Unknown when the node's heartbeat is overdue; only the node resets it."""
    return not any(condition.type == "Ready" and condition.status == "True" for condition in node.status.conditions)


def lease(node: NodePlan, owner_uid: str, now: dt.datetime) -> Json:
    """Applied at every heartbeat; with its Node as owner it goes when the Node goes."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": owner_uid}
    return {
        "metadata": {"name": node.name, "namespace": LEASE_NAMESPACE, "ownerReferences": [owner]},
        "spec": {
            "holderIdentity": node.name,
            "leaseDurationSeconds": LEASE_SECONDS,
            "renewTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
        },
    }


def _condition(kind: str, holds: bool, reason: str, message: str, now: dt.datetime) -> Json:
    moment = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "type": kind,
        "status": "True" if holds else "False",
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": moment,
        "lastTransitionTime": moment,
    }
