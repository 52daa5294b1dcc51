"""`zonewise dashboard`: serves the live page of a cluster, or of a dump."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zonewise import log
from zonewise.cli import dumps
from zonewise.cli.options import cluster_options, health_options, hints_option, listen, log_options
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from zonewise.dashboard.app import DashboardConfig
    from zonewise.kube.process import HealthListen, Main
    from zonewise.kube.wire.access import ClusterAccess

PORT = 8480
HEALTH_PORT = 10358
PROXY_PORT = 10357


@click.command(
    epilog="""\b
Examples:
  zonewise dashboard                              the current cluster, on http://127.0.0.1:8480/
  zonewise dashboard --port 0                     on any free port
  zonewise dashboard -f dump.yaml                 a dump instead of a cluster
  zonewise dashboard --address 0.0.0.0            on the network: over TLS, with login
"""
)
@dumps.file_option
@click.option("--address", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=PORT,
    show_default=True,
    help="Port to listen on; 0 for any free port.",
)
@click.option(
    "--proxy-port",
    type=click.IntRange(1, 65535),
    default=PROXY_PORT,
    show_default=True,
    help="Port of the traffic metrics of each node's proxy (its --metrics-port).",
)
@click.option(
    "--proxy-token",
    type=click.Path(path_type=Path),
    help="File with a token for these metrics. Read again when it changes. [default: on a loopback address, one that the "
    "API server issues for the service account zonewise-metrics-reader]",
)
@click.option("--login", is_flag=True, help="Require a login over TLS on a loopback address, too.")
@click.option(
    "--home",
    metavar="NAMESPACE",
    default="",
    help="Namespace of Zonewise: read leases there only. [default: all namespaces]",
)
@click.option(
    "--tls-cert", type=click.Path(path_type=Path), help="File with the server certificate. Reloaded when it changes."
)
@click.option("--tls-key", type=click.Path(path_type=Path), help="File with the key of the certificate.")
@hints_option
@health_options(HEALTH_PORT, " On a loopback address, always any free port.")
@cluster_options
@log_options
def dashboard(**options: Any) -> None:
    """Serve a live page of the cluster: zones and the traffic between them, the reason for the routing of each Service,
    budgets, volumes, and the effect of a change.

    The page is read-only. On a loopback address (the default) every user of this machine can open it. On any other
    address it is served over TLS, and the API server authorises each reader: they need the verb get on
    dashboards.zonewise.dev.
    """
    from zonewise.kube import process

    log.configure(options["log_format"], options["log_level"])
    settings = _settings(options)
    main, where = _run(options, settings)
    sys.exit(process.run(main, listen=where))


def _settings(options: dict[str, Any]) -> DashboardConfig:
    from zonewise.dashboard.app import DashboardConfig
    from zonewise.routing import HintsForm

    certificate = options["tls_cert"], options["tls_key"]
    if any(certificate) and not all(certificate):
        raise UsageError("--tls-cert and --tls-key belong together: set both")
    settings = DashboardConfig(
        address=options["address"],
        port=options["port"],
        proxy_port=options["proxy_port"],
        proxy_token=options["proxy_token"],
        hints=HintsForm(options["hints"]),
        certificate=certificate if all(certificate) else None,
        login=options["login"],
        home=options["home"],
    )
    if options["file"] is not None and not settings.local:
        raise UsageError(
            f"--address {settings.address}: a dump is served on a loopback address only, as no API server can authorise readers"
        )
    return settings


def _run(options: dict[str, Any], settings: DashboardConfig) -> tuple[Main, HealthListen]:
    from zonewise.dashboard import app

    say, file = _say_in(options["log_format"]), options["file"]
    if file is not None:
        from zonewise.dashboard import from_dump

        source = dumps.source_of(file)
        objects = from_dump.read_dump(dumps.bytes_of(file), source)
        return lambda health: app.show_dump(objects, source, settings, health, say), _listen(options, settings, None)
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    return lambda health: app.show_cluster(access, settings, health, say), _listen(options, settings, access)


def _listen(options: dict[str, Any], settings: DashboardConfig, access: ClusterAccess | None) -> HealthListen:
    """Health is on the page's own address, if that is a loopback address."""
    from zonewise.kube.server.listening import is_loopback

    where = listen(options, access)
    return replace(where, host=settings.address, port=0) if is_loopback(settings.address) else where


def _say_in(log_format: str) -> Callable[[str], None]:
    """People get a line on stdout; a collector of JSON gets JSON only."""
    if log_format == "json":
        return lambda url: log.get_logger(__name__).info("dashboard served", url=url)
    return lambda url: click.echo(f"dashboard: {url}  (Ctrl-C to stop)")
