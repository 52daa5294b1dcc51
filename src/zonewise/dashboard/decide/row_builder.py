"""Rows made of a cluster's objects and of the decisions about them. Pure; `board` asks for them whenever something changed."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from itertools import chain
from typing import Final

import msgspec

from zonewise.api.names import ROUTING_STATE, UPDATE
from zonewise.dashboard.decide.rows import Component, ComponentRow, DrainRow, NodeRow, RolloutRow, ServiceRow
from zonewise.diagnostics.decide.status import storage
from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot, assemble, state_of
from zonewise.diagnostics.decide.status.budgets import budget_status
from zonewise.objects import Namespace, Service, key_of
from zonewise.objects.apps import DaemonSet, Deployment, StatefulSet
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.planning.data_plane import DataPlane
from zonewise.planning.forecast import ClusterForecast
from zonewise.planning.snapshot import Snapshot
from zonewise.routing import DRAIN_ZONE
from zonewise.slices.decide.service_status import read_state
from zonewise.topology import is_control_plane, is_ready, region_of, zone_of

_MOST_NAMED: Final = 5

Workload = Deployment | StatefulSet | DaemonSet


@dataclass(frozen=True, slots=True)
class DashboardView:
    """A cluster's objects, from watches or from a dump."""

    situation: Snapshot
    budgets: Iterable[TopologyDisruptionBudget] = ()
    workloads: Iterable[Workload] = ()
    volumes: Iterable[PersistentVolume] = ()


def but_services(world: DashboardView) -> dict[str, Mapping[str, msgspec.Struct]]:
    """Every table but the one of Services, which costs most to make."""
    situation = world.situation
    return {
        "nodes": nodes(situation),
        "budgets": {str(key_of(one)): budget_status(one) for one in world.budgets},
        "rollouts": rollouts(world.workloads),
        "volumes": {found.domain: found for found in storage.volumes(world.volumes, situation.nodes)},
        "takeovers": {found.domain: found for found in storage.takeovers(situation.nodes)},
        "drains": drains(situation, (served.service for served in situation.services)),
    }


def nodes(situation: Snapshot) -> dict[str, NodeRow]:
    counted: Counter[str] = Counter(
        endpoint.node_name or ""
        for served in situation.services
        for by_ports in served.by_family.values()
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
            endpoints=counted[node.metadata.name],
        )
        for node in situation.nodes
    }


def service(found: ClusterForecast, written: Service, carrier: DataPlane) -> ServiceRow:
    said = read_state(written.metadata.annotations.get(ROUTING_STATE))
    return ServiceRow(
        namespace=found.namespace,
        name=found.name,
        state=state_of(found),
        policy=found.policy,
        source=found.source,
        sentence=found.sentence,
        remedy=found.remedy,
        endpoints=found.endpoints,
        in_zone=round(found.in_zone, 4),
        overload=round(found.worst_overload, 4),
        slices=found.slices,
        cut_off=len(found.cut_off),
        headless=written.spec.cluster_ip == "None",
        our_proxy=carrier is DataPlane.ZONEWISE_PROXY,
        since=said.since if said and (said.policy, said.active) == (found.policy, found.active) else "",
        parts=tuple(
            Component(zone=one.zone, consumers=one.consumers, endpoints=one.endpoints) for one in found.assignment
        ),
        losses=found.losses,
        complaints=found.complaints,
    )


def rollouts(workloads: Iterable[Workload]) -> dict[str, RolloutRow]:
    """Those whose pods are being replaced. One that merely waits for pods to be ready rolls nothing out."""
    found = (_rollout(workload) for workload in workloads)
    return {f"{row.kind} {row.namespace}/{row.name}": row for row in found if row}


def _rollout(workload: Workload) -> RolloutRow | None:
    kind, wanted, updated, ready, old = _progress(workload)
    seen = workload.status.observed_generation >= workload.metadata.generation
    if seen and updated >= wanted and not old:
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
    """Its kind, how many pods it wants new, how many of these are, how many are ready, and whether old ones are left."""
    match workload:
        case DaemonSet(status=told):
            wanted, updated = told.desired_number_scheduled, told.updated_number_scheduled
            return "DaemonSet", wanted, updated, told.number_ready, updated < wanted
        case Deployment(spec=spec, status=said):
            old = said.replicas > said.updated_replicas
            return "Deployment", spec.replicas, said.updated_replicas, said.ready_replicas, old
        case StatefulSet(spec=asked, status=found):
            if found.current_revision == found.update_revision:  # at rest: whatever is missing is no rollout
                return "StatefulSet", asked.replicas, asked.replicas, found.ready_replicas, False
            rolling = asked.update_strategy.rolling_update
            wanted = max(0, asked.replicas - (rolling.partition if rolling else 0))
            return "StatefulSet", wanted, found.updated_replicas, found.ready_replicas, False


def drains(situation: Snapshot, services: Iterable[Service]) -> dict[str, DrainRow]:
    """By zone, with the first of those who ask for it."""
    asking: dict[str, list[str]] = defaultdict(list)
    for zone, subjects in situation.cluster.node_drains.drain.zones.items():
        asking[zone] += map(str, subjects)
    said: Iterable[Service | Namespace] = chain(situation.namespaces.values(), services)
    for viewed in said:
        if text := viewed.metadata.annotations.get(DRAIN_ZONE):
            kind = "Service" if isinstance(viewed, Service) else "Namespace"
            for zone in text.split(","):
                asking[zone.strip()].append(f"{kind} {key_of(viewed)}")
    return {zone: DrainRow(zone=zone, by=_first(by)) for zone, by in sorted(asking.items()) if zone}


def parts(seen: ClusterSnapshot, now: datetime) -> dict[str, ComponentRow]:
    """What of Zonewise runs, and who leads; empty where nothing does."""
    found = assemble(seen, now)
    rows = [
        ComponentRow(
            what=f"{part.kind} {part.name}", sentence=f"{part.ready} of {part.wanted} pods ready", good=part.healthy
        )
        for part in found.components
    ]
    rows += [
        ComponentRow(what=f"{lead.holder or 'nobody'} {lead.duty}", sentence=f"lease {lead.lease}", good=lead.alive)
        for lead in found.leaders
    ]
    rows += [
        ComponentRow(what=f"webhook {hook.name}", sentence=hook.target, good=hook.healthy) for hook in found.webhooks
    ]
    return {row.what: row for row in rows}


def _first(names: list[str]) -> tuple[str, ...]:
    more = (f"{len(names) - _MOST_NAMED} more",) if len(names) > _MOST_NAMED else ()
    return (*names[:_MOST_NAMED], *more)
