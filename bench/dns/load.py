"""Load and measurement: the cluster that both servers watch, the queries, CPU, latency and memory."""

from __future__ import annotations

import asyncio
import os
import random
import re
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dns.message
import dns.query

from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICES

SERVICES_COUNT, ENDPOINTS_EACH = 2000, 10
ZONES = ("zone-a", "zone-b", "zone-c")
RULE = {"zonewise.dev/topology-keys": '["topology.kubernetes.io/zone", "*"]'}
DOMAIN = "default.svc.cluster.local"
_TICKS = os.sysconf("SC_CLK_TCK")


async def write_cluster(plane: ControlPlane) -> None:
    """Headless Services with a soft rule. The benchmark's client, on loopback, is located in zone-a."""
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        for number, zone in enumerate(ZONES):
            pods = f"127.0.{number}.0/24"
            labels = {"topology.kubernetes.io/zone": zone}
            body = {
                "metadata": {"name": f"node-{zone}", "labels": labels},
                "spec": {"podCIDR": pods, "podCIDRs": [pods]},
            }
            await client.create(NODES, body)
        busy = asyncio.Semaphore(16)

        async def create(number: int) -> None:
            async with busy:
                spec = {"clusterIP": "None", "ports": [{"name": "http", "port": 80}]}
                await client.create(
                    SERVICES, {"metadata": {"name": f"s{number}", "annotations": RULE}, "spec": spec}, "default"
                )
                await client.create(ENDPOINT_SLICES, slice_of(number), "default")

        await asyncio.gather(*(create(number) for number in range(SERVICES_COUNT)))


def slice_of(number: int, change: int = 0, changed: int = 1) -> dict[str, Any]:
    """`change` gives the last `changed` endpoints another address; the very last one is in the client's zone."""
    endpoints = [
        {
            "addresses": [f"10.{number // 250}.{number % 250}.{index + 1}"],
            "conditions": {"ready": True},
            **location(index),
        }
        for index in range(ENDPOINTS_EACH)
    ]
    for index in range(changed):
        endpoints[-1 - index]["addresses"] = [f"{100 + index}.{number // 250}.{number % 250}.{change % 250}"]
    return {
        "metadata": {"name": f"s{number}", "labels": {"kubernetes.io/service-name": f"s{number}"}},
        "addressType": "IPv4",
        "ports": [{"name": "http", "protocol": "TCP", "port": 8080}],
        "endpoints": endpoints,
    }


def location(index: int) -> dict[str, str]:
    zone = ZONES[index % len(ZONES)]
    return {"nodeName": f"node-{zone}", "zone": zone}


def write_questions(path: Path) -> None:
    """70 % A, 15 % AAAA without data, 15 % names of search paths that don't exist."""
    chance = random.Random(1)
    lines = []
    for _ in range(20_000):
        name, kind = f"s{chance.randrange(SERVICES_COUNT)}.{DOMAIN}", chance.random()
        lines.append(f"{name} A" if kind < 0.7 else f"{name} AAAA" if kind < 0.85 else f"www.example.com.{name} A")
    path.write_text("\n".join(lines) + "\n")


@dataclass(frozen=True)
class Run:
    answered: float
    lost: float
    queries_per_second: float
    cpu_us_per_query: float


def run(port: int, pid: int, questions: Path, seconds: int, cpus: str, clients: int = 8) -> Run:
    """dnsperf at full load, and the CPU time of all processes of the server."""
    before = cpu_seconds(pid)
    command = ["taskset", "-c", cpus, "dnsperf", "-s", "127.0.0.1", "-p", str(port), "-d", str(questions)]
    output = subprocess.run(
        [*command, "-l", str(seconds), "-c", str(clients), "-q", "200"], check=True, capture_output=True, text=True
    ).stdout
    used = cpu_seconds(pid) - before
    answered = _figure(output, "Queries completed")
    return Run(answered, _figure(output, "Queries lost"), _figure(output, "Queries per second"), used / answered * 1e6)


def _figure(output: str, name: str) -> float:
    match = re.search(rf"{name}:\s+([\d.]+)", output)
    return float(match[1]) if match else 0.0


def tree(pid: int) -> Iterator[int]:
    yield pid
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            yield from tree(int(child))


def cpu_seconds(pid: int) -> float:
    total = 0
    for process in tree(pid):
        fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICKS


@dataclass(frozen=True)
class Memory:
    """Of all processes of a server, in MiB.

    `proportional` (PSS) divides a shared page among all processes that share it. `resident` is the plain sum. `alone` is
    as if no other program on the machine used the same libraries: anonymous memory, and each mapped file once.
    """

    proportional: float
    resident: float
    alone: float


def memory_of(pid: int) -> Memory:
    totals = {"Pss": 0, "Rss": 0, "Pss_Anon": 0}
    files: dict[tuple[str, ...], int] = {}
    for process in tree(pid):
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
        for name in totals:
            match = re.search(rf"^{name}:\s+(\d+)", rollup, re.MULTILINE)
            totals[name] += int(match[1]) if match else 0
        for key, kib in _mapped_files(process):
            files[key] = max(files.get(key, 0), kib)
    return Memory(totals["Pss"] / 1024, totals["Rss"] / 1024, (totals["Pss_Anon"] + sum(files.values())) / 1024)


def _mapped_files(pid: int) -> Iterator[tuple[tuple[str, ...], int]]:
    """Mappings of files, by offset and file, with the KiB that are resident and not private copies."""
    text = Path(f"/proc/{pid}/smaps").read_text()
    for match in re.finditer(
        r"^[\da-f]+-[\da-f]+ \S+ (\S+) \S+ (\d+) *(.*)\n(?:.*\n)*?Rss: +(\d+)(?:.*\n)*?Anonymous: +(\d+)",
        text,
        re.MULTILINE,
    ):
        if match[2] != "0":
            yield match.group(1, 2, 3), int(match[4]) - int(match[5])


def round_trips_us(port: int, count: int, cpu: int = 1) -> list[float]:
    """One query after the other from one socket on one core."""
    chance = random.Random(count)
    names = [dns.message.make_query(f"s{number}.{DOMAIN}", "A").to_wire() for number in range(SERVICES_COUNT)]
    times = []
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {cpu} & allowed or allowed)
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as client:
            client.connect(("127.0.0.1", port))
            client.settimeout(10)
            for _ in range(count):
                query = names[chance.randrange(SERVICES_COUNT)]
                begin = time.perf_counter_ns()
                client.send(query)
                client.recv(2048)
                times.append((time.perf_counter_ns() - begin) / 1000)
    finally:
        os.sched_setaffinity(0, allowed)
    return times


def change_seconds(plane: ControlPlane, port: int, change: int) -> float:
    """From the API server's acknowledgement of a new endpoint to the first answer with it."""
    body = slice_of(0, change)
    address = body["endpoints"][-1]["addresses"][0]
    plane.request("PUT", "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices/s0", body)
    begin = time.perf_counter()
    query = dns.message.make_query(f"s0.{DOMAIN}", "A")
    while True:
        reply = dns.query.udp(query, "127.0.0.1", port=port, timeout=10)
        if any(record.to_text() == address for rrset in reply.answer for record in rrset):
            return time.perf_counter() - begin
        assert time.perf_counter() < begin + 60, "the answer did not change within 60 s"


class Ours:
    def __init__(self, plane: ControlPlane, port: int, processes: int, cpus: str, *options: str) -> None:
        zonewise = str(Path(sys.executable).with_name("zonewise"))
        self.port = port
        self.process = subprocess.Popen(
            ["taskset", "-c", cpus, zonewise, "dns", "--kubeconfig", plane.kubeconfig, "--listen", "127.0.0.1",
             "--port", str(port), "--processes", str(processes), "--no-forward", "--health-port", "0",
             "--lameduck-seconds", "0", "--log-level", "warning", "--queries-per-second", "100000000", *options]
        )  # fmt: skip

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def wait_answers(port: int) -> None:
    deadline = time.monotonic() + 120
    query = dns.message.make_query(f"s{SERVICES_COUNT - 1}.{DOMAIN}", "A")
    while time.monotonic() < deadline:
        try:
            if dns.query.udp(query, "127.0.0.1", port=port, timeout=1).answer:
                return
        except (OSError, dns.exception.DNSException):
            pass
        time.sleep(0.1)
    raise TimeoutError(f"port {port} does not answer")
