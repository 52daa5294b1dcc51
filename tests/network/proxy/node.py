r"""A node with two pods, another node with pods, and somebody outside, as network namespaces: what a proxy works on.

    p1 10.244.1.11 --\                  /-- far: node 10.0.0.2, pods 10.244.2.21 .22 .23
                      node 10.0.0.1 ---<        and 10.244.3.1 to .13, IPv4 only
    p2 10.244.1.12 --/                  \-- out: 172.31.0.9

All in IPv6 too. Every pod answers on 8080 and 9090, TCP and UDP.
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

KNOCK = Path(__file__).parents[2] / "support" / "programs" / "connect.py"
NEAR_PODS = {"p1": ("10.244.1.11", "fd00:1::11"), "p2": ("10.244.1.12", "fd00:1::12")}
FAR_PODS = [(f"10.244.2.{n}", f"fd00:2::{n}") for n in (21, 22, 23)]
MANY_PODS = [f"10.244.3.{n}" for n in range(1, 14)]
NODE, FAR_NODE, OUTSIDE = ("10.0.0.1", "fd00::1"), ("10.0.0.2", "fd00::2"), ("172.31.0.9", "fd31::9")
SILENT = {"patience_seconds": 1.5}
"""For requests that nobody should answer."""
NETWORK = NodeNetwork(pod_ranges=("10.244.1.0/24", "fd00:1::/64"), addresses=NODE)
PORTS = (8080, 9090)
_SYSCTLS = {
    "net.ipv4.ip_forward": 1,
    "net.ipv4.icmp_ratelimit": 0,  # else only some of those that are refused are told
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
class Bed:
    name: str
    servers: list[subprocess.Popen[str]] = field(default_factory=list)

    def inside(self, place: str) -> str:
        return f"{self.name}-{place}"

    def ask(self, place: str, *requests: Mapping[str, Any]) -> list[list[str]]:
        """What came of each try of each request, all made at once from the place."""
        argv = namespaces.command(self.inside(place), [sys.executable, str(KNOCK), "ask"])
        body = json.dumps(requests)
        done = subprocess.run(argv, input=body, capture_output=True, text=True, check=True, timeout=120)
        answers: list[list[str]] = json.loads(done.stdout)
        return answers

    def knock(self, place: str, address: str, port: int = 80, count: int = 1, **more: Any) -> list[str]:
        return self.ask(place, {"address": address, "port": port, "count": count, **more})[0]

    def endpoints(self, place: str, address: str, port: int = 80, count: int = 1, **more: Any) -> list[str]:
        return [answer.split()[0] for answer in self.knock(place, address, port, count, **more)]

    def nft(self, *arguments: str) -> str:
        return namespaces.run(namespaces.command(self.inside("node"), ["nft", *arguments]))


@contextmanager
def made() -> Iterator[Bed]:
    bed = Bed(f"zwp{os.getpid()}-{next(_numbers)}")
    places = ["node", "p1", "p2", "far", "out"]
    with ExitStack() as ending:
        namespaces.ip([f"netns add {bed.inside(place)}" for place in places])
        ending.callback(namespaces.remove, [bed.inside(place) for place in places])
        for place in places:
            namespaces.sysctl(bed.inside(place), _SYSCTLS)
        _connect(bed)
        for place in ("p1", "p2", "far"):
            bed.servers.append(_serve(bed, place))
        ending.callback(_end, bed.servers)
        yield bed


def _connect(bed: Bed) -> None:
    node = bed.inside("node")
    namespaces.ip(["link set lo up", f"addr add {NODE[0]}/32 dev lo", f"addr add {NODE[1]}/128 dev lo"], node)
    for place in ("p1", "p2", "far", "out"):
        own = {**NEAR_PODS, "far": FAR_NODE, "out": OUTSIDE}[place]
        more = FAR_PODS if place == "far" else []
        inside = bed.inside(place)
        namespaces.ip([f"link add {place} type veth peer name eth0 netns {inside}"], node)
        here = [f"link set {place} up", f"addr add fe80::1/64 dev {place} nodad"]
        here += [f"route add {four} dev {place} src {NODE[0]}" for four, _ in (own, *more)]
        here += [f"route add {six} dev {place} src {NODE[1]}" for _, six in (own, *more)]
        there = ["link set lo up", "link set eth0 up"]
        for four, six in (own, *more):
            there += [f"addr add {four}/32 dev eth0", f"addr add {six}/128 dev eth0 nodad"]
        there += [f"route add default via {NODE[0]} dev eth0 onlink src {own[0]}"]
        there += [f"route add default via fe80::1 dev eth0 src {own[1]}"]
        if place == "far":
            here.append(f"route add 10.244.3.0/24 dev far src {NODE[0]}")
            there += [f"addr add {four}/32 dev eth0" for four in MANY_PODS]
        namespaces.ip(here, node)
        namespaces.ip(there, inside)
    # Where a packet for a service address would go if nobody took it: anywhere but here.
    for family in ("-4", "-6"):
        namespaces.ip(["route add default dev out"], node, family=family)


def _serve(bed: Bed, place: str) -> subprocess.Popen[str]:
    pods = FAR_PODS if place == "far" else [NEAR_PODS[place]]
    where = [f"{address}:{port}" for pod in pods for address in pod for port in PORTS]
    where += [f"{address}:8080" for address in MANY_PODS] if place == "far" else []
    argv = namespaces.command(bed.inside(place), [sys.executable, str(KNOCK), "serve", *where])
    server = subprocess.Popen(argv, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    assert server.stdout.readline() == "serving\n"
    return server


def _end(servers: list[subprocess.Popen[str]]) -> None:
    for server in servers:
        server.kill()
        server.wait()
        assert server.stdout is not None
        server.stdout.close()


def fits(counts: Mapping[str, int], shares: Mapping[str, float]) -> bool:
    """Whether counts are what chance makes of shares (chi-square; one true case in a million is called false)."""
    if not counts.keys() <= shares.keys():
        return False
    total, whole = sum(counts.values()), sum(shares.values())
    expected = {each: total * share / whole for each, share in shares.items()}
    statistic = sum((counts.get(each, 0) - mean) ** 2 / mean for each, mean in expected.items())
    freedom = len(shares) - 1
    if not freedom:
        return True
    limit = freedom * (1 - 2 / (9 * freedom) + 4.753 * sqrt(2 / (9 * freedom))) ** 3  # Wilson and Hilferty, p = 1e-6
    return statistic <= limit
