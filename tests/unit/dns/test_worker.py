"""A serving process and a watcher that has no time to listen."""

from __future__ import annotations

import socket

from zonewise.dns.server.worker import Worker, WorkerConfig
from zonewise.dns.wire import ipc
from zonewise.dns.wire.names import to_wire

DESK = WorkerConfig(to_wire("cluster.local"), False, (), 0, False, False)


def test_reports_wait_for_a_watcher_that_does_not_read() -> None:
    watcher, feed = socket.socketpair()
    with watcher, feed:
        office = Worker(DESK, feed, lambda: None)
        feed.setblocking(False)
        filling = 0
        try:
            while True:
                filling += feed.send(bytes(1 << 12))
        except BlockingIOError:
            feed.setblocking(True)
        office.sender("10.0.0.1").queries = 3
        office.report_if_due()  # would not return, or end the process
        assert not office.clients, "a second is over for limits all the same"
        while filling:
            filling -= len(watcher.recv(1 << 16))
        office._due = 0.0
        office.sender("10.0.0.1").queries = 4
        office.report_if_due()
        ((_, report),) = ipc.UpdateDecoder().feed(watcher.recv(1 << 16))
        assert report["queries"] == {"": 7}
