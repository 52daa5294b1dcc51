"""Configuration of a node's kubelet: its file, its flags and its Node object. Pure."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.decide.cgroup_hierarchies import node_cgroup
from zonewise.lab.decide.containerd_config import SOCKET
from zonewise.lab.decide.node_labels import node_labels

Json = dict[str, Any]
HEARTBEAT_SECONDS: Final = 4
_KUBELET_LABELS: Final = ("kubernetes.io/hostname", "kubernetes.io/os", "kubernetes.io/arch")
"""The kubelet writes them itself, and refuses to be given them."""

KERNEL_SETTINGS: Final = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1_000_000,
    "kernel/keys/root_maxbytes": 25_000_000,
}
"""What a kubelet writes below /proc/sys unless it is there (setupKernelTunables). All of them are the whole machine's."""


def node_user(node: str) -> tuple[str, tuple[str, ...]]:
    """User and groups of a kubelet: the Node authorizer knows them by these names."""
    return f"system:node:{node}", ("system:nodes",)


def kubelet_config(lab: str, node: NodePlan, pki: Path, authority: Path, cluster_dns: str) -> Json:
    """KubeletConfiguration. `pki` has the serving certificate; clients are known by `authority`, or asked for at the API server."""
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet.key"),
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{node_cgroup(lab, node.name)}",
        "enforceNodeAllocatable": ["pods"],
        "failCgroupV1": False,
        "failSwapOn": False,
        "clusterDomain": "cluster.local",
        "clusterDNS": [cluster_dns] if cluster_dns else [],
        "resolvConf": "/etc/resolv.conf",
        "nodeStatusUpdateFrequency": f"{HEARTBEAT_SECONDS}s",
        "nodeLeaseDurationSeconds": 4 * HEARTBEAT_SECONDS,  # it is renewed after a quarter of that
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",  # the default is in /usr, which is the machine's
        # Images are loaded by hand and can't be pulled again; and a laptop's disk may well be nine tenths full.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
    }


def kubelet_argv(program: Path, config: Path, kubeconfig: Path, node: NodePlan) -> list[str]:
    labels = {key: value for key, value in _labels(node).items() if key not in _KUBELET_LABELS}
    return [
        str(program),
        f"--config={config}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={node.name}",
        f"--node-ip={','.join(map(str, node.address))}",
        f"--node-labels={','.join(f'{key}={value}' for key, value in labels.items())}",
        "--v=1",
    ]


def node_object(node: NodePlan) -> Json:
    """The Node before its kubelet starts. Pod ranges are the cluster's to give, and kube-proxy exits when they change."""
    return {
        "metadata": {"name": node.name, "labels": _labels(node)},
        "spec": {"podCIDR": str(node.pods.v4), "podCIDRs": [str(prefix) for prefix in node.pods]},
    }


def _labels(node: NodePlan) -> dict[str, str]:
    return node_labels(node.name, node.zone, node.rack)


def resolv_conf(text: str) -> str:
    """The machine's /etc/resolv.conf without name servers on loopback, which a pod has no way to."""
    kept = [
        line for line in text.splitlines() if not (line.split()[:1] == ["nameserver"] and _on_loopback(line.split()))
    ]
    return "".join(f"{line}\n" for line in kept)


def _on_loopback(words: list[str]) -> bool:
    return len(words) > 1 and (words[1].startswith("127.") or words[1] == "::1")


def hosts_file(node: NodePlan) -> str:
    lines = ["127.0.0.1 localhost", "::1 localhost", *(f"{address} {node.name}" for address in node.address)]
    return "".join(f"{line}\n" for line in lines)
