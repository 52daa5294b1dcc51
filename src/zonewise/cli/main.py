"""Entry point of the command line: the table of subcommands, and errors as one line with an exit code."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING, NoReturn

import click

from zonewise import __version__
from zonewise.cli.lazy_group import LazyGroup
from zonewise.errors import ZonewiseError

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
    "uninstall": ("zonewise.cli.install:uninstall", "Remove Zonewise from a cluster completely."),
    "webhook": ("zonewise.cli.webhook:webhook", "Run the admission webhooks: hints on slices, and the eviction guard."),
}
"""Command name to its location and its help line, so that `--help` imports none of them."""


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
    except Exception as error:
        text = _message(error)
        if text is None or os.environ.get("ZONEWISE_DEBUG"):
            raise
        _discard_output()
        print(f"zonewise: {text}", file=sys.stderr)  # noqa: T201 - click is done
        sys.exit(error.exit_code if isinstance(error, ZonewiseError) else 1)
    raise AssertionError("click raises SystemExit")


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
