"""A DNS worker whose supervisor does not read, and one whose client asks for too many names of other servers."""

from __future__ import annotations

import socket
from contextlib import suppress

import dns.flags
import dns.message

from zonewise.dns.server.udp import UdpWorker
from zonewise.dns.server.worker import Worker, WorkerSockets
from zonewise.dns.wire.ipc import FrameDecoder, WorkerConfig, WorkerReport
from zonewise.dns.wire.names import to_wire


def test_reports_wait_until_the_supervisor_reads() -> None:
    supervisor, feed = socket.socketpair()
    with supervisor, feed:
        worker = Worker(WorkerConfig(to_wire("cluster.local")), feed, lambda: None)
        feed.setblocking(False)
        unread = 0
        try:
            while True:
                unread += feed.send(bytes(1 << 12))
        except BlockingIOError:
            feed.setblocking(True)
        worker.sender("10.0.0.1").queries = 3
        worker.report_if_due()  # must neither block nor exit
        assert not worker.clients, "rate limits start a new second all the same"
        while unread:
            unread -= len(supervisor.recv(1 << 16))
        worker._report_at = 0.0
        worker.sender("10.0.0.1").queries = 4
        worker.report_if_due()
        (report,) = FrameDecoder().feed(supervisor.recv(1 << 16))
        assert isinstance(report, WorkerReport)
        assert report.queries == {"": 7}


def test_client_beyond_its_forwards_is_sent_to_tcp_and_others_are_not() -> None:
    config = WorkerConfig(to_wire("cluster.local"), ("10.0.0.1",), forwards_per_second=2)
    supervisor, feed = socket.socketpair()
    receiving, sending = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    clients = [socket.socket(socket.AF_INET, socket.SOCK_DGRAM) for _ in range(2)]
    listening = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    for number, sock in enumerate((listening, *clients), 1):
        sock.bind((f"127.0.0.{number}", 0))
        sock.setblocking(False)
    addresses = [client.getsockname() for client in clients]
    udp = UdpWorker(config, WorkerSockets(feed.detach(), sending.detach(), [listening.detach()]))
    query = dns.message.make_query("www.example.com.", "A").to_wire()

    def handed_over(address: tuple[str, int]) -> bool:
        udp.hand_over(0, query, address, "")
        receiving.setblocking(False)
        with suppress(BlockingIOError):
            return bool(receiving.recv(4096))
        return False

    assert [handed_over(addresses[0]) for _ in range(4)] == [True, True, False, False]
    assert handed_over(addresses[1])
    for _ in range(2):
        reply = dns.message.from_wire(clients[0].recv(512))
        assert reply.flags & dns.flags.TC
        assert dns.message.from_wire(query).is_response(reply)
    assert udp.worker.report().limited == 2
    assert handed_over(addresses[0]), "a new second"
    for sock in (*clients, supervisor, receiving, udp.handover, udp.worker._feed, *udp.sockets):
        sock.close()
