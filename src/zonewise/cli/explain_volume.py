"""`zonewise explain volume`: where a claim's volume is and who reaches it. `zonewise.diagnostics.read.volume` finds out, this prints it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli import completion, printing
from zonewise.cli.csi_server import CONFIG_MAP, DOMAIN_LABELS, config_map_key
from zonewise.cli.options import cluster_options

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
    help="Of the claim. [default: the context's]",
)
@click.option("--domain-labels", default=DOMAIN_LABELS, show_default=True, help="As the driver has them.")
@click.option(
    "--config-map", default=CONFIG_MAP, show_default=True, metavar="NAMESPACE/NAME", help="Where the takeover map is."
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@cluster_options
def volume(claim: str, namespace: str, output: str, **options: Any) -> None:
    """Say of CLAIM's volume: which pool it lies in and why, which nodes reach it, and what a takeover would do.

    Reads the cluster once and changes nothing. The exit code is 1 where no ready node reaches it.
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

    account = read_cluster(access, lambda reader: explain_claim(reader, key, labels, place))
    if output == "json":
        printing.echo_data(account, output)
    else:
        click.echo("\n".join(_lines(account)))
    sys.exit(0 if account.is_reached else 1)


def _lines(account: VolumeReport) -> Iterator[str]:
    """The answer, the facts, what would change it."""
    yield f"{account.claim} {account.sentence}"
    yield ""
    if account.volume:
        yield f"Volume     {account.volume}, class {account.storage_class or 'none'}, {account.handle}"
        yield f"Pool       {account.pool or 'unknown'}: {account.reason or 'the volume does not say why'}"
        yield f"Domain     {account.domain or 'none: it is reached from everywhere'}"
        yield from (_reach_line(reach) for reach in account.reach)
        if not account.reach:
            yield "Reached    from nowhere"
        for each in account.takeovers:
            yield from _takeover_lines(each)
    for domain, pools in account.pools:
        yield f"Pool       for a pod in {domain}: {pools}"
    yield from (f"Problem    {problem}" for problem in account.problems)


def _reach_line(reach: VolumeReach) -> str:
    named = ", ".join(reach.nodes[:_NODES_NAMED])
    more = f" and {len(reach.nodes) - _NODES_NAMED} more" if len(reach.nodes) > _NODES_NAMED else ""
    by = {"its domain": "", "takeover": " by takeover", "everywhere": ""}[reach.by]
    return f"Reached    from {reach.domain}{by}: {named}{more}; {reach.ready} ready"


def _takeover_lines(each: TakeoverReport) -> Iterator[str]:
    yield f"Takeover   of {each.domain}: {f'by {each.entry}' if each.entry else 'none'}"
    if each.would:
        where = "; ".join(f"{len(reach.nodes)} in {reach.domain}" for reach in each.would)
        yield f"To change it: `zonewise csi takeover {each.domain} all` would let more nodes reach it: {where}"
    if each.entry:
        yield f"To change it: `zonewise csi giveback {each.domain}` ends the takeover"
