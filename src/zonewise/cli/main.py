"""The entry point: knows every subcommand by name and one line of help, imports only the one that runs."""

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
    "controller": ("zonewise.cli.controller:controller", "Keep EndpointSlices: who serves whom, as each Service asks."),
    "csi": ("zonewise.cli.csi:csi", "Ceph volumes, provisioned in the pool of the pod's domain."),
    "dashboard": (
        "zonewise.cli.dashboard:dashboard",
        "Show the cluster on a live page: traffic, reasons, budgets, what if.",
    ),
    "dns": ("zonewise.cli.dns:dns", "Answer the cluster's names, headless ones from the client's own domain."),
    "explain": ("zonewise.cli.explain:explain", "Say what becomes of a request, and why."),
    "doctor": ("zonewise.cli.doctor:doctor", "Check a cluster, before and after install, with a fix for each finding."),
    "drain": ("zonewise.cli.drain:drain", "Say in which waves a drain will take a node's pods, before anyone runs it."),
    "install": ("zonewise.cli.install:install", "Put Zonewise into a cluster, or print its manifests."),
    "lab": ("zonewise.cli.lab:lab", "A real multi-zone Kubernetes cluster on this machine."),
    "man": ("zonewise.cli.man:man", "Print the manual page."),
    "plan": ("zonewise.cli.plan:plan", "Say what becomes of every Service, today and after a change."),
    "proxy": ("zonewise.cli.proxy:proxy", "Serve Services on this node with nftables, as their topology asks."),
    "simulate": ("zonewise.cli.simulate:simulate", "Judge the routing algorithms on data sets or your own cluster."),
    "status": (
        "zonewise.cli.status:status",
        "Say how the cluster is: components, Services, traffic, budgets, volumes.",
    ),
    "uninstall": ("zonewise.cli.install:uninstall", "Take Zonewise out of a cluster: nothing of it stays."),
    "webhook": ("zonewise.cli.webhook:webhook", "Lay hints over the slices that the stock controller writes."),
}
"""Name to where it lives and its line in the help, so that `--help` imports none of them."""


@click.group(
    cls=LazyGroup,
    members=COMMANDS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Start with `zonewise lab up --demo`: three zones on this machine, with an application in them.",
)
@click.version_option(__version__, "-V", "--version", message="zonewise %(version)s")
def cli() -> None:
    """Keep a Kubernetes cluster's traffic, volumes and disruptions inside the domains you choose."""


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line; what a person can act on is shown as one line, a traceback only if ZONEWISE_DEBUG is set."""
    gc.set_threshold(10_000, 20, 20)  # what loading a command makes stays: looking through it again and again is idle
    try:
        cli.main(args=arguments, prog_name="zonewise")
    except Exception as error:
        text = _one_line(error)
        if text is None or os.environ.get("ZONEWISE_DEBUG"):
            raise
        _give_up_output()
        print(f"zonewise: {text}", file=sys.stderr)  # noqa: T201 - the last word before leaving
        sys.exit(error.exit_code if isinstance(error, ZonewiseError) else 1)
    raise AssertionError("click leaves by SystemExit")


def _one_line(error: Exception) -> str | None:
    """What to say of it; None for a bug of ours. A reader of our output who has left is click's business: it says nothing."""
    import subprocess

    match error:
        case ZonewiseError():
            return str(error)
        case OSError(strerror=str(reason), filename=None):
            return reason
        case OSError(strerror=str(reason), filename=place):
            return f"{os.fsdecode(place) if isinstance(place, bytes) else place}: {reason}"
        case OSError() | subprocess.TimeoutExpired():
            return str(error)
        case _:
            return None


def _give_up_output() -> None:
    """What can't be written would be tried again, and complained about, when the interpreter leaves."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
