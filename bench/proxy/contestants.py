"""A proxy process in a lab node: its CPU and memory, and the times at which the kernel gets its rules."""

from __future__ import annotations

import asyncio
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.proxy.cluster import PORT
from bench.proxy.priority import REAL_TIME
from bench.report import BUILD
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import kube_proxy, nodes
from zonewise.lab.state import Lab
from zonewise.proxy.wire.family import IPV4, Protocol
from zonewise.proxy.wire.layout import frontend_key
from zonewise.proxy.wire.netlink import Message, MessageType, encoded, message_bytes, nested, received, text

OURS, PEER = "zonewise", "kube-proxy"
NODES: Final = {OURS: "zone-a-1", PEER: "zone-a-2"}
TABLES: Final = {OURS: ("zonewise", "svc"), PEER: ("kube-proxy", "service-ips")}
ALL_SERVICES: Final = ("--all-services",)
SYNC_TIMEOUT_SECONDS: Final = 300.0
_POLL_SECONDS: Final = 0.005
_NLMSG_ERROR: Final = 2
_TICKS: Final = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class RunningProxy:
    name: str
    namespace: str
    process: subprocess.Popen[bytes]
    monitor: socket.socket
    query: socket.socket

    def cpu_seconds(self) -> float:
        """CPU time of the process and its child processes, kernel time included."""
        return sum(map(_cpu_seconds, (self.process.pid, *self._children())))

    def memory_mib(self, what: str) -> float:
        """`what` is the kernel's name: VmRSS is resident memory, VmHWM its peak."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024

    def received_bytes(self) -> int:
        """Bytes received in the node's namespace, where nothing else receives much."""
        lines = namespaces.inside(self.namespace, Path("/proc/thread-self/net/dev").read_text).splitlines()
        return sum(int(line.partition(":")[2].split()[0]) for line in lines if line.strip().startswith("eth0"))

    def has(self, address: str) -> bool:
        """Whether the kernel has the service address: one netlink request, as `nft` would read whole tables."""
        table, name = TABLES[self.name]
        key = frontend_key(IPV4.pack(address), Protocol.TCP, PORT)
        body = text(1, table) + text(2, name) + nested(3, *encoded({key: None}))
        self.query.send(message_bytes(Message(MessageType.GET_ELEMENTS, IPV4.number, body), 1))
        return all(reply.kind != _NLMSG_ERROR for reply in received(self.query.recv(1 << 16)))

    async def wait_for_rules(self, address: str) -> None:
        started = time.monotonic()
        while not self.has(address):
            if time.monotonic() - started > SYNC_TIMEOUT_SECONDS or self.process.poll() is not None:
                raise TimeoutError(f"{self.name} set no rules: see {_log(self.name)}")
            await asyncio.sleep(_POLL_SECONDS)

    def listen(self) -> None:
        """Subscribe to changes; only after the start, as notifications of every element would slow the proxy."""
        self.monitor.setsockopt(270, 1, 7)  # NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES

    def drain(self) -> None:
        while select.select([self.monitor], [], [], 0)[0]:
            _receive(self.monitor)

    async def next_commit(self) -> float:
        """The time of the next notification of changed rules, by the monotonic clock."""
        loop, notified = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.monitor, notified.set)
        try:
            await asyncio.wait_for(notified.wait(), SYNC_TIMEOUT_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"{self.name} changed nothing: see {_log(self.name)}") from None
        finally:
            loop.remove_reader(self.monitor)
        return time.monotonic()

    def wait_idle(self) -> None:
        """Wait until the proxy and its child processes have used almost no CPU for a second."""
        spent = -1.0
        while (now := self.cpu_seconds()) - spent > 0.02 or self._children():
            spent = now
            time.sleep(1.0)
        self.drain()

    def _children(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for path in listed for pid in path.read_text().split()]


def _cpu_seconds(pid: int) -> float:
    """Zero for a process that has just ended: its time is included in its parent's."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _receive(monitor: socket.socket) -> None:
    try:
        monitor.recv(1 << 16)
    except OSError:  # notifications were lost
        return


def _netfilter() -> socket.socket:
    nft = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    nft.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
    nft.bind((0, 0))
    return nft


def _log(name: str) -> Path:
    return BUILD / f"proxy-{name}.log"


@contextmanager
def run(name: str, lab: Lab, options: Sequence[str] = ALL_SERVICES) -> Iterator[RunningProxy]:
    """Start without rules of an earlier run, and remove the rules at the end. `options` are for our proxy."""
    node = nodes.plan_of(lab).node(NODES[name])
    argv = _argv(name, lab, node.name, options)
    monitor = namespaces.inside(node.namespace, _netfilter)
    query = namespaces.inside(node.namespace, _netfilter)
    with _log(name).open("ab") as output:
        process = subprocess.Popen(
            [*REAL_TIME, *namespaces.command(node.namespace, argv)], stdout=output, stderr=output
        )
    try:
        yield RunningProxy(name, node.namespace, process, monitor, query)
    finally:
        process.kill()
        process.wait()
        monitor.close()
        query.close()
        for family in ("ip", "ip6"):
            argv = ["nft", "delete", "table", family, TABLES[name][0]]
            subprocess.run(namespaces.command(node.namespace, argv), capture_output=True, check=False)


def _argv(name: str, lab: Lab, node: str, options: Sequence[str]) -> list[str]:
    if name == PEER:
        return kube_proxy.argv(lab.binaries / "kube-proxy", lab.node_kubeconfig, node)
    command = [str(Path(sys.executable).with_name("zonewise")), "proxy", *options]
    return [*command, "--node-name", node, "--kubeconfig", str(lab.node_kubeconfig), "--health-port", "0"]
