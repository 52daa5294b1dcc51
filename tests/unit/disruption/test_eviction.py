"""The eviction review, step by step: each case is a script of steps and results, and ends with an answer."""

from __future__ import annotations

import pytest

from unit.disruption.eviction_cases import CASES, SUCCESSOR, UNSCHEDULED_CASES, Case, Stored
from zonewise.disruption.decide.eviction import DisruptionReview
from zonewise.disruption.decide.eviction_steps import (
    Answer,
    Charge,
    DeleteRequest,
    EvictionRequest,
    EvictionView,
    ReadBudgets,
    ReadNode,
    ReadPdbs,
    ReadPod,
    Report,
    Step,
)
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.objects import Key


class Caches:
    """An `EvictionView` of a case; `ReadBudgets` changes it."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._statuses = {limit.key: BudgetCase(limit, case.cluster.status(limit)) for limit in case.budgets}

    def view(self) -> EvictionView:
        case = self._case
        return EvictionView(
            pod=lambda _key: case.cached,
            budgets_of=lambda _pod: case.budgets,
            case_of=self._statuses.get,
            node_domains=lambda: case.cluster.node_domains,
            pdbs_of=lambda _pod: case.pdbs,
            owner_of=lambda _pod: "deployment",
            peers_of=lambda _pod: (),
            is_replaced=lambda _pod, _ledger: True,
            leader_trouble=lambda: case.trouble,
            leader_undecided=lambda: case.undecided,
            now=lambda: "now",
        )

    def store(self, stored: Stored) -> dict[Key, str]:
        for limit in stored.budgets:
            self._statuses[limit.key] = BudgetCase(limit, stored.cluster.status(limit))
        return {limit.key: stored.version for limit in stored.budgets}


def named(step: Step) -> str:
    match step:
        case ReadPod():
            return "read pod"
        case ReadNode(name):
            return f"read node {name}"
        case ReadBudgets(keys):
            return f"read budgets {', '.join(key.name for key in keys)}"
        case ReadPdbs(pod):
            return f"read pdbs of {pod.name}"
        case Charge(request, budgets):
            pod = "the next a0" if request.pod == SUCCESSOR else request.pod.name
            versions = f" at {', '.join(request.budget_versions.values())}" if request.budget_versions else ""
            suffix = " (dry run)" if request.dry_run else ""
            return f"charge {pod} to {', '.join(key.name for key in budgets)}{versions}{suffix}"
        case Report(_, reported):
            codes = [answer.verdict.reason.code if answer.verdict else answer.outcome for answer in reported]
            return f"report {', '.join(codes)}"


def request_of(case: Case) -> EvictionRequest | DeleteRequest:
    if case.deleter is not None:
        return DeleteRequest(case.key, case.uid or "uid-a0", case.deleter, case.dry_run)
    return EvictionRequest(case.key, case.uid, case.dry_run)


def perform(case: Case) -> tuple[list[str], Answer]:
    """The steps that the review takes, given the results of the script."""
    caches, taken = Caches(case), list[str]()
    review = DisruptionReview(request_of(case), caches.view())
    step = review.next_step()
    results = [result for _, result in case.steps]
    while not isinstance(step, Answer):
        taken.append(named(step))
        assert results, f"more steps than the script has: {taken}"
        result = results.pop(0)
        step = review.next_step(caches.store(result) if isinstance(result, Stored) else result)
    return taken, step


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_steps_and_answer(case: Case) -> None:
    taken, answer = perform(case)
    assert taken == [name for name, _ in case.steps]
    allowed, code, retry_after_seconds, text = case.answer
    assert (answer.allowed, answer.code, answer.retry_after_seconds) == (allowed, code, retry_after_seconds)
    assert text in f"{answer.message} {' '.join(answer.causes)}"
    assert bool(answer.causes) is (code in {403, 429})
    assert answer.uid == case.pinned
    assert answer.exact is (case in UNSCHEDULED_CASES)
