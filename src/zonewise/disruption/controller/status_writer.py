"""Status writer of the leader: counts the pods of each budget after every change and publishes the status.

It counts from the caches with `decide.count`, updates the ledger, and writes by compare-and-set as soon as
`decide.write_urgency` demands. Rollouts and scale-downs reserve here: a fresh count and their charges, in one write. What
it remembers between counts (slots of missing pods, ages of charges) is restored from the status by a new leader.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Final

from zonewise import log
from zonewise.disruption.controller.budget_store import LOST, BudgetStore, BudgetVersion
from zonewise.disruption.controller.events import BudgetEvents, fixed_order_condition
from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import Budget, BudgetError, DisruptionKind
from zonewise.disruption.decide.ledger import (
    REQUEST_SECONDS,
    ChargeSource,
    Ledger,
    LedgerEntry,
    Sightings,
    is_staying,
    refund,
    update_ledger,
)
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.status import PublishedStatus, Recollection
from zonewise.disruption.decide.verdict import BudgetCase, EvictionVerdict, judge
from zonewise.disruption.decide.write_urgency import NEVER, Urgency, due_at, urgency
from zonewise.disruption.watch.informers import DisruptionInformers, read_pod
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.client.client import Client
from zonewise.kube.clock import boot_seconds, utc_now
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.workqueue import Backoff, WorkQueue
from zonewise.kube.wire.errors import Conflict, NotFound
from zonewise.objects import Key, micro_time

_log = log.get_logger(__name__)

QUEUE: Final = "budgets"
RESYNC_SECONDS: Final = 600.0
_BACKOFF: Final = Backoff(first_seconds=0.01, longest_seconds=30.0)
_RESERVE_ATTEMPTS: Final = 8
_JITTER_SECONDS: Final = 0.02
_BLIND_SECONDS: Final = 1.0
"""How often to check whether the watches work again; without a call."""


Charge = tuple[str, str]
"""The uid and time of an entry: with another time it is another charge of the pod, or another client relies on it."""


@dataclass(slots=True)
class _Memory:
    """State of one budget between two counts."""

    before: Recollection = field(default_factory=Recollection)
    sightings: Sightings = field(default_factory=dict)
    written_at: float = NEVER
    noticed_at: float | None = None
    holders: set[str] = field(default_factory=set)
    given_back: set[Charge] = field(default_factory=set)
    read: set[str] = field(default_factory=set)
    """Uids of charged pods that stay, as the API server has them, although their time is over."""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class FreshCount:
    """A budget counted now, and the version it was counted on."""

    version: BudgetVersion
    status: PublishedStatus
    given_up: tuple[LedgerEntry, ...]
    doubtful: tuple[LedgerEntry, ...]
    given_back: frozenset[Charge]
    next_seconds: float | None

    @property
    def case(self) -> BudgetCase:
        return BudgetCase(self.version.budget, self.status)


class StatusWriter:
    """Create it before `caches` run. `run` works until cancelled, and may run again with every new leadership."""

    def __init__(
        self,
        client: Client,
        informers: DisruptionInformers,
        workloads: WorkloadInformers,
        store: BudgetStore,
        events: BudgetEvents,
        *,
        request_seconds: float = REQUEST_SECONDS,
        clock: Callable[[], float] = boot_seconds,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._client = client
        self._informers = informers
        self._workloads = workloads
        self._store = store
        self._events = events
        self._request_seconds = request_seconds
        self._clock = clock
        self._wall = wall
        self._memories: dict[Key, _Memory] = {}
        self._queue: WorkQueue[Key] = WorkQueue(QUEUE, backoff=_BACKOFF)
        self._controller = Controller(QUEUE, self._queue, self._reconcile, workers=4)
        informers.on_budget_dirty(self._queue.add)

    async def run(self) -> None:
        """Another process may have led since the last run: forget what was remembered then."""
        self._memories.clear()
        for key in self._informers.budgets.keys():  # noqa: SIM118 - a cache is no dict
            self._queue.add(key)
        await self._controller.run()

    # For rollouts and scale-downs.

    def fresh(self, key: Key) -> BudgetCase | None:
        """Counted now from the caches, without a call; None while the budget can't be counted."""
        version = self._newest(key)
        counted = self._count(version) if version is not None else None
        return counted.case if counted is not None else None

    def hold(self, key: Key, holder: str) -> None:
        """`holder` will reserve again soon: until `release`, only falling numbers are published."""
        self._memory(key).holders.add(holder)

    def release(self, key: Key, holder: str) -> None:
        self._memory(key).holders.discard(holder)
        self._queue.add(key)

    def give_back(self, uids: Collection[str]) -> None:
        """These pods were reserved for a rollout and stay: their entries are removed with the next write."""
        for key in self._memories:
            ledger = self._ledger(key)
            own = [ledger[uid] for uid in ledger.keys() & uids]
            self._give_back(key, [entry for entry in own if entry.source is ChargeSource.ROLLOUT])

    async def reserve(self, charges: Mapping[Key, Sequence[LedgerEntry]]) -> set[str]:
        """Charges the entries, with one write per budget. Returns the uids that all their budgets let go.

        A pod that one budget refuses is not charged to the next, and is given back to those before.
        """
        reserved = set[str]()
        try:
            reserved = await self._reserve_all(charges)
        finally:
            for key, entries in charges.items():
                ledger = self._ledger(key)
                self._give_back(
                    key, [entry for entry in entries if entry.uid not in reserved and ledger.get(entry.uid) == entry]
                )
        return reserved

    async def _reserve_all(self, charges: Mapping[Key, Sequence[LedgerEntry]]) -> set[str]:
        reserved = {entry.uid for entries in charges.values() for entry in entries}
        for key in sorted(charges):
            desired = [entry for entry in charges[key] if entry.uid in reserved]
            if desired:
                reserved -= {entry.uid for entry in desired} - await self._reserve(key, desired)
        return reserved

    def _give_back(self, key: Key, entries: Collection[LedgerEntry]) -> None:
        if entries:
            self._memory(key).given_back |= {(entry.uid, entry.time) for entry in entries}
            self._queue.add(key)

    def _ledger(self, key: Key) -> Ledger:
        version = self._newest(key)
        return version.status.ledger if version is not None else {}

    async def _reserve(self, key: Key, entries: Sequence[LedgerEntry]) -> set[str]:
        memory = self._memory(key)
        async with memory.writing:
            version = self._store.newest(key)
            for attempt in range(_RESERVE_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(random.random() * _JITTER_SECONDS * attempt)  # noqa: S311 - no secret
                    version = await self._store.read(key)
                if version is None:
                    return {entry.uid for entry in entries}  # a budget that is gone holds no pod
                counted = self._count(version)
                if counted is None:
                    return set()
                reserved, after = self._charge(counted.case, entries)
                if await self._try_write(counted, after):
                    return reserved
        raise Conflict(f"budget {key} could not be reserved: {_RESERVE_ATTEMPTS} conflicts")

    async def _try_write(self, counted: FreshCount, after: PublishedStatus) -> bool:
        if urgency(counted.version.status, after) is Urgency.NOTHING:
            return True
        try:
            await self._write(counted, after)
        except NotFound:
            return True
        except LOST:
            return False
        return True

    def _charge(self, case: BudgetCase, entries: Sequence[LedgerEntry]) -> tuple[set[str], PublishedStatus]:
        reserved = set[str]()
        for entry in entries:
            pod = self._informers.facts_of(entry.uid)
            if pod is None:
                continue
            kind = (
                DisruptionKind.CONTROLLER_DELETES
                if entry.source is ChargeSource.SCALE_DOWN
                else DisruptionKind.EVICTIONS
            )
            peers = self._informers.pods_of(pod.replica_set) if case.status.numbers.any_surplus else ()
            verdict = judge(
                case, pod, self._informers.node_domains, peers, kind, self._all_cases(case, pod), entry.owner
            )
            if verdict.verdict is EvictionVerdict.CHARGE:
                replaced = self._informers.is_replaced(pod, case.status.ledger)
                case = BudgetCase(case.budget, status.charged(case.budget, case.status, [entry], replaced=replaced))
            elif verdict.reason.code is DisruptionCode.ALREADY_CHARGED and entry.source is ChargeSource.SCALE_DOWN:
                case = BudgetCase(case.budget, status.relied_on(case.status, entry))
            if verdict.verdict is not EvictionVerdict.DENY:
                reserved.add(entry.uid)
        return reserved, status.restated(case.budget, case.status, self._now())

    def _all_cases(self, case: BudgetCase, pod: PodFacts) -> list[BudgetCase]:
        versions = (self._newest(budget.key) for budget in self._informers.budgets_of(pod))
        return [case, *(version.case for version in versions if version is not None and version.key != case.budget.key)]

    # Counting and publishing.

    async def _reconcile(self, key: Key) -> float | None:
        parsed = self._informers.budget(key)
        if parsed is None:
            self._memories.pop(key, None)
            self._events.forget(key)
            return None
        if isinstance(parsed, BudgetError):
            await self._events.invalid(self._informers.budgets.get(key), parsed)
            return None
        memory = self._memory(key)
        async with memory.writing:
            return await self._publish(key, memory)

    async def _publish(self, key: Key, memory: _Memory) -> float | None:
        if self._informers.blind or self._workloads.blind:
            return _BLIND_SECONDS
        version = self._newest(key)
        counted = self._count(version) if version is not None else None
        if counted is not None and counted.doubtful:
            await self._read_doubtful(key.namespace, counted.doubtful, memory)
            counted = self._count(counted.version)
        if counted is None:
            return None
        now = self._clock()
        self._events.set_metrics(counted.version.budget, counted.status)
        urgent = urgency(counted.version.status, counted.status)
        due = self._due_at(memory, urgent, now)
        if due > now:
            return self._seconds_until(due, counted, now)
        try:
            await self._write(counted, counted.status)
        except NotFound:
            return None
        except LOST:
            await self._store.read(key)
            raise
        return self._seconds_until(float("inf"), counted, now)

    async def _read_doubtful(self, namespace: str, doubtful: Sequence[LedgerEntry], memory: _Memory) -> None:
        """A charge is given up by what the API server has, not by our cache. A pod that is gone stays charged: the cache
        counts it until the watch delivers its deletion, and its charge ends some time after that.
        """
        for entry in doubtful:
            stored = await read_pod(self._client, Key(namespace, entry.name))
            if is_staying(entry, PodFacts.of(stored) if stored is not None else None):
                memory.read.add(entry.uid)

    def _due_at(self, memory: _Memory, urgent: Urgency, now: float) -> float:
        if urgent is Urgency.NOTHING:
            memory.noticed_at = None
        elif memory.noticed_at is None:
            memory.noticed_at = now
        noticed_at = now if memory.noticed_at is None else memory.noticed_at
        return due_at(urgent, noticed_at=noticed_at, written_at=memory.written_at, held=bool(memory.holders))

    def _seconds_until(self, due: float, counted: FreshCount, now: float) -> float:
        """Until the write is due, an entry ages, or the resync, in case a watch fails silently."""
        resync = RESYNC_SECONDS * (0.9 + 0.2 * random.random())  # noqa: S311 - no secret
        ages = counted.next_seconds if counted.next_seconds is not None else float("inf")
        return max(0.01, min(due, ages, now + resync) - now)

    async def _write(self, counted: FreshCount, after: PublishedStatus) -> None:
        memory = self._memory(counted.version.key)
        await self._store.write(counted.version, after)
        memory.written_at = self._clock()
        memory.noticed_at = None
        memory.given_back -= counted.given_back
        self._events.published(counted.version, after, counted.given_up)

    def _newest(self, key: Key) -> BudgetVersion | None:
        try:
            return self._store.newest(key)
        except BudgetError:  # reported when the watch delivers it
            return None

    def _count(self, version: BudgetVersion) -> FreshCount | None:
        """None for a status of a newer release; and while the watches fail or have not delivered the stored spec: its pods
        are unknown then.
        """
        budget, before = version.budget, version.status
        if before.refusal:
            self._events.refused(version)
            return None
        if self._informers.blind or self._workloads.blind:
            return None
        cached = self._informers.budget(budget.key)
        if not isinstance(cached, Budget) or (cached.uid, cached.generation) != (budget.uid, budget.generation):
            return None
        memory = self._memory(version.key)
        memory_before = status.recollect(budget, before, memory.before)
        pods = self._informers.pods_selected_by(budget.key)
        given_back = frozenset(memory.given_back)
        ledger = refund(before.ledger, {uid for uid, time in given_back if _time(before.ledger, uid) == time})
        charged = {uid: pod for uid in ledger if (pod := self._informers.facts_of(uid)) is not None}
        updated = update_ledger(
            ledger, memory.sightings, charged, self._clock(), read=memory.read, request_seconds=self._request_seconds
        )
        memory.read &= updated.ledger.keys()
        desired = self._workloads.desired
        pod_count = memory_before.count(budget, pods, self._informers.node_domains, desired, updated.ledger)
        memory.sightings, memory.before = updated.sightings, replace(memory_before, owner_slots=pod_count.owner_slots)
        if pod_count.numbers.tally.unmanaged or pod_count.numbers.tally.failure:
            self._workloads.read_scales(pods)
        after = status.published(
            budget,
            pod_count,
            updated.ledger,
            before.conditions,
            self._now(),
            fixed_order_condition(pod_count.numbers, desired),
        )
        return FreshCount(version, after, updated.given_up, updated.doubtful, given_back, updated.next_seconds)

    def _memory(self, key: Key) -> _Memory:
        return self._memories.setdefault(key, _Memory())

    def _now(self) -> str:
        return micro_time(self._wall())


def _time(ledger: Ledger, uid: str) -> str | None:
    return ledger[uid].time if uid in ledger else None
