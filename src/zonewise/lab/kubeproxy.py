"""Stock kube-proxy in every namespace node, in its nftables mode."""

from __future__ import annotations

from pathlib import Path

from zonewise.lab import namespaces, processes
from zonewise.lab.addresses import NodePlan


def process_name(node: str) -> str:
    return f"kube-proxy-{node}"


def argv(program: Path, kubeconfig: Path, node: str) -> list[str]:
    """Zeros leave conntrack's sizes alone: they are the machine's, and not writable from a namespace.

    What does not come from the node's own pods is masqueraded, so that answers find back through the node.
    """
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={node}",
        "--proxy-mode=nftables",
        "--conntrack-max-per-core=0",
        "--conntrack-min=0",
        "--detect-local-mode=NodeCIDR",
        "--healthz-bind-address=127.0.0.1:10256",
        "--metrics-bind-address=127.0.0.1:10249",
    ]


def start(directory: Path, program: Path, node: NodePlan) -> None:
    """Unless it runs already."""
    name = process_name(node.name)
    running = processes.find(directory, name)
    if running is None or not running.running:
        kubeconfig = directory / "kube-proxy.kubeconfig"
        processes.spawn(directory, name, namespaces.command(node.namespace, argv(program, kubeconfig, node.name)))
