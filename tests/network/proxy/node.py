r"""Network namespaces for proxy tests: a node with two pods, another node with pods, and a client outside.

    p1 10.244.1.11 --\                  /-- far: node 10.0.0.2, pods 10.244.2.21 .22 .23
                      node 10.0.0.1 ---<        and 10.244.3.1 to .13, IPv4 only
    p2 10.244.1.12 --/                  \-- out: 172.31.0.9

All in IPv6 too. Every pod serves on 8080 and 9090, TCP and UDP.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from math import sqrt
from pathlib import Path
from typing import Any

from zonewise.lab.network import namespaces
from zonewise.proxy.applier import NodeNetwork

CONNECT = Path(__file__).parents[2] / "support" / "programs" / "connect.py"
NEAR_PODS = {"p1": ("10.244.1.11", "fd00:1::11"), "p2": ("10.244.1.12", "fd00:1::12")}
FAR_PODS = [(f"10.244.2.{n}", f"fd00:2::{n}") for n in (21, 22, 23)]
MANY_PODS = [f"10.244.3.{n}" for n in range(1, 14)]
NODE, FAR_NODE, OUTSIDE = ("10.0.0.1", "fd00::1"), ("10.0.0.2", "fd00::2"), ("172.31.0.9", "fd31::9")
SILENT = {"patience_seconds": 1.5}
"""For requests that must time out."""
NETWORK = NodeNetwork(pod_ranges=("10.244.1.0/24", "fd00:1::/64"), addresses=NODE)
PORTS = (8080, 9090)
SYSCTLS = {
    "net.ipv4.ip_forward": 1,
    "net.ipv4.icmp_ratelimit": 0,  # otherwise some rejections are not sent
    "net.ipv6.icmp.ratelimit": 0,
    "net.ipv4.conf.all.rp_filter": 0,
    "net.ipv4.conf.default.rp_filter": 0,
    "net.ipv4.conf.all.send_redirects": 0,
    "net.ipv4.conf.default.send_redirects": 0,
    "net.ipv6.conf.all.disable_ipv6": 0,
    "net.ipv6.conf.default.accept_dad": 0,
    "net.ipv6.conf.all.forwarding": 1,
}
_numbers = count(1)


@dataclass
class NodeNet:
    name: str
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def netns(self, host: str) -> str:
        return f"{self.name}-{host}"

    def request(self, host: str, *requests: Mapping[str, Any]) -> list[list[str]]:
        """The outcome of each attempt of each request, all sent at once from the host."""
        argv = namespaces.command(self.netns(host), [sys.executable, str(CONNECT), "ask"])
        body = json.dumps(requests)
        done = subprocess.run(argv, input=body, capture_output=True, text=True, check=True, timeout=120)
        answers: list[list[str]] = json.loads(done.stdout)
        return answers

    def connect(self, host: str, address: str, port: int = 80, count: int = 1, **more: Any) -> list[str]:
        return self.request(host, {"address": address, "port": port, "count": count, **more})[0]

    def endpoints(self, host: str, address: str, port: int = 80, count: int = 1, **more: Any) -> list[str]:
        return [answer.split()[0] for answer in self.connect(host, address, port, count, **more)]

    def nft(self, *arguments: str) -> str:
        return namespaces.run(namespaces.command(self.netns("node"), ["nft", *arguments]))


@contextmanager
def create() -> Iterator[NodeNet]:
    node_net = NodeNet(f"zwp{os.getpid()}-{next(_numbers)}")
    hosts = ["node", "p1", "p2", "far", "out"]
    with ExitStack() as stack:
        namespaces.ip([f"netns add {node_net.netns(host)}" for host in hosts])
        stack.callback(namespaces.remove, [node_net.netns(host) for host in hosts])
        for host in hosts:
            namespaces.sysctl(node_net.netns(host), SYSCTLS)
        _link(node_net)
        for host in ("p1", "p2", "far"):
            node_net.servers.append(_serve(node_net, host))
        stack.callback(_stop, node_net.servers)
        yield node_net


def _link(node_net: NodeNet) -> None:
    node = node_net.netns("node")
    namespaces.ip(["link set lo up", f"addr add {NODE[0]}/32 dev lo", f"addr add {NODE[1]}/128 dev lo"], node)
    for host in ("p1", "p2", "far", "out"):
        addresses = {**NEAR_PODS, "far": FAR_NODE, "out": OUTSIDE}[host]
        more = FAR_PODS if host == "far" else []
        netns = node_net.netns(host)
        namespaces.ip([f"link add {host} type veth peer name eth0 netns {netns}"], node)
        node_commands = [f"link set {host} up", f"addr add fe80::1/64 dev {host} nodad"]
        node_commands += [f"route add {four} dev {host} src {NODE[0]}" for four, _ in (addresses, *more)]
        node_commands += [f"route add {six} dev {host} src {NODE[1]}" for _, six in (addresses, *more)]
        host_commands = ["link set lo up", "link set eth0 up"]
        for four, six in (addresses, *more):
            host_commands += [f"addr add {four}/32 dev eth0", f"addr add {six}/128 dev eth0 nodad"]
        host_commands += [f"route add default via {NODE[0]} dev eth0 onlink src {addresses[0]}"]
        host_commands += [f"route add default via fe80::1 dev eth0 src {addresses[1]}"]
        if host == "far":
            node_commands.append(f"route add 10.244.3.0/24 dev far src {NODE[0]}")
            host_commands += [f"addr add {four}/32 dev eth0" for four in MANY_PODS]
        namespaces.ip(node_commands, node)
        namespaces.ip(host_commands, netns)
    # Packets to a service address without a rule leave the node.
    for family in ("-4", "-6"):
        namespaces.ip(["route add default dev out"], node, family=family)


def _serve(node_net: NodeNet, host: str) -> subprocess.Popen[str]:
    pods = FAR_PODS if host == "far" else [NEAR_PODS[host]]
    listen = [f"{address}:{port}" for pod in pods for address in pod for port in PORTS]
    listen += [f"{address}:8080" for address in MANY_PODS] if host == "far" else []
    argv = namespaces.command(node_net.netns(host), [sys.executable, str(CONNECT), "serve", *listen])
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "serving\n"
    return server


def _stop(servers: list[subprocess.Popen[str]]) -> None:
    for server in servers:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


def fits(counts: Mapping[str, int], shares: Mapping[str, float]) -> bool:
    """Chi-square test of counts against shares; rejects one true case in a million."""
    if not counts.keys() <= shares.keys():
        return False
    total, total_share = sum(counts.values()), sum(shares.values())
    expected = {name: total * share / total_share for name, share in shares.items()}
    statistic = sum((counts.get(name, 0) - mean) ** 2 / mean for name, mean in expected.items())
    freedom = len(shares) - 1
    if not freedom:
        return True
    limit = freedom * (1 - 2 / (9 * freedom) + 4.753 * sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty, p = 1e-6
    return statistic <= limit
