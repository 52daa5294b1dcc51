"""The leader's budgets: counts the pods of each whenever something changed, and keeps its status true.

Reads `sources` and `workloads`, counts with `census`, tends the ledger, and writes by compare-and-set as soon as
`urgency` asks. Rollouts and scale-downs reserve here what they are about to take: a fresh count and their charges, in one
write. What it remembers between counts, where pods were before they vanished and since when charged ones are seen,
follows from the status when a new leader starts.
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
from zonewise.disruption.controller.events import BudgetEvents, order_is_fixed
from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import Budget, BudgetError, DisruptionKind
from zonewise.disruption.decide.ledger import ChargeSource, Ledger, LedgerEntry, Sightings, refund, tend
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.status import PublishedStatus, Recollection
from zonewise.disruption.decide.verdict import BudgetCase, EvictionVerdict, judge
from zonewise.disruption.decide.write_urgency import NEVER, Urgency, due_at, urgency
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.kube.controller.controller import Controller
from zonewise.kube.controller.elector import boot_seconds, utc_now
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
"""How long to wait before seeing whether the watches work again; asks nobody."""


Charge = tuple[str, str]
"""The uid and time of an entry: with another time it is another charge of the pod, or somebody else relies on it, too."""


@dataclass(slots=True)
class _Memory:
    """Of one budget, between two counts."""

    before: Recollection = field(default_factory=Recollection)
    sightings: Sightings = field(default_factory=dict)
    written_at: float = NEVER
    noticed_at: float | None = None
    holders: set[str] = field(default_factory=set)
    given_back: set[Charge] = field(default_factory=set)
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(frozen=True, slots=True)
class FreshCount:
    """A budget counted just now, and the version it was counted on."""

    page: BudgetVersion
    status: PublishedStatus
    given_up: tuple[LedgerEntry, ...]
    given_back: frozenset[Charge]
    next_seconds: float | None

    @property
    def case(self) -> BudgetCase:
        return BudgetCase(self.page.budget, self.status)


class StatusWriter:
    """Made before `caches` run; `run` works until cancelled, and may be run again with every new leadership."""

    def __init__(
        self,
        sources: DisruptionInformers,
        workloads: WorkloadInformers,
        book: BudgetStore,
        reports: BudgetEvents,
        *,
        clock: Callable[[], float] = boot_seconds,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._sources = sources
        self._workloads = workloads
        self._book = book
        self._reports = reports
        self._clock = clock
        self._wall = wall
        self._memories: dict[Key, _Memory] = {}
        self._queue: WorkQueue[Key] = WorkQueue(QUEUE, backoff=_BACKOFF)
        self._controller = Controller(QUEUE, self._queue, self._reconcile, workers=4)
        sources.on_budget_dirty(self._queue.add)

    async def run(self) -> None:
        """Others may have led since the last time: what was remembered then is not true any more."""
        self._memories.clear()
        for key in self._sources.budgets.keys():  # noqa: SIM118 - a cache is no dict
            self._queue.add(key)
        await self._controller.run()

    # For rollouts and scale-downs.

    def fresh(self, key: Key) -> BudgetCase | None:
        """Counted now from all that is known here, without a call; None while the budget can't be counted."""
        page = self._newest(key)
        counted = self._count(page) if page is not None else None
        return counted.case if counted is not None else None

    def hold(self, key: Key, who: str) -> None:
        """`who` will reserve again soon: until `release`, only numbers that fall are published by themselves."""
        self._memory(key).holders.add(who)

    def release(self, key: Key, who: str) -> None:
        self._memory(key).holders.discard(who)
        self._queue.add(key)

    def give_back(self, uids: Collection[str]) -> None:
        """These pods were reserved for a rollout and stay: their entries go with the next write."""
        for key in self._memories:
            ledger = self._ledger(key)
            found = [ledger[uid] for uid in ledger.keys() & uids]
            self._give_back(key, [entry for entry in found if entry.source is ChargeSource.ROLLOUT])

    async def reserve(self, wishes: Mapping[Key, Sequence[LedgerEntry]]) -> set[str]:
        """Charges the entries; the uids that every budget they were meant for lets go, charged where it must be.

        One write per budget. What one budget refuses is not asked of the next, and given back to those before it.
        """
        held = set[str]()
        try:
            held = await self._reserve_all(wishes)
        finally:
            for key, entries in wishes.items():
                ledger = self._ledger(key)
                self._give_back(
                    key, [entry for entry in entries if entry.uid not in held and ledger.get(entry.uid) == entry]
                )
        return held

    async def _reserve_all(self, wishes: Mapping[Key, Sequence[LedgerEntry]]) -> set[str]:
        held = {entry.uid for entries in wishes.values() for entry in entries}
        for key in sorted(wishes):
            wanted = [entry for entry in wishes[key] if entry.uid in held]
            if wanted:
                held -= {entry.uid for entry in wanted} - await self._reserve(key, wanted)
        return held

    def _give_back(self, key: Key, entries: Collection[LedgerEntry]) -> None:
        if entries:
            self._memory(key).given_back |= {(entry.uid, entry.time) for entry in entries}
            self._queue.add(key)

    def _ledger(self, key: Key) -> Ledger:
        page = self._newest(key)
        return page.status.ledger if page is not None else {}

    async def _reserve(self, key: Key, entries: Sequence[LedgerEntry]) -> set[str]:
        memory = self._memory(key)
        async with memory.writing:
            page = self._book.newest(key)
            for attempt in range(_RESERVE_ATTEMPTS):
                if attempt:
                    await asyncio.sleep(random.random() * _JITTER_SECONDS * attempt)  # noqa: S311 - no secret
                    page = await self._book.read(key)
                if page is None:
                    return {entry.uid for entry in entries}  # a budget that is gone holds nobody
                counted = self._count(page)
                if counted is None:
                    return set()
                held, after = self._charge(counted.case, entries)
                if await self._stored(counted, after):
                    return held
        raise Conflict(f"budget {key} could not be reserved: others wrote first {_RESERVE_ATTEMPTS} times")

    async def _stored(self, counted: FreshCount, after: PublishedStatus) -> bool:
        if urgency(counted.page.status, after) is Urgency.NOTHING:
            return True
        try:
            await self._store(counted, after)
        except NotFound:
            return True
        except LOST:
            return False
        return True

    def _charge(self, case: BudgetCase, entries: Sequence[LedgerEntry]) -> tuple[set[str], PublishedStatus]:
        held = set[str]()
        for entry in entries:
            pod = self._sources.facts_of(entry.uid)
            if pod is None:
                continue
            reach = (
                DisruptionKind.CONTROLLER_DELETES
                if entry.source is ChargeSource.SCALE_DOWN
                else DisruptionKind.EVICTIONS
            )
            peers = self._sources.pods_of(pod.replica_set) if case.status.numbers.any_surplus else ()
            judgement = judge(case, pod, self._sources.atlas, peers, reach, self._all_cases(case, pod), entry.owner)
            if judgement.verdict is EvictionVerdict.CHARGE:
                replaced = self._sources.is_replaced(pod, case.status.ledger)
                case = BudgetCase(case.budget, status.charged(case.budget, case.status, [entry], replaced=replaced))
            elif judgement.reason.code is DisruptionCode.ALREADY_CHARGED and entry.source is ChargeSource.SCALE_DOWN:
                case = BudgetCase(case.budget, status.relied_on(case.status, entry))
            if judgement.verdict is not EvictionVerdict.DENY:
                held.add(entry.uid)
        return held, status.restated(case.budget, case.status, self._now())

    def _all_cases(self, case: BudgetCase, pod: PodFacts) -> list[BudgetCase]:
        pages = (self._newest(budget.key) for budget in self._sources.budgets_of(pod))
        return [case, *(page.case for page in pages if page is not None and page.key != case.budget.key)]

    # Counting and publishing.

    async def _reconcile(self, key: Key) -> float | None:
        parsed = self._sources.budget(key)
        if parsed is None:
            self._memories.pop(key, None)
            self._reports.forget(key)
            return None
        if isinstance(parsed, BudgetError):
            await self._reports.unreadable(self._sources.budgets.get(key), parsed)
            return None
        memory = self._memory(key)
        async with memory.writing:
            return await self._publish(key, memory)

    async def _publish(self, key: Key, memory: _Memory) -> float | None:
        if self._sources.blind or self._workloads.blind:
            return _BLIND_SECONDS
        page = self._newest(key)
        counted = self._count(page) if page is not None else None
        if counted is None:
            return None
        now = self._clock()
        self._reports.show(counted.page.budget, counted.status)
        urgent = urgency(counted.page.status, counted.status)
        due = self._due_at(memory, urgent, now)
        if due > now:
            return self._seconds_until(due, counted, now)
        try:
            await self._store(counted, counted.status)
        except NotFound:
            return None
        except LOST:
            await self._book.read(key)
            raise
        return self._seconds_until(float("inf"), counted, now)

    def _due_at(self, memory: _Memory, urgent: Urgency, now: float) -> float:
        if urgent is Urgency.NOTHING:
            memory.noticed_at = None
        elif memory.noticed_at is None:
            memory.noticed_at = now
        noticed_at = now if memory.noticed_at is None else memory.noticed_at
        return due_at(urgent, noticed_at=noticed_at, written_at=memory.written_at, held=bool(memory.holders))

    def _seconds_until(self, due: float, counted: FreshCount, now: float) -> float:
        """Until it is due, or an entry ages, or just to look again: a watch may fail in ways nobody thought of."""
        resync = RESYNC_SECONDS * (0.9 + 0.2 * random.random())  # noqa: S311 - no secret
        ages = counted.next_seconds if counted.next_seconds is not None else float("inf")
        return max(0.01, min(due, ages, now + resync) - now)

    async def _store(self, counted: FreshCount, after: PublishedStatus) -> None:
        memory = self._memory(counted.page.key)
        await self._book.write(counted.page, after)
        memory.written_at = self._clock()
        memory.noticed_at = None
        memory.given_back -= counted.given_back
        self._reports.published(counted.page, after, counted.given_up)

    def _newest(self, key: Key) -> BudgetVersion | None:
        try:
            return self._book.newest(key)
        except BudgetError:  # told of when the watch comes to it
            return None

    def _count(self, page: BudgetVersion) -> FreshCount | None:
        """None while the watch has not told of the spec that stands, or of anything: its pods are not known then."""
        budget, before = page.budget, page.status
        if self._sources.blind or self._workloads.blind:
            return None
        known = self._sources.budget(budget.key)
        if not isinstance(known, Budget) or (known.uid, known.generation) != (budget.uid, budget.generation):
            return None
        memory = self._memory(page.key)
        known_before = status.recollect(budget, before, memory.before)
        pods = self._sources.pods_selected_by(budget.key)
        given_back = frozenset(memory.given_back)
        ledger = refund(before.ledger, {uid for uid, time in given_back if _time(before.ledger, uid) == time})
        charged = {uid: pod for uid in ledger if (pod := self._sources.facts_of(uid)) is not None}
        tended = tend(ledger, memory.sightings, charged, self._clock())
        wanted = self._workloads.wanted
        census = known_before.count(budget, pods, self._sources.atlas, wanted, tended.ledger)
        memory.sightings, memory.before = tended.sightings, replace(known_before, places=census.places)
        if census.numbers.tally.unmanaged:
            self._workloads.look_up(pods)
        after = status.published(
            budget, census, tended.ledger, before.conditions, self._now(), order_is_fixed(census.numbers, wanted)
        )
        return FreshCount(page, after, tended.given_up, given_back, tended.next_seconds)

    def _memory(self, key: Key) -> _Memory:
        return self._memories.setdefault(key, _Memory())

    def _now(self) -> str:
        return micro_time(self._wall())


def _time(ledger: Ledger, uid: str) -> str | None:
    return ledger[uid].time if uid in ledger else None
