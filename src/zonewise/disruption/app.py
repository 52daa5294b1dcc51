"""The processes of disruption: the leader that keeps budgets and rollouts, and the guard that webhooks serve.

`zonewise controller --parts disruption` runs `live`; `zonewise webhook --parts disruption` serves the webhooks of
`guard` and has `register` tell API servers of them. What ends the leader, ends from the inside out: its controllers, the
lease, events, watches.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from zonewise import log
from zonewise.api.names import DISRUPTION_LEASE, DISRUPTION_REPORTER
from zonewise.disruption.controller.budget_store import BudgetStore
from zonewise.disruption.controller.events import BudgetEvents
from zonewise.disruption.controller.rollout import RolloutController
from zonewise.disruption.controller.scaledown import ScaleDownController
from zonewise.disruption.controller.status_writer import StatusWriter
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.disruption.webhook import registration
from zonewise.disruption.webhook.guard import EvictionGuard
from zonewise.disruption.webhook.leader_monitor import SILENT_SECONDS, LeaderMonitor
from zonewise.errors import ZonewiseError
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import LeaderElector, unique_identity
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.decide.election import Timing
from zonewise.kube.server.health import Health
from zonewise.kube.watch.cache import trouble_of
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.patch import Apply
from zonewise.objects import Key, Resource, View

_log = log.get_logger(__name__)

Run = Callable[[], Awaitable[None]]

_REGISTRATION: Final = "zonewise-registration"
_POLICIES_SINCE: Final = (1, 30)
_LOOK_SECONDS: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DisruptionLeader:
    namespace: str = "kube-system"
    name: str = DISRUPTION_LEASE
    lease_seconds: int = 15

    @property
    def timing(self) -> Timing:
        return Timing(self.lease_seconds, self.lease_seconds * 2 / 3, self.lease_seconds * 2 / 15)


async def live(access: ClusterAccess, lead: DisruptionLeader | None, health: Health) -> None:
    """Until cancelled. Without a `lead` this process writes whatever others do: it must be the only one."""
    identity = unique_identity()
    async with Client(access) as client:
        leadership = _leadership(client, lead, identity)
        caches = Caches(client)
        async with Recorder(client, DISRUPTION_REPORTER, identity) as recorder:
            sources = DisruptionInformers(caches)
            workloads = WorkloadInformers(client, caches, sources)
            health.add_ready("budgets", lambda: trouble_of((*sources.watches, *workloads.watches)))
            writing = client.guarded(leadership) if leadership else client
            runs = _controllers(writing, sources, workloads, recorder)
            async with caches:
                await caches.wait_synced()
                health.started()
                _log.info("disruption controller started", server=access.server, leads=leadership is None)
                await (leadership.run(lambda: _together(runs)) if leadership else _together(runs))


def _controllers(
    client: Client, sources: DisruptionInformers, workloads: WorkloadInformers, recorder: Recorder
) -> Sequence[Run]:
    """What a leader runs; `client` writes only while it leads."""
    publisher = StatusWriter(sources, workloads, BudgetStore(client, sources.budgets), BudgetEvents(client, recorder))
    rollouts = RolloutController(client, sources, workloads, publisher, recorder)
    scale_down = ScaleDownController(client, sources, workloads, publisher, recorder)
    return [workloads.run, publisher.run, rollouts.run, scale_down.run, lambda: _while_seeing(sources, workloads)]


async def _while_seeing(*seen: DisruptionInformers | WorkloadInformers) -> None:
    """Ends who holds the lease and sees nothing: webhooks go by his numbers for as long as he renews it."""
    blind_seconds = 0.0
    while blind_seconds < SILENT_SECONDS:
        await asyncio.sleep(_LOOK_SECONDS)
        blind_seconds = blind_seconds + _LOOK_SECONDS if any(each.blind for each in seen) else 0.0
    raise ZonewiseError(
        f"what the budgets count could not be watched for {SILENT_SECONDS:g} s: the lease is given back"
    )


async def _together(runs: Sequence[Run]) -> None:
    async with asyncio.TaskGroup() as group:
        for run in runs:
            group.create_task(_awaited(run))


async def _awaited(run: Run) -> None:
    await run()


def _leadership(client: Client, lead: DisruptionLeader | None, identity: str) -> LeaderElector | None:
    if lead is None:
        return None
    return LeaderElector(client, lead.name, lead.namespace, identity=identity, timing=lead.timing)


def guard(client: Client, caches: Caches, lease_namespace: str) -> EvictionGuard:
    """Registered with `caches` before these run."""
    sources = DisruptionInformers(caches)
    leader = LeaderMonitor(caches, Key(lease_namespace, DISRUPTION_LEASE))
    return EvictionGuard(client, sources, BudgetStore(client, sources.budgets), leader)


async def register(client: Client, client_configs: Mapping[str, Mapping[str, Any]], system_namespace: str) -> None:
    """Makes or corrects what makes API servers ask; the certificates they trust, which it does not name, stay."""
    has_policies = _version(await client.version()) >= _POLICIES_SINCE
    for body in registration.documents(client_configs, system_namespace, has_policies=has_policies):
        await client.patch(_resource(body), body["metadata"]["name"], Apply(body, _REGISTRATION, force=True))
    _log.info("evictions and deletes are guarded", by_policy=has_policies)


def _resource(body: Mapping[str, Any]) -> Resource[View]:
    group, _, version = body["apiVersion"].rpartition("/")
    kind: str = body["kind"]
    plural = kind.lower().removesuffix("y") + "ies" if kind.endswith("y") else f"{kind.lower()}s"
    return Resource(View, kind, plural, group, version, namespaced=False)


def _version(text: str) -> tuple[int, int]:
    """Of "v1.36.3", or "v1.29.10-gke.100"."""
    found = re.match(r"v(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else (0, 0)
