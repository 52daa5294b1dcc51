"""Load for upgrades: clients that evict pods, call CSI controllers, write to volumes and ask Services all the time."""

import asyncio
import os
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from random import Random
from typing import Any, Final

from support.ceph.driver import MIB, Client, Driver, RpcFailed
from support.disruption.cluster import DisruptionNamespace, is_available
from support.process import Program
from support.release import Release
from support.waiting import eventually
from zonewise.kube.wire.errors import ApiError, NotFound, TooManyRequests
from zonewise.lab.ceph.cluster import LabCeph
from zonewise.lab.demo import zone_answers
from zonewise.lab.state import Lab

_SIDECARS_RETRY: Final = {"UNAVAILABLE", "ABORTED", "CANCELLED"}
"""Of what csi-provisioner holds for "may still succeed", the codes of a driver that restarts."""


class Evictions:
    """Clients that evict pods of an app all the time; `outcomes` counts their answers."""

    def __init__(self, ns: DisruptionNamespace, app: str) -> None:
        self._ns, self._app = ns, app
        self._random = Random(os.environ.get("ZONEWISE_SEED", "1"))
        self.outcomes: Counter[str] = Counter()

    @asynccontextmanager
    async def going_on(self, clients: int = 3) -> AsyncIterator[None]:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(self._forever()) for _ in range(clients)]
            yield
            for task in tasks:
                task.cancel()

    async def _forever(self) -> None:
        while True:
            pods = [pod.metadata.name for pod in await self._ns.pods(self._app) if is_available(pod)]
            if pods:
                self.outcomes[await self._evict(self._random.choice(pods))] += 1
            await asyncio.sleep(0.05)

    async def _evict(self, pod: str) -> str:
        try:
            await self._ns.client.evict(pod, self._ns.namespace)
        except TooManyRequests:
            return "refused"
        except NotFound:
            return "not found"
        except ApiError as error:
            text = str(error)
            if text.endswith(": EOF"):
                return "cut off"
            return "webhook failed" if "failed calling webhook" in text else text
        return "gone"

    async def more(self, count: int) -> None:
        enough = self.outcomes["gone"] + count
        await eventually(lambda: self.outcomes["gone"] >= enough, f"{count} more evictions: {self.outcomes}")


class Csi:
    """`zonewise csi controller` or `csi node` of one release after another, on one socket."""

    def __init__(self, part: str, directory: Path, config: Path, ceph: LabCeph, release: Release) -> None:
        self.node = f"{part}-{uuid.uuid4().hex[:6]}"
        self.secrets = ceph.secrets
        self.state = directory / f"{self.node}.state"
        self.socket = directory / f"{self.node}.sock"
        self._arguments: tuple[object, ...] = ("csi", part, "--config", config, "--endpoint", f"unix://{self.socket}")
        self._arguments += ("--orchestrator", "none", "--health-port", 0, "--log-format", "json")
        if part == "node":
            self._arguments += ("--domain", "zone=zone-a", "--node-name", self.node, "--state-directory", self.state)
        self._program: Program | None = None
        self.run(release)
        self.client = Client(self.socket)
        self.driver = Driver(self.client, ceph)

    def run(self, release: Release) -> None:
        self.stop()
        self._program = Program(str(release.command), *self._arguments)
        self._program.wait_ready()

    def stop(self) -> None:
        if self._program is not None:
            self._program.signal(signal.SIGTERM)
            assert self._program.end() == 0
            self._program.remove()
            self._program = None


class VolumeCalls:
    """Creates, repeats, expands and deletes volumes, each call with any of the controllers, as sidecars retry."""

    def __init__(self, controllers: list[Csi]) -> None:
        self._controllers = controllers
        self._random = Random(os.environ.get("ZONEWISE_SEED", "1"))
        self.done = 0

    @contextmanager
    def going_on(self) -> Iterator[None]:
        stopping = threading.Event()
        with ThreadPoolExecutor(1) as pool:
            future = pool.submit(self._until, stopping)
            try:
                yield
            finally:
                stopping.set()
                future.result()

    def _until(self, stopping: threading.Event) -> None:
        while not stopping.is_set():
            name = f"pvc-{uuid.uuid4().hex[:12]}"
            volume = self._any(lambda driver, name=name: driver.create(name, preferred=["zone-a"])).volume_id
            assert self._any(lambda driver, name=name: driver.create(name, preferred=["zone-a"])).volume_id == volume
            assert self._any(lambda driver, volume=volume: driver.expand(volume, 96 * MIB)) == 96 * MIB
            self._any(lambda driver, volume=volume: driver.delete(volume))
            self.done += 1

    def _any(self, call: Callable[[Driver], Any]) -> Any:
        while True:
            try:
                return call(self._random.choice(self._controllers).driver)
            except RpcFailed as error:
                if error.code not in _SIDECARS_RETRY:
                    raise
                time.sleep(0.05)

    def more(self, count: int) -> None:
        enough, deadline = self.done + count, time.monotonic() + 240
        while self.done < enough:
            assert time.monotonic() < deadline, f"{self.done} of {enough} volumes came and went"
            time.sleep(0.05)


@contextmanager
def writing(path: Path) -> Iterator[list[int]]:
    """A workload that appends and syncs all the time; yields what it wrote."""
    stopping, written = threading.Event(), list[int]()

    def write() -> None:
        with path.open("w") as file:
            while not stopping.is_set():
                file.write(f"{len(written)}\n")
                file.flush()
                os.fsync(file.fileno())
                written.append(len(written))

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(write)
        try:
            yield written
        finally:
            stopping.set()
            future.result()


class Questions:
    """Pods that ask a Service all the time, by its address and, unless told otherwise, by the names of its pods."""

    def __init__(self, lab: Lab, *, by_name: bool = True) -> None:
        self._lab = lab
        self._ways = (False, True) if by_name else (False,)
        self.answered: Counter[str] = Counter()
        self.unanswered: list[str] = []
        self.during = ""

    @contextmanager
    def going_on(self) -> Iterator[None]:
        stopping = threading.Event()
        with ThreadPoolExecutor(2) as pool:
            asking = [pool.submit(self._until, stopping, by_name=by_name) for by_name in self._ways]
            try:
                yield
            finally:
                stopping.set()
                for future in asking:
                    future.result()

    def _until(self, stopping: threading.Event, *, by_name: bool) -> None:
        while not stopping.is_set():
            during = self.during
            answers = zone_answers.ask(self._lab, 20, by_name=by_name)
            self.answered[during] += sum(counts.total() for counts in answers.values())
            if not zone_answers.complete(answers):
                self.unanswered.append(f"{during}, by {'name' if by_name else 'address'}: {answers}")
