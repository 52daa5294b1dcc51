"""Forwarding to real upstream servers on loopback, some of which fail."""

from __future__ import annotations

import socket
import socketserver
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import dns.flags
import dns.message
import dns.rcode
import dns.rrset
import pytest

from support.dns.cluster import answer_texts
from support.dns.server import Server, create_service
from support.lab import shared_cluster
from support.process import wait_for
from zonewise.lab.controlplane.controlplane import ControlPlane

SOA = dns.rrset.from_text("test.", 60, "IN", "SOA", "ns.test. host.test. 1 60 60 60 60")


class Upstream:
    """A server of the zone `test.` over UDP and TCP. It counts its queries and can be made silent."""

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter()
        self.silent = False
        upstream = self

        class Udp(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                packet, sock = self.request
                if answer := upstream.answer(packet, tcp=False):
                    sock.sendto(answer, self.client_address)

        class Tcp(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                packet = self.rfile.read(int.from_bytes(self.rfile.read(2)))
                answer = upstream.answer(packet, tcp=True)
                self.wfile.write(struct.pack(">H", len(answer)) + answer)

        class TcpServer(socketserver.ThreadingTCPServer):
            daemon_threads = True

        self.tcp = TcpServer(
            ("127.0.0.1", 0), Tcp
        )  # TCP first: other tests use many of its ports, but hardly any of UDP's
        self.port = self.tcp.server_address[1]
        self.udp = socketserver.ThreadingUDPServer(("127.0.0.1", self.port), Udp)
        for server in (self.udp, self.tcp):
            threading.Thread(target=server.serve_forever, daemon=True).start()

    def answer(self, packet: bytes, *, tcp: bool) -> bytes:
        query = dns.message.from_wire(packet)
        name = query.question[0].name.to_text().lower()
        self.queries[f"{'tcp ' if tcp else ''}{name}"] += 1
        if self.silent:
            return b""
        reply = dns.message.make_response(query)
        reply.flags |= dns.flags.RA
        if name == "large.test." and not tcp:
            reply.flags |= dns.flags.TC
        elif name == "large.test.":
            texts = [f"10.1.{n // 250}.{n % 250}" for n in range(500)]
            reply.answer.append(dns.rrset.from_text(name, 60, "IN", "A", *texts))
        elif name in {"www.test.", "old.test."}:
            reply.answer.append(dns.rrset.from_text(name, 60 if name == "www.test." else 1, "IN", "A", "192.0.2.1"))
        else:
            reply.set_rcode(dns.rcode.NXDOMAIN)
            reply.authority.append(SOA)
        return reply.to_wire(max_size=65535)

    def close(self) -> None:
        for server in (self.udp, self.tcp):
            server.shutdown()
            server.server_close()


@pytest.fixture(scope="module")
def upstream() -> Iterator[Upstream]:
    started = Upstream()
    yield started
    started.close()


@pytest.fixture(scope="module")
def server(run_directory: shared_cluster.Run, upstream: Upstream) -> Iterator[Server]:
    plane: ControlPlane = run_directory.private()
    create_service(plane, "default", "away", type="ExternalName", externalName="www.test")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as dead:
        dead.bind(("127.0.0.1", 0))
        options: list[Any] = [
            "--upstream",
            f"127.0.0.1:{dead.getsockname()[1]}",
            "--upstream",
            f"127.0.0.1:{upstream.port}",
        ]
        started = Server(plane, *options)
        yield started
    started.remove()
    run_directory.remove(plane)


def test_upstream_answers_and_denials_are_cached(server: Server, upstream: Upstream) -> None:
    for tcp in (False, True):
        for _ in range(5):
            reply = server.ask("WWW.test.", tcp=tcp)
            assert answer_texts(reply) == ["A 192.0.2.1"]
            assert reply.question[0].name.to_text() == "WWW.test."
            assert reply.flags & dns.flags.RA
    assert upstream.queries["www.test."] == 1, "sent once, then cached"
    for _ in range(3):
        assert server.rcode("none.test.") == "NXDOMAIN"
    assert upstream.queries["none.test."] == 1, "denials are cached, too"


def test_truncated_upstream_answer_is_fetched_over_tcp(server: Server, upstream: Upstream) -> None:
    cut = server.ask("large.test.")
    assert cut.flags & dns.flags.TC
    assert len(answer_texts(server.ask("large.test.", tcp=True))) == 500
    assert upstream.queries["tcp large.test."] == 1


def test_external_name_is_resolved_by_upstreams(server: Server) -> None:
    for tcp in (False, True):
        reply = server.ask("away.default.svc.cluster.local.", tcp=tcp)
        assert answer_texts(reply) == ["A 192.0.2.1", "CNAME www.test."]
    assert server.answer_texts("away.default.svc.cluster.local.", "CNAME") == ["CNAME www.test."]


def test_stale_answer_is_served_when_no_upstream_answers(server: Server, upstream: Upstream) -> None:
    assert server.answer_texts("old.test.") == ["A 192.0.2.1"]
    upstream.silent = True
    before = upstream.queries["old.test."]
    wait_for(lambda: server.answer_texts("old.test.") == ["A 192.0.2.1"] and upstream.queries["old.test."] > before)
    assert server.rcode("new.test.") == "SERVFAIL"
    assert server.answer_texts("cluster.local.", "NS"), "names of the cluster need no upstream"
    upstream.silent = False
    wait_for(lambda: server.rcode("new.test.") == "NXDOMAIN")
