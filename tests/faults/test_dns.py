"""Faults: hostile clients, API server outages, mass changes and killed replicas. Other clients must not be affected.

Short by default; ZONEWISE_FAULTS=long does more of everything.
"""

from __future__ import annotations

import os
import random
import signal
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import dns.edns
import dns.flags
import dns.message
import dns.rcode
import pytest

from support.clock import SHIFTS, WallClock
from support.dns import packets
from support.dns.cluster import answer_texts, endpoint
from support.dns.server import IN_ZONE, Server, create_nodes, create_service, slice_body, slices_path
from support.fault_report import Report
from support.lab import shared_cluster
from support.process import wait_for
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program

pytestmark = [pytest.mark.xdist_group("dns-faults"), pytest.mark.timeout(1800)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
PACKETS = 200_000 if LONG else 3_000
CONNECTIONS = 10_000 if LONG else 600
DESCRIPTORS = 300
AWAY_SECONDS = 60.0 if LONG else 3.0
CHURNED_SERVICES, CHURNED_ENDPOINTS, ROUNDS = (20, 1000, 5) if LONG else (4, 500, 2)
KILLS = 20 if LONG else 1
RETRY_SECONDS = 5.0
"""The default of resolv.conf."""

NAME = "plain.default.svc.cluster.local."
MANY = "many.default.svc.cluster.local."
EVERY = ["A 10.0.11.1", "A 10.0.21.1"]


@pytest.fixture(scope="module")
def plane(run_directory: shared_cluster.Run) -> Iterator[ControlPlane]:
    control_plane = run_directory.private()
    create_nodes(control_plane)
    create_service(control_plane, "default", "plain", clusterIP="None")
    near = [endpoint("10.0.11.1", "zone-a-1"), endpoint("10.0.21.1", "zone-b-1")]
    control_plane.request("POST", slices_path("default"), slice_body("plain", near))
    create_service(control_plane, "default", "many", clusterIP="None")
    many = [endpoint(f"10.1.{n // 250}.{n % 250}") for n in range(300)]
    control_plane.request("POST", slices_path("default"), slice_body("many", many))
    yield control_plane
    run_directory.remove(control_plane)


@pytest.fixture(scope="module")
def server(plane: ControlPlane) -> Iterator[Server]:
    started = Server(plane, "--no-forward")
    yield started
    assert started.metric("zonewise_dns_errors_total") == 0, "no packet caused an error"
    started.remove()


@pytest.fixture(scope="module")
def limited(plane: ControlPlane) -> Iterator[Server]:
    started = Server(plane, "--no-forward", "--queries-per-second", "20", descriptors=DESCRIPTORS)
    yield started
    assert started.metric("zonewise_dns_errors_total") == 0
    started.remove()


def test_malformed_packets_get_a_small_reply_or_none(server: Server, report: Report) -> None:
    """Pointer loops, wrong counts, truncated, damaged and random packets."""
    chance = random.Random(7)
    kept = [*packets.kept(), *packets.seeds(), *LOOPS]
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.connect(("127.0.0.1", server.port))
        sock.settimeout(0)
        for number in range(PACKETS):
            sock.send(_damaged(bytearray(chance.choice(kept)), chance))
            if number % 200 == 0:
                assert server.answer_texts(NAME) == EVERY
            for reply in _received(sock):
                assert reply[2] & 0x80
                assert len(reply) <= 1232
    assert answer_texts(server.ask(NAME, tcp=True)) == EVERY
    report(component="dns", fault="malformed packets", rounds=1, requests=PACKETS, what="packets")


_HEAD = b"\0\7\1\0\0\1\0\0\0\0\0\0"
LOOPS = [
    _HEAD + b"\xc0\x0c\0\1\0\1",  # a pointer to itself
    _HEAD + b"\1a\xc0\x0c\0\1\0\1",  # back to its own label
    _HEAD[:10] + b"\0\1" + b"\1a\0\0\1\0\1" + b"\xc0\x13\0\x29\x04\xd0\0\0\0\0\0\0",  # an owner that points at itself
    _HEAD[:4] + b"\xff\xff" * 4 + b"\1a\0\0\1\0\1",  # 65,535 of everything
    _HEAD[:10] + b"\xff\xff" + b"\1a\0\0\1\0\1" + b"\0\0\x29\x04\xd0\0\0\0\0\0\0",  # one of 65,535 additional records
]


def _damaged(packet: bytearray, chance: random.Random) -> bytes:
    for _ in range(chance.choice((0, 1, 1, 2, 8))):
        packet[chance.randrange(len(packet))] = chance.randrange(256)
    return bytes(packet[: chance.randrange(len(packet) + 1)] if chance.random() < 0.2 else packet)


def _received(sock: socket.socket) -> Iterator[bytes]:
    try:
        while True:
            yield sock.recv(65535)
    except (BlockingIOError, ConnectionRefusedError):
        return


def test_large_and_slow_tcp_clients_do_not_block_others(server: Server, report: Report) -> None:
    """A query of nearly 64 KB is answered; a connection without a complete message is closed."""
    padding = dns.edns.GenericOption(dns.edns.OptionType.PADDING, bytes(65_000))
    query = dns.message.make_query(NAME, "A", use_edns=0, options=[padding]).to_wire(max_size=65_535)
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as large, large.makefile("rb") as stream:
        large.sendall(struct.pack(">H", len(query)) + query)
        reply = dns.message.from_wire(stream.read(int.from_bytes(stream.read(2))))
    assert answer_texts(reply) == EVERY
    slow = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(50)]
    for number, connection in enumerate(slow):
        connection.sendall((struct.pack(">H", len(query)) + query)[: number * 1000 + 1])
    garbage = socket.create_connection(("127.0.0.1", server.port), timeout=60)
    garbage.sendall(b"\xff\xff" + os.urandom(65_535))
    for _ in range(50):
        assert answer_texts(server.ask(NAME, tcp=True)) == EVERY
        assert server.answer_texts(NAME) == EVERY
    wait_for(lambda: _count_closed(slow) == len(slow))
    for connection in (*slow, garbage):
        connection.close()
    report(component="dns", fault="large and slow TCP clients", rounds=1, requests=len(slow) + 2, what="connections")


def _count_closed(connections: list[socket.socket]) -> int:
    """How many the server has closed. Sends a byte on each."""
    closed = 0
    for connection in connections:
        connection.settimeout(0)
        try:
            connection.send(b"\0")
            closed += connection.recv(1) == b""
        except BlockingIOError:
            pass
        except OSError:
            closed += 1
    time.sleep(0.5)
    return closed


def test_connections_over_the_limit_close_the_longest_idle(limited: Server, report: Report) -> None:
    """New clients can connect, and UDP is not affected."""
    with ExitStack() as stack:
        opened = []
        for number in range(CONNECTIONS):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", limited.port), timeout=60)))
            if number % 100 == 99:
                assert answer_texts(limited.ask(NAME, tcp=True)) == EVERY
                # Of many clients: each may ask 20 times a second.
                assert limited.answer_texts(NAME, client=f"127.98.{number // 100}.9") == EVERY
        wait_for(lambda: _count_closed(opened) >= CONNECTIONS - DESCRIPTORS)
        assert answer_texts(limited.ask(NAME, tcp=True)) == EVERY
    assert not [event for event in limited.program.events if "out of system resource" in event]
    report(component="dns", fault="more connections than files", rounds=1, requests=len(opened), what="connections")


@pytest.mark.parametrize(("payload", "largest"), [(None, 512), (100, 512), (700, 700), (65535, 1232)])
def test_replies_never_exceed_the_clients_limit(server: Server, payload: int | None, largest: int) -> None:
    edns: dict[str, Any] = {} if payload is None else {"use_edns": 0, "payload": payload}
    for kind in ("A", "SRV"):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(60)
            sock.sendto(dns.message.make_query(MANY, kind, **edns).to_wire(), ("127.0.0.1", server.port))
            reply = sock.recv(65535)
        assert len(reply) <= largest
        assert dns.message.from_wire(reply).flags & dns.flags.TC


def test_flooding_client_is_redirected_to_tcp_and_others_are_not(limited: Server, report: Report) -> None:
    flooding, honest = IN_ZONE["zone-a"], IN_ZONE["zone-b"]
    query = dns.message.make_query(MANY, "A", use_edns=0, payload=1232).to_wire()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.bind((flooding, 0))
        sock.settimeout(60)
        sizes = []
        for number in range(500):
            sock.sendto(query, ("127.0.0.1", limited.port))
            sizes.append(len(sock.recv(65535)))
            if number % 100 == 0:
                assert answer_texts(limited.ask(NAME, client=honest)) == EVERY
    assert sum(size <= len(query) for size in sizes) > 100, "beyond the limit a reply is no larger than the query"
    assert len(answer_texts(limited.ask(MANY, client=flooding, tcp=True))) == 300
    limited.until_metric("zonewise_dns_limited_total", lambda count: count > 100)
    report(component="dns", fault="one client floods", rounds=1, requests=len(sizes), what="queries")


@dataclass
class QueryLog:
    """The answers to continuous queries and when they came; without an answer, the errors."""

    answers: list[tuple[float, list[str]]] = field(default_factory=list)
    by_client: Counter[int] = field(default_factory=Counter)

    def __len__(self) -> int:
        return len(self.answers)

    def outcome(self, fault: str, rounds: int) -> dict[str, Any]:
        """A row of the report; nothing may be lost."""
        right = sorted(at for at, answer in self.answers if answer == EVERY)
        assert right
        gap = max((later - before for before, later in pairwise(right)), default=0.0)
        assert [answer for _, answer in self.answers if answer != EVERY] == []
        facts = {"requests": len(self), "what": "queries", "gap_seconds": gap}
        return {"component": "dns", "fault": fault, "rounds": rounds, **facts}


@contextmanager
def continuous_queries(ask: Callable[[], list[str]], threads: int = 2) -> Iterator[QueryLog]:
    """Asks in several threads."""
    stop = threading.Event()
    log = QueryLog()

    def work(client: int) -> None:
        while not stop.is_set():
            answer = ask()
            log.answers.append((time.monotonic(), answer))
            log.by_client[client] += 1

    log.by_client.update(dict.fromkeys(range(threads), 0))
    running = [threading.Thread(target=work, args=(client,), daemon=True) for client in range(threads)]
    for thread in running:
        thread.start()
    try:
        yield log
    finally:
        stop.set()
        for thread in running:
            thread.join()


def test_answers_continue_while_the_api_server_is_down(plane: ControlPlane, server: Server, report: Report) -> None:
    """Answers do not expire, and metrics show the age of the state."""
    with continuous_queries(lambda: server.answer_texts(NAME)) as answers:
        plane.kill(Program.APISERVER)
        try:
            server.until_metric("zonewise_watch_reconnects_total", lambda count: count > 0)
            time.sleep(AWAY_SECONDS)
            age = server.metric("zonewise_watch_staleness_seconds")
            server.until_metric("zonewise_watch_staleness_seconds", lambda now: now > age)
            assert server.program.probe("/readyz")[0] == 200
        finally:
            plane.restart_apiserver()
        create_service(plane, "default", "later", clusterIP="None")
        plane.request("POST", slices_path("default"), slice_body("later", [endpoint("10.9.9.9")]))
        server.until("later.default.svc.cluster.local.", ["A 10.9.9.9"])
    report(**answers.outcome(f"API server away for {AWAY_SECONDS:g} s", 1))


def test_answers_and_updates_continue_while_the_clock_jumps(
    plane: ControlPlane, wall_clock: WallClock, report: Report
) -> None:
    with ExitStack() as stack:
        shifted = Server(plane, "--no-forward", environ=wall_clock.environ)
        stack.callback(shifted.remove)
        stack.callback(wall_clock.shift, 0)
        with continuous_queries(lambda: shifted.answer_texts(NAME)) as answers:
            for turn, shift in enumerate(SHIFTS):
                wall_clock.shift(shift)
                _more(answers)
                create_service(plane, "default", f"shifted-{turn}", clusterIP="None")
                body = slice_body(f"shifted-{turn}", [endpoint(f"10.8.8.{turn}")])
                plane.request("POST", slices_path("default"), body)
                shifted.until(f"shifted-{turn}.default.svc.cluster.local.", [f"A 10.8.8.{turn}"])
        assert shifted.metric("zonewise_dns_errors_total") == 0
    report(**answers.outcome("clock set an hour and a day forward and back", len(SHIFTS)))


def test_mass_changes_do_not_delay_other_answers(plane: ControlPlane, server: Server, report: Report) -> None:
    """Full slices are replaced as fast as the API server allows: 100,000 endpoints in the long form."""
    names = [f"churned-{number}" for number in range(CHURNED_SERVICES)]
    for name in names:
        create_service(plane, "default", name, clusterIP="None")
        plane.request("POST", slices_path("default"), slice_body(name, _endpoints(0)))
    with continuous_queries(lambda: server.answer_texts(NAME)) as answers:
        for turn in range(1, ROUNDS + 1):
            for name in names:
                plane.request("PUT", slices_path("default", f"{name}-ipv4"), slice_body(name, _endpoints(turn)))
        for name in names:
            host = f"10-{50 + ROUNDS}-0-1.{name}.default.svc.cluster.local."
            server.until(host, [f"A 10.{50 + ROUNDS}.0.1"])
    report(**answers.outcome(f"{CHURNED_SERVICES * CHURNED_ENDPOINTS:,} endpoints replaced", ROUNDS))
    assert len(answer_texts(server.ask(f"{names[0]}.default.svc.cluster.local.", tcp=True))) == CHURNED_ENDPOINTS


def _endpoints(turn: int) -> list[dict[str, Any]]:
    return [endpoint(f"10.{50 + turn}.{n // 250}.{n % 250}") for n in range(CHURNED_ENDPOINTS)]


def test_killed_replica_costs_at_most_one_retry(plane: ControlPlane, report: Report) -> None:
    """Clients have both replicas in resolv.conf, and retry once, as every resolver does."""
    with ExitStack() as stack:
        replicas = [Server(plane, "--no-forward") for _ in range(2)]
        for replica in replicas:
            stack.callback(replica.remove)
        turns = iter(range(10**9))
        with continuous_queries(lambda: _ask_either(replicas, next(turns)), threads=4) as answers:
            for kill in range(KILLS):
                victim = kill % 2
                _more(answers)
                replicas[victim].program.signal(signal.SIGKILL)
                _more(answers)
                successor = Server(plane, "--no-forward")
                stack.callback(successor.remove)
                replicas[victim] = successor
            _more(answers)
    report(**answers.outcome("one of two replicas killed", KILLS))


def _more(answers: QueryLog) -> None:
    """Of every client: none still waits for a replica that was killed, when the other one is."""
    before = dict(answers.by_client)
    wait_for(lambda: all(answers.by_client[client] >= count + 10 for client, count in before.items()))


def _ask_either(replicas: list[Server], turn: int) -> list[str]:
    """Like glibc: the second server if the first refuses or does not answer in time."""
    query = dns.message.make_query(NAME, "A").to_wire()
    errors = []
    for server in (replicas[turn % 2], replicas[1 - turn % 2]):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.settimeout(RETRY_SECONDS)
            sock.bind(
                ("127.0.0.2", 0)
            )  # with the server's address it could get the port of a killed one, and talk to itself
            sock.connect(("127.0.0.1", server.port))
            try:
                sock.send(query)
                reply = dns.message.from_wire(sock.recv(65535))
                return answer_texts(reply) or [f"port {server.port}: {dns.rcode.to_text(reply.rcode())}"]
            except OSError as error:
                errors.append(f"port {server.port}: {error!r}")
    return errors
