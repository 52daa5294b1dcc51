"""New connections through a node's rules, between a client and a server namespace at each proxy's node.

The client has a pod address of the node. The server namespace has all endpoint addresses, so that packets take the
same path whichever endpoint the rules choose.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Final

from bench.proxy.contestants import NODES
from bench.report import ROOT
from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab

ROUNDS, CONNECTIONS = 8, 2500
_PODS: Final = "172.16.0.0/12"


@contextmanager
def client_and_server(lab: Lab) -> Iterator[None]:
    """Create the namespaces at both nodes; they are removed with the lab."""
    with ExitStack() as stack:
        for name in NODES.values():
            node = nodes.plan_of(lab).node(name)
            _create_links(node)
            server = subprocess.Popen(_inside(node, "server", "serve"), cwd=ROOT)
            stack.callback(server.wait)
            stack.callback(server.kill)
        yield


async def measure_connections(lab: Lab, names: Iterable[str], size: int) -> dict[str, dict[str, float]]:
    """Medians of alternating rounds, by proxy."""
    plan = nodes.plan_of(lab)
    rounds_by_name: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for seed in range(ROUNDS):
        for name, rounds in rounds_by_name.items():
            node = plan.node(NODES[name])
            argv = _inside(node, "client", "connect", str(size), str(CONNECTIONS), str(seed))
            process = await asyncio.to_thread(subprocess.run, argv, cwd=ROOT, capture_output=True, check=True)
            rounds.append(json.loads(process.stdout))
    return {
        name: {what: statistics.median(figures[what] for figures in rounds) for what in rounds[0]}
        for name, rounds in rounds_by_name.items()
    }


def _create_links(node: NodePlan) -> None:
    client_address = str(node.pods.v4[250])
    client, server_namespace = _namespace(node, "client"), _namespace(node, "server")
    namespaces.ip([f"netns add {client}", f"netns add {server_namespace}"])
    for other, link, near in ((client, "client0", "169.254.1.1"), (server_namespace, "answer0", "169.254.2.1")):
        namespaces.ip([f"link add {link} type veth peer name eth0 netns {other}"], node.namespace)
        namespaces.ip([f"address add {near}/32 dev {link}", f"link set {link} up"], node.namespace)
        namespaces.ip(["link set lo up", "link set eth0 up"], other)
    namespaces.ip(
        [
            f"address add {client_address}/32 dev eth0",
            "route add 169.254.1.1 dev eth0",
            "route add default via 169.254.1.1",
        ],
        client,
    )
    namespaces.ip(
        [
            "address add 169.254.2.2/32 dev eth0",
            "route add 169.254.2.1 dev eth0",
            "route add default via 169.254.2.1",
            f"route add local {_PODS} dev lo",
        ],
        server_namespace,
    )
    namespaces.ip(
        [
            f"route add {client_address}/32 dev client0",
            "route add 169.254.2.2/32 dev answer0",
            f"route add {_PODS} via 169.254.2.2 dev answer0",
        ],
        node.namespace,
    )


def _namespace(node: NodePlan, end: str) -> str:
    return f"{node.namespace}.{end}"


def _inside(node: NodePlan, end: str, *arguments: str) -> list[str]:
    argv = [sys.executable, "-m", "bench.proxy.connections", *arguments]
    return namespaces.command(_namespace(node, end), argv)
