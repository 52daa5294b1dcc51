"""Builds the dashboard's rows from a cluster's objects and forecasts. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final

import msgspec

from zonewise.api.names import ROUTING_STATE, UPDATE
from zonewise.dashboard.decide.rows import AssignmentPart, ComponentRow, DrainRow, NodeRow, RolloutRow, ServiceRow
from zonewise.diagnostics.decide.status import storage
from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot, build_status, state_of
from zonewise.diagnostics.decide.status.budgets import budget_status
from zonewise.objects import Namespace, Service, key_of
from zonewise.objects.apps import DaemonSet, Deployment, StatefulSet
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.planning.data_plane import DataPlane
from zonewise.planning.forecast import ServiceForecast
from zonewise.planning.snapshot import Snapshot
from zonewise.routing import DRAIN_ZONE
from zonewise.slices.decide.service_status import read_state
from zonewise.topology import is_control_plane, is_ready, region_of, zone_of

_MAX_NAMED: Final = 5

Workload = Deployment | StatefulSet | DaemonSet


@dataclass(frozen=True, slots=True)
class DashboardView:
    """A cluster's objects, from watches or from a dump."""

    snapshot: Snapshot
    budgets: Iterable[TopologyDisruptionBudget] = ()
    workloads: Iterable[Workload] = ()
    volumes: Iterable[PersistentVolume] = ()


def cluster_rows(view: DashboardView) -> dict[str, Mapping[str, msgspec.Struct]]:
    """Every table except that of Services, which is the costliest."""
    snapshot = view.snapshot
    return {
        "nodes": node_rows(snapshot),
        "budgets": {str(key_of(budget)): budget_status(budget) for budget in view.budgets},
        "rollouts": rollout_rows(view.workloads),
        "volumes": {row.domain: row for row in storage.volume_domains(view.volumes, snapshot.nodes)},
        "takeovers": {row.domain: row for row in storage.takeover_statuses(snapshot.nodes)},
        "drains": drain_rows(snapshot, (item.service for item in snapshot.services)),
    }


def node_rows(snapshot: Snapshot) -> dict[str, NodeRow]:
    counts: Counter[str] = Counter(
        endpoint.node_name or ""
        for service in snapshot.services
        for by_ports in service.by_family.values()
        for endpoints in by_ports.values()
        for endpoint in endpoints
    )
    return {
        node.metadata.name: NodeRow(
            zone=zone_of(node.metadata.labels) or "",
            region=region_of(node.metadata.labels) or "",
            ready=is_ready(node),
            cordoned=node.spec.unschedulable,
            control_plane=is_control_plane(node.metadata.labels),
            endpoints=counts[node.metadata.name],
        )
        for node in snapshot.nodes
    }


def service_row(forecast: ServiceForecast, service: Service, data_plane: DataPlane) -> ServiceRow:
    state = read_state(service.metadata.annotations.get(ROUTING_STATE))
    is_current = state is not None and (state.policy, state.active) == (forecast.policy, forecast.active)
    return ServiceRow(
        namespace=forecast.namespace,
        name=forecast.name,
        state=state_of(forecast),
        policy=forecast.policy,
        source=forecast.source,
        sentence=forecast.sentence,
        remedy=forecast.remedy,
        endpoints=forecast.endpoints,
        in_zone=round(forecast.in_zone, 4),
        overload=round(forecast.worst_overload, 4),
        slices=forecast.slices,
        cut_off=len(forecast.cut_off),
        headless=service.spec.cluster_ip == "None",
        our_proxy=data_plane is DataPlane.ZONEWISE_PROXY,
        since=state.since if state and is_current else "",
        parts=tuple(
            AssignmentPart(zone=part.zone, consumers=part.consumers, endpoints=part.endpoints)
            for part in forecast.assignment
        ),
        losses=forecast.losses,
        complaints=forecast.complaints,
    )


def rollout_rows(workloads: Iterable[Workload]) -> dict[str, RolloutRow]:
    """Workloads that replace pods. Waiting for pods to become ready is no rollout."""
    rows = (_rollout(workload) for workload in workloads)
    return {f"{row.kind} {row.namespace}/{row.name}": row for row in rows if row}


def _rollout(workload: Workload) -> RolloutRow | None:
    kind, wanted, updated, ready, has_old = _progress(workload)
    is_observed = workload.status.observed_generation >= workload.metadata.generation
    if is_observed and updated >= wanted and not has_old:
        return None
    return RolloutRow(
        kind=kind,
        namespace=workload.metadata.namespace,
        name=workload.metadata.name,
        wanted=wanted,
        updated=min(updated, wanted),
        ready=min(ready, wanted),
        by_eviction=workload.metadata.annotations.get(UPDATE) == "Evict",
    )


def _progress(workload: Workload) -> tuple[str, int, int, int, bool]:
    """Kind, pods to be of the new template, those that are, ready pods, and whether old pods are left."""
    match workload:
        case DaemonSet(status=daemons):
            wanted, updated = daemons.desired_number_scheduled, daemons.updated_number_scheduled
            return "DaemonSet", wanted, updated, daemons.number_ready, updated < wanted
        case Deployment(spec=spec, status=status):
            has_old = status.replicas > status.updated_replicas
            return "Deployment", spec.replicas, status.updated_replicas, status.ready_replicas, has_old
        case StatefulSet(spec=set_spec, status=set_status):
            if set_status.current_revision == set_status.update_revision:  # complete: missing pods are no rollout
                return "StatefulSet", set_spec.replicas, set_spec.replicas, set_status.ready_replicas, False
            rolling = set_spec.update_strategy.rolling_update
            wanted = max(0, set_spec.replicas - (rolling.partition if rolling else 0))
            return "StatefulSet", wanted, set_status.updated_replicas, set_status.ready_replicas, False


def drain_rows(snapshot: Snapshot, services: Iterable[Service]) -> dict[str, DrainRow]:
    """By zone, with some of the objects that drain it."""
    causes: dict[str, list[str]] = defaultdict(list)
    for zone, subjects in snapshot.cluster.node_drains.drain.zones.items():
        causes[zone] += map(str, subjects)
    annotated: Iterable[Service | Namespace] = chain(snapshot.namespaces.values(), services)
    for item in annotated:
        if text := item.metadata.annotations.get(DRAIN_ZONE):
            kind = "Service" if isinstance(item, Service) else "Namespace"
            for zone in text.split(","):
                causes[zone.strip()].append(f"{kind} {key_of(item)}")
    return {zone: DrainRow(zone=zone, by=_first(names)) for zone, names in sorted(causes.items()) if zone}


def component_rows(snapshot: ClusterSnapshot, now: datetime) -> dict[str, ComponentRow]:
    """Workloads, leaders and webhooks of Zonewise; empty if it is not installed."""
    status = build_status(snapshot, now)
    rows = [
        ComponentRow(
            what=f"{component.kind} {component.name}",
            sentence=f"{component.ready} of {component.wanted} pods ready",
            good=component.healthy,
        )
        for component in status.components
    ]
    rows += [
        ComponentRow(
            what=f"{leader.holder or 'nobody'} {leader.duty}", sentence=f"lease {leader.lease}", good=leader.alive
        )
        for leader in status.leaders
    ]
    rows += [
        ComponentRow(what=f"webhook {webhook.name}", sentence=webhook.target, good=webhook.healthy)
        for webhook in status.webhooks
    ]
    return {row.what: row for row in rows}


def _first(names: list[str]) -> tuple[str, ...]:
    more = (f"{len(names) - _MAX_NAMED} more",) if len(names) > _MAX_NAMED else ()
    return (*names[:_MAX_NAMED], *more)
