"""Options that several commands have in common, so that they are called and explained alike everywhere."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import click

from zonewise.cli import completion

F = TypeVar("F", bound=Callable[..., Any])

_CLUSTER = (
    click.option(
        "--kubeconfig", type=click.Path(path_type=Path), help="[default: as kubectl finds it, or the pod's own]"
    ),
    click.option("--context", shell_complete=completion.context_names, help="A context of the kubeconfig."),
)
_LOGGING = (
    click.option("--log-format", type=click.Choice(["human", "json"]), default="human", show_default=True),
    click.option(
        "--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True
    ),
)


def cluster_options(command: F) -> F:
    """Which cluster: `kubeconfig` and `context`, for `zonewise.kube.client.kubeconfig.find`."""
    return _with(command, _CLUSTER)


def log_options(command: F) -> F:
    """How to log: `log_format` and `log_level`, for `zonewise.log.configure`."""
    return _with(command, _LOGGING)


def hints_option(command: F) -> F:
    """`hints`, for `zonewise.routing.HintsForm`: who foresees must go by what the controller goes by."""
    return click.option(
        "--hints",
        type=click.Choice(["stable", "strict"]),
        default="stable",
        show_default=True,
        help="How automatic hints are computed, as the controller is told.",
    )(command)


_CARRIERS = (
    click.option(
        "--all-services/--no-all-services",
        default=None,
        help="The Zonewise proxy runs in kube-proxy's place, or does not. [default: as its DaemonSet says]",
    ),
    click.option(
        "--zonewise-dns/--stock-dns",
        default=None,
        help="Who answers for headless Services. [default: Zonewise's server where it is installed]",
    ),
)


def carrier_options(command: F) -> F:
    """Who carries Services: `all_services` and `zonewise_dns`, for `zonewise.planning.data_plane.Told`."""
    return _with(command, _CARRIERS)


def health_option(default: int, but: str = "") -> Callable[[F], F]:
    """`health_port`, for `zonewise.kube.process.Listen`; `but` says where it does not count."""
    return click.option(
        "--health-port",
        type=click.IntRange(0, 65535),
        default=default,
        show_default=True,
        help=f"Where /metrics, /livez and /readyz are served; 0 for any free port, which the log names.{but}",
    )


def parts_option(names: Sequence[str], explanation: str) -> Callable[[F], F]:
    """`parts`: which of `names` the process runs, with commas between them; the first alone where nothing is said."""

    def read(_context: click.Context, _option: click.Parameter, text: str) -> tuple[str, ...]:
        chosen = tuple(dict.fromkeys(word.strip() for word in text.split(",")))
        for word in chosen:
            if word not in names:
                raise click.BadParameter(f"{word!r} is no part; write one or more of {', '.join(names)}")
        return chosen

    metavar = f"{'|'.join(names)},..."
    return click.option(
        "--parts", callback=read, default=names[0], show_default=True, metavar=metavar, help=explanation
    )


def _with(command: F, options: tuple[Callable[[F], F], ...]) -> F:
    """In the order of `options` in the help, as if they stood above the command one by one."""
    for option in reversed(options):
        command = option(command)
    return command
