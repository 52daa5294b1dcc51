"""New connections through a node's rules: a client and an answering namespace on either side of each proxy's node.

The client has an address of the node's pods. All endpoints' addresses are those of the answering namespace, so that
whichever the rules choose, the packets go the same way.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from bench.proxy.contestants import NODES
from bench.report import ROOT
from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab

ROUNDS, CONNECTIONS = 8, 2500
_PODS = "172.16.0.0/12"


@contextmanager
def ends(lab: Lab) -> Iterator[None]:
    """Of both nodes; namespaces that go with the lab."""
    with ExitStack() as stack:
        for name in NODES.values():
            node = nodes.plan_of(lab).node(name)
            _lay(node)
            server = subprocess.Popen(_inside(node, "answering", "answer"), cwd=ROOT)
            stack.callback(server.wait)
            stack.callback(server.kill)
        yield


async def connected(lab: Lab, names: Iterable[str], size: int) -> dict[str, dict[str, float]]:
    """Medians of rounds, in turn, by name."""
    plan = nodes.plan_of(lab)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in names}
    for seed in range(ROUNDS):
        for name, rounds in found.items():
            node = plan.node(NODES[name])
            argv = _inside(node, "client", "connect", str(size), str(CONNECTIONS), str(seed))
            done = await asyncio.to_thread(subprocess.run, argv, cwd=ROOT, capture_output=True, check=True)
            rounds.append(json.loads(done.stdout))
    return {
        name: {what: statistics.median(each[what] for each in rounds) for what in rounds[0]}
        for name, rounds in found.items()
    }


def _lay(node: NodePlan) -> None:
    client_address = str(node.pods.v4[250])
    client, answering = _namespace(node, "client"), _namespace(node, "answering")
    namespaces.ip([f"netns add {client}", f"netns add {answering}"])
    for other, link, near in ((client, "client0", "169.254.1.1"), (answering, "answer0", "169.254.2.1")):
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
        answering,
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
