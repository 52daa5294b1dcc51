"""The process that writes slices: a client, its watches, the leader's lease, events, and the controller of one mode.

`zonewise controller` runs it. What ends it, ends from the inside out: the controller, the lease, events, watches.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Final

from zonewise import log
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import Leadership, unique_identity
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.decide.election import Timing
from zonewise.kube.server.health import Health
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.access import Access
from zonewise.slices.controller import Settings, SliceController
from zonewise.slices.informers import Mode, Sources
from zonewise.slices.overlay_controller import OverlayController
from zonewise.slices.reporter import Reporter

_log = log.get_logger(__name__)

Run = Callable[[], Awaitable[None]]

LEASE: Final = "zonewise-endpointslices"
REPORTING_CONTROLLER: Final = "zonewise.dev/endpointslices"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lead:
    namespace: str = "kube-system"
    name: str = LEASE
    lease_seconds: int = 15

    @property
    def timing(self) -> Timing:
        return Timing(self.lease_seconds, self.lease_seconds * 2 / 3, self.lease_seconds * 2 / 15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Without a `lead` this process writes whatever others do: it must be the only one."""

    mode: Mode = Mode.OWN
    lead: Lead | None = field(default_factory=Lead)
    settings: Settings = field(default_factory=Settings)
    writes_per_second: float = 0.0
    writes_at_once: int = 0


async def live(access: Access, options: Options, health: Health) -> None:
    """Until cancelled."""
    identity = unique_identity()
    async with Client(access) as client:
        leadership = _leadership(client, options, identity)
        caches = Caches(client)
        async with Recorder(client, REPORTING_CONTROLLER, identity) as recorder:
            sources, run = _controller(_writing(client, leadership, options), caches, recorder, options)
            health.add_ready("watches", lambda: _trouble(sources))
            async with caches:
                await caches.wait_synced()
                health.started()
                _log.info("controller started", mode=options.mode, server=access.server, leads=leadership is None)
                await (leadership.run(run) if leadership else run())


def _leadership(client: Client, options: Options, identity: str) -> Leadership | None:
    lead = options.lead
    if lead is None:
        return None
    return Leadership(client, lead.name, lead.namespace, identity=identity, timing=lead.timing)


def _writing(client: Client, leadership: Leadership | None, options: Options) -> Client:
    if options.writes_per_second:
        client = client.limited("slices", options.writes_per_second, max(1, options.writes_at_once))
    return client.guarded(leadership) if leadership else client


def _controller(client: Client, caches: Caches, recorder: Recorder, options: Options) -> tuple[Sources, Run]:
    settings = options.settings
    if options.mode is Mode.OWN:
        own = SliceController(client, caches, recorder, settings)
        return own.sources, own.run
    sources = Sources(caches, Mode.OVERLAY)
    reporter = Reporter(client, recorder)
    overlay = OverlayController(client, sources, reporter, hints=settings.hints, workers=settings.workers)
    return sources, overlay.run


def _trouble(sources: Sources) -> str | None:
    watches = (sources.services, sources.nodes, sources.namespaces, sources.slices, sources.pods)
    problems = [f"{watch.name}: {watch.problem}" for watch in watches if watch is not None and watch.problem]
    return "; ".join(problems) or None
