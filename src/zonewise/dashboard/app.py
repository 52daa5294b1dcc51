"""`zonewise dashboard` as a process: informers, live state, the scraper of proxies and the web server."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from zonewise import __version__
from zonewise.api.names import SYSTEM_NAMESPACE
from zonewise.dashboard import from_dump
from zonewise.dashboard.auth import Authenticator, LoopbackAuthenticator, TokenReviewAuthenticator
from zonewise.dashboard.informers import DashboardInformers
from zonewise.dashboard.live_state import LiveState
from zonewise.dashboard.scraper import Measure, Scraper
from zonewise.dashboard.server import DashboardServer, serve
from zonewise.diagnostics.read.status import measure_traffic
from zonewise.kube.client import metrics_token
from zonewise.kube.client.client import Client
from zonewise.kube.client.metrics_token import TokenSource
from zonewise.kube.manager import Manager
from zonewise.kube.server.health import Health
from zonewise.kube.server.listening import is_loopback, listen
from zonewise.kube.server.tls import ServingCertificate
from zonewise.kube.wire.access import ClusterAccess
from zonewise.planning.snapshot import DumpObjects, Snapshot
from zonewise.routing import HintsForm


@dataclass(frozen=True, slots=True, kw_only=True)
class DashboardConfig:
    address: str = "127.0.0.1"
    port: int = 0
    proxy_port: int = 10357
    proxy_token: Path | None = None
    """A file with a token for the proxies' metrics."""
    hints: HintsForm = HintsForm.STABLE
    certificate: tuple[Path, Path] | None = None
    """Files of the certificate and its key. Without them a self-signed one is made, of which browsers warn."""
    scrape_seconds: float = 5.0
    login: bool = False
    """Authenticate on loopback addresses, too."""
    home: str = ""
    """The namespace of Zonewise, if its leases may be read there only."""

    @property
    def local(self) -> bool:
        """Every user of this machine may view the page, over plain HTTP."""
        return is_loopback(self.address) and not self.login


Say = Callable[[str], None]


async def show_cluster(access: ClusterAccess, settings: DashboardConfig, health: Health, say: Say) -> None:
    """Until cancelled. `say` is called with the page's address."""
    manager = Manager(access, health)
    client = manager.client
    state = LiveState({"source": _source(access), "live": True, "version": __version__, "login": not settings.local})
    informers = DashboardInformers(manager.caches, state, settings.hints, settings.home)
    authenticator: Authenticator = LoopbackAuthenticator() if settings.local else TokenReviewAuthenticator(client)
    measure = _through_api_server(client, settings)
    scraper = Scraper(
        informers.nodes, settings.proxy_port, state, settings.scrape_seconds, measure, _token_source(client, settings)
    )
    server = DashboardServer(state, informers.snapshot, authenticator, settings.hints)
    manager.add("traffic", lambda: _scrape(informers, scraper))
    manager.add("page", lambda: _serve(server, settings, say))
    manager.add("informers", lambda: informers.run(health.started))
    await manager.run()


def _source(access: ClusterAccess) -> str:
    """The cluster, without the path of a file on this machine: the page may be viewed from elsewhere."""
    return access.origin.partition(" of ")[0] or access.server


def _through_api_server(client: Client, settings: DashboardConfig) -> Measure | None:
    """Only on a user's own machine: in the cluster the proxies can be reached, and the rights are not granted."""
    if not is_loopback(settings.address):
        return None
    limited = client.limited("traffic", qps=50, burst=100)
    return lambda: measure_traffic(limited)


def _token_source(client: Client, settings: DashboardConfig) -> TokenSource | None:
    if settings.proxy_token is not None:
        return metrics_token.from_file(settings.proxy_token)
    if is_loopback(settings.address):
        return metrics_token.from_api_server(client, settings.home or SYSTEM_NAMESPACE)
    return None


async def _scrape(informers: DashboardInformers, scraper: Scraper) -> None:
    await informers.nodes.wait_synced()
    await scraper.run()


async def show_dump(objects: DumpObjects, source: str, settings: DashboardConfig, health: Health, say: Say) -> None:
    state = LiveState({"source": source, "live": False, "version": __version__, "login": False})
    snapshot: Snapshot = from_dump.publish_dump(objects, state, settings.hints)
    health.started()
    server = DashboardServer(
        state, lambda: snapshot, LoopbackAuthenticator(), settings.hints, "-" if source == "stdin" else source
    )
    await _serve(server, settings, say)


async def _serve(server: DashboardServer, settings: DashboardConfig, say: Say) -> None:
    async with serve(server.application()) as runner, asyncio.TaskGroup() as group:
        context = None
        if not settings.local:
            certificate = ServingCertificate(("localhost", settings.address), settings.certificate)
            await certificate.load()
            group.create_task(certificate.run(), name="certificate")
            context = certificate.context
        port = await listen(runner, server.connections, settings.address, settings.port, context)
        host = f"[{settings.address}]" if ":" in settings.address else settings.address
        say(f"http{'s' if context else ''}://{host}:{port}/")
        await asyncio.Event().wait()
