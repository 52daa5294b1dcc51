"""Supervisor of the DNS workers: has them forked, streams updates to them, receives reports, replaces those that exit.

Each worker has its own socket pair with the supervisor; `forkserver` is their parent. A worker that does not read its
updates is replaced, and the new one gets a full snapshot.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from zonewise import log
from zonewise.dns import metrics
from zonewise.dns.server.forkclient import ForkClient
from zonewise.dns.server.forkserver import ForkedProcess
from zonewise.dns.server.sockets import ListenSockets
from zonewise.dns.server.worker import WorkerSockets
from zonewise.dns.wire import ipc
from zonewise.dns.wire.ipc import DrainWorker, Message, Serve, Serving, Update, WorkerConfig, WorkerReport, WorkerRole

DRAIN_SECONDS: Final = 10.0
RESTART_SECONDS: Final = 0.2
BATCH_SECONDS: Final = 0.005
"""Updates within it are sent together, so that a worker is interrupted once."""
SILENCE_SECONDS: Final = 5.0
MAX_SILENCES: Final = 4
"""A serving worker reports every second. After so many silent periods it is taken to hang."""
MAX_UNREAD_BYTES: Final = 256 << 20

_log = log.get_logger(__name__)

Snapshot = Callable[[], Iterable[Update]]


@dataclass(slots=True)
class WorkerSlot:
    """One worker; its process may be replaced."""

    name: str
    role: WorkerRole
    sockets: WorkerSockets
    exited: asyncio.Future[int] | None = None
    """The exit code of the current process."""
    writer: asyncio.StreamWriter | None = None
    serving: bool = False

    @property
    def exit_code(self) -> int | None:
        return self.exited.result() if self.exited and self.exited.done() else None


class Supervisor:
    def __init__(
        self,
        sockets: ListenSockets,
        config: WorkerConfig,
        snapshot: Snapshot,
        on_report: Callable[[WorkerReport], None],
        fork_server: ForkedProcess | None = None,
    ) -> None:
        """Without `fork_server` one is started."""
        self._config = config
        self._snapshot = snapshot
        self._on_report = on_report
        self._draining = False
        self._pending: list[Update] = []
        self._handover = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._handover[0].setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
        self._slots = list(_slots(sockets, *self._handover))
        self._fork_client = ForkClient(fork_server)

    @property
    def unready_reason(self) -> str | None:
        missing = [slot.name for slot in self._slots if not slot.serving]
        return f"not serving yet: {', '.join(missing)}" if missing else None

    async def run(self) -> None:
        """Until cancelled: then the workers answer queued queries and exit."""
        tasks = [asyncio.create_task(self._supervise(slot), name=slot.name) for slot in self._slots]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)  # unlike gather, it does not cancel them
        finally:
            await self._drain(tasks)
            self._fork_client.close()
            for handover in self._handover:
                handover.close()

    def broadcast(self, updates: Iterable[Update]) -> None:
        """Sent within `BATCH_SECONDS`, together with later updates."""
        if not self._pending:
            asyncio.get_running_loop().call_later(BATCH_SECONDS, self._flush)
        self._pending += updates

    def _flush(self) -> None:
        data = b"".join(map(ipc.encode, self._pending))
        self._pending.clear()
        self._write(data)

    def _write(self, data: bytes) -> None:
        for slot in self._slots:
            if slot.writer is not None and data:
                slot.writer.write(data)
                if slot.writer.transport.get_write_buffer_size() > MAX_UNREAD_BYTES:
                    _log.error("worker does not read its updates, replacing it", process=slot.name)
                    self._end(slot)

    async def _supervise(self, slot: WorkerSlot) -> None:
        while not self._draining:
            try:
                await self._run_worker(slot)
            finally:
                self._end(slot)
            if not self._draining:
                metrics.RESTARTS.inc()
                _log.warning("worker exited, restarting it", process=slot.name, code=slot.exit_code)
                await asyncio.sleep(RESTART_SECONDS)

    async def _run_worker(self, slot: WorkerSlot) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            sockets = slot.sockets._replace(feed=theirs.fileno())
            slot.exited = self._fork_client.fork(slot.name, slot.role, self._config, sockets)
        reader, writer = await asyncio.open_connection(sock=ours)
        _close_after_exit(slot.exited, writer)
        self._flush()  # to the other workers: this one gets the snapshot
        for update in self._snapshot():
            writer.write(ipc.encode(update))
        writer.write(ipc.encode(Serve()))
        slot.writer = writer
        decoder = ipc.FrameDecoder()
        try:
            while data := await self._read(slot, reader):
                for message in decoder.feed(data):
                    self._handle(slot, message)
        except ConnectionError:
            pass
        except TimeoutError:
            _log.error("worker hangs, replacing it", process=slot.name)
            self._end(slot)
        await asyncio.shield(slot.exited)

    async def _read(self, slot: WorkerSlot, reader: asyncio.StreamReader) -> bytes:
        """A silent period counts once however long it was: this process may have been suspended itself."""
        silences = 0
        while True:
            try:
                async with asyncio.timeout(SILENCE_SECONDS):
                    return await reader.read(1 << 16)
            except TimeoutError:
                silences += slot.serving
                if silences >= MAX_SILENCES:
                    raise

    def _handle(self, slot: WorkerSlot, message: Update | Message) -> None:
        match message:
            case WorkerReport():
                self._on_report(message)
            case Serving():
                slot.serving = True
            case _:
                raise ValueError(f"unexpected message from worker {slot.name}: {message!r}")

    def _end(self, slot: WorkerSlot) -> None:
        if slot.exited is not None and not slot.exited.done():
            self._fork_client.kill(slot.name)
        if slot.writer is not None:
            slot.writer.close()
        slot.writer, slot.serving = None, False

    async def _drain(self, tasks: list[asyncio.Task[None]]) -> None:
        self._draining = True
        self._flush()
        self._write(ipc.encode(DrainWorker()))
        exits = [slot.exited for slot in self._slots if slot.exited and slot.writer]
        if exits:
            await asyncio.wait(exits, timeout=DRAIN_SECONDS)
        for task in tasks:
            task.cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots:
            self._end(slot)
        for error in results:
            if isinstance(error, Exception):
                raise error


def _slots(sockets: ListenSockets, sending: socket.socket, receiving: socket.socket) -> Iterable[WorkerSlot]:
    """The TCP worker replies through the sockets of the first UDP worker. `feed` is set for each process."""
    for number, own in enumerate(sockets.udp, 1):
        yield WorkerSlot(f"udp-{number}", WorkerRole.UDP, WorkerSockets(-1, sending.fileno(), _descriptors(own)))
    replies = _descriptors(sockets.udp[0])
    yield WorkerSlot("tcp", WorkerRole.TCP, WorkerSockets(-1, receiving.fileno(), replies, _descriptors(sockets.tcp)))


def _descriptors(sockets: Iterable[socket.socket]) -> list[int]:
    return [sock.fileno() for sock in sockets]


def _close_after_exit(exited: asyncio.Future[int], writer: asyncio.StreamWriter) -> None:
    """With a delay, so that the last report is read. A worker whose fork server died is ended by it."""
    loop = asyncio.get_running_loop()
    exited.add_done_callback(lambda _: loop.call_later(RESTART_SECONDS, writer.close))
