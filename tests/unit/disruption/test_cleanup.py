"""State of deleted objects is dropped, and failing watches make a webhook unready."""

from typing import Any

import msgspec
import pytest

from unit.disruption.fake_leader import BUDGET, FakeLeader, feed, pod
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


async def guard_of(leader: FakeLeader) -> EvictionGuard:
    server: Any = leader.server
    guard = EvictionGuard(server, leader.informers, leader.store, LeaderMonitor(leader.caches, LEASE))
    await leader.status_writer._reconcile(BUDGET)
    return guard


def renew(leader: FakeLeader) -> None:
    lease = leader.caches.of(LEASES, LEASE.namespace, fields=f"metadata.name={LEASE.name}")
    leases = [Lease(spec=LeaseSpec(holder_identity="leader", renew_time=str(number))) for number in range(2)]
    lease.publish(lease._reflector.listed("1"))
    lease.publish([Change(LEASE, *leases)])


async def test_denials_of_a_deleted_budget_are_forgotten() -> None:
    leader = FakeLeader("a", lambda: 1000.0)
    guard = await guard_of(leader)
    frozen = msgspec.json.decode(msgspec.json.encode(leader.server.budgets[BUDGET.name]))
    frozen["spec"]["maxUnavailable"] = 0
    frozen["metadata"] |= {"generation": 2, "resourceVersion": "50"}
    frozen["status"]["observedGeneration"] = 2
    leader.server.budgets[BUDGET.name] = frozen
    leader.change(TOPOLOGY_DISRUPTION_BUDGETS, msgspec.convert(frozen, TopologyDisruptionBudget))
    renew(leader)
    eviction = Eviction(delete_options=DeleteOptions(preconditions=Preconditions(uid="uid-0")))
    review = Review(uid="1", operation=Operation.CREATE, namespace="shop", name="db-0", object=eviction)
    assert not (await guard.review_eviction(review)).allowed
    assert BUDGET in guard._denied
    leader.remove(TOPOLOGY_DISRUPTION_BUDGETS, BUDGET)
    assert not guard._denied


WATCHED = [PODS, NODES, TOPOLOGY_DISRUPTION_BUDGETS, POD_DISRUPTION_BUDGETS, REPLICA_SETS]


@pytest.mark.parametrize("kind", WATCHED, ids=lambda kind: kind.plural)
async def test_webhook_with_a_failing_watch_is_not_ready(kind: Resource[Any]) -> None:
    leader = FakeLeader("a", lambda: 1000.0)
    guard = await guard_of(leader)
    feed(leader.caches, REPLICA_SETS, [])
    assert "leases" in str(guard.trouble())
    renew(leader)
    assert guard.trouble() is None
    leader.caches.of(kind).problem = "no answer"
    assert "no answer" in str(guard.trouble())


def job_pod(number: int) -> Pod:
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": f"job-{number}", "uid": f"job-{number}"}
    body = pod(100 + number, "a")
    body["metadata"]["ownerReferences"] = [owner | {"controller": True}]
    return msgspec.convert(body, Pod)


async def test_owner_without_a_scale_is_forgotten_with_its_last_pod() -> None:
    leader = FakeLeader("a", lambda: 1000.0)
    workloads = leader.workloads
    pods = [job_pod(number) for number in range(3)]

    async def request(*_: Any) -> bytes:
        return b'{"resources": [{"name": "jobs", "kind": "Job", "namespaced": true}]}'

    leader.server.request = request  # type: ignore[attr-defined]
    for owned in pods:
        leader.change(PODS, owned)
    workloads.read_scales([PodFacts.of(owned) for owned in pods])
    for scaled in list(workloads._scaled.values()):
        await workloads._scales._read(scaled)
    assert len(workloads._scaled) == 3
    for owned in pods:
        leader.remove(PODS, Key("shop", owned.metadata.name))
    assert not workloads._scaled
    assert not any(workloads._scales._followed.values())


async def test_deleted_owner_is_forgotten_with_its_last_pod() -> None:
    """While it is there its number counts, though it may have no pod: they are missing."""
    leader = FakeLeader("a", lambda: 1000.0)
    workloads = leader.workloads
    owned, gone = job_pod(1), False

    async def request(_method: str, path: str, **_: Any) -> bytes:
        if path.endswith("/scale"):
            if gone:
                raise NotFound("gone")
            return b'{"spec": {"replicas": 2}}'
        return b'{"resources": [{"name": "jobs", "kind": "Job"}, {"name": "jobs/scale", "kind": "Scale"}]}'

    leader.server.request = request  # type: ignore[attr-defined]
    leader.change(PODS, owned)
    workloads.read_scales([PodFacts.of(owned)])
    (scaled,) = workloads._scaled.values()
    await workloads._scales._read(scaled)
    leader.remove(PODS, Key("shop", owned.metadata.name))
    assert workloads.desired["job-1"].desired == 2
    gone = True
    await workloads._scales._read(scaled)
    assert "job-1" not in workloads.desired
    assert not workloads._scaled
    assert not workloads._scales._desired
