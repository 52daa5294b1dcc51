"""`zonewise explain eviction`: prints whether a pod may be evicted now, and why."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion, printing
from zonewise.cli.options import cluster_options

if TYPE_CHECKING:
    from zonewise.diagnostics.decide.explain.eviction import BudgetReport, EvictionReport, LeaderReport, PdbReport

_PODS_NAMED = 10


@click.command(
    epilog="""\b
Examples:
  zonewise explain eviction web-0                    why does `kubectl drain` wait for it?
  zonewise explain eviction shop/web-0
  zonewise explain eviction web-0 -n shop -o json
"""
)
@click.argument("pod", shell_complete=completion.pod_names)
@click.option(
    "-n",
    "--namespace",
    shell_complete=completion.namespace_names,
    default="",
    help="Namespace of the pod. [default: the context's]",
)
@click.option(
    "--lease-namespace",
    help="Namespace of the controller's lease. [default: kube-system or zonewise-system, whichever was renewed last]",
)
@printing.output_option("text", "json")
@cluster_options
def eviction(pod: str, namespace: str, lease_namespace: str | None, output: str, **options: Any) -> None:
    """Explain whether POD may be evicted now: its budgets, their domains and counts, and what would allow it.

    Reads the cluster once and decides as the webhook does; nothing is charged. The exit code is 1 if an eviction would
    be refused.
    """
    from zonewise.diagnostics.read.eviction import LEASE_NAMESPACES, explain_eviction
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.kube.client import kubeconfig
    from zonewise.objects import Key

    access = kubeconfig.find(options["kubeconfig"], options["context"])
    before, _, name = pod.rpartition("/")
    key = Key(before or namespace or access.namespace, name)

    namespaces = (lease_namespace,) if lease_namespace else LEASE_NAMESPACES
    result = read_cluster(access, lambda reader: explain_eviction(reader, key, namespaces, datetime.now(UTC)))
    if output == "json":
        printing.echo_data(result, output)
    else:
        click.echo("\n".join(_lines(result)))
    sys.exit(0 if result.allowed else 1)


def _lines(report: EvictionReport) -> Iterator[str]:
    """The answer, the budgets and the facts, what would change it."""
    yield f"{report.pod} {report.sentence}"
    yield ""
    state = "ready" if report.ready else "not ready"
    yield f"Pod        {state} on {report.node or 'no node'}, of {report.owner or 'no controller'}"
    for budget in report.budgets:
        yield from _budget_lines(budget)
    yield from (f"Budget     {problem}" for problem in report.unreadable)
    yield from (_stock_line(stock) for stock in report.stock)
    if report.budgets:
        yield f"Guard      {'registered' if report.guarded else 'not registered: budgets are not enforced'}"
        yield f"Leader     {_leader(report.leader)}"
    yield from (f"To change it: {remedy}" for remedy in report.remedies)


def _budget_lines(budget: BudgetReport) -> Iterator[str]:
    mode = "" if budget.enforcement == "Enforce" else f" ({budget.enforcement})"
    yield f"Budget     {budget.name}{mode}: {budget.limit}"
    if budget.domain is not None:
        domain = budget.domain
        share = "" if domain.target == domain.slots else f", {domain.target} to stay"
        yield (
            f"  {domain.name}: {domain.slots} pods{share}, {domain.healthy} healthy, {domain.desired} must be,"
            f" {domain.allowed} may leave"
        )
    yield f"  {budget.would} ({budget.code}): {budget.sentence}"
    yield from (f"  unavailable: {pod.name}, {pod.why}" for pod in budget.unavailable[:_PODS_NAMED])
    if len(budget.unavailable) > _PODS_NAMED:
        yield f"  unavailable: {len(budget.unavailable) - _PODS_NAMED} more"
    if budget.missing:
        yield f"  missing: {budget.missing} that left and were not replaced"


def _stock_line(stock: PdbReport) -> str:
    return (
        f"Stock      PodDisruptionBudget {stock.name}: {stock.healthy} healthy, {stock.desired} must be,"
        f" {stock.allowed} may leave"
    )


def _leader(leader: LeaderReport) -> str:
    if leader.trouble or leader.silent_seconds is None:
        return leader.trouble or "unknown: no permission to read its lease"
    return f"{leader.holder}, lease renewed {leader.silent_seconds:.0f} s ago"
