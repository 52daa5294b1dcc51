"""Charges pods to budgets: many requests at once, one write per budget, all budgets of a pod or none.

The guard asks here for each pod that somebody wants to take. Requests for one budget that come while its last write is
under way are judged together, one after the other, each seeing what those before it took, and stored by one
compare-and-set. What the watch told is enough to allow: the write proves it. It is not enough to refuse, nor to believe
a charge that another request may have taken back: then the budget is read, once for all who wait. Where several webhooks
charge one budget their writes meet: who comes while one is lost joins the next attempt, and `pause` lets more gather.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from prometheus_client import Counter, Histogram

from zonewise import log
from zonewise.disruption.controller.budget_store import LOST, BudgetStore, BudgetVersion
from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import DisruptionKind, Enforcement
from zonewise.disruption.decide.contention import ContentionDelay
from zonewise.disruption.decide.ledger import ChargeSource, Ledger, LedgerEntry
from zonewise.disruption.decide.pods import NodeDomains, PodFacts
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.status import PublishedStatus
from zonewise.disruption.decide.verdict import BudgetCase, BudgetVerdict, EvictionVerdict, judge
from zonewise.kube.wire.errors import ApiError, Conflict, NotFound
from zonewise.objects import Key

_log = log.get_logger(__name__)

MOST_ATTEMPTS: Final = 8
_FIRST_JITTER_SECONDS: Final = 0.002
_LONGEST_JITTER_SECONDS: Final = 0.3
_LAST_TO_JOIN: Final = MOST_ATTEMPTS // 2
"""Who joins later would be told to come again after too few attempts."""

_BATCHES: Final = Histogram(
    "zonewise_charge_batch_requests", "Requests judged together for one budget", buckets=(1, 2, 4, 8, 16, 32, 64, 128)
)
_CONFLICTS: Final = Counter("zonewise_charge_conflicts", "Charges worked out again because somebody else wrote first")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRequest:
    """Somebody wants to take `pod`. `others` are its budgets, all of them; `peers` gives the pods of its ReplicaSet."""

    pod: PodFacts
    atlas: NodeDomains
    owner: str = ""
    reach: DisruptionKind = DisruptionKind.EVICTIONS
    source: ChargeSource = ChargeSource.EVICTION
    time: str = ""
    """When it came, as the API writes times: to the microsecond, so that no two requests for a pod have the same."""
    dry_run: bool = False
    reservation: str = ""
    """The time of the charge that who asks has made for it: better look for that than write another."""
    versions: Mapping[Key, str] | None = None
    """Of the budgets, when the pod was seen not to be ready after them."""
    others: tuple[BudgetCase, ...] = ()
    replaced: Callable[[Ledger], bool] = lambda _ledger: False
    """Whether its controller makes another, with the pods of this ledger gone: each of a batch takes from what is left."""
    peers: Callable[[], Sequence[PodFacts]] = tuple

    def is_replaced(self, now: PublishedStatus) -> bool:
        """Only looked at where an owner has too many: otherwise all are."""
        return bool(now.numbers.tally.surplus) and self.replaced(now.ledger)

    def others_to_take(self, now: PublishedStatus) -> Sequence[PodFacts]:
        """The pods of its ReplicaSet, if one of them can be had in its place."""
        if not now.numbers.any_surplus or (self.reach is DisruptionKind.EVICTIONS and self.is_replaced(now)):
            return ()
        return self.peers()

    def entry(self, domain: str) -> LedgerEntry:
        return LedgerEntry(
            uid=self.pod.uid,
            name=self.pod.name,
            domain=domain,
            owner=self.owner,
            time=self.time,
            source=self.source,
        )


class ChargeResult(StrEnum):
    ALLOWED = "allowed"
    CHARGED = "charged"
    DENIED = "denied"
    BUSY = "busy"
    """Others were faster again and again, or the API server does not answer: nothing is known, so nothing is allowed."""


@dataclass(frozen=True, slots=True)
class ChargeAnswer:
    outcome: ChargeResult
    judgement: BudgetVerdict | None = None
    """None where the budget is gone or could not be asked."""


class Charger:
    def __init__(self, book: BudgetStore, *, chance: Callable[[], float] = random.random) -> None:
        self._book = book
        self._chance = chance
        self._desks: dict[Key, BudgetQueue] = {}

    async def ask(self, request: ChargeRequest, budgets: Sequence[Key]) -> list[ChargeAnswer]:
        """What every budget says, in the order of their names, up to the first that refuses: then none is charged."""
        ordered = sorted(budgets)
        if request.dry_run:
            return await self._check(request, ordered)
        if len(ordered) > 1 and self._looks_refused(request, ordered):
            checked = await self._check(request, ordered)
            if _refused(checked):
                return checked
        answers: list[ChargeAnswer] = []
        for key in ordered:
            answers.append(await self._desk(key).submit(PendingCharge(request)))
            if _refused(answers):
                await self._refund(request, ordered, answers)
                return [answers[-1]]
        return answers

    def _looks_refused(self, request: ChargeRequest, ordered: Sequence[Key]) -> bool:
        pages = [page for key in ordered if (page := self._book.newest(key)) is not None]
        return any(_judged(page, page.status, request).verdict is EvictionVerdict.DENY for page in pages)

    async def _check(self, request: ChargeRequest, ordered: Sequence[Key]) -> list[ChargeAnswer]:
        slips = [PendingCharge(request, _Kind.CHECK) for _ in ordered]
        return list(
            await asyncio.gather(*(self._desk(key).submit(slip) for key, slip in zip(ordered, slips, strict=True)))
        )

    async def _refund(self, request: ChargeRequest, ordered: Sequence[Key], answers: Sequence[ChargeAnswer]) -> None:
        """What can't be given back now expires by itself, or when the leader sees that the pod stays."""
        for key, answer in zip(ordered, answers, strict=False):
            if answer.outcome is ChargeResult.CHARGED:
                await self._desk(key).submit(PendingCharge(request, _Kind.REFUND))

    def _desk(self, key: Key) -> BudgetQueue:
        desk = self._desks.get(key)
        if desk is None:
            desk = self._desks[key] = BudgetQueue(key, self._book, self._chance, self._close)
        return desk

    def _close(self, key: Key) -> None:
        self._desks.pop(key, None)


def _refused(answers: Sequence[ChargeAnswer]) -> bool:
    return any(answer.outcome in {ChargeResult.DENIED, ChargeResult.BUSY} for answer in answers)


class _Kind(StrEnum):
    CHARGE = "charge"
    CHECK = "check"
    REFUND = "refund"


@dataclass(eq=False, slots=True)
class PendingCharge:
    request: ChargeRequest
    kind: _Kind = _Kind.CHARGE
    answer: asyncio.Future[ChargeAnswer] = field(default_factory=lambda: asyncio.get_running_loop().create_future())


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch judged on one version: what each is told, and the status in which that is true."""

    answers: tuple[ChargeAnswer, ...]
    before: PublishedStatus
    after: PublishedStatus
    certain: bool
    """Whether it would hold on a version from the watch, too: the write proves it, or nothing hangs on it."""

    @property
    def writes(self) -> bool:
        return self.after is not self.before


def _judge_batch(page: BudgetVersion, slips: Sequence[PendingCharge]) -> BatchResult:
    """Each sees what those before it took."""
    now, answers, certain = page.status, list[ChargeAnswer](), True
    for slip in slips:
        answer, now = _judge_one(page, now, slip)
        answers.append(answer)
        certain = certain and _certain(answer, now, slip)
    return BatchResult(tuple(answers), page.status, now, certain)


def _judge_one(page: BudgetVersion, now: PublishedStatus, slip: PendingCharge) -> tuple[ChargeAnswer, PublishedStatus]:
    request = slip.request
    if slip.answer.done():
        return ChargeAnswer(ChargeResult.BUSY), now
    if slip.kind is _Kind.REFUND:
        return ChargeAnswer(ChargeResult.ALLOWED), _refunded(now, request)
    judgement = _judged(page, now, request)
    if judgement.verdict is EvictionVerdict.DENY:
        return ChargeAnswer(ChargeResult.DENIED, judgement), now
    if slip.kind is _Kind.CHECK:
        return ChargeAnswer(ChargeResult.ALLOWED, judgement), now
    if judgement.verdict is EvictionVerdict.CHARGE:
        entry, replaced = request.entry(judgement.domain), request.is_replaced(now)
        return ChargeAnswer(ChargeResult.CHARGED, judgement), status.charged(
            page.budget, now, [entry], replaced=replaced
        )
    if judgement.reason.code in {DisruptionCode.NOT_READY, DisruptionCode.NOT_RUNNING} and request.pod.stays:
        return _noted(page, now, request, judgement)
    return ChargeAnswer(ChargeResult.ALLOWED, judgement), _shared(now, request)


def _noted(
    page: BudgetVersion, now: PublishedStatus, request: ChargeRequest, judgement: BudgetVerdict
) -> tuple[ChargeAnswer, PublishedStatus]:
    """It goes because it is not ready, but may be by the time it goes: API servers take a while, and try again half a second later when
    it changed meanwhile.
    """
    place = request.atlas.place(page.budget, request.pod)
    if request.versions is not None and request.versions.get(page.key) != page.version:
        return ChargeAnswer(ChargeResult.BUSY), now  # somebody counted, or charged, since it was looked at
    enforced = page.budget.enforcement is Enforcement.ENFORCE
    if not enforced or not place.covered or request.pod.uid in now.ledger:
        return ChargeAnswer(ChargeResult.ALLOWED, judgement), now
    return ChargeAnswer(ChargeResult.CHARGED, judgement), status.noted(now, request.entry(place.domain))


def _refunded(now: PublishedStatus, request: ChargeRequest) -> PublishedStatus:
    """Only what this very request charged."""
    entry = now.ledger.get(request.pod.uid)
    ours = entry is not None and entry.time == request.time
    return status.refunded(now, {request.pod.uid}) if ours else now


def _shared(now: PublishedStatus, request: ChargeRequest) -> PublishedStatus:
    """Two requests for one pod rely on one charge: from now on neither may take it back, it can only expire, anew.

    The leader shows that what it reserved is its own: it acts upon that at once, and nobody else does.
    """
    entry = now.ledger.get(request.pod.uid)
    if entry is None or entry.confirmed or entry.time == request.time or _reserved(entry, request):
        return now
    return replace(now, ledger={**now.ledger, entry.uid: replace(entry, time=request.time, source=request.source)})


def _reserved(entry: LedgerEntry, request: ChargeRequest) -> bool:
    return bool(request.reservation) and entry.time == request.reservation


def _judged(page: BudgetVersion, now: PublishedStatus, request: ChargeRequest) -> BudgetVerdict:
    case = BudgetCase(page.budget, now)
    others = tuple(case if other.budget.key == page.key else other for other in request.others)
    peers = request.others_to_take(now)
    return judge(case, request.pod, request.atlas, peers, request.reach, others, request.owner)


def _certain(answer: ChargeAnswer, now: PublishedStatus, slip: PendingCharge) -> bool:
    judgement, request = answer.judgement, slip.request
    if judgement is None:
        return True
    if judgement.verdict is EvictionVerdict.CHARGE:
        return not request.reservation
    if judgement.reason.code is DisruptionCode.ALREADY_CHARGED:
        # What the leader reserved it acts upon at once, and takes back itself when that was refused.
        return _reserved(now.ledger[request.pod.uid], request)
    return judgement.verdict is EvictionVerdict.ALLOW and judgement.reason.code is not DisruptionCode.NOT_READY


class BudgetQueue:
    """Where the requests for one budget queue up; at work while there are any, and forgotten after a pause without."""

    def __init__(self, key: Key, book: BudgetStore, chance: Callable[[], float], close: Callable[[Key], None]) -> None:
        self._key = key
        self._book = book
        self._chance = chance
        self._close = close
        self._waiting: list[PendingCharge] = []
        self._pause = ContentionDelay()
        self._work: asyncio.Task[None] | None = None

    async def submit(self, slip: PendingCharge) -> ChargeAnswer:
        self._waiting.append(slip)
        if self._work is None:
            self._work = asyncio.create_task(self._serve(), name=f"charges {self._key}")
        return await slip.answer

    async def _serve(self) -> None:
        while slips := self._take():
            await self._answer(slips)
            _BATCHES.observe(len(slips))
            if seconds := self._pause.seconds:
                await asyncio.sleep(seconds)
        self._work = None
        self._close(self._key)

    def _take(self) -> list[PendingCharge]:
        """All who wait; who left early wants nothing charged."""
        slips = [slip for slip in self._waiting if not slip.answer.done()]
        self._waiting = []
        return slips

    async def _answer(self, slips: list[PendingCharge]) -> None:
        try:
            answers = await self._answers(slips)
        except Exception as error:  # noqa: BLE001 - those who wait must hear of it, whatever it is
            for slip in slips:
                if not slip.answer.done():
                    slip.answer.set_exception(error)
            return
        for slip, answer in zip(slips, answers, strict=True):
            if not slip.answer.done():
                slip.answer.set_result(answer)
            elif answer.outcome is ChargeResult.CHARGED:  # told no meanwhile, because it took too long
                self._waiting.append(PendingCharge(slip.request, _Kind.REFUND))

    async def _answers(self, slips: list[PendingCharge]) -> Sequence[ChargeAnswer]:
        try:
            return await self._decide(slips)
        except NotFound:
            return [ChargeAnswer(ChargeResult.ALLOWED)] * len(slips)
        except ApiError as error:
            _log.warning("budget can't be charged", budget=str(self._key), error=str(error))
            return [ChargeAnswer(ChargeResult.BUSY)] * len(slips)

    async def _decide(self, slips: list[PendingCharge]) -> Sequence[ChargeAnswer]:
        """Answers for `slips`, to which those are added who came while a race was lost: all are judged again then."""
        page, live = self._book.newest(self._key), False
        for attempt in range(MOST_ATTEMPTS):
            if all(slip.answer.done() for slip in slips):
                break  # an API server that is slow already is not asked for what nobody waits for
            if page is None:
                page, live = await self._read(), True
            judged = _judge_batch(page, slips)
            if not judged.certain and not live:
                page, live = await self._read(), True
                judged = _judge_batch(page, slips)
            if not judged.writes:
                return judged.answers
            try:
                await self._write(page, judged.after)
            except LOST:
                _CONFLICTS.inc()
                await asyncio.sleep(self._jitter_seconds(attempt))
                if attempt < _LAST_TO_JOIN:
                    slips += self._take()
                page, live = self._heard_since(page), False
            else:
                return judged.answers
        return [ChargeAnswer(ChargeResult.BUSY)] * len(slips)

    async def _write(self, page: BudgetVersion, after: PublishedStatus) -> None:
        clock = asyncio.get_running_loop().time
        begin = clock()
        try:
            await self._book.write(page, after)
        except Conflict:
            self._pause.lost()
            raise
        self._pause.stored(clock() - begin)

    def _heard_since(self, page: BudgetVersion) -> BudgetVersion | None:
        """A newer version, where the watch is as fast as a read would be."""
        heard = self._book.newest(self._key)
        return heard if heard is not None and heard.version != page.version else None

    async def _read(self) -> BudgetVersion:
        page = await self._book.read(self._key)
        if page is None:
            raise NotFound(f"budget {self._key} is gone")
        return page

    def _jitter_seconds(self, attempt: int) -> float:
        return self._chance() * min(_LONGEST_JITTER_SECONDS, _FIRST_JITTER_SECONDS * 2.0**attempt)
