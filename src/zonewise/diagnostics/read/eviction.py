"""Reads from a cluster, once, what it takes to explain an eviction. `accounts` does the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from zonewise.api.names import DISRUPTION_LEASE
from zonewise.diagnostics.decide.explain.eviction import EvictionFacts, EvictionReport, LeaderReport, explain
from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.disruption.decide.pods import ControllerRef, Owner, PodFacts
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.watch.informers import controller_of, selector_of
from zonewise.disruption.webhook.guarded_namespaces import is_guarded, read_guarding
from zonewise.disruption.webhook.leader_monitor import SILENT_SECONDS
from zonewise.errors import ZonewiseError
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects import LEASES, NAMESPACES, NODES, PODS, Key, Lease
from zonewise.objects.apps import DEPLOYMENTS, REPLICA_SETS, ReplicaSet
from zonewise.objects.policy import (
    POD_DISRUPTION_BUDGETS,
    TOPOLOGY_DISRUPTION_BUDGETS,
    PodDisruptionBudget,
    TopologyDisruptionBudget,
)

LEASE_NAMESPACES: Final = ("kube-system", "zonewise-system")
"""Where the lease is unless somebody chose another place: the program's default, and that of the manifests."""

_START: Final = "see that `zonewise controller --parts disruption` runs"


async def inquire(client: Client, pod: Key, lease_namespaces: Sequence[str], now: datetime) -> EvictionReport:
    """`lease_namespaces`: where the leader's lease may be; that renewed last counts."""
    facts = await _pod(client, pod)
    pods = [PodFacts.of(known) for known in (await client.list(PODS, pod.namespace)).items]
    nodes = {known.metadata.name: known.metadata.labels for known in (await client.list(NODES)).items}
    cases, unreadable = _cases(facts, await _budgets(client, pod.namespace))
    stock = (await client.list(POD_DISRUPTION_BUDGETS, pod.namespace)).items
    replica_set = await _replica_set(client, pod.namespace, facts.controller)
    owner = _owner(facts.controller, replica_set)
    return explain(
        EvictionFacts(
            pod=facts,
            owner=str(owner) if owner else "",
            owner_uid=owner.uid if owner else "",
            cases=cases,
            pods=pods,
            nodes=nodes,
            stock=[known for known in stock if _selects(known, facts)],
            leader=await read_leader(client, lease_namespaces, now),
            replicas=replica_set.spec.replicas if replica_set else None,
            guarded=await _is_guarded(client, pod.namespace),
            unreadable=unreadable,
        )
    )


async def _pod(client: Client, pod: Key) -> PodFacts:
    try:
        return PodFacts.of(await client.get(PODS, pod.name, pod.namespace))
    except NotFound:
        raise ZonewiseError(f"no pod {pod}; `kubectl get pods -n {pod.namespace}` lists them") from None


async def _budgets(client: Client, namespace: str) -> Iterable[TopologyDisruptionBudget]:
    try:
        return (await client.list(TOPOLOGY_DISRUPTION_BUDGETS, namespace)).items
    except NotFound:
        raise ZonewiseError(
            "the cluster does not know TopologyDisruptionBudgets: `zonewise install --only disruption` defines them"
        ) from None


def _cases(pod: PodFacts, written: Iterable[TopologyDisruptionBudget]) -> tuple[list[BudgetCase], list[BudgetError]]:
    cases: list[BudgetCase] = []
    unreadable: list[BudgetError] = []
    for known in written:
        try:
            budget = Budget.parse(known)
        except BudgetError as error:
            unreadable.append(error)
            continue
        if budget.selects(pod.labels):
            cases.append(BudgetCase(budget, status.read(budget, known)))
    return cases, unreadable


def _selects(stock: PodDisruptionBudget, pod: PodFacts) -> bool:
    return selector_of(stock).matches(pod.labels)


async def _replica_set(client: Client, namespace: str, controller: ControllerRef | None) -> ReplicaSet | None:
    if controller is None or controller.kind != REPLICA_SETS.kind:
        return None
    try:
        return await client.get(REPLICA_SETS, controller.name, namespace)
    except NotFound:
        return None


def _owner(controller: ControllerRef | None, replica_set: ReplicaSet | None) -> Owner | None:
    if controller is None:
        return None
    above = controller_of(replica_set.metadata) if replica_set else None
    # As the guard and the leader count: what else may stand above a ReplicaSet is nobody they know.
    named = above if above is not None and above.kind == DEPLOYMENTS.kind else controller
    return Owner(named.kind, named.name, named.uid)


async def read_leader(client: Client, lease_namespaces: Sequence[str], now: datetime) -> LeaderReport:
    """Another may be left from before the controller moved. One that may not be read may be the one in use."""
    leases = [Key(namespace, DISRUPTION_LEASE) for namespace in lease_namespaces]
    found: list[LeaderReport] = []
    hidden: list[Key] = []
    for lease in leases:
        try:
            read = await client.get(LEASES, lease.name, lease.namespace)
        except NotFound:
            continue
        except Forbidden:
            hidden.append(lease)
            continue
        found.append(_account(lease, read, now))
    newest = min(found, key=_silence, default=None)
    if hidden and (newest is None or newest.trouble):
        return LeaderReport(str(hidden[0]), "", None, "")
    if newest is not None:
        return newest
    places = " or ".join(map(str, leases))
    return LeaderReport(places, "", None, f"the budget controller never ran: there is no lease {places}; {_START}")


def _account(lease: Key, read: Lease, now: datetime) -> LeaderReport:
    holder, silent_seconds = read.spec.holder_identity or "", _silent_seconds(read, now)
    trouble = ""
    if not holder or silent_seconds is None or silent_seconds > SILENT_SECONDS:
        trouble = f"the budget controller is not running: nobody renews its lease {lease}; {_START}"
    return LeaderReport(str(lease), holder, silent_seconds, trouble)


def _silence(leader: LeaderReport) -> tuple[bool, float]:
    """One that was given up a moment ago, to be taken elsewhere, is not the one in use."""
    silent_seconds = float("inf") if leader.silent_seconds is None else leader.silent_seconds
    return bool(leader.trouble), silent_seconds


def _silent_seconds(lease: Lease, now: datetime) -> float | None:
    """By this machine's clock, which may not be the leader's."""
    renewed = lease.spec.renew_time
    return max(0.0, (now - datetime.fromisoformat(renewed)).total_seconds()) if renewed else None


async def _is_guarded(client: Client, namespace: str) -> bool:
    guarding = await read_guarding(client)
    try:
        labels = (await client.get(NAMESPACES, namespace)).metadata.labels
    except NotFound:
        return False
    except Forbidden:
        labels = {}
    return is_guarded(guarding, namespace, labels)
