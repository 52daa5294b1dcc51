"""`zonewise csi journal`: lists the entries of the driver's journals in Ceph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonewise.cli import printing

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster
    from zonewise.ceph.controller.journal import Journal
    from zonewise.ceph.decide.journal_entry import JournalEntry

CONFIG = Path("/etc/zonewise-csi/config.json")

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    default=CONFIG,
    show_default=True,
    help="Configuration file of the driver: the Ceph clusters and their users.",
)
cluster_option = click.option("--cluster", "only", default="", metavar="ID", help="Only this cluster. [default: all]")


@click.command(
    epilog="""\b
Examples:
  zonewise csi journal --config csi.json
  zonewise csi journal --pool rbd-zone-a           volumes and snapshots in one pool
  zonewise csi journal pvc-0b1c8a3e -o json        one volume, with all fields
"""
)
@click.argument("words", nargs=-1, metavar="[NAME-OR-ID]...")
@config_option
@cluster_option
@click.option("--pool", default="", help="Only entries whose data is in this pool.")
@click.option("--state", type=click.Choice(["reserved", "ready", "deleting"]), help="Only entries in this state.")
@printing.output_option("table", "json")
@click.pass_context
def journal(
    ctx: click.Context, words: tuple[str, ...], config: Path, only: str, pool: str, state: str | None, output: str
) -> None:
    """List volumes and snapshots from the journals: name, state, pool, domain, size, origin, id.

    A `reserved` entry is being created, or its controller died while creating it; a retry continues from there. The exit
    code is 1 if a NAME-OR-ID is in no journal, or if a pool that may hold a journal is unavailable.
    """
    from zonewise.ceph.controller import journal_pools

    matching: list[tuple[Journal, JournalEntry]] = []
    away: list[str] = []
    for cluster in clusters(config, only):
        known = journal_pools.find_journal_pools(cluster)
        away += [
            journal_pools.unreadable_message(cluster, pool_name, why)
            for pool_name, why in sorted(known.unavailable.items())
        ]
        matching += [
            (source_journal, entry)
            for source_journal, entry in entries(cluster, known.with_journal)
            if (not pool or entry.pool == pool)
            and (state is None or entry.state == state)
            and _selected(source_journal, entry, words)
        ]
    if output == "json":
        from zonewise.ceph.decide.journal_report import entry_report

        printing.echo_data(
            [
                entry_report(entry, source_journal.pool, source_journal.id_of(entry))
                for source_journal, entry in matching
            ],
            "json",
        )
    else:
        click.echo("\n".join(_table(matching)))
    names = {entry.name for _, entry in matching} | {source_journal.id_of(entry) for source_journal, entry in matching}
    missing = [f"no {'available ' if away else ''}journal has {word!r}" for word in words if word not in names]
    for problem in (*away, *missing):
        click.echo(problem, err=True)
    ctx.exit(1 if away or missing else 0)


def clusters(config: Path, only: str) -> Iterator[CephCluster]:
    """Connections with the driver's own Ceph user."""
    from zonewise.ceph.backend.cluster import CephClusters
    from zonewise.ceph.config import CsiConfigFile
    from zonewise.errors import ZonewiseError

    ceph_clusters = CephClusters(CsiConfigFile(config))
    named = ceph_clusters.config.clusters
    if only and only not in named:
        raise ZonewiseError(f"--cluster {only!r} is not in {config}; it has {', '.join(sorted(named)) or 'no cluster'}")
    for name in sorted(named):
        if only in {"", name}:
            yield ceph_clusters.own(name)


def entries(cluster: CephCluster, pools: Iterable[str]) -> Iterator[tuple[Journal, JournalEntry]]:
    from zonewise.ceph.controller.journal import Journal
    from zonewise.ceph.decide.ids import ObjectType

    for pool in sorted(pools):
        source_journal = Journal(cluster, pool)
        for object_type in ObjectType:
            for _, entry in source_journal.entries(object_type):
                yield source_journal, entry


def _selected(source: Journal, entry: JournalEntry, words: tuple[str, ...]) -> bool:
    return not words or entry.name in words or source.id_of(entry) in words


def _table(listed: Iterable[tuple[Journal, JournalEntry]]) -> Iterator[str]:
    rows = [("NAME", "WHAT", "STATE", "POOL", "DOMAIN", "SIZE", "FROM", "ID")]
    for source, entry in listed:
        domain = ",".join(f"{key}={value}" for key, value in entry.domain) or "any"
        origin = entry.origin.image if entry.origin is not None else "-"
        what = "volume" if entry.object_type == "vol" else "snapshot"
        size = f"{entry.size_bytes / (1 << 30):.4g}Gi"
        rows.append((entry.name, what, entry.state, entry.pool, domain, size, origin, source.id_of(entry)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
