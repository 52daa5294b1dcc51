"""Batched charges of pods to budgets: one write per budget for many requests, all budgets of a pod or none.

The guard asks here for each pod that a request wants to take. Requests for one budget that come during its last write are
judged together (`disruption.decide.charge`) and stored by one compare-and-set. The watched version is enough to allow: the
write proves it. It is not enough to refuse, nor to rely on a charge that another request may have taken back: then the
budget is read, once for the whole batch. Several webhooks that charge one budget conflict: after a conflict, new requests
join the retry, and `ContentionDelay` lets more of them gather.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from prometheus_client import Counter, Histogram

from zonewise import log
from zonewise.disruption.controller.budget_store import LOST, BudgetStore, BudgetVersion
from zonewise.disruption.decide.charge import (
    BatchItem,
    BatchResult,
    ChargeAction,
    ChargeAnswer,
    ChargeRequest,
    ChargeResult,
    judge_batch,
    judge_request,
)
from zonewise.disruption.decide.contention import ContentionDelay
from zonewise.disruption.decide.status import PublishedStatus
from zonewise.disruption.decide.verdict import EvictionVerdict
from zonewise.kube.wire.errors import ApiError, Conflict, NotFound
from zonewise.objects import Key

_log = log.get_logger(__name__)

MOST_ATTEMPTS: Final = 8
_FIRST_JITTER_SECONDS: Final = 0.002
_LONGEST_JITTER_SECONDS: Final = 0.3
_LAST_TO_JOIN: Final = MOST_ATTEMPTS // 2
"""A request that joins a later attempt would get too few of them before it is answered BUSY."""

_BATCHES: Final = Histogram(
    "zonewise_charge_batch_requests", "Requests judged together for one budget", buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
_CONFLICTS: Final = Counter("zonewise_charge_conflicts", "Charges repeated after a conflict")


class Charger:
    def __init__(self, store: BudgetStore, *, chance: Callable[[], float] = random.random) -> None:
        self._store = store
        self._chance = chance
        self._queues: dict[Key, BudgetQueue] = {}

    async def charge(self, request: ChargeRequest, budgets: Sequence[Key]) -> list[ChargeAnswer]:
        """The answers of the budgets in the order of their names, up to the first that refuses: then none is charged."""
        keys = sorted(budgets)
        if request.dry_run:
            return await self._check(request, keys)
        if len(keys) > 1 and self._is_likely_refused(request, keys):
            checked = await self._check(request, keys)
            if _is_refused(checked):
                return checked
        answers: list[ChargeAnswer] = []
        for key in keys:
            answers.append(await self._queue(key).submit(PendingCharge(request)))
            if _is_refused(answers):
                await self._refund(request, keys, answers)
                return [answers[-1]]
        return answers

    def _is_likely_refused(self, request: ChargeRequest, keys: Sequence[Key]) -> bool:
        versions = [version for key in keys if (version := self._store.newest(key)) is not None]
        return any(judge_request(version.case, request).verdict is EvictionVerdict.DENY for version in versions)

    async def _check(self, request: ChargeRequest, keys: Sequence[Key]) -> list[ChargeAnswer]:
        checks = (self._queue(key).submit(PendingCharge(request, ChargeAction.CHECK)) for key in keys)
        return list(await asyncio.gather(*checks))

    async def _refund(self, request: ChargeRequest, keys: Sequence[Key], answers: Sequence[ChargeAnswer]) -> None:
        """A charge that can't be refunded now expires, or ends when the leader sees that the pod stays."""
        for key, answer in zip(keys, answers, strict=False):
            if answer.outcome is ChargeResult.CHARGED:
                await self._queue(key).submit(PendingCharge(request, ChargeAction.REFUND))

    def _queue(self, key: Key) -> BudgetQueue:
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = BudgetQueue(key, self._store, self._chance, self._close)
        return queue

    def _close(self, key: Key) -> None:
        self._queues.pop(key, None)


def _is_refused(answers: Sequence[ChargeAnswer]) -> bool:
    return any(answer.outcome in {ChargeResult.DENIED, ChargeResult.BUSY} for answer in answers)


@dataclass(eq=False, slots=True)
class PendingCharge:
    request: ChargeRequest
    action: ChargeAction = ChargeAction.CHARGE
    answer: asyncio.Future[ChargeAnswer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def item(self) -> BatchItem:
        return BatchItem(self.request, self.action, abandoned=self.answer.done())


class BudgetQueue:
    """The requests for one budget. It works while there are any, and closes after a pause without."""

    def __init__(self, key: Key, store: BudgetStore, chance: Callable[[], float], close: Callable[[Key], None]) -> None:
        self._key = key
        self._store = store
        self._chance = chance
        self._close = close
        self._waiting: list[PendingCharge] = []
        self._delay = ContentionDelay()
        self._work: asyncio.Task[None] | None = None

    async def submit(self, charge: PendingCharge) -> ChargeAnswer:
        self._waiting.append(charge)
        if self._work is None:
            self._work = asyncio.create_task(self._serve(), name=f"charges {self._key}")
        return await charge.answer

    async def _serve(self) -> None:
        while batch := self._take():
            await self._answer(batch)
            _BATCHES.observe(len(batch))
            if seconds := self._delay.seconds:
                await asyncio.sleep(seconds)
        self._work = None
        self._close(self._key)

    def _take(self) -> list[PendingCharge]:
        """All that wait, without those whose callers left."""
        batch = [charge for charge in self._waiting if not charge.answer.done()]
        self._waiting = []
        return batch

    async def _answer(self, batch: list[PendingCharge]) -> None:
        try:
            answers = await self._answers(batch)
        except Exception as error:  # noqa: BLE001 - every caller gets it, whatever it is
            for charge in batch:
                if not charge.answer.done():
                    charge.answer.set_exception(error)
            return
        for charge, answer in zip(batch, answers, strict=True):
            if not charge.answer.done():
                charge.answer.set_result(answer)
            elif answer.outcome is ChargeResult.CHARGED:  # the caller left meanwhile: its deadline has passed
                self._waiting.append(PendingCharge(charge.request, ChargeAction.REFUND))

    async def _answers(self, batch: list[PendingCharge]) -> Sequence[ChargeAnswer]:
        try:
            return await self._decide(batch)
        except NotFound:
            return [ChargeAnswer(ChargeResult.ALLOWED)] * len(batch)
        except ApiError as error:
            _log.warning("charge failed", budget=str(self._key), error=str(error))
            return [ChargeAnswer(ChargeResult.BUSY)] * len(batch)

    async def _decide(self, batch: list[PendingCharge]) -> Sequence[ChargeAnswer]:
        """Answers for `batch`. After a conflict the requests that came meanwhile join it, and all are judged again."""
        version, live = self._store.newest(self._key), False
        for attempt in range(MOST_ATTEMPTS):
            if all(charge.answer.done() for charge in batch):
                break  # no caller waits any more: spare the API server, which is slow already
            if version is None:
                version, live = await self._read(), True
            result = _judge(version, batch)
            if not result.certain and not live:
                version, live = await self._read(), True
                result = _judge(version, batch)
            if not result.writes:
                return result.answers
            try:
                await self._write(version, result.after)
            except LOST:
                _CONFLICTS.inc()
                await asyncio.sleep(self._jitter_seconds(attempt))
                if attempt < _LAST_TO_JOIN:
                    batch += self._take()
                version, live = self._newer_than(version), False
            else:
                return result.answers
        return [ChargeAnswer(ChargeResult.BUSY)] * len(batch)

    async def _write(self, version: BudgetVersion, after: PublishedStatus) -> None:
        clock = asyncio.get_running_loop().time
        begin = clock()
        try:
            await self._store.write(version, after)
        except Conflict:
            self._delay.lost()
            raise
        self._delay.stored(clock() - begin)

    def _newer_than(self, version: BudgetVersion) -> BudgetVersion | None:
        """The watched version, where the watch is as fast as a read would be."""
        newest = self._store.newest(self._key)
        return newest if newest is not None and newest.version != version.version else None

    async def _read(self) -> BudgetVersion:
        version = await self._store.read(self._key)
        if version is None:
            raise NotFound(f"budget {self._key} is gone")
        return version

    def _jitter_seconds(self, attempt: int) -> float:
        return self._chance() * min(_LONGEST_JITTER_SECONDS, _FIRST_JITTER_SECONDS * 2.0**attempt)


def _judge(version: BudgetVersion, batch: Sequence[PendingCharge]) -> BatchResult:
    return judge_batch(version.case, version.version, [charge.item for charge in batch])
