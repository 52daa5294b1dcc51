"""What is gone from the cluster is not remembered for ever, and what is not heard of is said."""

from typing import Any

import msgspec
import pytest

from unit.disruption.paper import BUDGET, Paper, feed, pod
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.webhook.guard import EvictionGuard
from zonewise.disruption.webhook.leader_monitor import LeaderMonitor
from zonewise.kube.wire.admission_review import Operation, Review
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import LEASES, NODES, PODS, Key, Lease, Pod, Resource
from zonewise.objects.apps import REPLICA_SETS
from zonewise.objects.change import Change
from zonewise.objects.coordination import LeaseSpec
from zonewise.objects.policy import (
    POD_DISRUPTION_BUDGETS,
    TOPOLOGY_DISRUPTION_BUDGETS,
    DeleteOptions,
    Eviction,
    Preconditions,
    TopologyDisruptionBudget,
)

LEASE = Key("kube-system", "zonewise-disruption")


async def paper_guard(paper: Paper) -> EvictionGuard:
    server: Any = paper.server
    guard = EvictionGuard(server, paper.sources, paper.book, LeaderMonitor(paper.caches, LEASE))
    await paper.publisher._reconcile(BUDGET)
    return guard


def renew(paper: Paper) -> None:
    lease = paper.caches.of(LEASES, LEASE.namespace, fields=f"metadata.name={LEASE.name}")
    told = [Lease(spec=LeaseSpec(holder_identity="leader", renew_time=str(number))) for number in range(2)]
    lease.publish(lease._reflector.listed("1"))
    lease.publish([Change(LEASE, *told)])


async def test_what_a_budget_refused_goes_with_it() -> None:
    paper = Paper("a", lambda: 1000.0)
    guard = await paper_guard(paper)
    frozen = msgspec.json.decode(msgspec.json.encode(paper.server.budgets[BUDGET.name]))
    frozen["spec"]["maxUnavailable"] = 0
    frozen["metadata"] |= {"generation": 2, "resourceVersion": "50"}
    frozen["status"]["observedGeneration"] = 2
    paper.server.budgets[BUDGET.name] = frozen
    paper.change(TOPOLOGY_DISRUPTION_BUDGETS, msgspec.convert(frozen, TopologyDisruptionBudget))
    renew(paper)
    eviction = Eviction(delete_options=DeleteOptions(preconditions=Preconditions(uid="uid-0")))
    asked = Review(uid="1", operation=Operation.CREATE, namespace="shop", name="db-0", object=eviction)
    assert not (await guard.review_eviction(asked)).allowed
    assert BUDGET in guard._denied
    paper.remove(TOPOLOGY_DISRUPTION_BUDGETS, BUDGET)
    assert not guard._denied


WATCHED = [PODS, NODES, TOPOLOGY_DISRUPTION_BUDGETS, POD_DISRUPTION_BUDGETS, REPLICA_SETS]


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.plural)
async def test_a_webhook_that_does_not_hear_of_changes_is_not_ready(kind: Resource[Any]) -> None:
    paper = Paper("a", lambda: 1000.0)
    guard = await paper_guard(paper)
    feed(paper.caches, REPLICA_SETS, [])
    assert "leases" in str(guard.trouble())
    renew(paper)
    assert guard.trouble() is None
    paper.caches.of(kind).problem = "no answer"
    assert "no answer" in str(guard.trouble())


def job_pod(number: int) -> Pod:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{number}", "uid": f"job-{number}"}
    written = pod(100 + number, "a")
    written["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    return msgspec.convert(written, Pod)


async def test_owners_without_a_scale_are_forgotten_with_their_last_pod() -> None:
    paper = Paper("a", lambda: 1000.0)
    workloads = paper.workloads
    pods = [job_pod(number) for number in range(3)]

    async def request(*_: Any) -> bytes:
        return b'{"resources": [{"name": "jobs", "kind": "Job", "namespaced": true}]}'

    paper.server.request = request  # type: ignore[attr-defined]
    for each in pods:
        paper.change(PODS, each)
    workloads.look_up([PodFacts.of(each) for each in pods])
    for scaled in list(workloads._scaled.values()):
        await workloads._scales._read(scaled)
    assert len(workloads._scaled) == 3
    for each in pods:
        paper.remove(PODS, Key("shop", each.metadata.name))
    assert not workloads._scaled
    assert not any(workloads._scales._followed.values())


async def test_an_owner_that_is_gone_is_forgotten_with_its_last_pod() -> None:
    """While it is there its number counts, though it may have no pod: they are missing."""
    paper = Paper("a", lambda: 1000.0)
    workloads = paper.workloads
    each, gone = job_pod(1), False

    async def request(_method: str, path: str, **_: Any) -> bytes:
        if path.endswith("/scale"):
            if gone:
                raise NotFound("gone")
            return b'{"spec": {"replicas": 2}}'
        return b'{"resources": [{"name": "jobs", "kind": "Job"}, {"name": "jobs/scale", "kind": "Scale"}]}'

    paper.server.request = request  # type: ignore[attr-defined]
    paper.change(PODS, each)
    workloads.look_up([PodFacts.of(each)])
    (scaled,) = workloads._scaled.values()
    await workloads._scales._read(scaled)
    paper.remove(PODS, Key("shop", each.metadata.name))
    assert workloads.wanted["job-1"].desired == 2
    gone = True
    await workloads._scales._read(scaled)
    assert "job-1" not in workloads.wanted
    assert not workloads._scaled
    assert not workloads._scales._desired
