"""Stock kube-proxy in every node, in its nftables mode.

It listens for its node's zone a moment after it has asked for the node, and where the answer comes in between it never
learns its zone and ignores all hints. A zone label that is set once kube-proxy watches is always seen.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zonewise.lab import processes
from zonewise.lab.decide.addresses import NodePlan

_LISTENS: Final = b"Starting node config controller"
"""What it writes once it listens."""


@dataclass(frozen=True, slots=True)
class StartedProxy:
    """What it wrote before, in an earlier life, is `earlier_bytes` long."""

    node: NodePlan
    log: Path
    earlier_bytes: int

    @property
    def listens(self) -> bool:
        if not self.log.exists():
            return False
        with self.log.open("rb") as log:
            log.seek(self.earlier_bytes)
            return _LISTENS in log.read()


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


def kubeconfig(directory: Path) -> Path:
    return directory / "kube-proxy.kubeconfig"


def starting(directory: Path, node: NodePlan) -> StartedProxy:
    """One that is about to be started."""
    log = processes.log_path(directory, process_name(node.name))
    return StartedProxy(node, log, log.stat().st_size if log.exists() else 0)
