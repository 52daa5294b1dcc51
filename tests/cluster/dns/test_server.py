"""The DNS server end to end: a real API server, the real command, dnspython over UDP and TCP."""

from __future__ import annotations

import os
import signal
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import dns.flags
import dns.message
import dns.query
import pytest

from support.dns.cluster import answer_texts, endpoint
from support.dns.server import IN_ZONE, NOWHERE, Server, create_nodes, create_service, node, slice_body, slices_path
from support.lab import shared_cluster
from support.process import wait_for
from zonewise.lab.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.xdist_group("dns-server")  # one control plane for all of them

SOFT = {"zonewise.dev/topology-keys": '["topology.kubernetes.io/zone", "*"]'}
HARD = {"zonewise.dev/topology-keys": '["topology.kubernetes.io/zone"]'}
EVERY = ["A 10.0.11.1", "A 10.0.21.1"]


@pytest.fixture(scope="module")
def plane(run_directory: shared_cluster.Run) -> Iterator[ControlPlane]:
    control_plane = run_directory.private()
    create_nodes(control_plane)
    near = [endpoint("10.0.11.1", "zone-a-1", hostname="a"), endpoint("10.0.21.1", "zone-b-1")]
    for name, rule in (("soft", SOFT), ("hard", HARD), ("plain", {})):
        create_service(control_plane, "default", name, rule, clusterIP="None", ports=[{"name": "http", "port": 8080}])
        control_plane.request("POST", slices_path("default"), slice_body(name, near))
    many = [endpoint(f"10.1.{n // 250}.{n % 250}") for n in range(300)]
    create_service(control_plane, "default", "many", clusterIP="None")
    control_plane.request("POST", slices_path("default"), slice_body("many", many))
    create_service(
        control_plane, "default", "away", type="ExternalName", externalName="plain.default.svc.cluster.local"
    )
    yield control_plane
    run_directory.remove(control_plane)


@pytest.fixture(scope="module")
def server(plane: ControlPlane) -> Iterator[Server]:
    started = Server(plane, "--no-forward", "--pods", "insecure", "--log-queries")
    yield started
    started.remove()


CASES = [
    ("plain.default.svc.cluster.local.", "A", EVERY),
    ("a.plain.default.svc.cluster.local.", "A", ["A 10.0.11.1"]),
    (
        "_http._tcp.plain.default.svc.cluster.local.",
        "SRV",
        [
            "SRV 0 50 8080 10-0-21-1.plain.default.svc.cluster.local.",
            "SRV 0 50 8080 a.plain.default.svc.cluster.local.",
        ],
    ),
    ("away.default.svc.cluster.local.", "A", [*EVERY, "CNAME plain.default.svc.cluster.local."]),
    ("10-2-3-4.default.pod.cluster.local.", "A", ["A 10.2.3.4"]),
    ("dns-version.cluster.local.", "TXT", ['TXT "1.1.0"']),
    ("cluster.local.", "NS", ["NS ns.dns.cluster.local."]),
    ("ns.dns.cluster.local.", "A", ["A 127.0.0.1"]),
    ("zone-b.pin._zone.plain.default.svc.cluster.local.", "A", ["A 10.0.21.1"]),
    ("default.svc.cluster.local.", "A", []),
]


def test_records_over_both_transports(server: Server, plane: ControlPlane) -> None:
    for name, kind, expected in CASES:
        for tcp in (False, True):
            assert answer_texts(server.ask(name, kind, tcp=tcp)) == expected, (name, kind, tcp)
    kubernetes = plane.request("GET", "/api/v1/namespaces/default/services/kubernetes")["spec"]["clusterIP"]
    assert server.answer_texts("kubernetes.default.svc.cluster.local.") == [f"A {kubernetes}"]
    pointer = ".".join(reversed(kubernetes.split("."))) + ".in-addr.arpa."
    assert server.answer_texts(pointer, "PTR") == ["PTR kubernetes.default.svc.cluster.local."]
    assert server.rcode("nothing.default.svc.cluster.local.") == "NXDOMAIN"
    assert server.rcode("example.com.") == "REFUSED"


def test_large_answer_is_truncated_over_udp_and_complete_over_tcp(server: Server) -> None:
    cut = server.ask("many.default.svc.cluster.local.")
    assert cut.flags & dns.flags.TC
    assert 0 < len(answer_texts(cut)) < 30
    query = dns.message.make_query("many.default.svc.cluster.local.", "A")
    whole, fell_back = dns.query.udp_with_fallback(query, "127.0.0.1", port=server.port, timeout=60)
    assert fell_back
    assert len(answer_texts(whole)) == 300


def test_answers_follow_client_location_and_cluster_changes(server: Server, plane: ControlPlane) -> None:
    a, b, c = IN_ZONE.values()
    expected = {
        "soft": {a: ["A 10.0.11.1"], b: ["A 10.0.21.1"], c: EVERY, NOWHERE: EVERY},
        "hard": {a: ["A 10.0.11.1"], b: ["A 10.0.21.1"], c: [], NOWHERE: EVERY},
        "plain": {a: EVERY, b: EVERY, c: EVERY, NOWHERE: EVERY},
    }
    for name, by_client in expected.items():
        for client, addresses in by_client.items():
            for tcp in (False, True):
                reply = server.ask(f"{name}.default.svc.cluster.local.", client=client, tcp=tcp)
                assert answer_texts(reply) == addresses, (name, client, tcp)
    path = "/api/v1/nodes/zone-c-1"
    body = plane.request("GET", path)
    body["metadata"]["labels"]["topology.kubernetes.io/zone"] = "zone-b"
    plane.request("PUT", path, body)
    server.until("hard.default.svc.cluster.local.", ["A 10.0.21.1"], client=c)
    server.until("soft.default.svc.cluster.local.", ["A 10.0.21.1"], client=c)
    plane.request("POST", "/api/v1/nodes", node("late", "zone-a", "127.41.0.0/24"))
    server.until("hard.default.svc.cluster.local.", ["A 10.0.11.1"], client="127.41.0.1")
    _set_ready(plane, "soft", ready=False)
    server.until("soft.default.svc.cluster.local.", ["A 10.0.21.1"], client=a)
    wait_for(lambda: server.rcode("a.soft.default.svc.cluster.local.") == "NXDOMAIN")
    _set_ready(plane, "soft", ready=True)
    server.until("soft.default.svc.cluster.local.", ["A 10.0.11.1"], client=a)
    create_service(plane, "default", "short-lived", clusterIP="None")
    plane.request("POST", slices_path("default"), slice_body("short-lived", [endpoint("10.9.9.9")]))
    server.until("short-lived.default.svc.cluster.local.", ["A 10.9.9.9"])
    plane.request("DELETE", "/api/v1/namespaces/default/services/short-lived")
    wait_for(lambda: server.rcode("short-lived.default.svc.cluster.local.") == "NXDOMAIN")
    wait_for(lambda: server.rcode("9.9.9.10.in-addr.arpa.", "PTR") == "REFUSED")


def _set_ready(plane: ControlPlane, name: str, *, ready: bool) -> None:
    path = slices_path("default", f"{name}-ipv4")
    body = plane.request("GET", path)
    body["endpoints"][0]["conditions"] = {"ready": ready}
    plane.request("PUT", path, body)


def test_malformed_tcp_clients_do_not_block_others(server: Server) -> None:
    opened = []
    for data in (
        b"",
        b"\0",
        b"\xff\xff" + b"x" * 100,
        struct.pack(">H", 0),
        b"\0\x05hello",
        b"\xff\xff" + bytes(65535),
    ):
        opened.append(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        opened[-1].sendall(data)
    assert answer_texts(server.ask("plain.default.svc.cluster.local.", tcp=True)) == EVERY
    for connection in opened:
        connection.close()
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as pipelined:
        queries = [dns.message.make_query("plain.default.svc.cluster.local.", "A", id=n).to_wire() for n in range(50)]
        pipelined.sendall(b"".join(struct.pack(">H", len(query)) + query for query in queries))
        with pipelined.makefile("rb") as stream:
            replies = [stream.read(int.from_bytes(stream.read(2))) for _ in range(50)]
    assert {dns.message.from_wire(reply).id for reply in replies} == set(range(50))


def _is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] not in {"Z", "X"}
    except (FileNotFoundError, ProcessLookupError):
        return False


def test_killed_worker_is_replaced_and_its_queue_is_answered(server: Server) -> None:
    killed = server.processes().values()
    for pid in killed:
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: not any(_is_alive(pid) for pid in killed))  # otherwise one of them may still take the query
    assert server.answer_texts("plain.default.svc.cluster.local.") == EVERY, "the query waits for the next worker"
    server.program.wait_ready()
    assert answer_texts(server.ask("plain.default.svc.cluster.local.", tcp=True)) == EVERY
    server.until_metric("zonewise_dns_process_restarts_total", lambda count: count >= 3)


def test_metrics_count_queries_by_zone_and_near_answers(server: Server) -> None:
    before = server.metric('zonewise_dns_queries_total{zone="zone-a"}')
    near = server.metric('zonewise_dns_topology_answers_total{reach="near"}')
    for _ in range(300):  # a query answered at the end of the second may not be counted
        server.ask("soft.default.svc.cluster.local.", client=IN_ZONE["zone-a"])
    server.until_metric('zonewise_dns_queries_total{zone="zone-a"}', lambda count: count >= before + 290)
    server.until_metric('zonewise_dns_topology_answers_total{reach="near"}', lambda count: count >= near + 290)
    server.until_metric("zonewise_dns_duration_seconds_count", lambda count: count > 0)
    assert server.metric("zonewise_dns_errors_total") == 0
    assert server.program.line("query")["name"].endswith("default.svc.cluster.local.")


@pytest.fixture
def start(plane: ControlPlane) -> Iterator[Callable[..., Server]]:
    with ExitStack() as stack:

        def start_one(*options: str, port: int = 0) -> Server:
            started = Server(plane, "--no-forward", *options, port=port)
            stack.callback(started.remove)
            return started

        yield start_one


def test_no_query_is_lost_when_a_new_server_replaces_the_old(start: Callable[..., Server]) -> None:
    old = start()
    stop = threading.Event()
    lost: list[Exception] = []
    sent: list[int] = []

    def keep_querying() -> None:
        while not stop.is_set():
            query = dns.message.make_query("plain.default.svc.cluster.local.", "A")
            sent.append(query.id)
            try:
                dns.query.udp(query, "127.0.0.1", port=old.port, timeout=20)
            except Exception as error:  # noqa: BLE001 - any error is an unanswered query
                lost.append(error)

    threads = [threading.Thread(target=keep_querying, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    start(port=old.port)
    assert old.stop() == 0
    begun = len(sent)
    wait_for(lambda: len(sent) > begun + 50)
    stop.set()
    for thread in threads:
        thread.join()
    assert not lost
    assert len(sent) > 100
