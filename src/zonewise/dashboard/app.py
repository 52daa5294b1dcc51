"""`zonewise dashboard` as a process: watches, the board, the scraper and the server, together until a signal comes."""

from __future__ import annotations

import asyncio
import datetime as dt
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from zonewise import __version__, log
from zonewise.dashboard import from_dump
from zonewise.dashboard.auth import Authenticator, LoopbackAuthenticator, TokenReviewAuthenticator, is_loopback
from zonewise.dashboard.informers import DashboardInformers
from zonewise.dashboard.live_state import LiveState
from zonewise.dashboard.scraper import Measure, Scraper
from zonewise.dashboard.server import DashboardServer, serve
from zonewise.diagnostics.read.status import measure_traffic
from zonewise.kube.client.client import Client
from zonewise.kube.server.cert_manager import install, server_context, utc_now
from zonewise.kube.server.certificates import Authorities, Lifetimes
from zonewise.kube.server.health import Health
from zonewise.kube.server.listening import listen
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.access import ClusterAccess
from zonewise.planning.snapshot import DumpObjects, Snapshot
from zonewise.routing import HintsForm

_log = log.get_logger(__name__)
RELOAD_SECONDS: Final = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    address: str = "127.0.0.1"
    port: int = 0
    proxy_port: int = 10356
    hints: HintsForm = HintsForm.STABLE
    certificate: tuple[Path, Path] | None = None
    """Files of the certificate and its key; without them one is made, which browsers warn of."""
    scrape_seconds: float = 5.0
    login: bool = False
    """Ask who may look on loopback, too."""
    home: str = ""
    """Where Zonewise runs, if its leases may be read there only."""

    @property
    def local(self) -> bool:
        """Everybody on this machine may look, over plain HTTP."""
        return is_loopback(self.address) and not self.login


Say = Callable[[str], None]


async def show_cluster(access: ClusterAccess, settings: DashboardConfig, health: Health, say: Say) -> None:
    """Until cancelled. `say` is told the address once the page shows something."""
    about = {
        "source": _source(access),
        "live": True,
        "version": __version__,
        "login": not settings.local,
    }
    async with Client(access) as client, asyncio.TaskGroup() as group:
        caches = Caches(client)
        board = LiveState(about)
        sources = DashboardInformers(caches, board, settings.hints, settings.home)
        door: Authenticator = (
            LoopbackAuthenticator()
            if settings.local
            else TokenReviewAuthenticator(client.limited("reviews", qps=20, burst=40))
        )
        scraper = Scraper(
            sources.nodes, settings.proxy_port, board, settings.scrape_seconds, _through(client, settings)
        )
        group.create_task(caches.run(), name="watches")
        group.create_task(_scrape(sources, scraper), name="traffic")
        server = DashboardServer(board, sources.situation, door, settings.hints)
        group.create_task(_serve(server, settings, say), name="page")
        await sources.run(health.started)


def _source(access: ClusterAccess) -> str:
    """Which cluster, without the place of a file on this machine: others may look, too."""
    return access.origin.partition(" of ")[0] or access.server


def _through(client: Client, settings: DashboardConfig) -> Measure | None:
    """Only for whoever looks from their own machine: in the cluster proxies are reached, and such rights are given to none."""
    if not is_loopback(settings.address):
        return None
    asking = client.limited("traffic", qps=50, burst=100)
    return lambda: measure_traffic(asking)


async def _scrape(sources: DashboardInformers, scraper: Scraper) -> None:
    await sources.nodes.wait_synced()
    await scraper.run()


async def show_dump(found: DumpObjects, source: str, settings: DashboardConfig, health: Health, say: Say) -> None:
    board = LiveState({"source": source, "live": False, "version": __version__, "login": False})
    situation: Snapshot = from_dump.publish_dump(found, board, settings.hints)
    health.started()
    server = DashboardServer(
        board, lambda: situation, LoopbackAuthenticator(), settings.hints, "-" if source == "stdin" else source
    )
    await _serve(server, settings, say)


async def _serve(server: DashboardServer, settings: DashboardConfig, say: Say) -> None:
    async with serve(server.application()) as runner, asyncio.TaskGroup() as group:
        context = None if settings.local else server_context()
        if context is not None:
            _certify(context, settings)
            group.create_task(_recertify(context, settings), name="certificate")
        port = await listen(runner, "the dashboard", settings.address, settings.port, context)
        host = f"[{settings.address}]" if ":" in settings.address else settings.address
        say(f"http{'s' if context else ''}://{host}:{port}/")
        await asyncio.Event().wait()


def _certify(context: ssl.SSLContext, settings: DashboardConfig) -> None:
    if settings.certificate is not None:
        context.load_cert_chain(*settings.certificate)
        return
    lifetimes, now = Lifetimes(), utc_now()
    authority = Authorities().renewed(now, lifetimes).members[-1]
    install(context, authority.issue(("localhost", settings.address), now, dt.timedelta(days=30)))


async def _recertify(context: ssl.SSLContext, settings: DashboardConfig) -> None:
    """Files are read again and again, as whoever renews them replaces them; what can't be read leaves the old one in use."""
    while True:
        await asyncio.sleep(RELOAD_SECONDS if settings.certificate else dt.timedelta(days=7).total_seconds())
        try:
            _certify(context, settings)
        except (OSError, ssl.SSLError) as error:
            _log.warning("certificate not read again", error=str(error))
