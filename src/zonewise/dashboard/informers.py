"""Watches the cluster and keeps the board as it is: what changed is looked at again, with what else came meanwhile.

A Service is decided anew when its own objects change, and all are when nodes or namespaces change as routing sees them.
The rest of the tables costs little and is made whole.
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
from zonewise.diagnostics.decide.status.assemble import COMPONENTS, WEBHOOK_CONFIGURATIONS, ClusterSnapshot
from zonewise.diagnostics.decide.status.assemble import LEASE_DUTIES as DUTIES
from zonewise.kube.server.cert_manager import utc_now
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.objects import (
    ENDPOINT_SLICES,
    LEASES,
    NAMESPACES,
    NODES,
    SERVICES,
    EndpointSlice,
    HasMetadata,
    Key,
    Namespace,
    Node,
    Service,
    key_of,
)
from zonewise.objects.admissionregistration import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
)
from zonewise.objects.apps import DAEMON_SETS, DEPLOYMENTS, STATEFUL_SETS
from zonewise.objects.change import Change
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.objects.storage import PERSISTENT_VOLUMES
from zonewise.planning.data_plane import find_data_planes
from zonewise.planning.forecast import forecast_services
from zonewise.planning.snapshot import Snapshot, build_snapshot
from zonewise.routing import HintsForm
from zonewise.slices.decide.change_filter import names_drain, routing_matters
from zonewise.slices.decide.names import service_key

COMPANY_SECONDS: Final = 0.25
"""How long a change waits for others."""
REST_FACTOR: Final = 4.0
"""How much longer than it worked it rests, so that a busy cluster costs a fifth of a core at most."""
NOTICE_SECONDS: Final = 5.0
AT_ONCE: Final = 50
"""Services decided between two chances for others to run."""


class DashboardInformers:
    def __init__(self, caches: Caches, board: LiveState, hints: HintsForm = HintsForm.STABLE, home: str = "") -> None:
        """Leases are looked for in the namespace `home`, in all of them where it is empty."""
        self._board = board
        self._hints = hints
        self.nodes = caches.of(NODES)
        self._services = caches.of(SERVICES)
        self._slices = caches.of(ENDPOINT_SLICES)
        self._namespaces = caches.of(NAMESPACES)
        self._budgets = caches.of(TOPOLOGY_DISRUPTION_BUDGETS)
        self._workloads: list[Cache[Any]] = [caches.of(DEPLOYMENTS), caches.of(STATEFUL_SETS), caches.of(DAEMON_SETS)]
        self._volumes = caches.of(PERSISTENT_VOLUMES)
        self._leases = [caches.of(LEASES, home, fields=f"metadata.name={name}") for name in DUTIES]
        self._webhooks = [caches.of(VALIDATING_WEBHOOK_CONFIGURATIONS), caches.of(MUTATING_WEBHOOK_CONFIGURATIONS)]
        self._situation = Snapshot((), ())
        self._rows: dict[str, ServiceRow] = {}
        self._changed: set[Key] = set()
        self._all_changed = True
        self._woken = asyncio.Event()

    @property
    def needed(self) -> tuple[Cache[Any], ...]:
        """Without these there is nothing to show."""
        return self.nodes, self._services, self._slices, self._namespaces

    @property
    def _others(self) -> tuple[Cache[Any], ...]:
        return self._budgets, *self._workloads, self._volumes, *self._leases, *self._webhooks

    def situation(self) -> Snapshot:
        """As it was last looked at, and the page shows it: what is foreseen of it is known already."""
        return self._situation

    async def run(self, ready: Callable[[], None]) -> None:
        """Until cancelled; `ready` is called when the board shows the cluster."""
        await self._synced()
        self._listen()
        await self._look()
        ready()
        async with asyncio.TaskGroup() as group:
            group.create_task(self._look_again(), name="look again")
            group.create_task(self._notice(), name="notices")

    async def _synced(self) -> None:
        notices = asyncio.create_task(self._notice(), name="notices while starting")
        try:
            for cache in self.needed:
                await cache.wait_synced()
        finally:
            notices.cancel()

    def _listen(self) -> None:
        self.nodes.on_change(self._node_changed, from_now_on=True)
        self._namespaces.on_change(self._namespace_changed, from_now_on=True)
        self._services.on_change(self._service_changed, from_now_on=True)
        self._slices.on_change(self._slice_changed, from_now_on=True)
        for cache in (self._budgets, *self._workloads, self._volumes):
            cache.on_change(lambda _: self._woken.set(), from_now_on=True)

    def _node_changed(self, change: Change[Node]) -> None:
        if routing_matters(change.old, change.new):
            self._look_at_all()

    def _namespace_changed(self, change: Change[Namespace]) -> None:
        if names_drain(change.old) != names_drain(change.new):
            self._look_at_all()

    def _service_changed(self, change: Change[Service]) -> None:
        self._look_at(change.key)

    def _slice_changed(self, change: Change[EndpointSlice]) -> None:
        for viewed in (change.old, change.new):
            if viewed is not None:
                self._look_at(service_key(viewed))

    def _look_at_all(self) -> None:
        self._all_changed = True
        self._woken.set()

    def _look_at(self, key: Key) -> None:
        self._changed.add(key)
        self._woken.set()

    async def _look_again(self) -> None:
        while True:
            await self._woken.wait()
            await asyncio.sleep(COMPANY_SECONDS)
            started = time.thread_time()
            await self._look()
            await asyncio.sleep((time.thread_time() - started) * REST_FACTOR)

    async def _look(self) -> None:
        changed, everything = self._changed, self._all_changed
        self._changed, self._all_changed = set(), False
        self._woken.clear()
        deployments, _, daemon_sets = self._workloads
        carriers = find_data_planes([*deployments, *daemon_sets])
        situation = build_snapshot(
            self.nodes, self._services, self._slices, namespaces=self._namespaces, data_planes=carriers
        )
        workloads = [workload for cache in self._workloads for workload in cache]
        world = DashboardView(situation, list(self._budgets), workloads, list(self._volumes))
        services = {key_of(served.service): served.service for served in situation.services}
        before = self._situation
        everything = everything or situation.own != before.own  # then slices are counted otherwise
        everything = everything or carriers != before.data_planes
        again = services.keys() if everything else changed & services.keys()
        situation.reuse_forecasts(before, services.keys() - again)
        for keys in _cut(sorted(again)):
            for found in forecast_services(situation, _is_in(keys), self._hints):
                written = services[found.key]
                self._rows[str(found.key)] = row_builder.service_row(found, written, carriers.of(written))
            await asyncio.sleep(0)
        self._rows = {str(key): self._rows[str(key)] for key in services if str(key) in self._rows}
        self._situation = situation
        self._board.publish({**row_builder.cluster_rows(world), "services": dict(self._rows)})

    async def _notice(self) -> None:
        """What can't be watched is said, not hidden."""
        while True:
            troubles = {cache.name: cache.problem for cache in (*self.needed, *self._others)}
            if troubles[self._budgets.name].startswith("not found"):  # nobody has defined them, so there are none
                del troubles[self._budgets.name]
            rows = {name: NoticeRow(what=name, trouble=trouble) for name, trouble in troubles.items() if trouble}
            self._board.publish({"notices": rows, "components": row_builder.component_rows(self._seen(), utc_now())})
            await asyncio.sleep(NOTICE_SECONDS)

    def _seen(self) -> ClusterSnapshot:
        """What tells of Zonewise itself."""
        deployments, _, daemon_sets = self._workloads
        return ClusterSnapshot(
            deployments=[found for found in deployments if _is_ours(found)],
            daemon_sets=[found for found in daemon_sets if _is_ours(found)],
            leases=[lease for cache in self._leases for lease in cache],
            webhooks=[
                found for cache in self._webhooks for found in cache if found.metadata.name in WEBHOOK_CONFIGURATIONS
            ],
            slices=list(self._slices),
        )


def _is_ours(found: HasMetadata) -> bool:
    return found.metadata.labels.get(APP_NAME_LABEL) in COMPONENTS


def _cut(keys: Iterable[Key]) -> Iterator[frozenset[Key]]:
    whole = list(keys)
    return (frozenset(whole[at : at + AT_ONCE]) for at in range(0, len(whole), AT_ONCE))


def _is_in(keys: frozenset[Key]) -> Callable[[Service], bool]:
    return lambda service: key_of(service) in keys
