"""A DNS worker whose supervisor does not read."""

from __future__ import annotations

import socket

from zonewise.dns.server.worker import Worker
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
