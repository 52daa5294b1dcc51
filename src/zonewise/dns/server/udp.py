"""A process that answers over UDP: waits for packets and for news, looks the answer up, sends it, and does nothing else.

Forked by the nursery; the watcher owns the sockets: a process that dies leaves its queue to the one that follows. One
thread does it all: two would wait for each other. What needs another server, or time, is handed to the process for TCP
and forwarding, which replies by itself.
"""

from __future__ import annotations

import gc
import marshal
import select
import socket
import struct
import time
from typing import Any, Final

from zonewise.dns.decide.fast_path import ask_over_tcp, quick_responder
from zonewise.dns.server import priority
from zonewise.dns.server.worker import Worker, desk_from

LARGEST_QUERY: Final = 4096
TURN_SECONDS: Final = 0.005
"""Of one socket before others, and the watcher's news, have theirs."""

_SAMPLED: Final = 63
_DISCARD_PORT: Final = 9
_DO_NOT_WAIT: Final = socket.MSG_DONTWAIT  # not for the socket as a whole: others use it, too


class _UdpSockets:
    """The sockets of one process; mostly there is one."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.office = Worker(desk_from(settings), socket.socket(fileno=settings["feed"][0]), self.drain)
        self.sockets = [socket.socket(fileno=descriptor) for descriptor in settings["sockets"]]
        self.handover = socket.socket(fileno=settings["handover"][0])
        self.handover.setblocking(False)
        self.respond = quick_responder(self.office.table, self.office.tally)
        self.draining = False
        self.seen: dict[int, str] = {}
        self.number = 0

    def serve(self) -> None:
        priority.answer_first()
        self.office.begin()
        gc.freeze()
        gc.disable()  # nothing here makes cycles; a collection would be felt as latency
        if len(self.sockets) == 1:
            self._serve_one()
        else:
            self._serve_several()
        for index in range(len(self.sockets)):
            while not self.answer(index, _DO_NOT_WAIT):
                pass
        self.office.leave()

    def _serve_one(self) -> None:
        """Waits in the call that receives, which is cheapest, and looks for news between turns."""
        limit = struct.pack("ll", 0, int(TURN_SECONDS * 1e6))
        self.sockets[0].setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, limit)
        while not self.draining:
            self.answer(0, 0)
            self.office.hear()
            self.office.report_if_due()

    def _serve_several(self) -> None:
        poll = select.poll()
        indexes = {each.fileno(): index for index, each in enumerate(self.sockets)}
        for descriptor in (*indexes, self.office.descriptor):
            poll.register(descriptor, select.POLLIN)
        while not self.draining:
            for descriptor, _ in poll.poll(self.office.milliseconds_to_report()):
                if descriptor in indexes:
                    self.answer(indexes[descriptor], _DO_NOT_WAIT)
            self.office.hear()
            self.office.report_if_due()

    def drain(self) -> None:
        """Get no new packets, answer those that wait, and end.

        A connected socket is left out when the kernel chooses among those that share the port; its own port on the far
        side is one that nobody asks from. The far address is a client's, so that replies keep our address there.
        """
        self.draining = True
        for index, each in enumerate(self.sockets):
            try:
                each.connect((self.seen.get(index) or _loopback(each), _DISCARD_PORT))
                each.shutdown(socket.SHUT_RD)
            except OSError:
                self.office.leave()

    def answer(self, index: int, flags: int) -> bool:
        """What waits and comes, for a turn; whether nothing waits any more."""
        office, sock, respond = self.office, self.sockets[index], self.respond
        receive, send, limit = sock.recvfrom, sock.sendto, office.desk.queries_per_second
        clock, perf = time.monotonic, time.perf_counter_ns
        known = office.clients.get
        number = self.number
        end = clock() + TURN_SECONDS
        while clock() < end:
            try:
                packet, address = receive(LARGEST_QUERY, flags)
            except BlockingIOError:
                self.number = number
                return True
            except OSError:  # somebody refused an earlier reply
                continue
            if not address:
                return True
            number += 1
            began = 0 if number & _SAMPLED else perf()
            try:
                sender = known(address[0])
                if sender is None:
                    sender = office.sender(address[0])
                    known = office.clients.get
                    self.seen[index] = address[0]
                sender.queries += 1
                if limit and sender.queries > limit:
                    office.limited += 1
                    reply: bytes | None = ask_over_tcp(packet)
                else:
                    reply = respond(packet, sender)
                if reply:
                    send(reply, address)
                elif reply is None:
                    self.hand_over(index, packet, address)
                if began:
                    office.sample(address[0], packet, reply, perf() - began)
            except OSError:
                office.dropped += 1  # a reply that the network refused: the client's next try may fare better
            except Exception:  # noqa: BLE001 - our bug, and its sender's loss alone; counted by a metric that alerts
                office.errors += 1
        self.number = number
        return False

    def hand_over(self, index: int, packet: bytes, address: Any) -> None:
        try:
            self.handover.send(marshal.dumps((index, tuple(address), packet)))
        except OSError:
            self.office.dropped += 1  # its queue is full: the client will ask again


def _loopback(sock: socket.socket) -> str:
    return "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"


def serve(settings: dict[str, Any]) -> None:
    _UdpSockets(settings).serve()
