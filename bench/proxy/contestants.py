"""A proxy as a process inside a node of the lab: its CPU and memory, and the moments at which the kernel gets its rules."""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from zonewise.lab import kubeproxy, namespaces, nodes
from zonewise.lab.state import Lab
from zonewise.proxy.family import IPV4, Protocol
from zonewise.proxy.layout import place_key
from zonewise.proxy.netlink import Kind, Message, encoded, message_bytes, nested, received, text

OURS, PEER = "zonewise", "kube-proxy"
NODES = {OURS: "zone-a-1", PEER: "zone-a-2"}
TABLES = {OURS: ("zonewise", "svc"), PEER: ("kube-proxy", "service-ips")}
NLMSG_ERROR = 2
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Running:
    name: str
    namespace: str
    process: subprocess.Popen[bytes]
    monitor: socket.socket
    asking: socket.socket

    def cpu_seconds(self) -> float:
        """Of the process and of the tools it ran, kernel time included."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / _TICKS

    def peak_mib(self) -> float:
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024

    def has(self, address: str) -> bool:
        """Whether the kernel knows the service address: one question over netlink, as `nft` would read whole tables."""
        table, name = TABLES[self.name]
        key = place_key(IPV4.pack(address), Protocol.TCP, 80)
        body = text(1, table) + text(2, name) + nested(3, *encoded({key: None}))
        self.asking.send(message_bytes(Message(Kind.GET_ELEMENTS, IPV4.number, body), 1))
        return all(answer.kind != NLMSG_ERROR for answer in received(self.asking.recv(1 << 16)))

    def drain(self) -> None:
        while select.select([self.monitor], [], [], 0)[0]:
            _receive(self.monitor)

    def next_commit(self, timeout_seconds: float) -> float:
        """When the kernel next tells of changed rules, by the monotonic clock."""
        if not select.select([self.monitor], [], [], timeout_seconds)[0]:
            raise TimeoutError(f"{self.name} changed nothing within {timeout_seconds} s")
        return time.monotonic()

    def until_quiet(self, quiet_seconds: float = 1.5) -> None:
        while select.select([self.monitor], [], [], quiet_seconds)[0]:
            self.drain()


def _receive(monitor: socket.socket) -> None:
    try:
        monitor.recv(1 << 16)
    except OSError:  # so much happened that word was lost
        return


def _netfilter() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    opened.bind((0, 0))
    return opened


def _monitor() -> socket.socket:
    monitor = _netfilter()
    monitor.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
    monitor.setsockopt(270, 1, 7)  # NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES
    return monitor


@contextmanager
def run(name: str, lab: Lab, log: Path) -> Iterator[Running]:
    """From nothing: without the rules of an earlier run."""
    node = nodes.plan_of(lab).node(NODES[name])
    argv = _argv(name, lab, node.name)
    monitor = namespaces.inside(node.namespace, _monitor)
    asking = namespaces.inside(node.namespace, _netfilter)
    with log.open("ab") as output:
        process = subprocess.Popen(namespaces.command(node.namespace, argv), stdout=output, stderr=output)
    try:
        yield Running(name, node.namespace, process, monitor, asking)
    finally:
        process.kill()
        process.wait()
        monitor.close()
        asking.close()
        table = TABLES[name][0]
        for family in ("ip", "ip6"):
            argv = ["nft", "delete", "table", family, table]
            subprocess.run(namespaces.command(node.namespace, argv), capture_output=True, check=False)


def _argv(name: str, lab: Lab, node: str) -> list[str]:
    if name == PEER:
        return kubeproxy.argv(lab.binaries / "kube-proxy", lab.node_kubeconfig, node)
    command = [str(Path(sys.executable).with_name("zonewise")), "proxy", "--all-services"]
    return [*command, "--node-name", node, "--kubeconfig", str(lab.node_kubeconfig), "--health-port", "0"]
