"""`zonewise csi doctor`: compares the journals with Ceph, and repairs the differences."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonewise.cli import printing
from zonewise.cli.csi_journal import cluster_option, clusters, config_option

if TYPE_CHECKING:
    from zonewise.ceph.decide.journal_report import FsckFindingReport


@click.command(
    epilog="""\b
Examples:
  zonewise csi doctor --config csi.json            only report
  zonewise csi doctor --repair                     also remove orphans and leftovers
"""
)
@config_option
@cluster_option
@click.option("--repair", is_flag=True, help="Remove orphans and complete interrupted operations.")
@click.option(
    "--older-than",
    type=click.FloatRange(0),
    default=600.0,
    show_default=True,
    help="Age in seconds from which an unfinished volume is a finding. A younger one may still be in progress.",
)
@printing.output_option("text", "json")
@click.pass_context
def doctor(ctx: click.Context, config: Path, only: str, repair: bool, older_than: float, output: str) -> None:
    """Compare the journals with what is in Ceph: orphans, unfinished volumes, leftover snapshots, lost data.

    The exit code is 1 if a finding was not repaired, or if a pool is unavailable and could not be examined.
    """
    from zonewise.ceph.backend.cephfs import CephFsBackend
    from zonewise.ceph.backend.rbd import RbdBackend
    from zonewise.ceph.controller import journal_pools
    from zonewise.ceph.controller.fsck import Fsck, FsckRepair
    from zonewise.ceph.decide.errors import CsiError
    from zonewise.ceph.decide.ids import VolumeKind
    from zonewise.ceph.decide.journal_report import FsckFindingReport

    rows = []
    away = False
    for cluster in clusters(config, only):
        journals = journal_pools.find_journal_pools(cluster)
        fsck = Fsck(
            cluster,
            {VolumeKind.RBD: RbdBackend(), VolumeKind.CEPHFS: CephFsBackend()},
            journals.with_journal,
            journals.unreadable,
        )
        for finding in list(fsck.examine(time.time(), older_than)):
            became = FsckRepair()
            if repair and finding.can_be_repaired:
                try:
                    became = fsck.repair(finding)
                except CsiError as error:
                    click.echo(f"{finding.what}: {error}", err=True)
            rows.append(FsckFindingReport(finding.code, finding.what, finding.sentence, became.done, became.left))
        for kind, pool in sorted(fsck.forbidden):
            what = "images" if kind is VolumeKind.RBD else "subvolumes"
            click.echo(
                f"{what} in {pool} of cluster {cluster.name} were not examined: the user may not list them", err=True
            )
        for pool, why in sorted(fsck.unavailable.items()):
            click.echo(f"pool {pool} of cluster {cluster.name} could not be looked at in full: {why}", err=True)
        away = away or bool(fsck.unavailable)
    if output == "json":
        printing.echo_data(rows, "json")
    else:
        for line in finding_lines(rows, repair=repair, away=away):
            click.echo(line)
    ctx.exit(1 if away or any(not row.done for row in rows) else 0)


def finding_lines(rows: Sequence[FsckFindingReport], *, repair: bool, away: bool) -> Iterator[str]:
    """A line per finding, and their number. `away`: some pools could not be examined."""
    for row in rows:
        mark = "repaired" if row.done else "left" if row.left else "wrong"
        outcome = row.done or (f"left alone: {row.left}" if row.left else "")
        yield f"{mark:8} {row.code:18} {row.what} {row.sentence}{': ' * bool(outcome)}{outcome}"
    if rows:
        repaired = sum(bool(row.done) for row in rows)
        yield f"{len(rows)} findings" + (f", {repaired} repaired" if repair else "")
    else:
        yield "nothing is wrong" + (" in what could be examined" if away else "")
