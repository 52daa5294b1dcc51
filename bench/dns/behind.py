"""Does it work behind CoreDNS? A CoreDNS that passes the cluster's domain on to us, and says for whom it asks.

Clients of three zones, and one from nowhere, ask CoreDNS; a hard rule has to hold for each. `python -m bench.dns.behind`
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import dns.exception
import dns.message
import dns.query

from bench.dns import coredns, load
from bench.dns.differential import free_port
from zonewise.kube import kubeconfig
from zonewise.kube.client import Client
from zonewise.lab import controlplane
from zonewise.lab.controlplane import ControlPlane
from zonewise.lab.programs import Program
from zonewise.objects import ENDPOINT_SLICES, NODES, SERVICES

RULE = {"zonewise.dev/topology-keys": '["topology.kubernetes.io/zone"]'}
EXPECTED = {
    "127.0.10.9": {"10.0.0.1", "10.0.0.4"},
    "127.0.11.9": {"10.0.0.2"},
    "127.0.12.9": {"10.0.0.3"},
    "127.0.99.9": {"10.0.0.1", "10.0.0.2", "10.0.0.3", "10.0.0.4"},
}
PATIENCE_SECONDS = 60.0


async def write_cluster(plane: ControlPlane) -> None:
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        for number, zone in enumerate(load.ZONES):
            pods = f"127.0.{10 + number}.0/24"
            meta = {"name": f"node-{zone}", "labels": {"topology.kubernetes.io/zone": zone}}
            await client.create(NODES, {"metadata": meta, "spec": {"podCIDR": pods, "podCIDRs": [pods]}})
        await client.create(
            SERVICES, {"metadata": {"name": "s", "annotations": RULE}, "spec": {"clusterIP": "None"}}, "default"
        )
        endpoints = [{"addresses": [f"10.0.0.{n + 1}"], **load.place(n)} for n in range(4)]
        meta = {"name": "s", "labels": {"kubernetes.io/service-name": "s"}}
        body = {"metadata": meta, "addressType": "IPv4", "ports": [], "endpoints": endpoints}
        await client.create(ENDPOINT_SLICES, body, "default")


def asked(port: int, client: str) -> set[str]:
    query = dns.message.make_query(f"s.{load.DOMAIN}", "A")
    deadline = time.monotonic() + PATIENCE_SECONDS
    while True:
        try:
            reply = dns.query.udp(query, "127.0.0.1", port=port, source=client, timeout=5)
            return {record.to_text() for rrset in reply.answer for record in rrset}
        except (OSError, dns.exception.DNSException):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def front(directory: Path, port: int, behind: int) -> subprocess.Popen[bytes]:
    corefile = directory / "Corefile"
    corefile.write_text(
        f".:{port} {{\n bind 127.0.0.1\n errors\n rewrite edns0 subnet set 32 128\n forward cluster.local 127.0.0.1:{behind}\n}}\n"
    )
    return subprocess.Popen([coredns.ensure(), "-conf", corefile, "-quiet"])


def main() -> int:
    with tempfile.TemporaryDirectory() as scratch:
        directory = Path(scratch, "plane")
        plane = ControlPlane.start(directory, programs=(Program.ETCD, Program.APISERVER))
        try:
            asyncio.run(write_cluster(plane))
            ours = load.Ours(plane, free_port(), 1, "0-1", "--forwarder", "127.0.0.1/32")
            port = free_port()
            peer = front(Path(scratch), port, ours.port)
            try:
                asked(ours.port, "127.0.0.1")
                found = {client: asked(port, client) for client in EXPECTED}
            finally:
                peer.terminate()
                peer.wait()
                ours.stop()
        finally:
            controlplane.remove(directory)
    for client, addresses in found.items():
        print(
            client, sorted(addresses), "" if addresses == EXPECTED[client] else f"expected {sorted(EXPECTED[client])}"
        )
    return int(found != EXPECTED)


if __name__ == "__main__":
    sys.exit(main())
