"""A proxy as a process inside a node of the lab: its CPU and memory, and the moments at which the kernel gets its rules."""

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

from bench.proxy.cluster import PORT
from bench.proxy.priority import AHEAD
from bench.report import BUILD
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import kube_proxy, nodes
from zonewise.lab.state import Lab
from zonewise.proxy.wire.family import IPV4, Protocol
from zonewise.proxy.wire.layout import frontend_key
from zonewise.proxy.wire.netlink import Message, MessageType, encoded, message_bytes, nested, received, text

OURS, PEER = "zonewise", "kube-proxy"
NODES = {OURS: "zone-a-1", PEER: "zone-a-2"}
TABLES = {OURS: ("zonewise", "svc"), PEER: ("kube-proxy", "service-ips")}
ALL_SERVICES = ("--all-services",)
LONGEST_SYNC_SECONDS = 300.0
_POLL_SECONDS = 0.005
_NLMSG_ERROR = 2
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Running:
    name: str
    namespace: str
    process: subprocess.Popen[bytes]
    monitor: socket.socket
    asking: socket.socket

    def cpu_seconds(self) -> float:
        """Of the process and of the tools it ran or runs, kernel time included."""
        return sum(map(_cpu_seconds, (self.process.pid, *self._tools())))

    def memory_mib(self, what: str) -> float:
        """As the kernel calls it: VmRSS is resident now, VmHWM its peak."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith(what)) / 1024

    def received_bytes(self) -> int:
        """Of the node's namespace, in which nothing else receives much."""
        lines = namespaces.inside(self.namespace, Path("/proc/thread-self/net/dev").read_text).splitlines()
        return sum(int(line.partition(":")[2].split()[0]) for line in lines if line.strip().startswith("eth0"))

    def has(self, address: str) -> bool:
        """Whether the kernel knows the service address: one question over netlink, as `nft` would read whole tables."""
        table, name = TABLES[self.name]
        key = frontend_key(IPV4.pack(address), Protocol.TCP, PORT)
        body = text(1, table) + text(2, name) + nested(3, *encoded({key: None}))
        self.asking.send(message_bytes(Message(MessageType.GET_ELEMENTS, IPV4.number, body), 1))
        return all(answer.kind != _NLMSG_ERROR for answer in received(self.asking.recv(1 << 16)))

    async def until_it_has(self, address: str) -> None:
        begin = time.monotonic()
        while not self.has(address):
            if time.monotonic() - begin > LONGEST_SYNC_SECONDS or self.process.poll() is not None:
                raise TimeoutError(f"{self.name} set no rules: see {_log(self.name)}")
            await asyncio.sleep(_POLL_SECONDS)

    def listen(self) -> None:
        """For changes; not before all is in place, or the proxy would pay for the kernel's word of each element."""
        self.monitor.setsockopt(270, 1, 7)  # NETLINK_ADD_MEMBERSHIP, NFNLGRP_NFTABLES

    def drain(self) -> None:
        while select.select([self.monitor], [], [], 0)[0]:
            _receive(self.monitor)

    async def next_commit(self) -> float:
        """When the kernel next tells of changed rules, by the monotonic clock."""
        loop, told = asyncio.get_running_loop(), asyncio.Event()
        loop.add_reader(self.monitor, told.set)
        try:
            await asyncio.wait_for(told.wait(), LONGEST_SYNC_SECONDS)
        except TimeoutError:
            raise TimeoutError(f"{self.name} changed nothing: see {_log(self.name)}") from None
        finally:
            loop.remove_reader(self.monitor)
        return time.monotonic()

    def until_idle(self) -> None:
        """Until it has used next to no CPU, by itself or by its tools, for a second."""
        spent = -1.0
        while (now := self.cpu_seconds()) - spent > 0.02 or self._tools():
            spent = now
            time.sleep(1.0)
        self.drain()

    def _tools(self) -> list[int]:
        listed = Path(f"/proc/{self.process.pid}/task").glob("*/children")
        return [int(pid) for path in listed for pid in path.read_text().split()]


def _cpu_seconds(pid: int) -> float:
    """None of a tool that has just ended: it is its caller's by now."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return sum(map(int, fields[11:15])) / _TICKS


def _receive(monitor: socket.socket) -> None:
    try:
        monitor.recv(1 << 16)
    except OSError:  # so much happened that word was lost
        return


def _netfilter() -> socket.socket:
    opened = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    opened.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)
    opened.bind((0, 0))
    return opened


def _log(name: str) -> Path:
    return BUILD / f"proxy-{name}.log"


@contextmanager
def run(name: str, lab: Lab, options: Sequence[str] = ALL_SERVICES) -> Iterator[Running]:
    """From nothing: without the rules of an earlier run, and leaving none. `options` are those of ours."""
    node = nodes.plan_of(lab).node(NODES[name])
    argv = _argv(name, lab, node.name, options)
    monitor = namespaces.inside(node.namespace, _netfilter)
    asking = namespaces.inside(node.namespace, _netfilter)
    with _log(name).open("ab") as output:
        process = subprocess.Popen([*AHEAD, *namespaces.command(node.namespace, argv)], stdout=output, stderr=output)
    try:
        yield Running(name, node.namespace, process, monitor, asking)
    finally:
        process.kill()
        process.wait()
        monitor.close()
        asking.close()
        for family in ("ip", "ip6"):
            argv = ["nft", "delete", "table", family, TABLES[name][0]]
            subprocess.run(namespaces.command(node.namespace, argv), capture_output=True, check=False)


def _argv(name: str, lab: Lab, node: str, options: Sequence[str]) -> list[str]:
    if name == PEER:
        return kube_proxy.argv(lab.binaries / "kube-proxy", lab.node_kubeconfig, node)
    command = [str(Path(sys.executable).with_name("zonewise")), "proxy", *options]
    return [*command, "--node-name", node, "--kubeconfig", str(lab.node_kubeconfig), "--health-port", "0"]
