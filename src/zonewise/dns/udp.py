"""A process that answers over UDP: blocks on its socket, looks the answer up, sends it, and does nothing else.

Started by the watcher, which owns the sockets: a process that dies leaves its queue to the one that follows. What needs
another server, or time, is handed to the process for TCP and forwarding, which replies by itself.
"""

from __future__ import annotations

import gc
import json
import marshal
import socket
import sys
import threading
import time
from typing import Any

from zonewise.dns.desk import Office, desk_from
from zonewise.dns.quick import ask_over_tcp, quick_responder

LARGEST_QUERY = 4096
_SAMPLED = 63
_DISCARD_PORT = 9


class _Doors:
    """The sockets of one process, each with a thread of its own; mostly there is one."""

    def __init__(self, settings: dict[str, Any]) -> None:
        self.office = Office(desk_from(settings), socket.socket(fileno=settings["feed"]), self.drain)
        self.sockets = [socket.socket(fileno=descriptor) for descriptor in settings["sockets"]]
        self.handover = socket.socket(fileno=settings["handover"])
        self.handover.setblocking(False)
        self.draining = False
        self.seen: dict[int, str] = {}

    def serve(self) -> None:
        self.office.start()
        gc.freeze()
        gc.disable()  # nothing here makes cycles; a collection would be felt as latency
        threads = [threading.Thread(target=self.loop, args=(index,)) for index in range(1, len(self.sockets))]
        for thread in threads:
            thread.start()
        self.loop(0)
        for thread in threads:
            thread.join()
        self.office.leave()

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

    def loop(self, index: int) -> None:
        """Ends when the socket was shut and its queue is empty."""
        while self.answer(index):
            self.office.errors += 1

    def answer(self, index: int) -> bool:
        """False at the end; True after a packet that we failed on, which is our bug and its sender's loss alone."""
        office, sock, perf = self.office, self.sockets[index], time.perf_counter_ns
        receive, send, limit = sock.recvfrom, sock.sendto, office.desk.queries_per_second
        respond = quick_responder(office.table, office.tally)
        number = 0
        try:
            while True:
                packet, address = receive(LARGEST_QUERY)
                number += 1
                began = 0 if number & _SAMPLED else perf()
                sender = office.clients.get(address[0]) if address else None
                if sender is None:
                    if not address:
                        return False
                    sender = office.sender(address[0])
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
            return not self.draining  # a send that the network refused: the client's next try may fare better
        except Exception:  # noqa: BLE001 - the loop must go on; counted, and shown by a metric that alerts
            return True

    def hand_over(self, index: int, packet: bytes, address: Any) -> None:
        try:
            self.handover.send(marshal.dumps((index, tuple(address), packet)))
        except OSError:
            self.office.dropped += 1  # its queue is full: the client will ask again


def _loopback(sock: socket.socket) -> str:
    return "::1" if sock.family == socket.AF_INET6 else "127.0.0.1"


if __name__ == "__main__":
    _Doors(json.loads(sys.argv[1])).serve()
