"""Whether a pod may be evicted, explained from a live cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Final

from zonewise.api.names import DISRUPTION_CONFIGURATION, DISRUPTION_LEASE
from zonewise.diagnostics.decide.explain.eviction import (
    EvictionFacts,
    EvictionReport,
    LeaderReport,
    build_eviction_report,
)
from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import Budget, BudgetError
from zonewise.disruption.decide.pods import ControllerRef, Owner, PodFacts
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.watch.informers import controller_of, selector_of
from zonewise.disruption.webhook.guarded_namespaces import guarding, is_guarded
from zonewise.disruption.webhook.leader_monitor import SILENT_SECONDS
from zonewise.errors import ZonewiseError
from zonewise.kube.wire.errors import NotFound
from zonewise.objects import LEASES, NAMESPACES, NODES, PODS, Key, Lease
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS
from zonewise.objects.apps import DEPLOYMENTS, REPLICA_SETS, ReplicaSet
from zonewise.objects.policy import (
    POD_DISRUPTION_BUDGETS,
    TOPOLOGY_DISRUPTION_BUDGETS,
    TopologyDisruptionBudget,
)
from zonewise.topology import LabelSelector

LEASE_NAMESPACES: Final = ("kube-system", "zonewise-system")
"""Where the lease is by default: the first if the program runs by itself, the second with the manifests."""

_START: Final = "check that `zonewise controller --parts disruption` runs"


async def explain_eviction(
    reader: ClusterReader, key: Key, lease_namespaces: Sequence[str], now: datetime
) -> EvictionReport:
    """`lease_namespaces`: where the leader's lease may be. The one renewed last counts."""
    missing = f"no pod {key}; `kubectl get pods -n {key.namespace}` lists them"
    pod = PodFacts.of(await reader.get(PODS, key.name, key.namespace, missing=missing))
    pods, nodes, budgets, pdbs, replica_set = await asyncio.gather(
        reader.list(PODS, key.namespace),
        reader.list(NODES),
        list_budgets(reader, key.namespace),
        reader.list(POD_DISRUPTION_BUDGETS, key.namespace),
        _find_replica_set(reader, key.namespace, pod.controller),
    )
    leader, guarded = await asyncio.gather(
        read_leader(reader, lease_namespaces, now), _is_guarded(reader, key.namespace)
    )
    cases, unreadable = _cases(pod, budgets)
    owner = _owner(pod.controller, replica_set)
    return build_eviction_report(
        EvictionFacts(
            pod=pod,
            owner=str(owner) if owner else "",
            owner_uid=owner.uid if owner else "",
            cases=cases,
            pods=[PodFacts.of(other) for other in pods],
            nodes={node.metadata.name: node.metadata.labels for node in nodes},
            stock=[pdb for pdb in pdbs if selector_of(pdb).matches(pod.labels)],
            leader=leader,
            replicas=replica_set.spec.replicas if replica_set else None,
            guarded=guarded,
            unreadable=unreadable,
        )
    )


async def list_budgets(reader: ClusterReader, namespace: str = "") -> Sequence[TopologyDisruptionBudget]:
    try:
        return await reader.list(TOPOLOGY_DISRUPTION_BUDGETS, namespace)
    except NotFound:
        raise ZonewiseError(
            "TopologyDisruptionBudgets are not defined in this cluster; run `zonewise install --only disruption`"
        ) from None


def _cases(pod: PodFacts, budgets: Iterable[TopologyDisruptionBudget]) -> tuple[list[BudgetCase], list[BudgetError]]:
    """The budgets that select the pod, and those that can't be parsed."""
    cases: list[BudgetCase] = []
    errors: list[BudgetError] = []
    for item in budgets:
        try:
            budget = Budget.parse(item)
        except BudgetError as error:
            errors.append(error)
            continue
        if budget.selects(pod.labels):
            cases.append(BudgetCase(budget, status.read(budget, item)))
    return cases, errors


async def _find_replica_set(
    reader: ClusterReader, namespace: str, controller: ControllerRef | None
) -> ReplicaSet | None:
    if controller is None or controller.kind != REPLICA_SETS.kind:
        return None
    return await reader.find(REPLICA_SETS, controller.name, namespace)


def _owner(controller: ControllerRef | None, replica_set: ReplicaSet | None) -> Owner | None:
    if controller is None:
        return None
    above = controller_of(replica_set.metadata) if replica_set else None
    # As the webhook and the controller count: of the owners of a ReplicaSet they know Deployments only.
    owner = above if above is not None and above.kind == DEPLOYMENTS.kind else controller
    return Owner(owner.kind, owner.name, owner.uid)


async def read_leader(reader: ClusterReader, lease_namespaces: Sequence[str], now: datetime) -> LeaderReport:
    """Of the lease renewed last: another may be left from before the controller moved.

    A lease that may not be read may be the one in use, so it silences complaints about the others.
    """
    keys = [Key(namespace, DISRUPTION_LEASE) for namespace in lease_namespaces]
    leases = await asyncio.gather(*(reader.get_or_none(LEASES, key.name, key.namespace) for key in keys))
    reports = [_leader_report(key, lease, now) for key, lease in zip(keys, leases, strict=True) if lease]
    newest = min(reports, key=_staleness, default=None)
    forbidden = [key for key in keys if reader.is_forbidden(LEASES, key.name, key.namespace)]
    if forbidden and (newest is None or newest.trouble):
        return LeaderReport(str(forbidden[0]), "", None, "")
    if newest is not None:
        return newest
    names = " or ".join(map(str, keys))
    return LeaderReport(names, "", None, f"the budget controller never ran: there is no lease {names}; {_START}")


def _leader_report(key: Key, lease: Lease, now: datetime) -> LeaderReport:
    holder, silent_seconds = lease.spec.holder_identity or "", _silent_seconds(lease, now)
    trouble = ""
    if not holder or silent_seconds is None or silent_seconds > SILENT_SECONDS:
        trouble = f"the budget controller is not running: its lease {key} is not renewed; {_START}"
    return LeaderReport(str(key), holder, silent_seconds, trouble)


def _staleness(leader: LeaderReport) -> tuple[bool, float]:
    """A lease that was released a moment ago is not the one in use."""
    silent_seconds = float("inf") if leader.silent_seconds is None else leader.silent_seconds
    return bool(leader.trouble), silent_seconds


def _silent_seconds(lease: Lease, now: datetime) -> float | None:
    """By this machine's clock, which may differ from the leader's."""
    renewed = lease.spec.renew_time
    return max(0.0, (now - datetime.fromisoformat(renewed)).total_seconds()) if renewed else None


async def read_guard_selector(reader: ClusterReader) -> LabelSelector:
    """Selects the namespaces whose evictions the registered webhook reviews. If forbidden, assume all."""
    configuration = await reader.get_or_none(MUTATING_WEBHOOK_CONFIGURATIONS, DISRUPTION_CONFIGURATION)
    if configuration is not None:
        return guarding(configuration)
    return LabelSelector(() if reader.is_forbidden(MUTATING_WEBHOOK_CONFIGURATIONS) else None)


async def _is_guarded(reader: ClusterReader, name: str) -> bool:
    selector, namespace = await asyncio.gather(read_guard_selector(reader), reader.get_or_none(NAMESPACES, name))
    if namespace is None and not reader.is_forbidden(NAMESPACES):
        return False
    return is_guarded(selector, name, namespace.metadata.labels if namespace else {})
