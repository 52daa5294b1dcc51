"""The EndpointSlice controllers as a part of `zonewise controller`: informers, a leader lease and one mode's controller."""

from __future__ import annotations

from dataclasses import dataclass, field

from zonewise import log
from zonewise.api.names import SLICES_LEASE, SLICES_REPORTER
from zonewise.kube.client.client import Client
from zonewise.kube.controller.recorder import Recorder
from zonewise.kube.manager import LeaseConfig, Manager, Run
from zonewise.kube.watch.cache import trouble_of
from zonewise.kube.watch.informers import Caches
from zonewise.slices.controller import SliceController, SlicesConfig
from zonewise.slices.informers import SliceInformers, SlicesMode
from zonewise.slices.overlay_controller import OverlayController
from zonewise.slices.reporter import RoutingReporter

_log = log.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SlicesOptions:
    """Without a `lease` this process always writes: it must be the only replica."""

    mode: SlicesMode = SlicesMode.OWN
    lease: LeaseConfig | None = field(default_factory=lambda: LeaseConfig(name=SLICES_LEASE))
    config: SlicesConfig = field(default_factory=SlicesConfig)
    writes_per_second: float = 0.0
    writes_at_once: int = 0


def add_to(manager: Manager, options: SlicesOptions) -> None:
    leader = manager.leader(options.lease)
    client = manager.client
    if options.writes_per_second:
        client = client.limited("slices", options.writes_per_second, max(1, options.writes_at_once))
    informers, reconcile = _controller(
        leader.guarded(client), manager.caches, manager.recorder(SLICES_REPORTER), options
    )
    manager.health.add_ready("watches", lambda: trouble_of(informers.watches))

    async def run() -> None:
        await manager.started(informers.watches)
        _log.info("controller started", mode=options.mode, server=manager.access.server, leads=leader.is_alone)
        await leader.run(reconcile)

    manager.add("slices", run)


def _controller(
    client: Client, caches: Caches, recorder: Recorder, options: SlicesOptions
) -> tuple[SliceInformers, Run]:
    config = options.config
    if options.mode is SlicesMode.OWN:
        own = SliceController(client, caches, recorder, config)
        return own.informers, own.run
    informers = SliceInformers(caches, SlicesMode.OVERLAY)
    reporter = RoutingReporter(client, recorder)
    overlay = OverlayController(client, informers, reporter, hints=config.hints, workers=config.workers)
    return informers, overlay.run
