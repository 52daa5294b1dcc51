"""`zonewise drain --plan`: prints the waves of a drain, as `zonewise.disruption.decide.drain` plans them."""

from __future__ import annotations

import sys
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion, printing
from zonewise.cli.options import cluster_options

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from zonewise.diagnostics.decide.explain.eviction import LeaderReport
    from zonewise.diagnostics.read.reader import ClusterReader
    from zonewise.disruption.decide.drain import DrainPlan, LeavingPlan, StayingPlan


@click.command(
    epilog="""\b
Examples:
  zonewise drain --plan node-1                       what `kubectl drain node-1` will do
  zonewise drain --plan node-1 node-2 -o json        both nodes in turn, as kubectl drains them
"""
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=completion.node_names)
@click.option("--plan", "plan_only", is_flag=True, help="Print the plan without changing anything; required.")
@click.option(
    "--lease-namespace",
    help="Namespace of the controller's lease. [default: kube-system or zonewise-system, whichever was renewed last]",
)
@printing.output_option("table", "json")
@cluster_options
def drain(nodes: tuple[str, ...], plan_only: bool, lease_namespace: str | None, output: str, **options: Any) -> None:
    """Predict the order and the waves in which a drain evicts the pods of NODE...

    Names the budgets that delay a pod, the pods that are never evicted, and what would allow it. Replacements are assumed
    to become ready, in the same zone if it has another node. The exit code is 1 if a pod will not be evicted; without a
    leader, no pod under a budget is.
    """
    if not plan_only:
        raise click.UsageError("this command only plans: add --plan, and drain with `kubectl drain`")
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.kube.client import kubeconfig

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    plan, leader = read_cluster(access, lambda reader: _plan(reader, list(dict.fromkeys(nodes)), lease_namespace))
    waits = leader.trouble if plan.charges else ""
    if output == "json":
        from zonewise.diagnostics.decide.explain.drain import build_drain_report

        printing.echo_data(build_drain_report(plan, leader), "json")
    else:
        click.echo("\n".join(_lines(plan, nodes, waits)))
    sys.exit(1 if plan.never or waits else 0)


async def _plan(
    reader: ClusterReader, nodes: Sequence[str], lease_namespace: str | None
) -> tuple[DrainPlan, LeaderReport]:
    from zonewise.diagnostics.read.drain import read_drain_view
    from zonewise.diagnostics.read.eviction import LEASE_NAMESPACES, read_leader
    from zonewise.disruption.decide.drain import plan_drain
    from zonewise.errors import ZonewiseError

    cluster = await read_drain_view(reader, nodes)
    namespaces = (lease_namespace,) if lease_namespace else LEASE_NAMESPACES
    leader = await read_leader(reader, namespaces, datetime.now(UTC))
    if unknown := [node for node in nodes if node not in cluster.nodes]:
        raise ZonewiseError(
            f"no node {', '.join(unknown)} in {reader.client.access.server}; `kubectl get nodes` lists them"
        )
    return plan_drain(cluster, nodes), leader


def _lines(plan: DrainPlan, nodes: Sequence[str], waits: str) -> Iterator[str]:
    """`waits`: what must be done before a pod that is charged to a budget can be evicted."""
    if waits:
        yield f"{waits}. Until then no pod goes that is charged to a budget\n"
    leaving = sum(len(wave.pods) for wave in plan.waves)
    yield (
        f"{', '.join(nodes)}: {printing.count(leaving, 'pod')} leave in {printing.count(len(plan.waves), 'wave')}, "
        f"{len(plan.never)} never, {len(plan.passed_over)} passed over"
    )
    for number, wave in enumerate(plan.waves, 1):
        waits = ", once what is disrupted now is whole again" if wave.after_others else ""
        yield f"\nwave {number}, {wave.node}{waits}"
        for leaving_pod in wave.pods:
            yield f"  {leaving_pod.pod.key}{_charges(leaving_pod)}{_remark(leaving_pod)}"
    for title, staying in (("never", plan.never), ("passed over", plan.passed_over)):
        if staying:
            yield f"\n{title}"
        for stays in staying:
            yield f"  {stays.pod.key} on {stays.pod.node}: {_why(stays)}"


def _charges(leaving: LeavingPlan) -> str:
    charged = ", ".join(f"{budget.name} in {domain}" for budget, domain in leaving.charges.items())
    return f"  charged to {charged}" if charged else ""


def _remark(leaving: LeavingPlan) -> str:
    lines = [f"not before: {reason}" for reason in leaving.held_by[:1]] + [str(remark) for remark in leaving.remarks]
    return "".join(f"\n      {line}" for line in lines)


def _why(stays: StayingPlan) -> str:
    remedies = [remedy for reason in stays.reasons if (remedy := getattr(reason, "remedy", ""))]
    return "; ".join([*map(str, stays.reasons), *dict.fromkeys(remedies)])
