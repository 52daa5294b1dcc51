"""`zonewise csi journal`: what the driver's journals in Ceph say, for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from zonewise.cli import printing

if TYPE_CHECKING:
    from zonewise.ceph.backend.cluster import CephCluster
    from zonewise.ceph.controller.journal import Journal, JournalEntry

CONFIG = Path("/etc/zonewise-csi/config.json")

config_option = click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    default=CONFIG,
    show_default=True,
    help="The driver's configuration: which Ceph clusters there are, and as whom to look.",
)
cluster_option = click.option("--cluster", "only", default="", metavar="ID", help="Only this cluster of them.")


@click.command(
    epilog="""\b
Examples:
  zonewise csi journal --config csi.json
  zonewise csi journal --pool rbd-zone-a           volumes and snapshots in one pool
  zonewise csi journal pvc-0b1c8a3e -o json        all that is known about one
"""
)
@click.argument("words", nargs=-1, metavar="[NAME-OR-ID]...")
@config_option
@cluster_option
@click.option("--pool", default="", help="Only what has its data there.")
@click.option("--state", type=click.Choice(["reserved", "ready", "deleting"]), help="Only what is in this state.")
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def journal(
    ctx: click.Context, words: tuple[str, ...], config: Path, only: str, pool: str, state: str | None, output: str
) -> None:
    """List volumes and snapshots as the journals have them: name, state, pool, domain, size, origin, id.

    `reserved` is what is being made, or was when its controller died; a retry goes on from there. Exits with 1 when a NAME-OR-ID is
    nowhere, or a pool is away that may have a journal.
    """
    from zonewise.ceph.controller import journal_pools

    found: list[tuple[Journal, JournalEntry]] = []
    away: list[str] = []
    for cluster in clusters(config, only):
        seen = journal_pools.find_journal_pools(cluster)
        away += [journal_pools.unreadable_message(cluster, each, why) for each, why in sorted(seen.unavailable.items())]
        found += [
            (written, entry)
            for written, entry in entries(cluster, seen.with_journal)
            if (not pool or entry.pool == pool)
            and (state is None or entry.state == state)
            and _asked(written, entry, words)
        ]
    if output == "json":
        from zonewise.ceph.decide.journal_report import entry_report

        printing.echo_data(
            [entry_report(entry, written.pool, written.id_of(entry)) for written, entry in found], "json"
        )
    else:
        click.echo("\n".join(_table(found)))
    known = {entry.name for _, entry in found} | {written.id_of(entry) for written, entry in found}
    nowhere = [
        f"no journal {'that could be asked ' if away else ''}has {word!r}" for word in words if word not in known
    ]
    for problem in (*away, *nowhere):
        click.echo(problem, err=True)
    ctx.exit(1 if away or nowhere else 0)


def clusters(config: Path, only: str) -> Iterator[CephCluster]:
    """Connections as the driver's own user."""
    from zonewise.ceph.backend.cluster import CephClusters
    from zonewise.ceph.config import CsiConfigFile
    from zonewise.errors import ZonewiseError

    opened = CephClusters(CsiConfigFile(config))
    named = opened.config.clusters
    if only and only not in named:
        raise ZonewiseError(f"--cluster {only!r}: {config} has {', '.join(sorted(named)) or 'none'}")
    for name in sorted(named):
        if only in {"", name}:
            yield opened.own(name)


def entries(cluster: CephCluster, pools: Iterable[str]) -> Iterator[tuple[Journal, JournalEntry]]:
    from zonewise.ceph.controller.journal import Journal
    from zonewise.ceph.decide.ids import ObjectType

    for pool in sorted(pools):
        written = Journal(cluster, pool)
        for object_type in ObjectType:
            for _, entry in written.entries(object_type):
                yield written, entry


def _asked(written: Journal, entry: JournalEntry, words: tuple[str, ...]) -> bool:
    return not words or entry.name in words or written.id_of(entry) in words


def _table(found: Iterable[tuple[Journal, JournalEntry]]) -> Iterator[str]:
    rows = [("NAME", "WHAT", "STATE", "POOL", "DOMAIN", "SIZE", "FROM", "ID")]
    for written, entry in found:
        domain = ",".join(f"{key}={value}" for key, value in entry.domain) or "any"
        origin = entry.origin.image if entry.origin is not None else "-"
        what = "volume" if entry.object_type == "vol" else "snapshot"
        size = f"{entry.size_bytes / (1 << 30):.4g}Gi"
        rows.append((entry.name, what, entry.state, entry.pool, domain, size, origin, written.id_of(entry)))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        yield "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
