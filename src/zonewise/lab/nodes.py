"""The face of a lab's namespace nodes: made and removed, cut off and healed, shaped, and entered.

`prepare` comes before the API server, which listens on the host's end of the link it makes (`addresses.host_addresses`);
`up` comes after it and starts an agent, and where wanted kube-proxy, in every node. `down` needs only the lab's name and
slot, finds everything by namespace, and may be called after any crash.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol


class Lab(Protocol):
    """What the nodes must know of their lab; the lab's record has it."""

    @property
    def name(self) -> str: ...
    @property
    def slot(self) -> int: ...
    @property
    def directory(self) -> Path:
        """Logs, the pods' working directories and what was shaped live below it."""
        ...

    @property
    def zones(self) -> tuple[str, ...]: ...
    @property
    def nodes_per_zone(self) -> int: ...
    @property
    def node_kubeconfig(self) -> Path:
        """Reaches the API server from inside the nodes: at `addresses.host_addresses(slot)`, with rights of an admin."""
        ...

    @property
    def kube_proxy(self) -> Path | None:
        """The stock kube-proxy to run in every node; None runs none."""
        ...


def prepare(lab: Lab) -> None:
    """Make the network: host link, router, zones and nodes. Needs root. Idempotent."""
    raise NotImplementedError


def up(lab: Lab) -> None:
    """Start the agents (and kube-proxy); they register their Nodes within seconds. Idempotent."""
    raise NotImplementedError


def down(name: str, slot: int) -> None:
    """End every process inside the lab's namespaces and remove namespaces, link and routes. Idempotent."""
    raise NotImplementedError


def cut(lab: Lab, zone: str) -> None:
    """From now on no packet enters or leaves the zone: neither to other zones nor to the API server."""
    raise NotImplementedError


def heal(lab: Lab, zone: str) -> None:
    raise NotImplementedError


def shape(lab: Lab, a: str, b: str, latency_ms: float, loss_percent: float) -> None:
    """Delay and drop what goes between two zones, each way. Zero for both makes the path plain again."""
    raise NotImplementedError


def exec_argv(lab: Lab, pod_or_node: str, argv: Sequence[str]) -> list[str]:
    """The command line that runs `argv` inside a node or a pod (`name`, or `namespace/name`)."""
    raise NotImplementedError
