"""`zonewise csi doctor`: what the journals and Ceph do not agree on, and putting it right."""

from __future__ import annotations

import time
from pathlib import Path

import click

from zonewise.cli import printing
from zonewise.cli.csi_journal import cluster_option, clusters, config_option


@click.command(
    epilog="""\b
Examples:
  zonewise csi doctor --config csi.json            look, and change nothing
  zonewise csi doctor --repair                     remove what nobody needs
"""
)
@config_option
@cluster_option
@click.option("--repair", is_flag=True, help="Remove orphans and finish what was left unfinished.")
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    help="Seconds after which an unfinished volume counts as given up: before, its controller may be at it.",
)
@click.option("-o", "--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
@click.pass_context
def doctor(ctx: click.Context, config: Path, only: str, repair: bool, older_than: float, output: str) -> None:
    """Compare the journals with what is in Ceph: orphans, unfinished volumes, leftover snapshots, lost data.

    Exits with 1 when something is wrong and was not repaired.
    """
    from zonewise.ceph.cephfs import CephFs
    from zonewise.ceph.doctor import Doctor, journal_pools
    from zonewise.ceph.errors import CsiError
    from zonewise.ceph.ids import Kind
    from zonewise.ceph.journalaccount import FindingAccount
    from zonewise.ceph.rbd import Rbd

    rows = []
    for cluster in clusters(config, only):
        seen = Doctor(cluster, {Kind.RBD: Rbd(), Kind.CEPHFS: CephFs()}, *journal_pools(cluster))
        for finding in list(seen.examine(time.time(), older_than)):
            done = ""
            if repair and finding.can_be_repaired:
                try:
                    done = seen.repair(finding)
                except CsiError as error:
                    click.echo(f"{finding.what}: {error}", err=True)
            rows.append(FindingAccount(finding.code, finding.what, finding.sentence, done))
        for kind, pool in sorted(seen.forbidden):
            what = "images" if kind is Kind.RBD else "subvolumes"
            click.echo(
                f"{what} in {pool} of cluster {cluster.name} were not looked at: the user may not list them", err=True
            )
    if output == "json":
        printing.echo_data(rows, "json")
    else:
        for row in rows:
            mark = "repaired" if row.done else "wrong"
            click.echo(f"{mark:8} {row.code:18} {row.what} {row.sentence}{': ' * bool(row.done)}{row.done}")
        click.echo(f"{len(rows)} findings" if rows else "nothing is wrong")
    ctx.exit(1 if any(not row.done for row in rows) else 0)
