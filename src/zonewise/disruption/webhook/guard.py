"""Answers API servers before a pod is taken: may it be evicted, or deleted, under all budgets that cover it?

Last in the flow of a webhook: finds the pod and its budgets, has `charges` ask and charge them, and says yes or 429 with
the reason. Any number of these run side by side; the budgets' ledgers are all they share. The watch is trusted as far as
an error in it does no harm: whatever would let a pod go without a charge is looked at again in the API server first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Final

from prometheus_client import Counter

from zonewise import log
from zonewise.api.names import RESERVED
from zonewise.disruption.controller.budget_store import BudgetStore
from zonewise.disruption.decide import verdict as judging
from zonewise.disruption.decide.budget import Budget, DisruptionKind, Enforcement
from zonewise.disruption.decide.ledger import ChargeSource
from zonewise.disruption.decide.pdb import CANNOT_EVICT, PdbRefusal, refusal
from zonewise.disruption.decide.pods import NodeDomains, PodFacts
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.verdict import BudgetVerdict, PodVerdict, judge_all
from zonewise.disruption.watch.informers import DisruptionInformers, owner_uid_of, selector_of
from zonewise.disruption.webhook.charger import ChargeAnswer, Charger, ChargeRequest, ChargeResult
from zonewise.disruption.webhook.leader_monitor import LeaderMonitor
from zonewise.disruption.webhook.registration import DELETES, EVICTIONS, PodDeleter, deleter
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import utc_now
from zonewise.kube.server.admission import Webhook
from zonewise.kube.watch.cache import trouble_of
from zonewise.kube.wire.admission_review import AdmissionVerdict, Review
from zonewise.kube.wire.errors import ErrorCause, NotFound
from zonewise.objects import NODES, PODS, Key, Pod, micro_time
from zonewise.objects.change import Change
from zonewise.objects.policy import POD_DISRUPTION_BUDGETS, Eviction, TopologyDisruptionBudget

_log = log.get_logger(__name__)

DEADLINE_SECONDS: Final = 4.0
_READ_SECONDS: Final = 2.0
_BUSY_SECONDS: Final = 2
_NO_LEADER_SECONDS: Final = 10
_IN_BETWEEN_SECONDS: Final = 1
_LOOKS: Final = 3
_CAUSE: Final = "DisruptionBudget"

_SAID_BY_SPEC: Final = frozenset({DisruptionCode.NOT_ENFORCED, DisruptionCode.NOT_APPLIED, DisruptionCode.NOT_COVERED})
"""What lets pods go uncharged until somebody edits the budget or labels the node, of which we may not have heard yet."""
_PASSING: Final = {DisruptionCode.NOT_OBSERVED: _BUSY_SECONDS, DisruptionCode.DOMAIN_NOT_COUNTED: _BUSY_SECONDS}
"""What ends by itself in a moment; the other refusals last, and clients should say so to people at once."""

_NOT_DECIDED: Final = AdmissionVerdict.deny(
    f"{CANNOT_EVICT} It could not be decided in time: retry, and see the log of `zonewise webhook`",
    code=429,
    causes=[ErrorCause(reason=_CAUSE, message="The disruption budgets could not be asked in time")],
    retry_after_seconds=_BUSY_SECONDS,
)
_BUSY: Final = "Its disruption budgets are being charged by many at once, or the API server does not answer: retry"

_JUDGED: Final = Counter("zonewise_guard_judgements", "What budgets said to requests for pods", ["request", "code"])
_WOULD: Final = Counter(
    "zonewise_guard_would_refuse", "Requests that budgets in a dry run would have refused", ["namespace", "budget"]
)


@dataclass(frozen=True, slots=True)
class DisruptionRequest:
    """Somebody's request for a pod, as far as judging goes."""

    pod: PodFacts
    reach: DisruptionKind
    source: ChargeSource
    dry_run: bool
    reservation: str = ""


class EvictionGuard:
    """Its answers are right once the caches of `sources` are synced."""

    def __init__(
        self,
        client: Client,
        sources: DisruptionInformers,
        book: BudgetStore,
        leader: LeaderMonitor,
        *,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        self._client = client
        self._sources = sources
        self._book = book
        self._charges = Charger(book)
        self._leader = leader
        self._wall = wall
        self._held: dict[Key, dict[str, DisruptionCode]] = {}
        sources.budgets.on_change(self._budget_changed)

    def trouble(self) -> str | None:
        """Why requests had better go to another replica: what changed since is not known here."""
        unheard = self._leader.trouble() if self._leader.undecided else None
        return trouble_of((*self._sources.watches, self._leader.watch)) or unheard

    def webhooks(self) -> list[Webhook[Any]]:
        return [
            Webhook(EVICTIONS, Eviction, self.review_eviction, _NOT_DECIDED, DEADLINE_SECONDS),
            Webhook(DELETES, Pod, self.review_delete, AdmissionVerdict.allow(), DEADLINE_SECONDS),
        ]

    async def review_eviction(self, asked: Review[Eviction]) -> AdmissionVerdict:
        body = asked.object or Eviction()
        options = body.delete_options
        uid = (options.preconditions.uid or "") if options and options.preconditions else ""
        dry_run = asked.dry_run or bool(options and options.dry_run)
        key = Key(asked.namespace, asked.name or body.metadata.name)
        pod = self._sources.facts(key)
        certain = pod is not None and _is_the_one(pod, uid)
        if pod is None or (self._guarding(pod) and _doubtful(pod, uid)):
            pod, certain = await self._read_pod(key), True
            if pod is None:
                return _not_there(key)
            if uid not in {"", pod.uid}:
                return (
                    AdmissionVerdict.allow()
                )  # the API server will say what is to be said of another pod of this name
            if pod.in_between and not uid and self._guarding(pod):
                return _come_again(pod)
        reservation = body.metadata.annotations.get(RESERVED, "")
        wish = DisruptionRequest(pod, DisruptionKind.EVICTIONS, ChargeSource.EVICTION, dry_run, reservation)
        return await (self._decide(wish) if certain else self._decide_on_name(wish))

    async def review_delete(self, asked: Review[Pod]) -> AdmissionVerdict:
        """The pod comes with the request, as it is stored. Without a retry-after: it would stall a whole controller."""
        by = deleter(asked.user_info)
        if by is PodDeleter.SYSTEM or asked.old_object is None:
            return AdmissionVerdict.allow()
        pod = PodFacts.of(asked.old_object)
        if not pod.ready or pod.terminating or (by is PodDeleter.WORKLOAD and pod.granted):
            return AdmissionVerdict.allow()
        reach = DisruptionKind.CONTROLLER_DELETES if by is PodDeleter.WORKLOAD else DisruptionKind.DELETES
        verdict = await self._decide(DisruptionRequest(pod, reach, ChargeSource.DELETE, asked.dry_run))
        return verdict if verdict.allowed else AdmissionVerdict.deny(verdict.message, code=403, causes=verdict.causes)

    async def _decide_on_name(self, wish: DisruptionRequest) -> AdmissionVerdict:
        """Meanwhile we look whether the name is another pod's by now: then all was for nothing, and that one is judged.

        What was charged for a pod that is gone holds others up until the next count, which finds nothing missing for it.
        """
        if not self._guarding(wish.pod):
            return AdmissionVerdict.allow()
        async with asyncio.TaskGroup() as group:
            reading = group.create_task(self._read_pod(wish.pod.key))
            verdict = await self._decide(wish)
        now = reading.result()
        if now is None:
            return _not_there(wish.pod.key)
        if now.in_between:
            return _come_again(now)
        return verdict if now.uid == wish.pod.uid else await self._decide(replace(wish, pod=now))

    async def _read_pod(self, key: Key) -> PodFacts | None:
        try:
            return PodFacts.of(await self._client.get(PODS, key.name, key.namespace, deadline_seconds=_READ_SECONDS))
        except NotFound:
            return None

    def _guarding(self, pod: PodFacts) -> list[Budget]:
        return [budget for budget in self._sources.budgets_of(pod) if budget.enforcement is not Enforcement.OFF]

    async def _decide(self, wish: DisruptionRequest, *, looked: bool = False) -> AdmissionVerdict:
        budgets = [budget for budget in self._guarding(wish.pod) if wish.reach in budget.apply_to]
        if not budgets:
            return AdmissionVerdict.allow()
        atlas = await self._atlas(wish.pod, anew=looked)
        request = self._request(wish, budgets, atlas)
        peers = next(filter(None, (request.others_to_take(case.status) for case in request.others)), ())
        first = judge_all(request.others, wish.pod, atlas, peers, wish.reach, request.owner)
        if not looked and (in_doubt := _said_by_spec(first.each)):
            await asyncio.gather(*map(self._book.read, in_doubt))
            return await self._decide(wish, looked=True)
        may_become_ready = (
            wish.pod.pending and wish.pod.node and wish.reach is DisruptionKind.EVICTIONS and not wish.dry_run
        )
        if not may_become_ready and all(_settled(judgement) for judgement in first.each):
            return self._conclude(wish, [ChargeAnswer(ChargeResult.ALLOWED, judgement) for judgement in first.each])
        if judging.hangs_on_numbers(first.each, budgets) and (trouble := self._leader.trouble()):
            return _refuse(trouble, [trouble], _BUSY_SECONDS if self._leader.undecided else _NO_LEADER_SECONDS)
        if wish.reach is DisruptionKind.EVICTIONS and _rests_on_a_charge(first) and not wish.dry_run:
            refused = await self._refused_by_stock(wish.pod)
            if refused is not None:
                return _as_stock(refused)
        if wish.reach is DisruptionKind.EVICTIONS and wish.pod.stays and not wish.pod.ready and not wish.dry_run:
            return await self._let_unready_go(wish, budgets)
        answers = await self._charges.ask(request, [budget.key for budget in budgets])
        if not looked and _said_by_spec(answer.judgement for answer in answers):
            return await self._decide(wish, looked=True)
        return self._conclude(wish, answers)

    async def _let_unready_go(self, wish: DisruptionRequest, budgets: Sequence[Budget]) -> AdmissionVerdict:
        """What goes for not being ready must be seen so after the count it is judged by: that may have found it ready."""
        answers: Sequence[ChargeAnswer] = ()
        for _ in range(_LOOKS):
            pages = await asyncio.gather(*(self._book.read(budget.key) for budget in budgets))
            pod = await self._read_pod(wish.pod.key)
            if pod is None:
                return _not_there(wish.pod.key)
            if pod.in_between:
                return _come_again(pod)
            wish = replace(wish, pod=pod)
            if pod.ready or not pod.stays:
                return await self._decide(wish)
            versions = {page.key: page.version for page in pages if page is not None}
            atlas = await self._atlas(pod, anew=True)
            request = replace(self._request(wish, budgets, atlas), versions=versions)
            answers = await self._charges.ask(request, [budget.key for budget in budgets])
            if all(answer.outcome is not ChargeResult.BUSY for answer in answers):
                break
        return self._conclude(wish, answers)

    async def _refused_by_stock(self, pod: PodFacts) -> PdbRefusal | None:
        """From the watch where that allows; a refusal is looked at twice, and then said by us in its place.

        To let the request through uncharged, hoping that the API server refuses it, would be a way past our budgets
        whenever the stock one changes its mind in between.
        """
        if refusal(pod, self._sources.pdbs_of(pod)) is None:
            return None
        listed = await self._client.list(POD_DISRUPTION_BUDGETS, pod.namespace, deadline_seconds=_READ_SECONDS)
        return refusal(pod, [found for found in listed.items if selector_of(found).matches(pod.labels)])

    def _request(self, wish: DisruptionRequest, budgets: Sequence[Budget], atlas: NodeDomains) -> ChargeRequest:
        pages = [page for budget in budgets if (page := self._book.newest(budget.key)) is not None]
        return ChargeRequest(
            pod=wish.pod,
            atlas=atlas,
            owner=owner_uid_of(wish.pod, self._sources),
            reach=wish.reach,
            source=wish.source,
            time=micro_time(self._wall()),
            dry_run=wish.dry_run,
            reservation=wish.reservation,
            others=tuple(page.case for page in pages),
            replaced=lambda ledger: self._sources.is_replaced(wish.pod, ledger),
            peers=lambda: self._sources.pods_of(wish.pod.replica_set),
        )

    async def _atlas(self, pod: PodFacts, *, anew: bool) -> NodeDomains:
        """A node we have not heard of may be new, or gone: that makes a difference to its pods. So may labels: `anew`."""
        atlas = self._sources.atlas
        if not pod.node or (atlas.has(pod.node) and not anew):
            return atlas
        try:
            node = await self._client.get(NODES, pod.node, deadline_seconds=_READ_SECONDS)
        except NotFound:
            return atlas
        return self._sources.atlas_with(node)

    def _conclude(self, wish: DisruptionRequest, answers: Sequence[ChargeAnswer]) -> AdmissionVerdict:
        for answer in answers:
            self._note(wish, answer)
        denied = [answer.judgement for answer in answers if answer.outcome is ChargeResult.DENIED and answer.judgement]
        if denied:
            seconds = max(_PASSING.get(judgement.reason.code, 0) for judgement in denied)
            advice = "; ".join(f"{judgement.reason.sentence}: {judgement.reason.remedy}" for judgement in denied)
            return _refuse(advice, [judgement.reason.sentence for judgement in denied], seconds)
        if any(answer.outcome is ChargeResult.BUSY for answer in answers):
            return _refuse(_BUSY, [_BUSY], _BUSY_SECONDS)
        return AdmissionVerdict.allow()

    def _note(self, wish: DisruptionRequest, answer: ChargeAnswer) -> None:
        said = answer.judgement
        _JUDGED.labels(wish.reach, said.reason.code if said else answer.outcome).inc()
        if said is None:
            return
        held = self._held.setdefault(said.budget, {})
        if said.would is judging.EvictionVerdict.DENY:
            if said.verdict is not judging.EvictionVerdict.DENY:
                _WOULD.labels(said.budget.namespace, said.budget.name).inc()
            if held.get(said.domain) is not said.reason.code:
                held[said.domain] = said.reason.code
                _log_refusal(wish, said)
        elif answer.outcome is ChargeResult.CHARGED and held.pop(said.domain, None) is not None:
            _log.info("budget lets pods go again", budget=str(said.budget), domain=said.domain, pod=str(wish.pod.key))

    def _budget_changed(self, change: Change[TopologyDisruptionBudget]) -> None:
        if change.new is None:
            self._held.pop(change.key, None)


def _is_the_one(pod: PodFacts, uid: str) -> bool:
    """Whether no other pod can have its name by now."""
    return uid == pod.uid if uid else not pod.name_comes_back


def _doubtful(pod: PodFacts, uid: str) -> bool:
    """Whether an old word about the pod could let another, or one that is healthy by now, go without a charge."""
    return uid not in {"", pod.uid} or not pod.ready or pod.pending or not pod.active


def _said_by_spec(judgements: Iterable[BudgetVerdict | None]) -> list[Key]:
    """The budgets that have no say for what is written in them and on the node."""
    return [said.budget for said in judgements if said is not None and said.reason.code in _SAID_BY_SPEC]


def _settled(judgement: BudgetVerdict) -> bool:
    """Allowed for what the pod and its node are, whatever the budget's numbers and ledger say."""
    return judgement.reason.code in {
        DisruptionCode.NOT_ENFORCED,
        DisruptionCode.NOT_APPLIED,
        DisruptionCode.NOT_RUNNING,
        DisruptionCode.NOT_COVERED,
        DisruptionCode.NODE_GONE,
    }


def _rests_on_a_charge(first: PodVerdict) -> bool:
    """One that is made now, or one that was: who asks again while others refuse must not keep it alive."""
    charged = any(judgement.reason.code is DisruptionCode.ALREADY_CHARGED for judgement in first.each)
    return first.verdict is judging.EvictionVerdict.CHARGE or (
        first.verdict is judging.EvictionVerdict.ALLOW and charged
    )


def _not_there(key: Key) -> AdmissionVerdict:
    """As the API server says it. If it had to find out by itself it would take the next pod of that name, which nobody asked us for."""
    return AdmissionVerdict.deny(f'pods "{key.name}" not found', code=404)


def _come_again(pod: PodFacts) -> AdmissionVerdict:
    return _refuse(f"{pod.in_between}: ask again in a moment", [pod.in_between], _IN_BETWEEN_SECONDS)


def _refuse(advice: str, causes: Sequence[str], retry_after_seconds: int = 0) -> AdmissionVerdict:
    return AdmissionVerdict.deny(
        f"{CANNOT_EVICT} {advice[:1].upper()}{advice[1:]}",
        code=429,
        causes=[ErrorCause(reason=_CAUSE, message=cause) for cause in causes],
        retry_after_seconds=retry_after_seconds,
    )


def _as_stock(said: PdbRefusal) -> AdmissionVerdict:
    causes = [ErrorCause(reason=_CAUSE, message=said.cause)] if said.cause else []
    return AdmissionVerdict.deny(
        said.message, code=said.code, causes=causes, retry_after_seconds=said.retry_after_seconds
    )


def _log_refusal(wish: DisruptionRequest, said: BudgetVerdict) -> None:
    _log.info(
        "budget holds pods" if said.verdict is said.would else "budget in a dry run would hold pods",
        budget=str(said.budget),
        domain=said.domain,
        pod=str(wish.pod.key),
        request=wish.reach,
        code=said.reason.code,
        reason=said.reason.sentence,
    )
