"""Drain plans: order, waves, what holds a pod back and what never goes."""

from dataclasses import replace
from typing import Any

import msgspec

from unit.disruption.build import ACROSS, BY_ZONE, NEW, OLD, OVERALL, pod, workloads
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.drain import DrainPlan, DrainView, plan_drain
from zonewise.disruption.decide.ledger import LedgerEntry, ledger_of
from zonewise.disruption.decide.pods import ControllerRef, NodeDomains, Owner, PodFacts, PodStage, Workload
from zonewise.disruption.decide.status import PublishedStatus, Recollection, published
from zonewise.objects.policy import PodDisruptionBudget
from zonewise.topology import ZONE

NODES = {f"{zone}{number}": {ZONE: zone} for zone in "abc" for number in (1, 2)}


def cluster(*budgets: Budget, more: tuple[PodFacts, ...] = (), **member: Any) -> DrainView:
    """Three pods in each zone: two on its first node, one on its second."""
    pods = [pod(f"{zone}-{number}", f"{zone}{1 if number else 2}") for zone in "abc" for number in range(3)]
    return DrainView(pods=[*pods, *more], nodes=NODES, budgets=budgets, workloads=workloads(9), **member)


def waves(plan: DrainPlan) -> list[list[str]]:
    return [[leaving.pod.name for leaving in wave.pods] for wave in plan.waves]


def test_without_budgets_one_wave() -> None:
    assert waves(plan_drain(cluster(), ["a1"])) == [["a-1", "a-2"]]


def test_budget_makes_waves_with_charges_and_holds() -> None:
    plan = plan_drain(cluster(ACROSS), ["a1"])
    assert waves(plan) == [["a-1"], ["a-2"]]
    assert plan.waves[0].pods[0].charges == {ACROSS.key: "a"}
    assert plan.waves[1].pods[0].held_by[0].code == "TooFewHealthy"
    assert not plan.never


def test_nodes_are_drained_one_after_the_other() -> None:
    plan = plan_drain(cluster(ACROSS), ["a1", "b1"])
    assert [(wave.node, len(wave.pods)) for wave in plan.waves] == [("a1", 1), ("a1", 1), ("b1", 1), ("b1", 1)]


def test_frozen_pod_and_nodes_behind_it_never_go() -> None:
    plan = plan_drain(cluster(BY_ZONE), ["a1", "b1", "c1"])
    assert waves(plan) == [["a-1", "a-2"]]
    reasons = {staying.pod.name: staying.reasons[0].code for staying in plan.never}
    assert reasons == {"b-1": "Frozen", "b-2": "Frozen", "c-1": "BehindAnotherNode", "c-2": "BehindAnotherNode"}


def test_budget_in_an_unguarded_namespace_holds_nothing() -> None:
    plan = plan_drain(replace(cluster(BY_ZONE), guards=lambda namespace: namespace != "shop"), ["b1"])
    assert waves(plan) == [["b-1", "b-2"]]
    assert not any(leaving.charges for leaving in plan.waves[0].pods)


def test_current_disruptions_end_first() -> None:
    busy = cluster(OVERALL)
    charged = ledger_of([LedgerEntry(uid="uid-c-0", name="c-0", domain="all", owner="deployment")])
    busy = replace(busy, statuses={OVERALL.key: PublishedStatus(observed_generation=1, ledger=charged)})
    plan = plan_drain(busy, ["a1"])
    assert waves(plan) == [["a-1"], ["a-2"]]
    assert [wave.after_others for wave in plan.waves] == [True, False]


def test_replaced_pod_does_not_come_back() -> None:
    """Else there would be one too many in its zone, which others must wait for."""
    plan = plan_drain(cluster(ACROSS, more=(pod("a-9", "a2", terminating=True),)), ["b1"])
    assert waves(plan) == [["b-1"], ["b-2"]]
    assert not plan.never


def test_plan_counts_like_a_new_leader() -> None:
    """Zone b lost a pod unobserved. The pod that terminates in zone a has its successor, so it is not the missing one."""
    whole = cluster(ACROSS)
    pod_count = Recollection().count(ACROSS, whole.pods, NodeDomains(NODES), workloads(9), {})
    left = [member for member in whole.pods if member.name != "b-0"]
    since = replace(
        whole,
        pods=[*left, pod("a-9", "a2", terminating=True)],
        statuses={ACROSS.key: published(ACROSS, pod_count, {}, (), "")},
    )
    assert [wave.after_others for wave in plan_drain(since, ["b1"]).waves] == [True, False]


def test_permanently_unready_pod_holds_others_for_ever() -> None:
    broken = cluster(OVERALL)
    pods = [msgspec.structs.replace(member, ready=member.name != "c-0") for member in broken.pods]
    plan = plan_drain(replace(broken, pods=pods), ["a1"])
    assert not plan.waves
    assert {staying.reasons[0].code for staying in plan.never} == {"TooFewHealthy"}


def test_daemon_and_static_pods_stay_and_naked_pods_need_force() -> None:
    others = (
        pod("log", "a1", ControllerRef("DaemonSet", "log", "ds")),
        pod("etcd", "a1", ControllerRef("Node", "a1", "n")),
        pod("alone", "a1", None),
    )
    plan = plan_drain(cluster(more=others), ["a1"])
    assert {staying.pod.name: staying.reasons[0].code for staying in plan.passed_over} == {
        "log": "DaemonSetPod",
        "etcd": "MirrorPod",
    }
    assert remarks(plan) == {"alone": ["Unmanaged"]}


def test_running_pod_with_empty_dir_needs_a_flag() -> None:
    others = (pod("alone", "a1", None), pod("done", "a1", OLD, stage=PodStage.ENDED))
    made = replace(cluster(more=others), empty_dirs=frozenset({"uid-a-1", "uid-alone", "uid-done"}))
    assert remarks(plan_drain(made, ["a1"])) == {"a-1": ["EmptyDir"], "alone": ["Unmanaged", "EmptyDir"]}


def remarks(plan: DrainPlan) -> dict[str, list[str]]:
    leaving = [pod for wave in plan.waves for pod in wave.pods]
    return {pod.pod.name: [str(remark.code) for remark in pod.remarks] for pod in leaving if pod.remarks}


def stock(name: str, allowed: int, desired: int) -> PodDisruptionBudget:
    status = {"disruptionsAllowed": allowed, "currentHealthy": 9, "desiredHealthy": desired, "expectedPods": 9}
    return msgspec.convert({"metadata": {"name": name, "namespace": "shop"}, "status": status}, PodDisruptionBudget)


def test_stock_pdb_makes_waves() -> None:
    one = cluster(stock=[stock("one", 1, 8)], stock_selects=lambda _pdb, member: member.controller == OLD)
    plan = plan_drain(one, ["a1"])
    assert waves(plan) == [["a-1"], ["a-2"]]
    assert plan.waves[1].pods[0].held_by[0].code == "StockBudget"


def test_pod_with_two_pdbs_never_goes() -> None:
    two = cluster(stock=[stock("one", 1, 8), stock("two", 1, 8)], stock_selects=lambda _pdb, _pod: True)
    assert {staying.reasons[0].code for staying in plan_drain(two, ["a1"]).never} == {"SeveralStockBudgets"}


def test_refusal_other_than_429_skips_the_node() -> None:
    """Not where a budget of ours holds the pod before the API server finds the two."""
    torn = ControllerRef("ReplicaSet", "torn", "rs-torn")
    pdbs = [stock("one", 1, 8), stock("two", 1, 8)]
    two = cluster(
        more=(pod("torn", "b1", torn),), stock=pdbs, stock_selects=lambda _pdb, member: member.controller == torn
    )
    two = replace(two, workloads={**two.workloads, "rs-torn": Workload(Owner("ReplicaSet", "torn", "rs-torn"), 1)})
    plan = plan_drain(two, ["b1", "c1"])
    assert waves(plan) == [["b-1", "b-2"], ["c-1", "c-2"]]
    assert [staying.pod.name for staying in plan.never] == ["torn"]
    held = plan_drain(replace(two, budgets=[BY_ZONE]), ["b1", "c1"])
    assert {staying.reasons[0].code for staying in held.never} == {"Frozen", "BehindAnotherNode"}


def test_unready_surge_does_not_hold_a_drain() -> None:
    """The old ReplicaSet wants all its pods: evicted pods come back, so no other pod need go first."""
    stuck = (pod("a-new", "a2", NEW, ready=False), pod("a-new2", "a2", NEW, ready=False))
    made = cluster(ACROSS, more=stuck)
    desired = workloads(9)
    shrinking = replace(made, workloads=desired | {"rs-old": desired["rs-old"]._replace(own=8)})
    assert {staying.reasons[0].code for staying in plan_drain(shrinking, ["b1"]).never} == {"KeepsSpread"}
    surging = replace(made, workloads=desired | {"rs-old": desired["rs-old"]._replace(own=9)})
    assert waves(plan_drain(surging, ["b1"])) == [["b-1"], ["b-2"]]
