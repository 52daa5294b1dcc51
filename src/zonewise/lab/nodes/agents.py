"""Start of the node agents. `agent` itself is heavy to import and so is a module of its own."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import msgspec

from zonewise.lab import processes
from zonewise.lab.decide.addresses import namespace_of
from zonewise.lab.network import namespaces


class AgentConfig(msgspec.Struct, frozen=True):
    """Configuration of the agents, as JSON on their command line."""

    lab: str
    slot: int
    zones: tuple[str, ...]
    nodes_per_zone: int
    directory: str
    kubeconfig: str
    cluster_dns: str = ""
    """The address of the cluster's DNS server, if it has one: as a kubelet's clusterDNS."""


def process_name(node: str) -> str:
    return f"agent-{node}"


def start(config: AgentConfig, nodes: Iterable[str]) -> None:
    """One agent for each of these nodes that has none, forked off one process.

    That process starts inside the lab's router, so that a concurrent `lab down` finds it there.
    """
    missing = [node for node in nodes if not is_running(Path(config.directory), node)]
    if missing:
        argv = [sys.executable, "-m", "zonewise.lab.nodes.agent", msgspec.json.encode(config).decode(), *missing]
        namespaces.run(namespaces.command(namespace_of(config.lab), argv))


def is_running(directory: Path, node: str) -> bool:
    process = processes.find(directory, process_name(node))
    return process is not None and process.running
