"""`zonewise controller`: the process that runs the EndpointSlice and disruption controllers.

The parts share one client and one set of watch caches; each has a leader lease of its own.
"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.options import cluster_options, health_options, listen, log_options, parts_option

if TYPE_CHECKING:
    from zonewise.kube.manager import LeaseConfig, Manager

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
    help="own: this process writes all EndpointSlices; overlay: it adds hints to those of the stock controller.",
)
@cluster_options
@click.option(
    "--leader-elect/--no-leader-elect",
    default=True,
    show_default=True,
    help="Work only while holding a lease, so that replicas can stand by. Without it, run exactly one replica.",
)
@click.option("--lease-namespace", default="kube-system", show_default=True, help="Namespace of the lease.")
@click.option(
    "--lease-seconds",
    type=click.IntRange(3, 600),
    default=15,
    show_default=True,
    help="Lease duration in seconds.",
)
@click.option(
    "--apiserver-request-timeout",
    type=click.IntRange(1, 3600),
    default=60,
    show_default=True,
    help="The --request-timeout of the API servers, in seconds: how long an allowed eviction may still be under way. A "
    "charge whose pod stays is kept for so long.",
)
@click.option(
    "--endpoints-per-slice",
    type=click.IntRange(1, 1000),
    default=100,
    show_default=True,
    help="Maximum number of endpoints per slice. Fewer make smaller updates and more slices.",
)
@click.option(
    "--batch-seconds",
    type=click.FloatRange(0, 60),
    default=0.0,
    show_default=True,
    help="Delay after a pod change, to batch further changes. Saves writes, delays updates.",
)
@click.option(
    "--unnoticed-seconds",
    type=click.FloatRange(0, 60),
    default=1.0,
    show_default=True,
    help="Longest delay of a change that no client notices (a pod that is not ready yet, or has terminated).",
)
@click.option(
    "--hints",
    type=click.Choice(["stable", "strict"]),
    default="stable",
    show_default=True,
    help="stable: automatic hints without refusals and flapping; strict: exactly as the stock controller computes them.",
)
@click.option(
    "--workers",
    type=click.IntRange(1, 200),
    default=8,
    show_default=True,
    help="Number of Services that are synced concurrently.",
)
@click.option(
    "--kube-api-qps",
    type=click.FloatRange(0),
    default=0,
    show_default=True,
    help="Maximum writes per second. 0: no limit.",
)
@click.option(
    "--kube-api-burst",
    type=click.IntRange(1),
    default=100,
    show_default=True,
    help="Burst of writes above --kube-api-qps.",
)
@health_options(HEALTH_PORT)
@log_options
def controller(**options: Any) -> None:
    """Run the EndpointSlice controller, and on request the controller of topology disruption budgets.

    In mode own it replaces the stock controller, which must be off: start kube-controller-manager with
    --controllers=*,-endpointslice-controller. Otherwise the two controllers revert each other's writes.

    All state is in the cluster: the process may be killed and restarted at any time. SIGTERM shuts it down and releases
    the lease at once; a second SIGTERM ends it immediately.
    """
    from zonewise import log
    from zonewise.kube import process
    from zonewise.kube.client import kubeconfig
    from zonewise.kube.manager import Manager

    log.configure(options["log_format"], options["log_level"])
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    where = listen(options, access)
    sys.exit(process.run(lambda health: _run(Manager(access, health), options), listen=where))


async def _run(manager: Manager, options: dict[str, Any]) -> None:
    for name in options["parts"]:
        _PARTS[name](manager, options)
    await manager.run()


def _add_slices(manager: Manager, options: dict[str, Any]) -> None:
    from zonewise.api.names import SLICES_LEASE
    from zonewise.routing import HintsForm
    from zonewise.slices import app
    from zonewise.slices.controller import SlicesConfig
    from zonewise.slices.informers import SlicesMode

    config = SlicesConfig(
        endpoints_per_slice=options["endpoints_per_slice"],
        batch_seconds=options["batch_seconds"],
        unnoticed_seconds=options["unnoticed_seconds"],
        hints=HintsForm(options["hints"]),
        workers=options["workers"],
    )
    slices = app.SlicesOptions(
        mode=SlicesMode(options["mode"]),
        lease=_lease(SLICES_LEASE, options),
        config=config,
        writes_per_second=options["kube_api_qps"],
        writes_at_once=options["kube_api_burst"],
    )
    app.add_to(manager, slices)


def _add_disruption(manager: Manager, options: dict[str, Any]) -> None:
    from zonewise.api.names import DISRUPTION_LEASE
    from zonewise.disruption import app

    app.add_to(manager, _lease(DISRUPTION_LEASE, options), options["apiserver_request_timeout"])


def _lease(name: str, options: dict[str, Any]) -> LeaseConfig | None:
    from zonewise.kube.manager import LeaseConfig

    if not options["leader_elect"]:
        return None
    return LeaseConfig(name=name, namespace=options["lease_namespace"], lease_seconds=options["lease_seconds"])


_PARTS = {SLICES: _add_slices, DISRUPTION: _add_disruption}
