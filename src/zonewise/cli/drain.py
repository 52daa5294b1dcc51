"""`zonewise drain --plan`: the waves that a drain will take, from a live cluster. Decided by `disruption.drainplan`."""

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
  zonewise drain --plan node-1 node-2 -o json        one after the other, as kubectl drains them; for programs
"""
)
@click.argument("nodes", nargs=-1, required=True, metavar="NODE...", shell_complete=completion.node_names)
@click.option("--plan", "plan_only", is_flag=True, help="Say what will happen; nothing is touched.")
@click.option(
    "--lease-namespace",
    help="Where the controller's lease is. [default: kube-system or zonewise-system, that renewed last]",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@cluster_options
def drain(nodes: tuple[str, ...], plan_only: bool, lease_namespace: str | None, output: str, **options: Any) -> None:
    """Say in which order and in how many waves a drain will take the pods of NODE..., before anyone runs it.

    Names the budgets that hold a pod back, what will never go, and what would let it. Replacements are taken to become
    ready, in the same zone if it has another node. Exit code 1 says that a pod will not go by itself; none
    does that is charged to a budget while nobody leads who counts.
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
    """`waits`: what is to be done before any pod goes that is charged."""
    if waits:
        yield f"{waits}. Until then no pod goes that is charged to a budget\n"
    leaving = sum(len(wave.pods) for wave in plan.waves)
    yield (
        f"{', '.join(nodes)}: {_count(leaving, 'pod')} leave in {_count(len(plan.waves), 'wave')}, "
        f"{len(plan.never)} never, {len(plan.passed_over)} passed over"
    )
    for number, wave in enumerate(plan.waves, 1):
        waits = ", once what is disrupted now is whole again" if wave.after_others else ""
        yield f"\nwave {number}, {wave.node}{waits}"
        for each in wave.pods:
            yield f"  {each.pod.key}{_charges(each)}{_remark(each)}"
    for title, staying in (("never", plan.never), ("passed over", plan.passed_over)):
        if staying:
            yield f"\n{title}"
        for stays in staying:
            yield f"  {stays.pod.key} on {stays.pod.node}: {_why(stays)}"


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _charges(each: LeavingPlan) -> str:
    charged = ", ".join(f"{budget.name} in {domain}" for budget, domain in each.charges.items())
    return f"  charged to {charged}" if charged else ""


def _remark(each: LeavingPlan) -> str:
    said = [f"not before: {reason}" for reason in each.held_by[:1]] + [str(remark) for remark in each.remarks]
    return "".join(f"\n      {line}" for line in said)


def _why(stays: StayingPlan) -> str:
    remedies = [remedy for reason in stays.reasons if (remedy := getattr(reason, "remedy", ""))]
    return "; ".join([*map(str, stays.reasons), *dict.fromkeys(remedies)])
