"""Informers of the dashboard: keep the live state up to date with the cluster, in batches.

A Service is decided again when its own objects change; all Services are when nodes or namespaces change in a way that
routing sees. The other tables cost little and are rebuilt each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from zonewise.api.names import APP_NAME_LABEL
from zonewise.dashboard.decide import row_builder
from zonewise.dashboard.decide.row_builder import DashboardView
from zonewise.dashboard.decide.rows import NoticeRow, ServiceRow
from zonewise.dashboard.live_state import LiveState
from zonewise.diagnostics.decide.status.assemble import (
    COMPONENTS,
    LEASE_DUTIES,
    WEBHOOK_CONFIGURATIONS,
    ClusterSnapshot,
)
from zonewise.kube.clock import utc_now
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.watch.service_informers import ServiceInformers, SyncCause, drain_matters
from zonewise.objects import (
    ENDPOINT_SLICES,
    LEASES,
    SERVICES,
    EndpointSlice,
    HasMetadata,
    Key,
    Service,
    key_of,
)
from zonewise.objects.admissionregistration import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from zonewise.objects.apps import DAEMON_SETS, DEPLOYMENTS, STATEFUL_SETS
from zonewise.objects.discovery import service_key
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.objects.storage import PERSISTENT_VOLUMES
from zonewise.planning.data_plane import find_data_planes
from zonewise.planning.forecast import forecast_services
from zonewise.planning.snapshot import Snapshot, build_snapshot
from zonewise.routing import HintsForm
from zonewise.slices.decide.change_filter import routing_matters

BATCH_SECONDS: Final = 0.25
"""How long a change waits for further ones."""
REST_FACTOR: Final = 4.0
"""Rest so many times longer than the work took: a busy cluster then costs a fifth of a core at most."""
NOTICE_SECONDS: Final = 5.0
AT_ONCE: Final = 50
"""Services that are decided before other tasks may run."""


class DashboardInformers(ServiceInformers[Service, EndpointSlice]):
    """Leases are watched in the namespace `home`, in all namespaces where it is empty."""

    def __init__(self, caches: Caches, state: LiveState, hints: HintsForm = HintsForm.STABLE, home: str = "") -> None:
        services, slices = caches.of(SERVICES), caches.of(ENDPOINT_SLICES)
        super().__init__(caches, self._mark, services=services, slices=slices, owner=service_key)
        self._state = state
        self._hints = hints
        self._budgets = caches.of(TOPOLOGY_DISRUPTION_BUDGETS)
        self._workloads: list[Cache[Any]] = [caches.of(DEPLOYMENTS), caches.of(STATEFUL_SETS), caches.of(DAEMON_SETS)]
        self._volumes = caches.of(PERSISTENT_VOLUMES)
        self._leases = [caches.of(LEASES, home, fields=f"metadata.name={name}") for name in LEASE_DUTIES]
        self._webhooks = [caches.of(VALIDATING_WEBHOOK_CONFIGURATIONS), caches.of(MUTATING_WEBHOOK_CONFIGURATIONS)]
        self._snapshot = Snapshot((), ())
        self._rows: dict[str, ServiceRow] = {}
        self._dirty: set[Key] = set()
        self._all_dirty = True
        self._wake = asyncio.Event()

    @property
    def _optional_watches(self) -> tuple[Cache[Any], ...]:
        return self._budgets, *self._workloads, self._volumes, *self._leases, *self._webhooks

    def snapshot(self) -> Snapshot:
        """The one that the page shows: its forecast is computed already."""
        return self._snapshot

    async def run(self, ready: Callable[[], None]) -> None:
        """Until cancelled; `ready` is called when the live state shows the cluster."""
        await self._wait_synced()
        self._follow()
        await self._update()
        ready()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._update_forever(), name="updates")
            group.create_task(self._show_notices(), name="notices")

    async def _wait_synced(self) -> None:
        notices = asyncio.create_task(self._show_notices(), name="notices while starting")
        try:
            for cache in self.watches:
                await cache.wait_synced()
        finally:
            notices.cancel()

    def _follow(self) -> None:
        self.follow(from_now_on=True)
        self.nodes.on_change(self._mark_all, when=routing_matters, from_now_on=True)
        self.namespaces.on_change(self._mark_all, when=drain_matters, from_now_on=True)
        for cache in (self._budgets, *self._workloads, self._volumes):
            cache.on_change(lambda _change: self._wake.set(), from_now_on=True)

    def _mark_all(self, _change: object) -> None:
        self._all_dirty = True
        self._wake.set()

    def _mark(self, service: Key, _cause: SyncCause) -> None:
        self._dirty.add(service)
        self._wake.set()

    async def _update_forever(self) -> None:
        while True:
            await self._wake.wait()
            await asyncio.sleep(BATCH_SECONDS)
            started = time.thread_time()
            await self._update()
            await asyncio.sleep((time.thread_time() - started) * REST_FACTOR)

    async def _update(self) -> None:
        dirty, all_dirty = self._dirty, self._all_dirty
        self._dirty, self._all_dirty = set(), False
        self._wake.clear()
        deployments, _, daemon_sets = self._workloads
        data_planes = find_data_planes([*deployments, *daemon_sets])
        snapshot = build_snapshot(
            self.nodes, self.services, self.slices, namespaces=self.namespaces, data_planes=data_planes
        )
        workloads = [workload for cache in self._workloads for workload in cache]
        view = DashboardView(snapshot, list(self._budgets), workloads, list(self._volumes))
        services = {key_of(served.service): served.service for served in snapshot.services}
        before = self._snapshot
        all_dirty = all_dirty or snapshot.own != before.own  # slices are then counted differently
        all_dirty = all_dirty or data_planes != before.data_planes
        decided = services.keys() if all_dirty else dirty & services.keys()
        snapshot.reuse_forecasts(before, services.keys() - decided)
        for keys in _cut(sorted(decided)):
            for forecast in forecast_services(snapshot, _is_in(keys), self._hints):
                service = services[forecast.key]
                self._rows[str(forecast.key)] = row_builder.service_row(forecast, service, data_planes.of(service))
            await asyncio.sleep(0)
        self._rows = {str(key): self._rows[str(key)] for key in services if str(key) in self._rows}
        self._snapshot = snapshot
        self._state.publish({**row_builder.cluster_rows(view), "services": dict(self._rows)})

    async def _show_notices(self) -> None:
        """Show which watches do not work."""
        while True:
            problems = {cache.name: cache.problem for cache in (*self.watches, *self._optional_watches)}
            if problems[self._budgets.name].startswith("not found"):  # without the CRD there are no budgets
                del problems[self._budgets.name]
            rows = {name: NoticeRow(what=name, trouble=problem) for name, problem in problems.items() if problem}
            components = row_builder.component_rows(self._own_components(), utc_now())
            self._state.publish({"notices": rows, "components": components})
            await asyncio.sleep(NOTICE_SECONDS)

    def _own_components(self) -> ClusterSnapshot:
        """The objects of Zonewise itself."""
        deployments, _, daemon_sets = self._workloads
        webhooks = (configuration for cache in self._webhooks for configuration in cache)
        return ClusterSnapshot(
            deployments=list(filter(_is_own, deployments)),
            daemon_sets=list(filter(_is_own, daemon_sets)),
            leases=[lease for cache in self._leases for lease in cache],
            webhooks=[webhook for webhook in webhooks if webhook.metadata.name in WEBHOOK_CONFIGURATIONS],
            slices=list(self.slices),
        )


def _is_own(viewed: HasMetadata) -> bool:
    return viewed.metadata.labels.get(APP_NAME_LABEL) in COMPONENTS


def _cut(keys: Iterable[Key]) -> Iterator[frozenset[Key]]:
    whole = list(keys)
    return (frozenset(whole[at : at + AT_ONCE]) for at in range(0, len(whole), AT_ONCE))


def _is_in(keys: frozenset[Key]) -> Callable[[Service], bool]:
    return lambda service: key_of(service) in keys
