"""What every serving process has: its table, kept up to date by the watcher, its clients, and what it counted.

Updates are applied as they come, and counts reported once a second: by the loop that serves, or by a thread beside it.
When the watcher is gone, so is the process: nobody would tell it what changes.
"""

from __future__ import annotations

import math
import os
import select
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from zonewise.dns.decide.client_location import is_within
from zonewise.dns.decide.fast_path import QueryCounters
from zonewise.dns.decide.handler import QuerySender
from zonewise.dns.decide.table import RecordTable
from zonewise.dns.wire import ipc

REPORT_SECONDS: Final = 1.0
HANGS_SECONDS: Final = 5.0
MOST_CLIENTS: Final = 20_000
"""Remembered within a second; a flood of made-up senders must not fill the memory."""

_LARGEST_READ: Final = 1 << 14
_MOST_READS: Final = 2
"""Of news at once: few enough that queries don't wait long meanwhile."""

_SWITCH_SECONDS: Final = 0.0005
"""How long the thread that applies updates may keep the one that serves waiting."""

MOST_SAMPLES: Final = 1000
"""Between two reports."""

LATENCY_BUCKETS: Final = 24
"""Powers of two of a microsecond's quarter: bucket n counts what took less than 2**n/4 us."""


@dataclass(frozen=True, slots=True)
class WorkerConfig:
    """Given by the watcher when it has a process forked."""

    domain: bytes
    recursive: bool
    forwarders: tuple[str, ...]
    queries_per_second: int
    partial: bool
    logs_queries: bool


class Worker:
    """The table and the clients of one process."""

    def __init__(self, desk: WorkerConfig, feed: socket.socket, on_drain: Callable[[], None]) -> None:
        self.desk = desk
        self.table = RecordTable(desk.domain, desk.recursive, desk.partial)
        self.tally = QueryCounters()
        self.clients: dict[str, QuerySender] = {}
        self.latency = [0] * LATENCY_BUCKETS
        self.samples: list[tuple[str, bytes, bytes]] = []
        self.limited = 0
        self.errors = 0
        self.dropped = 0
        self.served_at = math.inf
        """When the loop last went round, where it is another thread that reports: one that hangs must fall silent."""
        self._counted: dict[str, int] = {}
        self._feed = feed
        self._on_drain = on_drain
        self._places_seen = 0
        self._told = threading.Event()
        self._decoder = ipc.UpdateDecoder()
        self._room = select.poll()
        self._room.register(feed, select.POLLOUT)
        self._due = 0.0
        self._waits: int = socket.MSG_DONTWAIT

    def start(self) -> None:
        """A thread hears the watcher from now on. Returns when everything was told that is known now."""
        self.table.lock = threading.Lock()
        threading.Thread(target=self._listen, name="updates", daemon=True).start()
        self._told.wait()
        sys.setswitchinterval(_SWITCH_SECONDS)

    def begin(self) -> None:
        """Without a thread: from now on the caller has to `hear`, and to report when it is due.

        Returns when everything was told that is known now: whoever answers earlier would deny what exists.
        """
        while not self._told.is_set():
            self._take(self._feed.recv(_LARGEST_READ))
        self._due = time.monotonic() + REPORT_SECONDS

    @property
    def descriptor(self) -> int:
        return self._feed.fileno()

    def hear(self) -> None:
        """What the watcher has said, if anything."""
        for _ in range(_MOST_READS):
            try:
                data = self._feed.recv(_LARGEST_READ, self._waits)
            except (TimeoutError, BlockingIOError):
                return
            except OSError:
                os._exit(0)
            self._take(data)
            if len(data) < _LARGEST_READ:
                return

    def milliseconds_to_report(self) -> float:
        return max(0.0, self._due - time.monotonic()) * 1000 + 1

    def report_if_due(self) -> None:
        """While the watcher is too busy to read, counts wait: clients must not."""
        now = time.monotonic()
        if now < self._due or now > self.served_at + HANGS_SECONDS:
            return
        self._due = now + REPORT_SECONDS
        if self._room.poll(0):
            self._send(("report", self.report()))
        else:
            self.turn_page()

    def sender(self, address: str) -> QuerySender:
        """A client's first query of the second."""
        if len(self.clients) >= MOST_CLIENTS:
            self.turn_page()
        forwards = bool(self.desk.forwarders) and is_within(address, self.desk.forwarders)
        found = self.clients[address] = QuerySender(self.table.locations.node_of(address), forwards)
        return found

    def sample(self, address: str, packet: bytes, reply: bytes | None, nanoseconds: int) -> None:
        """One query in many: how long it took, and, if asked for, what it was."""
        self.latency[min((nanoseconds // 250).bit_length(), LATENCY_BUCKETS - 1)] += 1
        if self.desk.logs_queries and len(self.samples) < MOST_SAMPLES:
            self.samples.append((address, packet, (reply or b"")[:8]))

    def turn_page(self) -> None:
        """Forget the clients, keeping what they asked by node."""
        old, self.clients = self.clients, {}
        for sender in old.values():
            self._counted[sender.node] = self._counted.get(sender.node, 0) + sender.queries

    def report(self) -> dict[str, Any]:
        """What happened since the last report."""
        self.turn_page()
        counted, self._counted = self._counted, {}
        latency, self.latency[:] = list(self.latency), [0] * LATENCY_BUCKETS
        samples, self.samples = self.samples, []
        found: dict[str, Any] = {"queries": counted, "latency": latency, "samples": samples}
        for name in ("limited", "errors", "dropped"):
            found[name] = getattr(self, name)
            setattr(self, name, 0)
        return found | self.tally.taken()

    def _listen(self) -> None:
        self._due = time.monotonic() + REPORT_SECONDS
        self._waits = 0
        while True:
            self._feed.settimeout(max(0.01, self._due - time.monotonic()))
            self.hear()
            self.report_if_due()

    def _take(self, data: bytes) -> None:
        if not data:
            os._exit(0)  # the watcher is gone
        for update in self._decoder.feed(data):
            self._apply(update)

    def _apply(self, update: tuple[Any, ...]) -> None:
        match update:
            case ("begin",):
                self._told.set()
                self._send(("begun",))
            case ("drain",):
                self._on_drain()
            case _:
                self.table.apply(update)
        if self._places_seen != self.table.changes:
            self._places_seen = self.table.changes
            self.turn_page()

    def leave(self) -> None:
        """The last report, and the end of the process."""
        self._send(("report", self.report()))
        os._exit(0)

    def _send(self, message: tuple[Any, ...]) -> None:
        try:
            self._feed.settimeout(REPORT_SECONDS)
            self._feed.sendall(ipc.encode(message))
            self._feed.settimeout(None)
        except OSError:
            os._exit(0)


def desk_from(settings: Mapping[str, Any]) -> WorkerConfig:
    return WorkerConfig(
        bytes.fromhex(settings["domain"]),
        settings["recursive"],
        tuple(settings["forwarders"]),
        settings["queries_per_second"],
        settings["partial"],
        settings["logs_queries"],
    )
