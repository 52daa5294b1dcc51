"""The disruption part of `zonewise controller`, and the eviction guard that `zonewise webhook` serves.

The leader counts budgets and runs rollouts and scale-downs. The guard answers API servers; `register` creates the objects
that make them ask.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from zonewise import log
from zonewise.api.names import DISRUPTION_CONFIGURATION, DISRUPTION_LEASE, DISRUPTION_REPORTER
from zonewise.disruption.controller.budget_store import BudgetStore
from zonewise.disruption.controller.events import BudgetEvents
from zonewise.disruption.controller.rollout import RolloutController
from zonewise.disruption.controller.scaledown import ScaleDownController
from zonewise.disruption.controller.status_writer import StatusWriter
from zonewise.disruption.decide.ledger import REQUEST_SECONDS
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.disruption.webhook import registration
from zonewise.disruption.webhook.guard import EvictionGuard
from zonewise.disruption.webhook.leader_monitor import SILENT_SECONDS, LeaderMonitor
from zonewise.errors import ZonewiseError
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.manager import LeaseConfig, Manager, Run
from zonewise.kube.watch.cache import trouble_of
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.patch import Apply
from zonewise.objects import Key, Resource, View
from zonewise.objects.admissionregistration import VALIDATING_WEBHOOK_CONFIGURATIONS

_log = log.get_logger(__name__)

_REGISTRATION: Final = "zonewise-registration"
_POLICIES_SINCE: Final = (1, 30)
_CHECK_SECONDS: Final = 5.0


def add_to(manager: Manager, lease: LeaseConfig | None, request_seconds: float = REQUEST_SECONDS) -> None:
    """Without a `lease` this process always writes: it must be the only replica.

    `request_seconds` is the --request-timeout of the API servers.
    """
    leader = manager.leader(lease)
    informers = DisruptionInformers(manager.caches)
    workloads = WorkloadInformers(manager.client, manager.caches, informers)
    watches = (*informers.watches, *workloads.watches)
    manager.health.add_ready("budgets", lambda: trouble_of(watches))
    recorder = manager.recorder(DISRUPTION_REPORTER)
    runs = _controllers(leader.guarded(manager.client), informers, workloads, recorder, request_seconds)

    async def run() -> None:
        await manager.started(watches)
        _log.info("disruption controller started", server=manager.access.server, leads=leader.is_alone)
        await leader.run(*runs)

    manager.add("disruption", run)


def _controllers(
    client: Client,
    informers: DisruptionInformers,
    workloads: WorkloadInformers,
    recorder: Recorder,
    request_seconds: float,
) -> Sequence[Run]:
    """What a leader runs; `client` writes only while it leads."""
    store, events = BudgetStore(client, informers.budgets), BudgetEvents(client, recorder)
    writer = StatusWriter(client, informers, workloads, store, events, request_seconds=request_seconds)
    rollouts = RolloutController(client, informers, workloads, writer, recorder)
    scale_down = ScaleDownController(client, informers, workloads, writer, recorder)
    return [workloads.run, writer.run, rollouts.run, scale_down.run, lambda: _exit_when_blind(informers, workloads)]


async def _exit_when_blind(*informers: DisruptionInformers | WorkloadInformers) -> None:
    """Exit when watches are down for 30 s; otherwise webhooks trust stale counts for as long as the lease is renewed."""
    blind_seconds = 0.0
    while blind_seconds < SILENT_SECONDS:
        await asyncio.sleep(_CHECK_SECONDS)
        blind_seconds = blind_seconds + _CHECK_SECONDS if any(watched.blind for watched in informers) else 0.0
    raise ZonewiseError(
        f"what the budgets count could not be watched for {SILENT_SECONDS:g} s: the lease is given back"
    )


def guard(client: Client, caches: Caches, lease_namespace: str) -> EvictionGuard:
    """Registered with `caches` before these run."""
    informers = DisruptionInformers(caches)
    leader = LeaderMonitor(caches, Key(lease_namespace, DISRUPTION_LEASE))
    validating = caches.of(VALIDATING_WEBHOOK_CONFIGURATIONS, fields=f"metadata.name={DISRUPTION_CONFIGURATION}")

    def may_patch() -> bool:
        """Not while the configuration of a release before 0.2 is registered."""
        webhooks = (webhook for configuration in validating for webhook in configuration.webhooks)
        return all(webhook.name != registration.EVICTION_WEBHOOK for webhook in webhooks)

    store = BudgetStore(client, informers.budgets)
    return EvictionGuard(client, informers, store, leader, may_patch=may_patch)


async def register(client: Client, client_configs: Mapping[str, Mapping[str, Any]], system_namespace: str) -> None:
    """Apply the webhook configuration and policies. The CA bundle is not part of them and stays."""
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
    version = re.match(r"v(\d+)\.(\d+)", text)
    return (int(version[1]), int(version[2])) if version else (0, 0)
