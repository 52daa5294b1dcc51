"""Leader elector: performs the steps of `zonewise.kube.decide.election` and runs the leader's work.

`LeaderElector` is also the guard for `Client.guarded`: right before a write leaves the process it asks how long the
lease may still be relied on. A process that was stopped past its lease finds that out before it writes, not after.
"""

from __future__ import annotations

import asyncio
import os
import random
import socket
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import datetime
from enum import StrEnum

import msgspec

from zonewise import log
from zonewise.kube import metrics
from zonewise.kube.client.client import Client
from zonewise.kube.clock import boot_seconds, utc_now
from zonewise.kube.decide.election import Create, Election, ElectionWait, NotLeader, Read, Replace, Timing
from zonewise.kube.wire.errors import ApiError, Conflict, NotFound
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import LEASES, Lease, LeaseSpec

_log = log.get_logger(__name__)

Lead = Callable[[], Awaitable[None]]

_LEASE_CALLS_PER_SECOND = 5
_LEASE_CALLS_AT_ONCE = 10


class LeadershipChange(StrEnum):
    GAINED = "gained"
    LOST = "lost"
    RELEASED = "released"


def unique_identity() -> str:
    """The host's name for people, and a random part because no two processes may share an identity."""
    return f"{socket.gethostname()}_{os.getpid()}_{uuid.uuid4().hex[:8]}"


class LeaderElector:
    """A candidate for the lease `namespace/name`. `run` works while it leads; it may lead many times, or never."""

    def __init__(
        self,
        client: Client,
        name: str,
        namespace: str,
        *,
        identity: str = "",
        timing: Timing | None = None,
        clock: Callable[[], float] = boot_seconds,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self.identity = identity or unique_identity()
        self._client = client.limited("lease", _LEASE_CALLS_PER_SECOND, _LEASE_CALLS_AT_ONCE)
        self._name = name
        self._namespace = namespace
        self._timing = timing or Timing()
        self._clock = clock
        self._wall = wall
        self._election = Election(self.identity, self._timing, spread=random.random())  # noqa: S311 - no secret
        self._call_seconds = self._timing.renew_deadline_seconds / 2
        self._has_claimed = False
        self._known_holder = ""
        self._trouble = ""
        self._log = _log.bind(lease=f"{namespace}/{name}", identity=self.identity)
        metrics.LEADING.labels(name).set(0)

    @property
    def leads(self) -> bool:
        return self._election.leads(self._clock())

    @property
    def holder(self) -> str:
        """The holder of the lease as last read; empty if it has none."""
        return self._election.holder

    def remaining_seconds(self) -> float:
        """How long a write may still take; raises `NotLeader` once it may not be sent at all."""
        remaining = self._election.remaining_seconds(self._clock())
        if remaining <= 0:
            raise NotLeader(f"{self.identity} may not write: it does not hold the lease {self._namespace}/{self._name}")
        return remaining

    async def run(self, lead: Lead) -> None:
        """Run `lead` while this process leads, again with every new leadership, until it returns or fails.

        It is cancelled when leadership is lost. When this is cancelled, `lead` ends first, still under the lease, then
        the lease is released.
        """
        try:
            while True:
                await self._campaign()
                if await self._lead_once(lead):
                    return
        finally:
            await self._release()

    async def _campaign(self) -> None:
        while not self.leads:
            await self._take_step()
        self._changed(LeadershipChange.GAINED)
        self._log.info("leadership gained")

    async def _lead_once(self, lead: Lead) -> bool:
        """Whether `lead` came to its own end, and not to that of the leadership."""
        term = asyncio.timeout(self._election.remaining_seconds(self._clock()))
        try:
            async with term, self._renewing(term):
                await lead()
                return True
        except (NotLeader, TimeoutError, ExceptionGroup) as error:
            if not _tells_loss(error, term):
                raise
        self._election.resign()
        self._changed(LeadershipChange.LOST)
        self._log.warning("leadership lost", holder=self.holder, trouble=self._trouble)
        return False

    @asynccontextmanager
    async def _renewing(self, term: asyncio.Timeout) -> AsyncIterator[None]:
        """Renew for as long as the leader's work takes to end: also while it is being cancelled."""
        renewing = asyncio.create_task(self._renew(term))
        try:
            yield
        finally:
            renewing.cancel()
            await asyncio.wait({renewing})
            if not renewing.cancelled():
                renewing.result()

    async def _renew(self, term: asyncio.Timeout) -> None:
        while not term.expired():
            await self._take_step()
            if not term.expired():
                remaining = self._election.remaining_seconds(self._clock())
                term.reschedule(asyncio.get_running_loop().time() + remaining)

    async def _take_step(self) -> None:
        now = self._clock()
        step = self._election.next_step(now, self._wall())
        if isinstance(step, ElectionWait):
            await asyncio.sleep(step.seconds)
            return
        try:
            async with asyncio.timeout(self._call_seconds):
                await self._perform(step, sent_at=now)
        except Conflict:
            self._election.overtaken()
        except (ApiError, TimeoutError) as error:
            self._election.failed(since=now)
            self._note_trouble(self._words(error))
        else:
            if self._election.rests(self._clock()):  # a read that only prepares a write proves nothing yet
                self._note_trouble("")
        self._note_holder()

    async def _perform(self, step: Read | Create | Replace, sent_at: float) -> None:
        match step:
            case Read():
                self._election.read(await self._read(), self._clock())
            case Create(spec):
                self._has_claimed = True
                self._election.wrote(await self._create(spec), sent_at)
            case Replace(version, spec):
                self._has_claimed = True
                self._election.wrote(await self._replace(version, spec), sent_at)

    async def _read(self) -> Lease | None:
        try:
            return await self._client.get(LEASES, self._name, self._namespace)
        except NotFound:
            return None

    async def _create(self, spec: LeaseSpec) -> Lease:
        body = {"metadata": {"name": self._name, "namespace": self._namespace}, "spec": msgspec.to_builtins(spec)}
        return await self._client.create(LEASES, body, self._namespace)

    async def _replace(self, version: str, spec: LeaseSpec) -> Lease:
        """A patch that names a resource version applies to no other; fields that we do not write stay as they are.

        A lease that was deleted has no such version any more: a conflict, like every other change before ours.
        """
        fields = {"holderIdentity": None, **msgspec.to_builtins(spec)}
        patch = MergePatch({"metadata": {"resourceVersion": version}, "spec": fields})
        try:
            return await self._client.patch(LEASES, self._name, patch, self._namespace)
        except NotFound as error:
            raise Conflict(error.message, action=error.action) from error

    async def _release(self) -> None:
        """Only what was claimed in this process may be held without our knowing, as when an answer was lost."""
        self._election.resign()
        metrics.LEADING.labels(self._name).set(0)
        if not self._has_claimed:
            return
        try:
            async with asyncio.timeout(self._call_seconds):
                await self._clear_holder()
        except (ApiError, TimeoutError) as error:
            self._log.warning("lease not released, it will expire", trouble=self._words(error))

    async def _clear_holder(self) -> None:
        step = self._election.release(await self._read(), self._wall())
        if step is None:
            return
        await self._replace(step.version, step.spec)
        self._changed(LeadershipChange.RELEASED)
        self._log.info("leadership released")

    def _changed(self, change: LeadershipChange) -> None:
        metrics.LEADING.labels(self._name).set(change is LeadershipChange.GAINED)
        metrics.LEADERSHIP_CHANGES.labels(self._name, change).inc()

    def _note_holder(self) -> None:
        if self.holder not in {self._known_holder, self.identity, ""}:
            self._log.info("another process leads", holder=self.holder)
        self._known_holder = self.holder

    def _note_trouble(self, trouble: str) -> None:
        if trouble:
            metrics.LEASE_ERRORS.labels(self._name).inc()
        if trouble and not self._trouble:
            self._log.warning("lease call failed", trouble=trouble)
        self._trouble = trouble

    def _words(self, error: Exception) -> str:
        return str(error) or f"no answer within {self._call_seconds:g} s"


def _tells_loss(error: Exception, term: asyncio.Timeout) -> bool:
    """Whether the leader's work ended because of the loss: it was cancelled, or its writes were refused."""
    match error:
        case NotLeader():
            return True
        case ExceptionGroup():
            return error.split(NotLeader)[1] is None
        case _:
            return isinstance(error, TimeoutError) and term.expired()
