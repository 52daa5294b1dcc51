"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from zonewise.cli import completion
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from zonewise.kube.process import HealthListen
    from zonewise.kube.wire.access import ClusterAccess

F = TypeVar("F", bound=Callable[..., Any])

_CLUSTER = (
    click.option(
        "--kubeconfig",
        type=click.Path(path_type=Path),
        help="Path of the kubeconfig. [default: as kubectl, or in a pod its service account]",
    ),
    click.option(
        "--context",
        shell_complete=completion.context_names,
        help="Context of the kubeconfig. [default: the current one]",
    ),
)
_LOGGING = (
    click.option(
        "--log-format",
        type=click.Choice(["human", "json"]),
        default="human",
        show_default=True,
        help="Format of log lines.",
    ),
    click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
        help="Lowest level that is logged.",
    ),
)


def cluster_options(command: F) -> F:
    """Access to a cluster: `kubeconfig` and `context`, for `zonewise.kube.client.kubeconfig.find`."""
    return with_options(command, _CLUSTER)


def log_options(command: F) -> F:
    """Logging: `log_format` and `log_level`, for `zonewise.log.configure`."""
    return with_options(command, _LOGGING)


def hints_option(command: F) -> F:
    """`hints`, for `zonewise.routing.HintsForm`: a forecast must use the controller's form of hints."""
    return click.option(
        "--hints",
        type=click.Choice(["stable", "strict"]),
        default="stable",
        show_default=True,
        help="How automatic hints are computed; must match the controller's flag.",
    )(command)


_CARRIERS = (
    click.option(
        "--all-services/--no-all-services",
        default=None,
        help="Whether the Zonewise proxy replaces kube-proxy. [default: as its DaemonSet says]",
    ),
    click.option(
        "--zonewise-dns/--stock-dns",
        default=None,
        help="Which DNS server answers for headless Services. [default: Zonewise's if it is installed]",
    ),
)


def carrier_options(command: F) -> F:
    """Data plane of Services: `all_services` and `zonewise_dns`, for `zonewise.planning.data_plane.Overrides`."""
    return with_options(command, _CARRIERS)


def health_options(default: int, but: str = "") -> Callable[[F], F]:
    """`health_port`, `metrics_port` and `metrics_cert_dir`, for `listen`; `but` is a sentence on exceptions."""
    options = (
        click.option(
            "--health-port",
            type=click.IntRange(0, 65535),
            default=default,
            show_default=True,
            help="Port of /livez and /readyz, and for this machine only of /metrics; 0 for any free port, which is "
            f"logged.{but}",
        ),
        click.option(
            "--metrics-port",
            type=click.IntRange(0, 65535),
            help="Port of /metrics over TLS, for users whom the API server lets get /metrics; 0 for any free port, which "
            "is logged. [default: none]",
        ),
        click.option(
            "--metrics-cert-dir",
            type=click.Path(path_type=Path),
            help="Directory with tls.crt and tls.key for --metrics-port. Reloaded when they change. [default: self-signed]",
        ),
    )
    return lambda command: with_options(command, options)


def listen(options: Mapping[str, Any], access: ClusterAccess | None) -> HealthListen:
    """Where health and metrics are served; `access` is that of the API server that reviews tokens."""
    from zonewise.kube.process import HealthListen
    from zonewise.kube.server.metrics_server import MetricsListen

    port, directory = options["metrics_port"], options["metrics_cert_dir"]
    if port is None:
        return HealthListen(port=options["health_port"])
    if access is None:
        raise UsageError(f"--metrics-port {port}: no API server can review tokens here; metrics are on --health-port")
    files = (directory / "tls.crt", directory / "tls.key") if directory else None
    return HealthListen(port=options["health_port"], metrics=MetricsListen(access=access, port=port, certificate=files))


def parts_option(names: Sequence[str], explanation: str) -> Callable[[F], F]:
    """`parts`: those of `names` that the process runs, separated by commas. The default is the first."""

    def read(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
        chosen = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        for word in chosen:
            if word not in names:
                raise click.BadParameter(f"unknown part {word!r}; write one or more of {', '.join(names)}")
        return chosen

    metavar = f"{'|'.join(names)},..."
    return click.option(
        "--parts", callback=read, default=names[0], show_default=True, metavar=metavar, help=explanation
    )


def with_options(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    """Decorates the command with the options, so that the help lists them in this order."""
    for option in reversed(options):
        command = option(command)
    return command
