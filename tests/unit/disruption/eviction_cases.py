"""Scripts of eviction reviews by name: each step with its result, and the answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from unit.disruption.build import EXISTS, NODES, NOT_A, STATEFUL, Cluster, budget, spread
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.charge import ChargeAnswer, ChargeResult
from zonewise.disruption.decide.eviction_steps import PodDeleter
from zonewise.disruption.decide.pods import NodeDomains, PodFacts, PodStage
from zonewise.disruption.decide.verdict import BudgetCase, judge_all
from zonewise.objects import Key
from zonewise.objects.policy import PodDisruptionBudget
from zonewise.topology import ZONE

FULL = spread("3/3/3")
STATEFUL_FULL = spread("3/3/3", controller=STATEFUL)
WEB = budget(EXISTS, name="web", maxUnavailable=1)
OTHER = budget(EXISTS, name="other", maxUnavailable=1)
FROZEN = budget(EXISTS, name="web", maxUnavailable=0)
NOT_IN_A = budget(NOT_A, EXISTS, name="web", maxUnavailable=1)
DRY_RUN = budget(EXISTS, name="web", maxUnavailable=0, enforcement="DryRun")
OFF = budget(EXISTS, name="web", maxUnavailable=0, enforcement="Off")
DELETES_ONLY = budget(EXISTS, name="web", maxUnavailable=1, applyTo=["Deletes"])
ALL_KINDS = budget(EXISTS, name="web", maxUnavailable=1, applyTo=["Evictions", "ControllerDeletes", "Deletes"])

READY = FULL.pods["a0"]
STATEFUL_READY = STATEFUL_FULL.pods["a0"]


def changed(pod: PodFacts = READY, **facts: Any) -> PodFacts:
    return msgspec.structs.replace(pod, **facts)


UNREADY = changed(ready=False)
PENDING = changed(ready=False, stage=PodStage.PENDING)
UNSCHEDULED = changed(PENDING, node="")
TERMINATING = changed(terminating=True)
STATEFUL_TERMINATING = changed(STATEFUL_READY, terminating=True)
STATEFUL_UNSCHEDULED = changed(STATEFUL_READY, ready=False, stage=PodStage.PENDING, node="")
SUCCESSOR = changed(STATEFUL_READY, uid="uid-next")
ON_NEW_NODE = changed(node="node-new")


def pdb(name: str = "pdb", allowed: int = 0, generation: int = 0) -> PodDisruptionBudget:
    body = {
        "metadata": {"name": name, "namespace": "shop", "generation": generation},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": 9, "desiredHealthy": 9, "expectedPods": 9},
    }
    return msgspec.convert(body, PodDisruptionBudget)


@dataclass(frozen=True)
class Stored:
    """Result of `ReadBudgets`: what is stored by now. The caches know it from then on."""

    budgets: tuple[Budget, ...] = (WEB,)
    cluster: Cluster = FULL
    version: str = "7"


def answers(
    outcome: ChargeResult, limit: Budget = WEB, cluster: Cluster = FULL, observed: int = 1
) -> list[ChargeAnswer]:
    status = replace(cluster.status(limit), observed_generation=observed)
    (verdict,) = judge_all([BudgetCase(limit, status)], cluster.pods["a0"], cluster.node_domains).verdicts
    return [ChargeAnswer(outcome, verdict)]


CHARGED = answers(ChargeResult.CHARGED)
CHARGED_UNREADY = answers(ChargeResult.CHARGED, cluster=FULL.unready("a0"))
DENIED = answers(ChargeResult.DENIED, limit=FROZEN)
NOT_COUNTED = answers(ChargeResult.DENIED, observed=0)
BUSY = [ChargeAnswer(ChargeResult.BUSY)]
EXEMPT = answers(ChargeResult.ALLOWED, limit=NOT_IN_A)

A0 = Key("shop", "a0")
ALLOW = (True, 0, 0, "")
NOT_FOUND = (False, 404, 0, 'pods "a0" not found')
REPLACED = (False, 429, 1, "another pod has the name")
CROWDED = (False, 429, 0, "is under 17 budgets, and no more than 16 can be charged at once")
FROZEN_429 = (False, 429, 0, "is frozen by maxUnavailable 0: raise the limit")
BUSY_429 = (False, 429, 2, "charged by many at once")
NO_LEADER = (False, 429, 10, "No leader")
UNDECIDED = (False, 429, 2, "No leader")
PDB_429 = (False, 429, 0, "The disruption budget pdb needs 9 healthy pods and has 9 currently")
PDB_NOT_OBSERVED = (False, 429, 10, "still being processed")
PDBS_500 = (False, 500, 0, "more than one PodDisruptionBudget")

READ_A = ("read node node-a", FULL.node_domains)
READ = ("read pod", READY)
CHARGE = ("charge a0 to web", CHARGED)
REPORT = ("report WithinBudget", None)


@dataclass(frozen=True)
class Case:
    """`cached` is the pod in the cache."""

    cached: PodFacts | None = READY
    steps: tuple[tuple[str, Any], ...] = ()
    answer: tuple[bool, int, int, str] = ALLOW
    budgets: tuple[Budget, ...] = (WEB,)
    cluster: Cluster = FULL
    uid: str = ""
    key: Key = A0
    dry_run: bool = False
    deleter: PodDeleter | None = None
    pdbs: tuple[PodDisruptionBudget, ...] = ()
    trouble: str = ""
    undecided: bool = False

    @property
    def pinned(self) -> str:
        """The uid that an allowed eviction gets as a precondition: that of the pod which was read last."""
        read = [pod.uid for step, pod in self.steps if step == "read pod" and pod is not None]
        needs_uid = self.deleter is None and not self.uid and self.budgets not in {(), (OFF,)}
        return read[-1] if read and needs_uid and self.answer[0] else ""


CROWD = [f"b{number:02}" for number in range(17)]


def crowd(count: int) -> tuple[Budget, ...]:
    return tuple(budget(EXISTS, name=name, maxUnavailable=1) for name in CROWD[:count])


CASES: dict[str, Case] = {
    "delete by the system": Case(deleter=PodDeleter.SYSTEM, budgets=(ALL_KINDS,)),
    "delete of what can't be a pod": Case(deleter=PodDeleter.PERSON, budgets=(ALL_KINDS,), key=Key("shop", "a0\n")),
    "delete of a pod that is gone": Case(None, (("read pod", None),), deleter=PodDeleter.PERSON, budgets=(ALL_KINDS,)),
    "delete of another pod than the stored one": Case(
        steps=(READ,), uid="uid-x", deleter=PodDeleter.PERSON, budgets=(ALL_KINDS,)
    ),
    "delete of an unready pod": Case(steps=(("read pod", UNREADY),), deleter=PodDeleter.PERSON, budgets=(ALL_KINDS,)),
    "delete of a terminating pod": Case(
        steps=(("read pod", TERMINATING),), deleter=PodDeleter.PERSON, budgets=(ALL_KINDS,)
    ),
    "controller's delete with a grant": Case(steps=(("read pod", changed(granted=True)),), deleter=PodDeleter.WORKLOAD),
    "person's delete of a granted pod": Case(
        steps=(("read pod", changed(granted=True)), CHARGE, REPORT), deleter=PodDeleter.PERSON, budgets=(ALL_KINDS,)
    ),
    "person's delete, not applied": Case(deleter=PodDeleter.PERSON),
    "person's delete, not applied, not cached": Case(None, (READ,), deleter=PodDeleter.PERSON),
    "controller's delete is charged": Case(steps=(READ, CHARGE, REPORT), deleter=PodDeleter.WORKLOAD),
    "delete denied: 403, no retry-after": Case(
        steps=(READ, ("charge a0 to web", NOT_COUNTED), ("report NotObserved", None)),
        answer=(False, 403, 0, "was changed and is not counted yet"),
        deleter=PodDeleter.WORKLOAD,
    ),
    "delete without a leader: 403": Case(
        steps=(READ,), answer=(False, 403, 0, "No leader"), deleter=PodDeleter.WORKLOAD, trouble="no leader"
    ),
    "delete does not read PDBs": Case(steps=(READ, CHARGE, REPORT), deleter=PodDeleter.WORKLOAD, pdbs=(pdb(),)),
    # Which pod.
    "name with a line break": Case(
        answer=(False, 404, 0, "not found"), key=Key("shop", "a0\nuid-a1 a1 all - t Eviction")
    ),
    "name that is a path": Case(answer=(False, 404, 0, "not found"), key=Key("shop", "../../nodes/x")),
    "name too long": Case(answer=(False, 404, 0, "not found"), key=Key("shop", "a" * 254)),
    "namespace with a dot": Case(answer=(False, 404, 0, "not found"), key=Key("sh.op", "a0")),
    "no namespace": Case(answer=(False, 404, 0, "not found"), key=Key("", "a0")),
    "gone": Case(steps=(("read pod", None),), answer=NOT_FOUND),
    "not cached, gone": Case(None, (("read pod", None),), NOT_FOUND),
    "not cached, ready": Case(None, (READ, CHARGE, REPORT)),
    "not cached, no budget": Case(None, (READ,), budgets=()),
    "not cached, uid of another pod": Case(None, (READ,), uid="uid-x"),
    "leaving: only that pod": Case(
        steps=(("read pod", STATEFUL_TERMINATING), ("report NotRunning", None)), cluster=STATEFUL_FULL
    ),
    "leaving, with its uid": Case(
        steps=(("read pod", STATEFUL_TERMINATING), ("report NotRunning", None)), uid="uid-a0", cluster=STATEFUL_FULL
    ),
    "not cached, leaving, no budget": Case(None, (("read pod", STATEFUL_TERMINATING),), budgets=()),
    "cached, no budget": Case(budgets=()),
    "cached unready, no budget": Case(UNREADY, budgets=()),
    "cached, budget off": Case(budgets=(OFF,)),
    "cached with another uid": Case(steps=(("read pod", changed(uid="uid-x")), CHARGE, REPORT), uid="uid-x"),
    "cached with another uid, no budget": Case(steps=(READ,), uid="uid-x", budgets=()),
    "cached unready, ready by now": Case(UNREADY, (READ, CHARGE, REPORT)),
    "with its uid": Case(steps=(READ, CHARGE, REPORT), uid="uid-a0"),
    "with the uid of a pod that is gone: the API server answers 409": Case(
        STATEFUL_READY, (("read pod", SUCCESSOR),), uid="uid-a0", cluster=STATEFUL_FULL
    ),
    "the next pod of that name is charged, and no other goes": Case(
        STATEFUL_READY,
        (("read pod", SUCCESSOR), ("charge the next a0 to web", CHARGED), REPORT),
        cluster=STATEFUL_FULL,
    ),
    "next pod without a node": Case(
        STATEFUL_TERMINATING,
        (("read pod", STATEFUL_UNSCHEDULED), ("report NotRunning", None)),
        cluster=STATEFUL_FULL,
    ),
    # Budgets and nodes.
    "no budget applies to evictions": Case(steps=(READ,), budgets=(DELETES_ONLY,)),
    "two budgets are charged together": Case(
        steps=(READ, ("charge a0 to other, web", CHARGED * 2), ("report WithinBudget, WithinBudget", None)),
        budgets=(OTHER, WEB),
    ),
    "unknown node is read": Case(
        ON_NEW_NODE,
        (
            ("read pod", ON_NEW_NODE),
            ("read node node-new", NodeDomains({**NODES, "node-new": {ZONE: "a"}})),
            CHARGE,
            REPORT,
        ),
    ),
    "unknown node is gone": Case(
        changed(ON_NEW_NODE, labels={ZONE: "a"}),
        (
            ("read pod", changed(ON_NEW_NODE, labels={ZONE: "a"})),
            ("read node node-new", None),
            ("report NodeGone", None),
        ),
    ),
    "not covered: read, still not covered": Case(
        steps=(READ, ("read budgets web", Stored((NOT_IN_A,))), READ_A, ("report NotCovered", None)),
        budgets=(NOT_IN_A,),
    ),
    "not covered: read, covered by now": Case(
        steps=(READ, ("read budgets web", Stored()), READ_A, CHARGE, REPORT), budgets=(NOT_IN_A,)
    ),
    "not covered: the node has moved": Case(
        steps=(
            READ,
            ("read budgets web", Stored((NOT_IN_A,))),
            ("read node node-a", NodeDomains({**NODES, "node-a": {ZONE: "b"}})),
            CHARGE,
            REPORT,
        ),
        budgets=(NOT_IN_A,),
    ),
    "one of two does not cover: only that is read": Case(
        steps=(
            READ,
            ("read budgets web", Stored((NOT_IN_A,))),
            READ_A,
            ("charge a0 to other, web", CHARGED + EXEMPT),
            ("report WithinBudget, NotCovered", None),
        ),
        budgets=(OTHER, NOT_IN_A),
    ),
    "covered until charged: once more": Case(steps=(READ, ("charge a0 to web", EXEMPT), READ_A, CHARGE, REPORT)),
    "covered until charged, twice: allowed": Case(
        steps=(READ, ("charge a0 to web", EXEMPT), READ_A, ("charge a0 to web", EXEMPT), ("report NotCovered", None)),
    ),
    "terminating: allowed without a leader": Case(
        TERMINATING, (("read pod", TERMINATING), ("report NotRunning", None)), trouble="no leader"
    ),
    "unscheduled: allowed uncharged": Case(UNSCHEDULED, (("read pod", UNSCHEDULED), ("report NotRunning", None))),
    "ended: allowed uncharged": Case(
        changed(stage=PodStage.ENDED, ready=False),
        (("read pod", changed(stage=PodStage.ENDED, ready=False)), ("report NotRunning", None)),
    ),
    # The leader.
    "no leader": Case(steps=(READ,), answer=NO_LEADER, trouble="no leader"),
    "leader undecided": Case(steps=(READ,), answer=UNDECIDED, trouble="no leader", undecided=True),
    "no leader, frozen": Case(steps=(READ,), answer=NO_LEADER, trouble="no leader", budgets=(FROZEN,)),
    "no leader, budget in dry run": Case(
        steps=(READ, ("charge a0 to web", answers(ChargeResult.ALLOWED, limit=DRY_RUN)), ("report Frozen", None)),
        trouble="no leader",
        budgets=(DRY_RUN,),
    ),
    "no leader, already charged": Case(
        steps=(
            READ,
            ("charge a0 to web", answers(ChargeResult.ALLOWED, cluster=FULL.charged("a0"))),
            ("report AlreadyCharged", None),
        ),
        cluster=FULL.charged("a0"),
        trouble="no leader",
    ),
    "no leader comes before PDBs": Case(steps=(READ,), answer=NO_LEADER, trouble="no leader", pdbs=(pdb(),)),
    # Stock PDBs.
    "PDB allows": Case(steps=(READ, CHARGE, REPORT), pdbs=(pdb(allowed=1),)),
    "PDB refuses": Case(
        steps=(
            READ,
            ("read pdbs of a0", [pdb()]),
        ),
        answer=PDB_429,
        pdbs=(pdb(),),
    ),
    "PDB refuses, allows by now": Case(
        steps=(READ, ("read pdbs of a0", [pdb(allowed=1)]), CHARGE, REPORT), pdbs=(pdb(),)
    ),
    "PDB not observed": Case(
        steps=(
            READ,
            ("read pdbs of a0", [pdb(generation=1)]),
        ),
        answer=PDB_NOT_OBSERVED,
        pdbs=(pdb(generation=1),),
    ),
    "two PDBs": Case(
        steps=(
            READ,
            ("read pdbs of a0", [pdb("one"), pdb("two")]),
        ),
        answer=PDBS_500,
        pdbs=(pdb("one"), pdb("two")),
    ),
    "PDB refuses a charged pod": Case(
        steps=(
            READ,
            ("read pdbs of a0", [pdb()]),
        ),
        answer=PDB_429,
        pdbs=(pdb(),),
        cluster=FULL.charged("a0"),
    ),
    "denied by us: PDBs are not read": Case(
        steps=(READ, ("charge a0 to web", DENIED), ("report Frozen", None)),
        answer=FROZEN_429,
        pdbs=(pdb(),),
        budgets=(FROZEN,),
    ),
    # Dry runs.
    "dry run": Case(steps=(READ, ("charge a0 to web (dry run)", CHARGED), REPORT), dry_run=True),
    "dry run does not read PDBs": Case(
        steps=(READ, ("charge a0 to web (dry run)", CHARGED), REPORT), dry_run=True, pdbs=(pdb(),)
    ),
    "dry run without a leader": Case(steps=(READ,), answer=NO_LEADER, dry_run=True, trouble="no leader"),
    "dry run of an unready pod": Case(
        UNREADY,
        (("read pod", UNREADY), ("charge a0 to web (dry run)", CHARGED_UNREADY), ("report NotReady", None)),
        dry_run=True,
        cluster=FULL.unready("a0"),
    ),
    "dry run of a pending pod": Case(PENDING, (("read pod", PENDING), ("report NotRunning", None)), dry_run=True),
    # Pods that are not ready.
    "unready": Case(
        UNREADY,
        (
            ("read pod", UNREADY),
            ("read budgets web", Stored(cluster=FULL.unready("a0"))),
            ("read pod", UNREADY),
            READ_A,
            ("charge a0 to web at 7", CHARGED_UNREADY),
            ("report NotReady", None),
        ),
        cluster=FULL.unready("a0"),
    ),
    "pending on a node may become ready": Case(
        PENDING,
        (
            ("read pod", PENDING),
            ("read budgets web", Stored()),
            ("read pod", PENDING),
            READ_A,
            ("charge a0 to web at 7", CHARGED_UNREADY),
            ("report NotReady", None),
        ),
    ),
    "unready, gone": Case(
        UNREADY,
        (("read pod", UNREADY), ("read budgets web", Stored()), ("read pod", None)),
        NOT_FOUND,
        cluster=FULL.unready("a0"),
    ),
    "unready, replaced by now": Case(
        changed(STATEFUL_READY, ready=False),
        (
            ("read pod", changed(STATEFUL_READY, ready=False)),
            ("read budgets web", Stored()),
            ("read pod", SUCCESSOR),
        ),
        REPLACED,
        cluster=STATEFUL_FULL.unready("a0"),
    ),
    "unready, terminating by now": Case(
        UNREADY,
        (
            ("read pod", UNREADY),
            ("read budgets web", Stored()),
            ("read pod", changed(UNREADY, terminating=True)),
            ("report NotRunning", None),
        ),
        cluster=FULL.unready("a0"),
    ),
    "unready, ready by now": Case(
        UNREADY,
        (("read pod", UNREADY), ("read budgets web", Stored()), ("read pod", READY), CHARGE, REPORT),
        cluster=FULL.unready("a0"),
    ),
    "unready, busy, then charged": Case(
        UNREADY,
        (
            ("read pod", UNREADY),
            ("read budgets web", Stored(version="7")),
            ("read pod", UNREADY),
            READ_A,
            ("charge a0 to web at 7", BUSY),
            ("read budgets web", Stored(version="8")),
            ("read pod", UNREADY),
            READ_A,
            ("charge a0 to web at 8", CHARGED_UNREADY),
            ("report NotReady", None),
        ),
        cluster=FULL.unready("a0"),
    ),
    "unready, busy three times": Case(
        UNREADY,
        (
            ("read pod", UNREADY),
            *(("read budgets web", Stored()), ("read pod", UNREADY), READ_A, ("charge a0 to web at 7", BUSY)) * 3,
            ("report busy", None),
        ),
        BUSY_429,
        cluster=FULL.unready("a0"),
    ),
    "unready, no leader": Case(
        UNREADY, (("read pod", UNREADY),), NO_LEADER, cluster=FULL.unready("a0"), trouble="no leader"
    ),
    # What budgets answer.
    "denied: 429 with reason and remedy": Case(
        steps=(READ, ("charge a0 to web", DENIED), ("report Frozen", None)), answer=FROZEN_429, budgets=(FROZEN,)
    ),
    "denied for a moment: retry-after": Case(
        steps=(READ, ("charge a0 to web", NOT_COUNTED), ("report NotObserved", None)),
        answer=(False, 429, 2, "was changed and is not counted yet"),
    ),
    "busy": Case(steps=(READ, ("charge a0 to web", BUSY), ("report busy", None)), answer=BUSY_429),
    "budget gone": Case(
        steps=(READ, ("charge a0 to web", [ChargeAnswer(ChargeResult.ALLOWED)]), ("report allowed", None)),
    ),
    "as many budgets as can be charged": Case(
        steps=(READ, (f"charge a0 to {', '.join(sorted(CROWD[:16]))}", CHARGED), REPORT), budgets=crowd(16)
    ),
    "more budgets than can be charged": Case(steps=(READ,), answer=CROWDED, budgets=crowd(17)),
    "delete under more budgets than can be charged": Case(
        steps=(READ,),
        answer=(False, 403, 0, "is under 17 budgets"),
        budgets=crowd(17),
        deleter=PodDeleter.WORKLOAD,
    ),
}

UNSCHEDULED_CASES = [CASES["next pod without a node"], CASES["unscheduled: allowed uncharged"]]
"""Those whose pod may go only in the version that was read."""
