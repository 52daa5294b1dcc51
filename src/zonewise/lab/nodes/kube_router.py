"""kube-router in every node, for its network policies only: neither its routes nor its Services.

Its iptables rules are of the node's network namespace, and go with it. It ends until the kubelet has written the node's
addresses, and is started again.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from zonewise.lab.controlplane.programs import SERVICE_RANGE

USER: Final = "system:kube-router"
_GROUP: Final = "rbac.authorization.k8s.io"
_READ: Final = ["get", "list", "watch"]

ROLE: Final[dict[str, Any]] = {
    "metadata": {"name": USER},
    "rules": [
        {"apiGroups": [""], "resources": ["namespaces", "nodes", "pods", "services"], "verbs": _READ},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": _READ},
        {"apiGroups": ["networking.k8s.io"], "resources": ["networkpolicies"], "verbs": _READ},
    ],
}
BINDING: Final[dict[str, Any]] = {
    "metadata": {"name": USER},
    "roleRef": {"apiGroup": _GROUP, "kind": "ClusterRole", "name": USER},
    "subjects": [{"apiGroup": _GROUP, "kind": "User", "name": USER}],
}


def argv(program: Path, kubeconfig: Path, node: str) -> list[str]:
    """Without health and metrics ports: on every address of the node they would be in the way of pods with hostNetwork."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={node}",
        "--run-firewall=true",
        "--run-router=false",
        "--run-service-proxy=false",
        "--enable-ipv6=true",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--health-port=0",
        "--metrics-port=0",
    ]
