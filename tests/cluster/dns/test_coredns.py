"""Comparison with the real CoreDNS on random clusters, and the server behind CoreDNS.

`python -m bench.dns.differential` compares 500 states.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import dns.exception
import dns.message
import dns.query
import pytest
from bench.dns import coredns, differential

from support.dns.cluster import answer_texts, endpoint
from support.dns.server import IN_ZONE, NOWHERE, Server, create_nodes, create_service, slice_body, slices_path
from support.install.deployed import MANIFESTS
from support.lab import shared_cluster
from support.process import wait_for
from zonewise.lab.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.xdist_group("dns-coredns")  # one control plane for all of them

STATES = 15
HARD = {"zonewise.dev/topology-keys": '["topology.kubernetes.io/zone"]'}
NAME = "db.default.svc.cluster.local."


@pytest.fixture(scope="module")
def plane(run_directory: shared_cluster.Run) -> Iterator[ControlPlane]:
    control_plane = run_directory.private()
    create_nodes(control_plane)
    create_service(control_plane, "default", "db", HARD, clusterIP="None", ports=[{"name": "http", "port": 8080}])
    near = [endpoint("10.0.11.1", "zone-a-1"), endpoint("10.0.21.1", "zone-b-1")]
    control_plane.request("POST", slices_path("default"), slice_body("db", near))
    yield control_plane
    run_directory.remove(control_plane)


@pytest.fixture(scope="module")
def server(plane: ControlPlane) -> Iterator[Server]:
    started = Server(plane, "--no-forward", "--pods", "insecure", "--forwarder", "127.0.0.1/32")
    yield started
    started.remove()


async def test_answers_equal_those_of_coredns(plane: ControlPlane, server: Server, tmp_path: Path) -> None:
    states = differential.random_states(STATES, seed=7)
    await differential.write(plane, states)
    peer = coredns.CoreDns(plane.kubeconfig, differential.free_port(), cache=False, directory=tmp_path)
    try:
        differential.wait(server.port)
        differential.wait(peer.port)
        comparison = differential.compare(server.port, peer.port, states)
    finally:
        peer.stop()
    assert comparison.differences == []
    assert comparison.questions > 100 * STATES


def test_behind_coredns_answers_follow_the_client_subnet(server: Server, tmp_path: Path) -> None:
    """With the Corefile of deploy/: CoreDNS sends the client's subnet, and is a trusted forwarder."""
    port = differential.free_port()
    with front(tmp_path, port, server.port):
        expected = {"zone-a": ["A 10.0.11.1"], "zone-b": ["A 10.0.21.1"], "zone-c": []}
        for zone, addresses in expected.items():
            assert wait_for(lambda client=IN_ZONE[zone]: query_front(port, client)) == [addresses]
        assert query_front(port, NOWHERE) == [["A 10.0.11.1", "A 10.0.21.1"]]


def front(directory: Path, port: int, behind: int) -> ExitStack:
    text = (MANIFESTS / "dns-behind.Corefile").read_text()
    text = text.replace(":53 {", f":{port} {{\n    bind 127.0.0.1").replace("ZONEWISE", f"127.0.0.1:{behind}")
    corefile = directory / "Corefile"
    corefile.write_text(text)
    running = subprocess.Popen([coredns.ensure(), "-conf", corefile, "-quiet"])
    stack = ExitStack()
    stack.callback(running.wait)
    stack.callback(running.terminate)
    return stack


def query_front(port: int, client: str) -> list[list[str]]:
    """Empty until CoreDNS answers."""
    query = dns.message.make_query(NAME, "A")
    try:
        return [answer_texts(dns.query.udp(query, "127.0.0.1", port=port, source=client, timeout=2))]
    except (OSError, dns.exception.DNSException):
        return []
