"""Entry point of the command line: the table of subcommands, and errors as one line with an exit code."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, Final, NoReturn

import click

from zonewise import __version__, log
from zonewise.cli.lazy_group import LazyGroup
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from collections.abc import Sequence

COMMANDS = {
    "completion": ("zonewise.cli.completion:completion", "Print the completion script of your shell."),
    "controller": ("zonewise.cli.controller:controller", "Manage EndpointSlices and disruption budgets."),
    "csi": ("zonewise.cli.csi:csi", "Ceph volumes, provisioned in the pool of the pod's domain."),
    "dashboard": (
        "zonewise.cli.dashboard:dashboard",
        "Serve a live page: traffic, reasons, budgets, what-if.",
    ),
    "dns": ("zonewise.cli.dns:dns", "Serve cluster DNS, with topology-aware headless Services."),
    "explain": ("zonewise.cli.explain:explain", "Explain the outcome of a request, and why."),
    "doctor": ("zonewise.cli.doctor:doctor", "Check a cluster, before and after install, with a fix for each finding."),
    "drain": ("zonewise.cli.drain:drain", "Predict the waves in which a drain evicts the pods of nodes."),
    "install": ("zonewise.cli.install:install", "Install Zonewise in a cluster, or print its manifests."),
    "lab": ("zonewise.cli.lab:lab", "A real multi-zone Kubernetes cluster on this machine."),
    "man": ("zonewise.cli.man:man", "Print the manual page."),
    "plan": ("zonewise.cli.plan:plan", "Predict the routing of every Service, today and after a change."),
    "proxy": ("zonewise.cli.proxy:proxy", "Run the topology-aware nftables proxy on this node."),
    "simulate": ("zonewise.cli.simulate:simulate", "Compare the routing algorithms on data sets or your own cluster."),
    "status": (
        "zonewise.cli.status:status",
        "Show components, Services, traffic, budgets and volumes.",
    ),
    "uninstall": ("zonewise.cli.install:uninstall", "Remove Zonewise from a cluster."),
    "webhook": ("zonewise.cli.webhook:webhook", "Run the admission webhooks: hints on slices, and the eviction guard."),
}
"""Command name to its location and its help line, so that `--help` imports none of them."""

_EXTRAS: Final = {"distributed": "dask", "google": "csi", "grpc": "csi", "numba": "simulator", "numpy": "simulator"}
"""Package to the extra that has it."""
_BINDINGS: Final = ("cephfs", "rados", "rbd")


@click.group(
    cls=LazyGroup,
    members=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `zonewise lab up --demo`: a cluster with three zones and a demo application on this machine.",
)
@click.version_option(__version__, "-V", "--version", message="zonewise %(version)s")
def cli() -> None:
    """Keep a Kubernetes cluster's traffic, volumes and disruptions inside the domains you choose."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Runs the command line. Errors that the user can act on are one line, with a traceback only if ZONEWISE_DEBUG is set."""
    gc.set_threshold(10_000, 20, 20)  # objects of imported modules stay alive: scanning them often is wasted time
    try:
        cli.main(args=arguments, prog_name="zonewise")
    except Exception as raised:
        error = _missing_package(raised) or raised
        text = _message(error)
        if log.is_json():
            log.get_logger(__name__).error(
                "command failed", error=text or repr(error), exc_info=None if text else error
            )
            sys.exit(_exit_code(error))
        if text is None or os.environ.get("ZONEWISE_DEBUG"):
            raise
        _discard_output()
        print(f"zonewise: {text}", file=sys.stderr)  # noqa: T201 - click is done
        sys.exit(_exit_code(error))
    raise AssertionError("click raises SystemExit")


def _exit_code(error: Exception) -> int:
    return error.exit_code if isinstance(error, ZonewiseError) else 1


def _missing_package(error: Exception) -> ZonewiseError | None:
    """Of an extra that is not installed: commands import their packages when they run."""
    package = (error.name or "").partition(".")[0] if isinstance(error, ModuleNotFoundError) else ""
    if package in _BINDINGS:
        names = " ".join(f"python3-{name}" for name in _BINDINGS)
        return UsageError(
            f"this command needs Ceph's package `{package}`, which PyPI does not have: apt install {names}"
        )
    if package not in _EXTRAS:
        return None
    return UsageError(f"this command needs the package `{package}`: pip install 'zonewise[{_EXTRAS[package]}]'")


def _message(error: Exception) -> str | None:
    """One line for the user; None for a bug. Click handles a broken pipe, silently."""
    import subprocess

    match error:
        case ZonewiseError():
            return str(error)
        case OSError(strerror=str(reason), filename=None):
            return reason
        case OSError(strerror=str(reason), filename=path):
            return f"{os.fsdecode(path) if isinstance(path, bytes) else path}: {reason}"
        case OSError() | subprocess.TimeoutExpired():
            return str(error)
        case _:
            return None


def _discard_output() -> None:
    """Otherwise the interpreter retries a failed write at exit, and prints an error."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
