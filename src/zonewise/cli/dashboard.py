"""`zonewise dashboard`: serves the live page of a cluster, or of a dump."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import dumps
from zonewise.cli.options import cluster_options, health_option, hints_option, log_options
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from zonewise.dashboard.app import DashboardConfig
    from zonewise.kube.process import HealthListen, Main

PORT = 8480
HEALTH_PORT = 10358
PROXY_PORT = 10356


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
    help="Port of the traffic metrics of each node's proxy.",
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
@health_option(HEALTH_PORT, " On a loopback address, always any free port.")
@cluster_options
@log_options
def dashboard(**options: Any) -> None:
    """Serve a live page of the cluster: zones and the traffic between them, the reason for the routing of each Service,
    budgets, volumes, and the effect of a change.

    The page is read-only. On a loopback address (the default) every user of this machine can open it. On any other
    address it is served over TLS, and the API server authorises each reader: they need the verb get on
    dashboards.zonewise.dev.
    """
    from zonewise import log
    from zonewise.kube import process

    log.configure(options["log_format"], options["log_level"])
    settings = _settings(options)
    sys.exit(process.run(_main(options, settings), listen=_listen(options, settings)))


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


def _main(options: dict[str, Any], settings: DashboardConfig) -> Main:
    from zonewise.dashboard import app

    file = options["file"]
    if file is not None:
        from zonewise.dashboard import from_dump

        source = dumps.source_of(file)
        objects = from_dump.read_dump(dumps.bytes_of(file), source)
        return lambda health: app.show_dump(objects, source, settings, health, _say)
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    return lambda health: app.show_cluster(access, settings, health, _say)


def _listen(options: dict[str, Any], settings: DashboardConfig) -> HealthListen:
    from zonewise.dashboard.auth import is_loopback
    from zonewise.kube.process import HealthListen

    return (
        HealthListen(host=settings.address, port=0)
        if is_loopback(settings.address)
        else HealthListen(port=options["health_port"])
    )


def _say(address: str) -> None:
    click.echo(f"dashboard: {address}  (Ctrl-C to stop)")
