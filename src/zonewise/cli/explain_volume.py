"""`zonewise explain volume`: prints where the volume of a claim is, and which nodes reach it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion, printing
from zonewise.cli.csi_server import CONFIG_MAP, DOMAIN_LABELS, config_map_key
from zonewise.cli.options import cluster_options
from zonewise.diagnostics.decide.names import first_names

if TYPE_CHECKING:
    from zonewise.diagnostics.decide.explain.volume import TakeoverReport, VolumeReach, VolumeReport

_NODES_NAMED = 5


@click.command(
    epilog="""\b
Examples:
  zonewise explain volume data-db-0                  why can its pod not be scheduled?
  zonewise explain volume shop/data-db-0 -o json
"""
)
@click.argument("claim", shell_complete=completion.claim_names)
@click.option(
    "-n",
    "--namespace",
    shell_complete=completion.namespace_names,
    default="",
    help="Namespace of the claim. [default: the context's]",
)
@click.option(
    "--domain-labels", default=DOMAIN_LABELS, show_default=True, help="Domain labels; must match the driver's flag."
)
@click.option(
    "--config-map",
    default=CONFIG_MAP,
    show_default=True,
    metavar="NAMESPACE/NAME",
    help="ConfigMap with the takeover map.",
)
@printing.output_option("text", "json")
@cluster_options
def volume(claim: str, namespace: str, output: str, **options: Any) -> None:
    """Explain the volume of CLAIM: its pool and why, the nodes that reach it, and what a takeover would change.

    Reads the cluster once and changes nothing. The exit code is 1 if no ready node reaches the volume.
    """
    from zonewise.ceph.decide.domains import DomainLabels
    from zonewise.diagnostics.read.reader import read_cluster
    from zonewise.diagnostics.read.volume import explain_claim
    from zonewise.kube.client import kubeconfig
    from zonewise.objects import Key

    labels = DomainLabels.parse(options["domain_labels"])
    place = config_map_key(options["config_map"])
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    before, _, name = claim.rpartition("/")
    key = Key(before or namespace or access.namespace, name)

    result = read_cluster(access, lambda reader: explain_claim(reader, key, labels, place))
    if output == "json":
        printing.echo_data(result, output)
    else:
        click.echo("\n".join(_lines(result)))
    sys.exit(0 if result.is_reached else 1)


def _lines(report: VolumeReport) -> Iterator[str]:
    """The answer, the facts, what would change it."""
    yield f"{report.claim} {report.sentence}"
    yield ""
    if report.volume:
        yield f"Volume     {report.volume}, class {report.storage_class or 'none'}, {report.handle}"
        yield f"Pool       {report.pool or 'unknown'}: {report.reason or 'the volume does not say why'}"
        yield f"Domain     {report.domain or 'none: it is reached from everywhere'}"
        yield from (_reach_line(reach) for reach in report.reach)
        if not report.reach:
            yield "Reached    from nowhere"
        for takeover in report.takeovers:
            yield from _takeover_lines(takeover)
    for domain, pools in report.pools:
        yield f"Pool       for a pod in {domain}: {pools}"
    yield from (f"Problem    {problem}" for problem in report.problems)


def _reach_line(reach: VolumeReach) -> str:
    by = {"its domain": "", "takeover": " by takeover", "everywhere": ""}[reach.by]
    return f"Reached    from {reach.domain}{by}: {first_names(reach.nodes, _NODES_NAMED)}; {reach.ready} ready"


def _takeover_lines(takeover: TakeoverReport) -> Iterator[str]:
    yield f"Takeover   of {takeover.domain}: {f'by {takeover.entry}' if takeover.entry else 'none'}"
    if takeover.would:
        where = "; ".join(f"{len(reach.nodes)} in {reach.domain}" for reach in takeover.would)
        yield f"To change it: `zonewise csi takeover {takeover.domain} all` would let more nodes reach it: {where}"
    if takeover.entry:
        yield f"To change it: `zonewise csi giveback {takeover.domain}` ends the takeover"
