"""Forwarding to real upstream servers on loopback, some of which fail."""

from __future__ import annotations

import random
import socket
import socketserver
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import Any

import dns.exception
import dns.flags
import dns.message
import dns.name
import dns.query
import dns.rcode
import dns.rrset
import pytest

from support.dns.cluster import answer_texts
from support.dns.server import Server, create_service
from support.lab import shared_cluster
from support.process import wait_for
from zonewise.lab.controlplane.controlplane import ControlPlane

pytestmark = pytest.mark.xdist_group("dns-forwarding")  # one control plane for all of them

SILENT = b"\x06silent"
FORGED = "192.0.2.66"
FLOOD_PER_SECOND = 2146
SOA = dns.rrset.from_text("test.", 60, "IN", "SOA", "ns.test. host.test. 1 60 60 60 60")


class Upstream:
    """A server of the zone `test.` over UDP and TCP. It counts its queries and can be made silent.

    It never answers names with the label `silent`. With `folds` it repeats questions in lower case.
    """

    def __init__(self) -> None:
        self.queries: Counter[str] = Counter()
        self.received: list[tuple[int, bytes, str]] = []
        """Port, id and name of each query over UDP."""
        self.unanswered = 0
        self.silent = False
        self.folds = False
        upstream = self

        class Udp(socketserver.BaseRequestHandler):
            def handle(self) -> None:
                packet, sock = self.request
                if SILENT in packet.lower():
                    upstream.unanswered += 1
                    return
                name = dns.name.from_wire(packet, 12)[0].to_text()
                upstream.received.append((self.client_address[1], packet[:2], name))
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
        self.udp = socketserver.UDPServer(("127.0.0.1", self.port), Udp)
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
        elif name.startswith("www") or name == "old.test.":
            reply.answer.append(dns.rrset.from_text(name, 1 if name == "old.test." else 60, "IN", "A", "192.0.2.1"))
        elif name == "forger.test.":
            reply.answer.append(dns.rrset.from_text(name, 60, "IN", "CNAME", "www.test."))
            reply.answer.append(dns.rrset.from_text("victim.test.", 60, "IN", "A", FORGED))
            reply.answer.append(dns.rrset.from_text("www.test.", 60, "IN", "A", "192.0.2.1"))
            reply.authority.append(dns.rrset.from_text("test.", 60, "IN", "NS", "victim.test."))
            reply.additional.append(dns.rrset.from_text("victim.test.", 60, "IN", "A", FORGED))
        else:
            reply.set_rcode(dns.rcode.NXDOMAIN)
            reply.authority.append(SOA)
        wire = reply.to_wire(max_size=65535)
        return (
            wire[:12] + wire[12:].replace(packet[12 : 12 + len(name)], packet[12 : 12 + len(name)].lower())
            if self.folds
            else wire
        )

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


def test_queries_to_upstreams_are_hard_to_forge(server: Server, upstream: Upstream) -> None:
    del upstream.received[:]
    for number in range(32):
        assert server.answer_texts(f"www-guess-{number}.test.") == ["A 192.0.2.1"]
    ports, ids, names = zip(*upstream.received, strict=True)
    assert len(set(ports)) > 24
    assert len({(second - first) % 65536 for first, second in pairwise(ports)}) > 16, "no sequence"
    assert len(set(ids)) > 24
    assert sum(name != name.lower() for name in names) > 24, "letters are in random case"


def test_upstream_that_changes_the_case_of_names_is_asked_in_lower_case(server: Server, upstream: Upstream) -> None:
    upstream.folds = True
    try:
        for number in range(8):
            assert server.answer_texts(f"www-fold-{number}.test.") == ["A 192.0.2.1"]
        del upstream.received[:]
        assert server.answer_texts("WWW-fold-last.test.") == ["A 192.0.2.1"]
        assert [name for _, _, name in upstream.received] == ["www-fold-last.test."]
    finally:
        upstream.folds = False


@pytest.mark.parametrize("tcp", [False, True])
def test_records_of_other_names_are_not_passed_on(server: Server, tcp: bool) -> None:
    reply = server.ask("forger.test.", tcp=tcp)
    assert answer_texts(reply) == ["A 192.0.2.1", "CNAME www.test."]
    assert not reply.authority
    assert not reply.additional


@pytest.mark.parametrize("tcp", [False, True])
def test_client_that_floods_with_unanswered_names_starves_nobody(server: Server, upstream: Upstream, tcp: bool) -> None:
    with flood(server, "127.0.0.2", tcp=tcp):
        wait_for(lambda: upstream.unanswered > 1200)
        for number in range(18):
            assert patient(lambda n=number: server.ask(f"www-{tcp}-{n}.test.", client="127.0.0.3", timeout=5)) == 0
        assert upstream.unanswered > 1200
    server.until_metric("zonewise_dns_forwards_refused_total", lambda count: count > 0)


def patient(ask: Callable[[], dns.message.Message]) -> int:
    """As a resolver: three times."""
    for _ in range(3):
        with suppress(dns.exception.Timeout):
            return ask().rcode()
    return ask().rcode()


@contextmanager
def flood(server: Server, client: str, *, tcp: bool) -> Iterator[None]:
    """Random names that the upstream never answers."""
    chance, ended = random.Random(client), threading.Event()
    query = dns.message.make_query(f"{'n' * 15}.silent.test.", "A").to_wire()
    kind = socket.SOCK_STREAM if tcp else socket.SOCK_DGRAM
    with socket.socket(socket.AF_INET, kind) as sock:
        sock.bind((client, 0))
        sock.connect(("127.0.0.1", server.port))
        sock.settimeout(5)

        def send() -> None:
            begin = time.monotonic()
            sent = 0
            while not ended.wait(0.005):
                with suppress(OSError):
                    while sock.recv(1 << 16, socket.MSG_DONTWAIT):
                        pass
                while sent < (time.monotonic() - begin) * FLOOD_PER_SECOND and not ended.is_set():
                    name = b"%015x" % chance.getrandbits(60)
                    packet = query[:13] + name + query[13 + len(name) :]
                    with suppress(OSError):
                        sock.sendall(struct.pack(">H", len(packet)) + packet if tcp else packet)
                    sent += 1

        thread = threading.Thread(target=send)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
