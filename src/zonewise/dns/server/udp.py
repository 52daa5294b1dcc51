"""DNS worker for UDP: receives packets and record updates, looks answers up and sends them.

The supervisor owns the sockets, so packets that queue while a worker is replaced are answered by the next one. One
thread does everything: two would contend for the interpreter lock. Queries that need an upstream, or time, are handed
over to the TCP worker, which replies itself.
"""

from __future__ import annotations

import gc
import marshal
import select
import socket
import struct
import time
from typing import Any, Final

from zonewise.dns.decide.client_location import client_key
from zonewise.dns.decide.fast_path import ask_over_tcp, fast_responder
from zonewise.dns.server import priority
from zonewise.dns.server.worker import Worker, WorkerSockets
from zonewise.dns.wire.ipc import WorkerConfig

MAX_QUERY_BYTES: Final = 4096
TURN_SECONDS: Final = 0.005
"""For one socket, before the other sockets and the updates have their turn."""

_SAMPLE_MASK: Final = 63
_DISCARD_PORT: Final = 9
_NO_WAIT: Final = socket.MSG_DONTWAIT  # per call: the sockets are shared with other processes


class UdpWorker:
    """Mostly with one socket."""

    def __init__(self, config: WorkerConfig, sockets: WorkerSockets) -> None:
        self.worker = Worker(config, socket.socket(fileno=sockets.feed), self.drain, partial=True)
        self.sockets = [socket.socket(fileno=descriptor) for descriptor in sockets.udp]
        self.handover = socket.socket(fileno=sockets.handover)
        self.handover.setblocking(False)
        self.respond = fast_responder(self.worker.table, self.worker.counters)
        self.draining = False
        self.last_clients: dict[int, str] = {}
        """By index of the socket."""
        self.number = 0

    def serve(self) -> None:
        priority.favour_short_slices()
        self.worker.load_snapshot()
        gc.freeze()
        gc.disable()  # nothing here makes cycles, and a collection would add latency
        if len(self.sockets) == 1:
            self._serve_one()
        else:
            self._serve_several()
        for index in range(len(self.sockets)):
            while not self.answer(index, _NO_WAIT):
                pass
        self.worker.report_and_exit()

    def _serve_one(self) -> None:
        """Waits in the receiving call, which is cheapest, and polls for updates between turns."""
        limit = struct.pack("ll", 0, int(TURN_SECONDS * 1e6))
        self.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        while not self.draining:
            self.answer(0, 0)
            self.worker.receive_updates()
            self.worker.report_if_due()

    def _serve_several(self) -> None:
        poll = select.poll()
        indexes = {sock.fileno(): index for index, sock in enumerate(self.sockets)}
        for descriptor in (*indexes, self.worker.descriptor):
            poll.register(descriptor, select.POLLIN)
        while not self.draining:
            for descriptor, _ in poll.poll(self.worker.milliseconds_to_report()):
                if descriptor in indexes:
                    self.answer(indexes[descriptor], _NO_WAIT)
            self.worker.receive_updates()
            self.worker.report_if_due()

    def drain(self) -> None:
        """Receive no new packets, answer the queued ones, and exit.

        The kernel does not choose a connected socket among those that share a port. The remote port is one that no
        client sends from. The remote address is a client's, so that replies keep our address on that route.
        """
        self.draining = True
        for index, sock in enumerate(self.sockets):
            try:
                sock.connect((self.last_clients.get(index) or _loopback(sock), _DISCARD_PORT))
                sock.shutdown(socket.SHUT_RD)
            except OSError:
                self.worker.report_and_exit()

    def answer(self, index: int, flags: int) -> bool:
        """Answer packets for one turn. Returns whether the queue is empty."""
        worker, sock, respond = self.worker, self.sockets[index], self.respond
        receive, send, limit = sock.recvfrom, sock.sendto, worker.config.queries_per_second
        clock, perf = time.monotonic, time.perf_counter_ns
        get_sender = worker.clients.get
        number = self.number
        end = clock() + TURN_SECONDS
        while clock() < end:
            try:
                packet, address = receive(MAX_QUERY_BYTES, flags)
            except BlockingIOError:
                self.number = number
                return True
            except OSError:  # an earlier reply was refused
                continue
            if not address:
                return True
            number += 1
            began = 0 if number & _SAMPLE_MASK else perf()
            try:
                sender = get_sender(address[0])
                if sender is None:
                    sender = worker.sender(address[0])
                    get_sender = worker.clients.get
                    self.last_clients[index] = address[0]
                sender.queries += 1
                if limit and sender.queries > limit:
                    worker.limited += 1
                    reply: bytes | None = ask_over_tcp(packet)
                else:
                    reply = respond(packet, sender)
                if reply:
                    send(reply, address)
                elif reply is None:
                    self.hand_over(index, packet, address, sender.node)
                if began:
                    worker.sample(address[0], packet, reply, perf() - began)
            except OSError:
                worker.dropped += 1  # the network refused the reply; the client will retry
            except Exception:  # noqa: BLE001 - a bug that must cost one query only; the metric has an alert
                worker.errors += 1
        self.number = number
        return False

    def hand_over(self, index: int, packet: bytes, address: Any, node: str) -> None:
        """The limit keeps one client from filling the queue that all clients share."""
        worker, client = self.worker, client_key(address[0], node)
        worker.forwards[client] += 1
        if 0 < worker.config.forwards_per_second < worker.forwards[client]:
            worker.limited += 1
            if reply := ask_over_tcp(packet):
                self.sockets[index].sendto(reply, address)
            return
        try:
            self.handover.send(marshal.dumps((index, tuple(address), packet)))
        except OSError:
            worker.dropped += 1  # the queue is full; the client will retry


def _loopback(sock: socket.socket) -> str:
    return "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"
