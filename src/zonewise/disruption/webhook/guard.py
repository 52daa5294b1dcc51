"""Admission webhooks for evictions and deletes of pods: performs the steps of `disruption.decide.eviction`.

The review decides which calls are made and what is answered. Any number of guards run side by side; the budgets' ledgers
are all they share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from prometheus_client import Counter

from zonewise import log
from zonewise.api.names import RESERVED
from zonewise.disruption.controller.budget_store import BudgetStore
from zonewise.disruption.decide.charge import ChargeAnswer, ChargeResult
from zonewise.disruption.decide.eviction import BUSY_SECONDS, DisruptionReview
from zonewise.disruption.decide.eviction_steps import (
    Answer,
    Charge,
    DeleteRequest,
    DisruptionRequest,
    EvictionRequest,
    EvictionView,
    ReadBudgets,
    ReadNode,
    ReadPdbs,
    ReadPod,
    Report,
    Step,
)
from zonewise.disruption.decide.pdb import CANNOT_EVICT
from zonewise.disruption.decide.pods import NodeDomains, PodFacts
from zonewise.disruption.decide.reason import DisruptionCode
from zonewise.disruption.decide.verdict import BudgetCase, BudgetVerdict, EvictionVerdict
from zonewise.disruption.watch.informers import DisruptionInformers, owner_uid_of, read_pod, selector_of
from zonewise.disruption.webhook.charger import Charger
from zonewise.disruption.webhook.leader_monitor import LeaderMonitor
from zonewise.disruption.webhook.registration import DELETES, EVICTIONS, deleter
from zonewise.kube.client.client import Client
from zonewise.kube.clock import utc_now
from zonewise.kube.server.admission import Webhook
from zonewise.kube.watch.cache import trouble_of
from zonewise.kube.wire.admission_review import AdmissionVerdict, Review
from zonewise.kube.wire.errors import ErrorCause, NotFound
from zonewise.objects import NODES, Key, Pod, micro_time
from zonewise.objects.change import Change
from zonewise.objects.policy import (
    POD_DISRUPTION_BUDGETS,
    DeleteOptions,
    Eviction,
    PodDisruptionBudget,
    TopologyDisruptionBudget,
)

_log = log.get_logger(__name__)

DEADLINE_SECONDS: Final = 4.0
_READ_SECONDS: Final = 2.0
_CAUSE: Final = "DisruptionBudget"

_NOT_DECIDED: Final = AdmissionVerdict.deny(
    f"{CANNOT_EVICT} It could not be decided in time: retry, and see the log of `zonewise webhook`",
    code=429,
    causes=[ErrorCause(reason=_CAUSE, message="The disruption budgets could not be asked in time")],
    retry_after_seconds=BUSY_SECONDS,
)

_JUDGED: Final = Counter("zonewise_guard_judgements", "Verdicts of budgets on requests for pods", ["request", "code"])
_WOULD: Final = Counter(
    "zonewise_guard_would_refuse", "Requests that budgets in a dry run would have refused", ["namespace", "budget"]
)


class EvictionGuard:
    """Its answers are right once the caches of `informers` are synced."""

    def __init__(
        self,
        client: Client,
        informers: DisruptionInformers,
        store: BudgetStore,
        leader: LeaderMonitor,
        *,
        may_patch: Callable[[], bool] = lambda: True,
        wall: Callable[[], datetime] = utc_now,
    ) -> None:
        """`may_patch`: no while evictions come from a validating webhook configuration, whose answers may have no patch."""
        self._client = client
        self._may_patch = may_patch
        self._informers = informers
        self._store = store
        self._charger = Charger(store)
        self._leader = leader
        self._view = _view(informers, store, leader, wall)
        self._denied: dict[Key, dict[str, DisruptionCode]] = {}
        informers.budgets.on_change(self._budget_changed)

    def trouble(self) -> str | None:
        """Why requests had better go to another replica: recent changes are not known here."""
        undecided = self._leader.trouble() if self._leader.undecided else None
        return trouble_of((*self._informers.watches, self._leader.watch)) or undecided

    def webhooks(self) -> list[Webhook[Any]]:
        return [
            Webhook(EVICTIONS, Eviction, self.review_eviction, _NOT_DECIDED, DEADLINE_SECONDS),
            Webhook(DELETES, Pod, self.review_delete, AdmissionVerdict.allow(), DEADLINE_SECONDS),
        ]

    async def review_eviction(self, review: Review[Eviction]) -> AdmissionVerdict:
        body = review.object or Eviction()
        options = body.delete_options
        request = EvictionRequest(
            key=Key(review.namespace, review.name or body.metadata.name),
            uid=(options.preconditions.uid or "") if options and options.preconditions else "",
            dry_run=review.dry_run or bool(options and options.dry_run),
            reservation=body.metadata.annotations.get(RESERVED, ""),
        )
        answer, version = await self._answer(DisruptionReview(request, self._view))
        conditions = {"uid": answer.uid, "resourceVersion": version if answer.exact else ""}
        return _verdict(answer, _preconditions(conditions, options) if self._may_patch() else ())

    async def review_delete(self, review: Review[Pod]) -> AdmissionVerdict:
        pod = (review.old_object or Pod()).metadata
        key = Key(review.namespace, review.name or pod.name)  # without a name if it is one of a collection
        request = DeleteRequest(key, pod.uid, deleter(review.user_info), review.dry_run)
        answer, _ = await self._answer(DisruptionReview(request, self._view))
        return _verdict(answer)

    async def _answer(self, review: DisruptionReview) -> tuple[Answer, str]:
        """With the version of the pod that was read last."""
        step, version = review.next_step(), ""
        while not isinstance(step, Answer):
            if isinstance(step, ReadPod):
                pod = await read_pod(self._client, step.key)
                version = pod.metadata.resource_version if pod is not None else ""
                step = review.next_step(PodFacts.of(pod) if pod is not None else None)
            else:
                step = review.next_step(await self._perform(step))
        return step, version

    async def _perform(self, step: Step) -> object:
        match step:
            case ReadPod():
                raise AssertionError(f"{step} is performed by _answer")
            case ReadNode(name):
                return await self._read_node(name)
            case ReadBudgets(keys):
                return await self._read_budgets(keys)
            case ReadPdbs(pod):
                return await self._read_pdbs(pod)
            case Charge(request, budgets):
                return await self._charger.charge(request, budgets)
            case Report(reported, answers):
                self._report(reported, answers)
                return None

    async def _read_node(self, name: str) -> NodeDomains | None:
        try:
            node = await self._client.get(NODES, name, deadline_seconds=_READ_SECONDS)
        except NotFound:
            return None
        return self._informers.node_domains_with(node)

    async def _read_budgets(self, keys: Sequence[Key]) -> Mapping[Key, str]:
        budgets = await asyncio.gather(*map(self._store.read, keys))
        return {budget.key: budget.version for budget in budgets if budget is not None}

    async def _read_pdbs(self, pod: PodFacts) -> Sequence[PodDisruptionBudget]:
        pdbs = await self._client.list(POD_DISRUPTION_BUDGETS, pod.namespace, deadline_seconds=_READ_SECONDS)
        return [pdb for pdb in pdbs.items if selector_of(pdb).matches(pod.labels)]

    def _report(self, request: DisruptionRequest, answers: Sequence[ChargeAnswer]) -> None:
        for answer in answers:
            verdict = answer.verdict
            _JUDGED.labels(request.kind, verdict.reason.code if verdict else answer.outcome).inc()
            if verdict is not None:
                self._log_change(request, verdict, charged=answer.outcome is ChargeResult.CHARGED)

    def _log_change(self, request: DisruptionRequest, verdict: BudgetVerdict, *, charged: bool) -> None:
        denied = self._denied.setdefault(verdict.budget, {})
        if verdict.if_enforced is EvictionVerdict.DENY:
            if verdict.verdict is not EvictionVerdict.DENY:
                _WOULD.labels(verdict.budget.namespace, verdict.budget.name).inc()
            if denied.get(verdict.domain) is not verdict.reason.code:
                denied[verdict.domain] = verdict.reason.code
                _log_denial(request, verdict)
        elif charged and denied.pop(verdict.domain, None) is not None:
            _log.info(
                "budget lets pods go again",
                budget=str(verdict.budget),
                domain=verdict.domain,
                pod=str(request.pod.key),
            )

    def _budget_changed(self, change: Change[TopologyDisruptionBudget]) -> None:
        if change.new is None:
            self._denied.pop(change.key, None)


def _view(
    informers: DisruptionInformers, store: BudgetStore, leader: LeaderMonitor, wall: Callable[[], datetime]
) -> EvictionView:
    def case_of(key: Key) -> BudgetCase | None:
        budget = store.newest(key)
        return budget.case if budget is not None else None

    return EvictionView(
        pod=informers.facts,
        budgets_of=informers.budgets_of,
        case_of=case_of,
        node_domains=lambda: informers.node_domains,
        pdbs_of=informers.pdbs_of,
        owner_of=lambda pod: owner_uid_of(pod, informers),
        peers_of=lambda pod: informers.pods_of(pod.replica_set),
        is_replaced=informers.is_replaced,
        leader_trouble=leader.trouble,
        leader_undecided=lambda: leader.undecided,
        now=lambda: micro_time(wall()),
    )


def _preconditions(conditions: Mapping[str, str], options: DeleteOptions | None) -> Sequence[Mapping[str, Any]]:
    """The JSON patch that adds these to an eviction, beside what it has; what it has itself stays."""
    present = options.preconditions if options is not None and options.preconditions is not None else None
    version = present.resource_version if present is not None else ""
    added = {name: text for name, text in conditions.items() if text and not (name == "resourceVersion" and version)}
    if not added:
        return ()
    if options is None:
        return [{"op": "add", "path": "/deleteOptions", "value": {"preconditions": added}}]
    if present is None:
        return [{"op": "add", "path": "/deleteOptions/preconditions", "value": added}]
    return [
        {"op": "add", "path": f"/deleteOptions/preconditions/{name}", "value": text} for name, text in added.items()
    ]


def _verdict(answer: Answer, patch: Sequence[Mapping[str, Any]] = ()) -> AdmissionVerdict:
    if answer.allowed:
        return AdmissionVerdict.allow(patch=patch)
    return AdmissionVerdict.deny(
        answer.message,
        code=answer.code,
        causes=[ErrorCause(reason=_CAUSE, message=cause) for cause in answer.causes],
        retry_after_seconds=answer.retry_after_seconds,
    )


def _log_denial(request: DisruptionRequest, verdict: BudgetVerdict) -> None:
    _log.info(
        "budget holds pods" if verdict.verdict is verdict.if_enforced else "budget in a dry run would hold pods",
        budget=str(verdict.budget),
        domain=verdict.domain,
        pod=str(request.pod.key),
        request=request.kind,
        code=verdict.reason.code,
        reason=verdict.reason.sentence,
    )
