"""Facts of a pod, and its domain when its node is gone."""

from typing import Any

import msgspec
import pytest

from unit.disruption.build import ACROSS, NODES, pod, workloads
from zonewise.disruption.decide.budget import BudgetDomainKey
from zonewise.disruption.decide.pods import ControllerRef, NodeDomains, PodFacts, PodStage, gives_up, owner_of
from zonewise.objects import Pod
from zonewise.topology import ZONE


def facts(
    metadata: dict[str, Any] | None = None, status: dict[str, Any] | None = None, node: str = "node-a"
) -> PodFacts:
    body = {
        "metadata": {"name": "web-1", "namespace": "shop", "uid": "u1", **(metadata or {})},
        "spec": {"nodeName": node},
        "status": {"phase": "Running", **(status or {})},
    }
    return PodFacts.of(msgspec.convert(body, Pod))


def condition(kind: str, status: str = "True") -> dict[str, Any]:
    return {"conditions": [{"type": "Other", "status": "True"}, {"type": kind, "status": status}]}


CASES: dict[str, tuple[PodFacts, dict[str, Any]]] = {
    "plain": (
        facts(),
        {"ready": False, "active": True, "leaving": False, "replica_set": "", "stage": PodStage.RUNNING},
    ),
    "ready": (facts(status=condition("Ready")), {"ready": True}),
    "ready is false": (facts(status=condition("Ready", "False")), {"ready": False}),
    "no phase yet": (facts(status={"phase": ""}), {"pending": True, "active": True}),
    "waits for a node": (facts(status={"phase": "Pending"}, node=""), {"pending": True, "active": False}),
    "succeeded": (facts(status={"phase": "Succeeded"}), {"stage": PodStage.ENDED, "active": False}),
    "unknown phase still runs": (facts(status={"phase": "Unknown"}), {"stage": PodStage.RUNNING}),
    "terminating": (facts({"deletionTimestamp": "2026-11-16T06:00:00Z"}), {"terminating": True, "active": False}),
    "being evicted": (facts(status=condition("DisruptionTarget")), {"disruption_target": True, "leaving": True}),
    "granted": (facts({"annotations": {"zonewise.dev/granted": "u1"}}), {"granted": True, "leaving": True}),
    "granted to its predecessor": (facts({"annotations": {"zonewise.dev/granted": "u0"}}), {"granted": False}),
    "a cost": (facts({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "-7"}}), {"deletion_cost": -7}),
    "no cost": (facts({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "cheap"}}), {"deletion_cost": 0}),
    "a cost out of range": (
        facts({"annotations": {"controller.kubernetes.io/pod-deletion-cost": "2147483648"}}),
        {"deletion_cost": 0},
    ),
    "a revision": (facts({"labels": {"controller-revision-hash": "db-7f"}}), {"revision": "db-7f"}),
}


@pytest.mark.parametrize(("read", "expected"), CASES.values(), ids=CASES)
def test_facts(read: PodFacts, expected: dict[str, Any]) -> None:
    assert {name: getattr(read, name) for name in expected} == expected


def test_only_the_controlling_owner_counts() -> None:
    references = [
        {"apiVersion": "v1", "kind": "Thing", "name": "x", "uid": "1"},
        {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web-old", "uid": "rs-old", "controller": True},
    ]
    read = facts({"ownerReferences": references})
    assert read.controller == ControllerRef("ReplicaSet", "web-old", "rs-old", "apps/v1")
    assert read.replica_set == "rs-old"
    assert owner_of(read, workloads(3)) == "deployment"
    assert owner_of(facts(), workloads(3)) == ""


def test_stateful_set_chooses_no_pod() -> None:
    assert pod("db-0", "node-a", ControllerRef("StatefulSet", "db", "sts")).replica_set == ""


def test_domain_of_a_pod_on_a_deleted_node_comes_from_its_labels() -> None:
    node_domains = NodeDomains(NODES)
    assert node_domains.domain_key(ACROSS, pod("b0")) == BudgetDomainKey("b", covered=True)
    assert node_domains.domain_key(ACROSS, pod("x0", "gone", labels={ZONE: "c"})) == BudgetDomainKey("c", covered=True)
    assert node_domains.domain_key(ACROSS, pod("x0", "gone")) == BudgetDomainKey("", covered=False)
    assert (node_domains.has("node-a"), node_domains.has("gone")) == (True, False)


GIVING = {
    "it has more than it wants": (2, True),
    "it wants all it has, so what is evicted is replaced": (3, False),
    "replicas unknown": (None, True),
}


@pytest.mark.parametrize("name", GIVING)
def test_replica_set_gives_up_pods_beyond_its_replicas(name: str) -> None:
    replicas, gives = GIVING[name]
    ended = pod("e0", stage=PodStage.ENDED)
    pods = [pod("a0"), pod("b0"), pod("c0", ready=False), pod("d0", terminating=True), ended]
    assert gives_up(sum(pod.stays for pod in pods), replicas) is gives
