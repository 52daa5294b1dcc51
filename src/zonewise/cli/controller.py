"""`zonewise controller`: the process that keeps EndpointSlices, and budgets and rollouts, as decided.

Everything is done by `zonewise.slices` and `zonewise.disruption`, each under a lease of its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.options import cluster_options, health_option, log_options, parts_option

if TYPE_CHECKING:
    from zonewise.kube.server.health import Health
    from zonewise.kube.wire.access import ClusterAccess

HEALTH_PORT = 10261
SLICES, DISRUPTION = "slices", "disruption"


@click.command(
    epilog="""\b
Examples:
  zonewise controller                             instead of the stock controller, with the kubeconfig at hand
  zonewise controller --mode overlay              beside the stock controller: hints on its slices
  zonewise controller --hints strict              automatic hints exactly as the stock controller computes them
  zonewise controller --batch-seconds 0.5         fewer writes while many pods change
  zonewise controller --parts disruption          budgets per zone, and the rollouts that obey them
  kubectl get lease -n kube-system zonewise-endpointslices    which replica leads
"""
)
@parts_option(
    [SLICES, DISRUPTION],
    "slices: EndpointSlices; disruption: TopologyDisruptionBudgets, rollouts by eviction, scale-down.",
)
@click.option(
    "--mode",
    type=click.Choice(["own", "overlay"]),
    default="own",
    show_default=True,
    help="Who writes slices: this process alone, or the stock controller, on whose slices hints are put.",
)
@cluster_options
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Work only while holding a lease, so that replicas can stand by. Without it, run exactly one.",
)
@click.option("--lease-namespace", default="kube-system", show_default=True, help="Where the lease is.")
@click.option(
    "--lease-seconds",
    type=click.IntRange(3, 600),
    default=15,
    show_default=True,
    help="How long a leader that vanished without a word is waited for.",
)
@click.option(
    "--endpoints-per-slice",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="The most endpoints a slice gets. Fewer make smaller updates and more slices.",
)
@click.option(
    "--batch-seconds",
    type=click.FloatRange(0, 60),
    default=0.0,
    show_default=True,
    help="How long to wait after a pod's change for more of them. Saves writes, costs freshness.",
)
@click.option(
    "--unnoticed-seconds",
    type=click.FloatRange(0, 60),
    default=1.0,
    show_default=True,
    help="How long a change that no client would notice (a pod not ready yet, one that had terminated) may wait for more.",
)
@click.option(
    "--hints",
    type=click.Choice(["stable", "strict"]),
    default="stable",
    show_default=True,
    help="Automatic hints without refusals and flapping, or exactly as the stock controller computes them.",
)
@click.option(
    "--workers", type=click.IntRange(1, 200), default=8, show_default=True, help="How many Services are synced at once."
)
@click.option(
    "--kube-api-qps", type=click.FloatRange(0), default=0, show_default=True, help="Writes per second; 0 for no limit."
)
@click.option("--kube-api-burst", type=click.IntRange(1), default=100, show_default=True, help="With --kube-api-qps.")
@health_option(HEALTH_PORT)
@log_options
def controller(**options: Any) -> None:
    """Keep the cluster's EndpointSlices: who serves whom, by zone, node or any label, as each Service asks. And, where
    it is told to, budgets of disruption: how many pods may be away from each zone at a time.

    In mode own it takes the place of the stock controller, which must be off: start kube-controller-manager with
    --controllers=*,-endpointslice-controller, or the two undo each other's work.

    Everything it knows is in the cluster: it may be killed and started again at any moment. SIGTERM ends it in good
    order and hands the lease over at once; a second one ends it where it stands.
    """
    from zonewise import log
    from zonewise.kube import process
    from zonewise.kube.client import kubeconfig

    log.configure(options["log_format"], options["log_level"])
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    listen = process.HealthListen(port=options["health_port"])
    sys.exit(process.run(lambda health: _live(access, options, health), listen=listen))


async def _live(access: ClusterAccess, options: dict[str, Any], health: Health) -> None:
    """The parts stand beside each other: each has its own watches and its own lease, and one that fails ends all."""
    import asyncio

    async with asyncio.TaskGroup() as group:
        for name in options["parts"]:
            group.create_task(_PARTS[name](access, options, health), name=name)


async def _slices(access: ClusterAccess, options: dict[str, Any], health: Health) -> None:
    from zonewise.slices import app

    await app.live(access, _slices_options(options), health)


async def _disruption(access: ClusterAccess, options: dict[str, Any], health: Health) -> None:
    from zonewise.disruption import app

    lead = app.DisruptionLeader(namespace=options["lease_namespace"], lease_seconds=options["lease_seconds"])
    await app.live(access, lead if options["leader_elect"] else None, health)


_PARTS = {SLICES: _slices, DISRUPTION: _disruption}


def _slices_options(options: dict[str, Any]) -> Any:
    from zonewise.routing import HintsForm
    from zonewise.slices.app import SlicesLeader, SlicesOptions
    from zonewise.slices.controller import SlicesConfig
    from zonewise.slices.informers import SlicesMode

    lead = SlicesLeader(namespace=options["lease_namespace"], lease_seconds=options["lease_seconds"])
    return SlicesOptions(
        mode=SlicesMode(options["mode"]),
        lead=lead if options["leader_elect"] else None,
        settings=SlicesConfig(
            endpoints_per_slice=options["endpoints_per_slice"],
            batch_seconds=options["batch_seconds"],
            unnoticed_seconds=options["unnoticed_seconds"],
            hints=HintsForm(options["hints"]),
            workers=options["workers"],
        ),
        writes_per_second=options["kube_api_qps"],
        writes_at_once=options["kube_api_burst"],
    )
