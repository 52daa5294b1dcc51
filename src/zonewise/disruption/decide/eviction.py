"""Verdict on a request to evict or delete a pod: a state machine without I/O, performed by `disruption.webhook.guard`.

The machine asks for one API call at a time (`ReadPod`, `ReadNode`, `ReadBudgets`, `ReadPdbs`, `Charge`) until it has an
`Answer`. Of a request it believes only which pod it names. Every pod is read from the API server before it is charged, or
let go although a budget selects it; a request that does not agree with what is stored charges nothing. Otherwise it trusts
the caches (`EvictionView`) wherever stale data can only refuse too much. The checks, in this order; the first that applies
is the answer:

Deletes
  1. By the system (kubelet, garbage collection, node lifecycle), or of what can't be a pod: allow.
  2. The pod is cached, with the uid of the request, and no budget applies: allow. `ReadPod`: it is gone, or has another
     uid: allow, since the API server asks again for any other pod. It is not ready, terminates, or has a grant for its
     own controller's delete: allow.
     Any other delete is checked from 6 on, without 11 and 12. Its refusals are 403 without a retry-after, which would
     stall a whole controller.

Evictions: the pod behind the name
  3. The name or namespace can't be a pod's: 404.
  4. The pod is cached, has no other uid than the precondition, and no budget selects it: allow.
  5. `ReadPod`. It is gone: 404. It has another uid than the precondition: allow, since the API server answers 409. No
     budget selects it: allow. From here on an allowed eviction is for this very pod: if it has no precondition of its
     own, it gets the pod's uid, and the API server answers 409 if another pod has the name by then. A pod without a
     node goes uncharged, and only in this very version: API servers retry for ten seconds, and it may be ready by then.

Budgets
  6. No enforced or dry-run budget applies to this kind of request: allow. More than `MOST_BUDGETS` do: 429.
  7. The node is not cached: `ReadNode`. A node that does not exist makes a difference.
  8. A budget lets the pod go because of its spec or the node's labels: `ReadBudgets`, and start again at 6 with a
     `ReadNode`, once. Both may have been edited.
  9. All budgets allow because of the pod's state or the node, whatever they count: allow without a charge. A pending pod
     on a node that is to be evicted is the exception: it may become ready before it goes.
 10. The result depends on counts, and no leader keeps them: 429.
 11. Evictions that rely on a charge: a stock PodDisruptionBudget refuses, by the cache and by `ReadPdbs`: its own answer.
     To pass the request on uncharged, for the API server to refuse, would bypass our budgets if the status of
     the PDB changes in between.
 12. Evictions of a pod that is not ready: the pod must be read after the counts that judge it, since these may have found
     it ready. `ReadBudgets`, `ReadPod`, `ReadNode`, `Charge` on exactly these versions; at most three times while the
     budgets change. Gone: 404. Replaced: 429. Ready or leaving by now: start again at 6 with that pod.
 13. `Charge` all budgets or none. If one lets the pod go because of its spec (8) by now: start again at 6, once.
 14. A budget denies: 429 with its reasons. A budget is busy: 429. Otherwise allow.

A dry run skips 11, 12 and the exception in 9, and charges nothing. `Report` precedes every answer of budgets (9, 14), for
metrics and logs. API errors are not handled here: the guard's webhooks fail closed for evictions and open for deletes.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from zonewise.disruption.decide.budget import Budget, DisruptionKind, Enforcement
from zonewise.disruption.decide.charge import ChargeAnswer, ChargeRequest, ChargeResult
from zonewise.disruption.decide.eviction_steps import (
    ALLOWED,
    Answer,
    Charge,
    DeleteRequest,
    DisruptionRequest,
    EvictionRequest,
    EvictionView,
    PodDeleter,
    ReadBudgets,
    ReadNode,
    ReadPdbs,
    ReadPod,
    Report,
    Step,
)
from zonewise.disruption.decide.ledger import ChargeSource
from zonewise.disruption.decide.pdb import CANNOT_EVICT, PdbRefusal, refusal
from zonewise.disruption.decide.pods import NodeDomains, PodFacts
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.verdict import (
    BudgetVerdict,
    EvictionVerdict,
    PodVerdict,
    depends_on_counts,
    judge_all,
    too_many,
)
from zonewise.objects import Key

_Review = Generator[Step, Any, Answer]

BUSY_SECONDS: Final = 2
_NO_LEADER_SECONDS: Final = 10
_REPLACED_SECONDS: Final = 1
_UNREADY_ATTEMPTS: Final = 3
_NAMESPACE: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?")
_NAME: Final = re.compile(r"[a-z0-9](?:[-.a-z0-9]*[a-z0-9])?")
_LONGEST_NAME: Final = 253
_BUSY: Final = "Its disruption budgets are being charged by many at once, or the API server does not answer: retry"

_EXEMPT: Final = frozenset({DisruptionCode.NOT_ENFORCED, DisruptionCode.NOT_APPLIED, DisruptionCode.NOT_COVERED})
"""Pods go uncharged because of the budget's spec or the node's labels, whose latest edit may not be cached yet."""
_SETTLED: Final = _EXEMPT | {DisruptionCode.NOT_RUNNING, DisruptionCode.NODE_GONE}
"""Pods go uncharged because of the pod or the node, whatever the budget's counts and ledger are."""
_TRANSIENT: Final = {DisruptionCode.NOT_OBSERVED: BUSY_SECONDS, DisruptionCode.DOMAIN_NOT_COUNTED: BUSY_SECONDS}
"""Denials that end by themselves in a moment. The others last, so clients should report them at once."""


class DisruptionReview:
    """One request: `next_step` gives the next call to make, and takes the result of the one before."""

    def __init__(self, request: EvictionRequest | DeleteRequest, view: EvictionView) -> None:
        self._review = _evict(request, view) if isinstance(request, EvictionRequest) else _delete(request, view)

    def next_step(self, result: object = None) -> Step | Answer:
        try:
            return self._review.send(result)
        except StopIteration as end:
            answer: Answer = end.value
            return answer


def _delete(request: DeleteRequest, view: EvictionView) -> _Review:
    by_controller = request.deleter is PodDeleter.WORKLOAD
    if request.deleter is PodDeleter.SYSTEM or not _is_pod_key(request.key):
        return ALLOWED
    kind = DisruptionKind.CONTROLLER_DELETES if by_controller else DisruptionKind.DELETES
    pod = view.pod(request.key)
    if pod is not None and pod.uid == request.uid and not _applicable_budgets(pod, kind, view):
        return ALLOWED
    pod = yield from ReadPod(request.key)
    if pod is None or pod.uid != request.uid:
        return ALLOWED
    if not pod.ready or pod.terminating or (by_controller and pod.granted):
        return ALLOWED
    return (yield from _decide(DisruptionRequest(pod, kind, ChargeSource.DELETE, request.dry_run), view))


def _evict(eviction: EvictionRequest, view: EvictionView) -> _Review:
    key, uid = eviction.key, eviction.uid
    if not _is_pod_key(key):
        return _not_found(key)
    pod = view.pod(key)
    if pod is not None and uid in {"", pod.uid} and not _enabled_budgets(pod, view):
        return ALLOWED
    pod = yield from ReadPod(key)
    if pod is None:
        return _not_found(key)
    if uid not in {"", pod.uid} or not _enabled_budgets(pod, view):
        return ALLOWED
    request = DisruptionRequest(
        pod, DisruptionKind.EVICTIONS, ChargeSource.EVICTION, eviction.dry_run, eviction.reservation
    )
    answer = yield from _decide(request, view)
    if not answer.allowed:
        return answer
    return replace(answer, uid="" if uid else pod.uid, exact=pod.pending and not pod.node)


def _is_pod_key(key: Key) -> bool:
    return bool(_NAMESPACE.fullmatch(key.namespace) and len(key.name) <= _LONGEST_NAME and _NAME.fullmatch(key.name))


@dataclass(frozen=True, slots=True)
class _Restart:
    """Check again from 6 on; `fresh`: with budgets and node as stored."""

    request: DisruptionRequest
    fresh: bool = False


def _decide(request: DisruptionRequest, view: EvictionView) -> _Review:
    outcome: Answer | _Restart = _Restart(request)
    while isinstance(outcome, _Restart):
        outcome = yield from _check_budgets(outcome.request, view, fresh=outcome.fresh)
    return outcome


def _check_budgets(
    request: DisruptionRequest, view: EvictionView, *, fresh: bool
) -> Generator[Step, Any, Answer | _Restart]:
    pod = request.pod
    budgets = _applicable_budgets(pod, request.kind, view)
    if not budgets:
        return ALLOWED
    if reason := too_many(pod, budgets):
        return _refuse(request, f"{reason.sentence}: {reason.remedy}", [reason.sentence])
    node_domains = yield from _node_domains(pod, view, fresh=fresh)
    charge = _charge_request(request, budgets, node_domains, view)
    forecast = _judge(charge)
    if not fresh and (exempting := _exempting(forecast.verdicts)):
        yield from ReadBudgets(tuple(exempting))
        return _Restart(request, fresh=True)
    may_become_ready = request.evicts and pod.pending and pod.node
    if not may_become_ready and all(verdict.reason.code in _SETTLED for verdict in forecast.verdicts):
        settled = [ChargeAnswer(ChargeResult.ALLOWED, verdict) for verdict in forecast.verdicts]
        return (yield from _conclude(request, settled))
    if depends_on_counts(forecast.verdicts, budgets) and (trouble := view.leader_trouble()):
        return _refuse(request, trouble, [trouble], BUSY_SECONDS if view.leader_undecided() else _NO_LEADER_SECONDS)
    if request.evicts and _relies_on_charge(forecast) and (pdb_refusal := (yield from _pdb_refusal(pod, view))):
        return _refused_by_pdb(pdb_refusal)
    if request.evicts and pod.stays and not pod.ready:
        return (yield from _check_unready(request, budgets, view))
    answers = yield from Charge(charge, tuple(budget.key for budget in budgets))
    if not fresh and _exempting(answer.verdict for answer in answers):
        return _Restart(request, fresh=True)
    return (yield from _conclude(request, answers))


def _check_unready(
    request: DisruptionRequest, budgets: Sequence[Budget], view: EvictionView
) -> Generator[Step, Any, Answer | _Restart]:
    keys = tuple(budget.key for budget in budgets)
    answers: Sequence[ChargeAnswer] = ()
    for _ in range(_UNREADY_ATTEMPTS):
        versions = yield from ReadBudgets(keys)
        pod = yield from ReadPod(request.pod.key)
        if pod is None:
            return _not_found(request.pod.key)
        if pod.uid != request.pod.uid:
            return _replaced(request)
        request = replace(request, pod=pod)
        if pod.ready or not pod.stays:
            return _Restart(request)
        node_domains = yield from _node_domains(pod, view, fresh=True)
        charge = _charge_request(request, budgets, node_domains, view)
        answers = yield from Charge(replace(charge, budget_versions=versions), keys)
        if all(answer.outcome is not ChargeResult.BUSY for answer in answers):
            break
    return (yield from _conclude(request, answers))


def _node_domains(pod: PodFacts, view: EvictionView, *, fresh: bool) -> Generator[Step, Any, NodeDomains]:
    cached = view.node_domains()
    if not pod.node or (cached.has(pod.node) and not fresh):
        return cached
    return (yield from ReadNode(pod.node)) or cached


def _pdb_refusal(pod: PodFacts, view: EvictionView) -> Generator[Step, Any, PdbRefusal | None]:
    if refusal(pod, view.pdbs_of(pod)) is None:
        return None
    return refusal(pod, (yield from ReadPdbs(pod)))


def _conclude(request: DisruptionRequest, answers: Sequence[ChargeAnswer]) -> _Review:
    yield from Report(request, tuple(answers))
    denials = [answer.verdict for answer in answers if answer.outcome is ChargeResult.DENIED and answer.verdict]
    if denials:
        seconds = max(_TRANSIENT.get(verdict.reason.code, 0) for verdict in denials)
        advice = "; ".join(f"{verdict.reason.sentence}: {verdict.reason.remedy}" for verdict in denials)
        return _refuse(request, advice, [verdict.reason.sentence for verdict in denials], seconds)
    if any(answer.outcome is ChargeResult.BUSY for answer in answers):
        return _refuse(request, _BUSY, [_BUSY], BUSY_SECONDS)
    return ALLOWED


def _enabled_budgets(pod: PodFacts, view: EvictionView) -> list[Budget]:
    return [budget for budget in view.budgets_of(pod) if budget.enforcement is not Enforcement.OFF]


def _applicable_budgets(pod: PodFacts, kind: DisruptionKind, view: EvictionView) -> list[Budget]:
    return [budget for budget in _enabled_budgets(pod, view) if kind in budget.apply_to]


def _charge_request(
    request: DisruptionRequest, budgets: Sequence[Budget], node_domains: NodeDomains, view: EvictionView
) -> ChargeRequest:
    pod = request.pod
    return ChargeRequest(
        pod=pod,
        node_domains=node_domains,
        owner=view.owner_of(pod),
        kind=request.kind,
        source=request.source,
        time=view.now(),
        dry_run=request.dry_run,
        reservation=request.reservation,
        cases=tuple(case for budget in budgets if (case := view.case_of(budget.key)) is not None),
        replaced=lambda ledger: view.is_replaced(pod, ledger),
        peers=lambda: view.peers_of(pod),
    )


def _judge(charge: ChargeRequest) -> PodVerdict:
    """What the budgets would answer by the newest versions known here."""
    peers = next(filter(None, (charge.alternatives(case.status) for case in charge.cases)), ())
    return judge_all(charge.cases, charge.pod, charge.node_domains, peers, charge.kind, charge.owner)


def _exempting(verdicts: Iterable[BudgetVerdict | None]) -> list[Key]:
    return [verdict.budget for verdict in verdicts if verdict is not None and verdict.reason.code in _EXEMPT]


def _relies_on_charge(forecast: PodVerdict) -> bool:
    """On a new charge, or on an older one: repeated requests that a PDB refuses must not keep that one alive."""
    charged = any(verdict.reason.code is DisruptionCode.ALREADY_CHARGED for verdict in forecast.verdicts)
    return forecast.verdict is EvictionVerdict.CHARGE or (forecast.verdict is EvictionVerdict.ALLOW and charged)


def _not_found(key: Key) -> Answer:
    """In the API server's words. If it looked itself it could take the next pod of that name, which was never reviewed."""
    return Answer(allowed=False, message=f'pods "{key.name}" not found', code=404)


def _replaced(request: DisruptionRequest) -> Answer:
    text = f"another pod has the name {request.pod.key} since a moment ago"
    return _refuse(request, f"{text}: ask again", [text], _REPLACED_SECONDS)


def _refuse(request: DisruptionRequest, advice: str, causes: Sequence[str], retry_after_seconds: int = 0) -> Answer:
    message = f"{CANNOT_EVICT} {advice[:1].upper()}{advice[1:]}"
    evicts = request.kind is DisruptionKind.EVICTIONS
    code, seconds = (429, retry_after_seconds) if evicts else (403, 0)
    return Answer(allowed=False, message=message, code=code, causes=tuple(causes), retry_after_seconds=seconds)


def _refused_by_pdb(pdb: PdbRefusal) -> Answer:
    causes = (pdb.cause,) if pdb.cause else ()
    return Answer(
        allowed=False,
        message=pdb.message,
        code=pdb.code,
        causes=causes,
        retry_after_seconds=pdb.retry_after_seconds,
    )
