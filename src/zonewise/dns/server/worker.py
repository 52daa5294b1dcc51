"""State of a DNS worker process: its record table, fed by the supervisor, its clients, and its counters.

Updates are applied as they arrive and counts are reported once a second, by the serving loop or by a thread beside it.
A worker exits when the supervisor is gone: it would serve stale records.
"""

from __future__ import annotations

import math
import os
import select
import socket
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from zonewise.dns.decide.client_location import is_within
from zonewise.dns.decide.fast_path import QueryCounters
from zonewise.dns.decide.handler import QuerySender
from zonewise.dns.decide.table import RecordTable
from zonewise.dns.wire import ipc
from zonewise.dns.wire.ipc import DrainWorker, Message, Serve, Serving, Update, WorkerConfig, WorkerReport

REPORT_SECONDS: Final = 1.0
HANG_SECONDS: Final = 5.0
MAX_CLIENTS: Final = 20_000
"""Remembered within a second; a flood of spoofed senders must not fill the memory."""

_READ_BYTES: Final = 1 << 14
_READS_AT_ONCE: Final = 2
"""Bounds the time for which updates keep queries waiting."""

_SWITCH_SECONDS: Final = 0.0005
"""Longest time for which the update thread keeps the serving thread waiting."""

MAX_SAMPLES: Final = 1000
"""Between two reports."""

LATENCY_BUCKETS: Final = 24
"""Bucket n counts queries that took less than 2**n/4 us."""


class WorkerSockets(NamedTuple):
    """File descriptors of a worker, in the order in which they are passed. `handover` takes queries from UDP to TCP."""

    feed: int
    handover: int
    udp: Sequence[int]
    tcp: Sequence[int] = ()

    @property
    def descriptors(self) -> list[int]:
        return [self.feed, self.handover, *self.udp, *self.tcp]

    @classmethod
    def received(cls, descriptors: Sequence[int], udp_count: int) -> WorkerSockets:
        feed, handover, *rest = descriptors
        return cls(feed, handover, rest[:udp_count], rest[udp_count:])


class Worker:
    """`partial`: another worker has the reverse zones, too (see `RecordTable`)."""

    def __init__(
        self, config: WorkerConfig, feed: socket.socket, on_drain: Callable[[], None], *, partial: bool = False
    ) -> None:
        self.config = config
        self.table = RecordTable(config.domain, config.recursive, partial)
        self.counters = QueryCounters()
        self.clients: dict[str, QuerySender] = {}
        self.forwards: Counter[bytes] = Counter()
        """Queries of this second that need other servers, by client."""
        self.latency = [0] * LATENCY_BUCKETS
        self.samples: list[tuple[str, bytes, bytes]] = []
        self.limited = 0
        self.errors = 0
        self.dropped = 0
        self.looped_at = math.inf
        """When the serving loop last ran, if another thread reports: a worker whose loop hangs must stop reporting."""
        self._queries: dict[str, int] = {}
        self._feed = feed
        self._on_drain = on_drain
        self._locations_version = 0
        self._loaded = threading.Event()
        self._decoder = ipc.FrameDecoder()
        self._writable = select.poll()
        self._writable.register(feed, select.POLLOUT)
        self._report_at = 0.0
        self._receive_flags: int = socket.MSG_DONTWAIT

    def start_update_thread(self) -> None:
        """Apply updates and report in a thread. Returns when the snapshot is applied."""
        self.table.lock = threading.Lock()
        threading.Thread(target=self._run_updates, name="updates", daemon=True).start()
        self._loaded.wait()
        sys.setswitchinterval(_SWITCH_SECONDS)

    def load_snapshot(self) -> None:
        """Apply the snapshot: a worker that answers earlier would deny names that exist.

        Without a thread, the caller has to call `receive_updates` and `report_if_due` from then on.
        """
        while not self._loaded.is_set():
            self._apply_bytes(self._feed.recv(_READ_BYTES))
        self._report_at = time.monotonic() + REPORT_SECONDS

    @property
    def descriptor(self) -> int:
        return self._feed.fileno()

    def receive_updates(self) -> None:
        """Apply pending updates, if there are any."""
        for _ in range(_READS_AT_ONCE):
            try:
                data = self._feed.recv(_READ_BYTES, self._receive_flags)
            except (TimeoutError, BlockingIOError):
                return
            except OSError:
                os._exit(0)
            self._apply_bytes(data)
            if len(data) < _READ_BYTES:
                return

    def milliseconds_to_report(self) -> float:
        return max(0.0, self._report_at - time.monotonic()) * 1000 + 1

    def report_if_due(self) -> None:
        """While the supervisor does not read, counts accumulate: clients must not wait for it."""
        now = time.monotonic()
        if now < self._report_at or now > self.looped_at + HANG_SECONDS:
            return
        self._report_at = now + REPORT_SECONDS
        if self._writable.poll(0):
            self._send(self.report())
        else:
            self.forget_clients()

    def sender(self, address: str) -> QuerySender:
        """Called for a client's first query of the second."""
        if len(self.clients) >= MAX_CLIENTS:
            self.forget_clients()
        forwards = bool(self.config.forwarders) and is_within(address, self.config.forwarders)
        sender = self.clients[address] = QuerySender(self.table.locations.node_of(address), forwards)
        return sender

    def sample(self, address: str, packet: bytes, reply: bytes | None, nanoseconds: int) -> None:
        """Record the latency of one query in 64 and, if configured, the query."""
        self.latency[min((nanoseconds // 250).bit_length(), LATENCY_BUCKETS - 1)] += 1
        if self.config.log_queries and len(self.samples) < MAX_SAMPLES:
            self.samples.append((address, packet, (reply or b"")[:8]))

    def forget_clients(self) -> None:
        """Add the clients' queries to the counts of their nodes; rate limits start a new second."""
        self.forwards.clear()
        clients, self.clients = self.clients, {}
        for sender in clients.values():
            self._queries[sender.node] = self._queries.get(sender.node, 0) + sender.queries

    def report(self) -> WorkerReport:
        """Counts since the last report."""
        self.forget_clients()
        queries, self._queries = self._queries, {}
        samples, self.samples = self.samples, []
        latency, self.latency[:] = list(self.latency), [0] * LATENCY_BUCKETS
        limited, self.limited = self.limited, 0
        errors, self.errors = self.errors, 0
        dropped, self.dropped = self.dropped, 0
        return WorkerReport(queries, self.counters.reset(), latency, samples, limited, errors, dropped)

    def report_and_exit(self) -> None:
        self._send(self.report())
        os._exit(0)

    def _run_updates(self) -> None:
        self._report_at = time.monotonic() + REPORT_SECONDS
        self._receive_flags = 0
        while True:
            self._feed.settimeout(max(0.01, self._report_at - time.monotonic()))
            self.receive_updates()
            self.report_if_due()

    def _apply_bytes(self, data: bytes) -> None:
        if not data:
            os._exit(0)  # the supervisor is gone
        for item in self._decoder.feed(data):
            self._apply(item)

    def _apply(self, item: Update | Message) -> None:
        match item:
            case tuple():
                self.table.apply(item)
            case Serve():
                self._loaded.set()
                self._send(Serving())
            case DrainWorker():
                self._on_drain()
            case _:
                raise ValueError(f"unexpected message to a worker: {item!r}")
        if self._locations_version != self.table.locations_version:
            self._locations_version = self.table.locations_version
            self.forget_clients()

    def _send(self, message: Message) -> None:
        try:
            self._feed.settimeout(REPORT_SECONDS)
            self._feed.sendall(ipc.encode(message))
            self._feed.settimeout(None)
        except OSError:
            os._exit(0)
