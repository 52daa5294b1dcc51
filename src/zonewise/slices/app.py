"""The process that writes slices: a client, its watches, the leader's lease, events, and the controller of one mode.

`zonewise controller` runs it. What ends it, ends from the inside out: the controller, the lease, events, watches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from zonewise import log
from zonewise.api.names import SLICES_LEASE, SLICES_REPORTER
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import LeaderElector, unique_identity
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.decide.election import Timing
from zonewise.kube.server.health import Health
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.access import ClusterAccess
from zonewise.slices.controller import SliceController, SlicesConfig
from zonewise.slices.informers import SliceInformers, SlicesMode
from zonewise.slices.overlay_controller import OverlayController
from zonewise.slices.reporter import RoutingReporter

_log = log.get_logger(__name__)

Run = Callable[[], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesLeader:
    namespace: str = "kube-system"
    name: str = SLICES_LEASE
    lease_seconds: int = 15

    @property
    def timing(self) -> Timing:
        return Timing(self.lease_seconds, self.lease_seconds * 2 / 3, self.lease_seconds * 2 / 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesOptions:
    """Without a `lead` this process writes whatever others do: it must be the only one."""

    mode: SlicesMode = SlicesMode.OWN
    lead: SlicesLeader | None = field(default_factory=SlicesLeader)
    settings: SlicesConfig = field(default_factory=SlicesConfig)
    writes_per_second: float = 0.0
    writes_at_once: int = 0


async def live(access: ClusterAccess, options: SlicesOptions, health: Health) -> None:
    """Until cancelled."""
    identity = unique_identity()
    async with Client(access) as client:
        leadership = _leadership(client, options, identity)
        caches = Caches(client)
        async with Recorder(client, SLICES_REPORTER, identity) as recorder:
            sources, run = _controller(_writing(client, leadership, options), caches, recorder, options)
            health.add_ready("watches", lambda: _trouble(sources))
            async with caches:
                await caches.wait_synced()
                health.started()
                _log.info("controller started", mode=options.mode, server=access.server, leads=leadership is None)
                await (leadership.run(run) if leadership else run())


def _leadership(client: Client, options: SlicesOptions, identity: str) -> LeaderElector | None:
    lead = options.lead
    if lead is None:
        return None
    return LeaderElector(client, lead.name, lead.namespace, identity=identity, timing=lead.timing)


def _writing(client: Client, leadership: LeaderElector | None, options: SlicesOptions) -> Client:
    if options.writes_per_second:
        client = client.limited("slices", options.writes_per_second, max(1, options.writes_at_once))
    return client.guarded(leadership) if leadership else client


def _controller(
    client: Client, caches: Caches, recorder: Recorder, options: SlicesOptions
) -> tuple[SliceInformers, Run]:
    settings = options.settings
    if options.mode is SlicesMode.OWN:
        own = SliceController(client, caches, recorder, settings)
        return own.sources, own.run
    sources = SliceInformers(caches, SlicesMode.OVERLAY)
    reporter = RoutingReporter(client, recorder)
    overlay = OverlayController(client, sources, reporter, hints=settings.hints, workers=settings.workers)
    return sources, overlay.run


def _trouble(sources: SliceInformers) -> str | None:
    watches = (sources.services, sources.nodes, sources.namespaces, sources.slices, sources.pods)
    problems = [f"{watch.name}: {watch.problem}" for watch in watches if watch is not None and watch.problem]
    return "; ".join(problems) or None
