"""Charges of pods to one budget: a batch of requests judged on one version of its status. Pure.

The webhook makes a `ChargeRequest` for each eviction or delete that a budget limits. `disruption.webhook.charger` collects
them per budget, has `judge_batch` judge them one after the other and writes the resulting ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple

from zonewise.disruption.decide.budget import DisruptionKind, Enforcement
from zonewise.disruption.decide.ledger import ChargeSource, Ledger, LedgerEntry
from zonewise.disruption.decide.pods import NodeDomains, PodFacts
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.status import PublishedStatus, charged, noted, refunded
from zonewise.disruption.decide.verdict import BudgetCase, BudgetVerdict, EvictionVerdict, judge
from zonewise.objects import Key


@dataclass(frozen=True, slots=True, kw_only=True)
class ChargeRequest:
    """A request to take `pod`. `cases` are all its budgets; `peers` gives the pods of its ReplicaSet."""

    pod: PodFacts
    node_domains: NodeDomains
    owner: str = ""
    kind: DisruptionKind = DisruptionKind.EVICTIONS
    source: ChargeSource = ChargeSource.EVICTION
    time: str = ""
    """When the request came, in the API's format: to the microsecond, so that no two requests for a pod share it."""
    dry_run: bool = False
    reservation: str = ""
    """The time of the charge that the caller made before. That charge is looked up instead of writing another."""
    budget_versions: Mapping[Key, str] | None = None
    """Versions of the budgets that are older than the read which found the pod not ready."""
    cases: tuple[BudgetCase, ...] = ()
    replaced: Callable[[Ledger], bool] = lambda _ledger: False
    """Whether its controller makes another pod once the pods of this ledger are gone: each request of a batch sees the
    charges before it."""
    peers: Callable[[], Sequence[PodFacts]] = tuple

    def is_replaced(self, status: PublishedStatus) -> bool:
        """Only evaluated where an owner has a surplus: otherwise every pod is replaced."""
        return bool(status.numbers.tally.surplus) and self.replaced(status.ledger)

    def alternatives(self, status: PublishedStatus) -> Sequence[PodFacts]:
        """The pods of its ReplicaSet, if its controller can take one of them instead."""
        if not status.numbers.any_surplus or (self.kind is DisruptionKind.EVICTIONS and self.is_replaced(status)):
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
    """Every attempt met a conflict, or the API server does not answer: nothing is known, so nothing is allowed."""


@dataclass(frozen=True, slots=True)
class ChargeAnswer:
    outcome: ChargeResult
    verdict: BudgetVerdict | None = None
    """None where the budget is gone or could not be read."""


class ChargeAction(StrEnum):
    CHARGE = "charge"
    CHECK = "check"
    REFUND = "refund"


class BatchItem(NamedTuple):
    """`abandoned`: the caller does not wait any more, so nothing is charged for it."""

    request: ChargeRequest
    action: ChargeAction = ChargeAction.CHARGE
    abandoned: bool = False


@dataclass(frozen=True, slots=True)
class BatchResult:
    """A batch judged on one version: the answers, and the status that makes them true."""

    answers: tuple[ChargeAnswer, ...]
    before: PublishedStatus
    after: PublishedStatus
    certain: bool
    """Whether the answers hold on a version from the watch: the write proves them, or they don't depend on it."""

    @property
    def writes(self) -> bool:
        return self.after is not self.before


def judge_batch(case: BudgetCase, version: str, items: Sequence[BatchItem]) -> BatchResult:
    """Each request sees the charges of those before it. `version` is the budget's resource version."""
    now, answers, certain = case.status, list[ChargeAnswer](), True
    for item in items:
        answer, now = _judge_item(BudgetCase(case.budget, now), version, item)
        answers.append(answer)
        certain = certain and _is_certain(answer, now, item.request)
    return BatchResult(tuple(answers), case.status, now, certain)


def judge_request(case: BudgetCase, request: ChargeRequest) -> BudgetVerdict:
    key = case.budget.key
    cases = tuple(case if other.budget.key == key else other for other in request.cases)
    peers = request.alternatives(case.status)
    return judge(case, request.pod, request.node_domains, peers, request.kind, cases, request.owner)


def _judge_item(case: BudgetCase, version: str, item: BatchItem) -> tuple[ChargeAnswer, PublishedStatus]:
    request, now = item.request, case.status
    if item.abandoned:
        return ChargeAnswer(ChargeResult.BUSY), now
    if item.action is ChargeAction.REFUND:
        return ChargeAnswer(ChargeResult.ALLOWED), _refund(now, request)
    verdict = judge_request(case, request)
    if verdict.verdict is EvictionVerdict.DENY:
        return ChargeAnswer(ChargeResult.DENIED, verdict), now
    if item.action is ChargeAction.CHECK:
        return ChargeAnswer(ChargeResult.ALLOWED, verdict), now
    if verdict.verdict is EvictionVerdict.CHARGE:
        entry, replaced = request.entry(verdict.domain), request.is_replaced(now)
        return ChargeAnswer(ChargeResult.CHARGED, verdict), charged(case.budget, now, [entry], replaced=replaced)
    if verdict.reason.code in {DisruptionCode.NOT_READY, DisruptionCode.NOT_RUNNING} and request.pod.stays:
        return _note(case, version, request, verdict)
    return ChargeAnswer(ChargeResult.ALLOWED, verdict), _share(now, request)


def _note(
    case: BudgetCase, version: str, request: ChargeRequest, verdict: BudgetVerdict
) -> tuple[ChargeAnswer, PublishedStatus]:
    """The pod goes because it is not ready, but may be ready by the time it goes: API servers take a while, and retry
    half a second later when it changed meanwhile.
    """
    budget, now = case.budget, case.status
    domain = request.node_domains.domain_key(budget, request.pod)
    if request.budget_versions is not None and request.budget_versions.get(budget.key) != version:
        return ChargeAnswer(ChargeResult.BUSY), now  # counted or charged since the pod was read
    enforced = budget.enforcement is Enforcement.ENFORCE
    if not enforced or not domain.covered or request.pod.uid in now.ledger or now.refusal:
        return ChargeAnswer(ChargeResult.ALLOWED, verdict), now
    return ChargeAnswer(ChargeResult.CHARGED, verdict), noted(now, request.entry(domain.domain))


def _refund(now: PublishedStatus, request: ChargeRequest) -> PublishedStatus:
    """Only the charge of this very request."""
    entry = now.ledger.get(request.pod.uid)
    own = entry is not None and entry.time == request.time
    return refunded(now, {request.pod.uid}) if own else now


def _share(now: PublishedStatus, request: ChargeRequest) -> PublishedStatus:
    """Two requests for one pod rely on one charge: neither may refund it now, it can only expire. That it does no later.

    Not so the leader's own reservation: only the leader acts on it, and at once.
    """
    entry = now.ledger.get(request.pod.uid)
    if entry is None or entry.confirmed or entry.time == request.time or _is_reserved(entry, request):
        return now
    return replace(now, ledger={**now.ledger, entry.uid: replace(entry, time=request.time, source=request.source)})


def _is_reserved(entry: LedgerEntry, request: ChargeRequest) -> bool:
    return bool(request.reservation) and entry.time == request.reservation


def _is_certain(answer: ChargeAnswer, now: PublishedStatus, request: ChargeRequest) -> bool:
    verdict = answer.verdict
    if verdict is None:
        return True
    if verdict.verdict is EvictionVerdict.CHARGE:
        return not request.reservation
    if verdict.reason.code is DisruptionCode.ALREADY_CHARGED:
        # The leader acts on its reservation at once, and takes it back itself when the eviction is refused.
        return _is_reserved(now.ledger[request.pod.uid], request)
    return verdict.verdict is EvictionVerdict.ALLOW and verdict.reason.code is not DisruptionCode.NOT_READY
