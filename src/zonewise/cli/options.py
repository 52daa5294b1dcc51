"""Options shared by several commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from zonewise.cli import completion

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


def health_option(default: int, but: str = "") -> Callable[[F], F]:
    """`health_port`, for `zonewise.kube.process.HealthListen`; `but` is a sentence on exceptions."""
    return click.option(
        "--health-port",
        type=click.IntRange(0, 65535),
        default=default,
        show_default=True,
        help=f"Port of /metrics, /livez and /readyz; 0 for any free port, which is logged.{but}",
    )


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
