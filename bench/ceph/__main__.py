"""`make bench-ceph`: creation and deletion of volumes against librbd and `rbd`; journal operations, listing, memory.

`python -m bench.ceph 20` is a trial run with 20 calls per batch, which is only printed.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
import uuid
from functools import partial
from pathlib import Path
from statistics import median

from bench.ceph.contestants import CLI, LIBRBD, OURS, CommandLine, Contestant, Librbd, Ours, Timed, ours, timed
from bench.report import Row, publish, show
from zonewise.lab.ceph import cluster as ceph
from zonewise.lab.ceph.cluster import JOURNAL_POOL, LabCeph

PARALLEL = (1, 8, 32)
CALLS = 64
CALLS_OF_CLI = 12
ROUNDS = 3
LISTED = 10_000
GOAL = {8: 1.3}

NOTES = """\
One Ceph of three OSDs on this machine, in memory.
Images of 1 GiB, distributed over three zones' pools.
Ours is `zonewise csi controller` over its socket: it chooses the pool, reserves the name in the journal, creates the image, and updates the journal.
librbd is called by as many threads of one process, with everything open, and keeps no journal; `rbd` is a process per image.
Ours creates a plain image with the four OSD calls that librbd also makes, without the lookups of librbd before each.
All three in turn within each round; medians over rounds.
Journal operations are those sent to OSDs, counted by the journal itself; that many are the minimum for names that are reserved before and confirmed after, and ids that are looked up before anything is removed.
Listing asks for all pages over the socket; its volumes are entries that were written into the journal directly."""

Figures = dict[tuple[str, str, int], list[Timed]]


def batches(contestants: list[Contestant], zones: tuple[str, ...], calls: int, parallel: int, figures: Figures) -> None:
    """Each contestant creates and deletes its images, in turn."""
    for contestant in contestants:
        count = min(calls, CALLS_OF_CLI) if contestant.name == CLI else max(8, calls if parallel > 1 else calls // 4)
        names = [(f"b-{uuid.uuid4().hex}", zones[number % len(zones)]) for number in range(count)]
        create_times, created = timed([partial(contestant.create, *one) for one in names], parallel)
        ids = zip(created, (zone for _, zone in names), strict=True)
        delete_times, _ = timed([partial(contestant.delete, *one) for one in ids], parallel)
        figures.setdefault((contestant.name, "create", parallel), []).append(create_times)
        figures.setdefault((contestant.name, "delete", parallel), []).append(delete_times)


def call_rows(figures: Figures) -> list[Row]:
    rows = []
    for act, call in (("create", "CreateVolume"), ("delete", "DeleteVolume")):
        for parallel in PARALLEL:
            mine = figures[OURS, act, parallel]
            for peer in (LIBRBD, CLI):
                theirs = figures[peer, act, parallel]
                runs = [{OURS: a.each_ms, peer: b.each_ms} for a, b in zip(mine, theirs, strict=True)]
                goal = GOAL.get(parallel) if peer == LIBRBD else None
                what = f"{call}, {parallel} at once"
                rows.append(Row(what, "ms each", _each(mine), _each(theirs), peer, goal, runs))
            theirs = figures[LIBRBD, act, parallel]
            p99 = median(run.p99_ms for run in mine)
            rows.append(
                Row(f"{call}, {parallel} at once: p99", "ms", p99, median(run.p99_ms for run in theirs), LIBRBD, None)
            )
    return rows


def _each(runs: list[Timed]) -> float:
    return median(run.each_ms for run in runs)


def journal_rows(config: Path, cluster: LabCeph) -> list[Row]:
    """In this process, to read the counters of the journal."""
    from zonewise.ceph.backend.cluster import CephClusters
    from zonewise.ceph.backend.rbd import RbdBackend
    from zonewise.ceph.config import CsiConfigFile
    from zonewise.ceph.controller import journal, provisioner
    from zonewise.ceph.controller.service import ControllerService
    from zonewise.ceph.decide.ids import VolumeKind
    from zonewise.ceph.spec import csi_pb2 as csi

    used: list[journal.Journal] = []

    class Counted(journal.Journal):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments)  # type: ignore[arg-type] # passed on unchanged
            used.append(self)

    def operations() -> int:
        total = sum(entry.operations for entry in used)
        used.clear()
        return total

    before = provisioner.Journal
    provisioner.Journal = Counted  # type: ignore[misc,assignment] # for the count
    clusters = CephClusters(CsiConfigFile(config), 60)
    try:
        controller = ControllerService(clusters, {VolumeKind.RBD: RbdBackend()})
        capability = csi.VolumeCapability(mount={}, access_mode={"mode": "SINGLE_NODE_WRITER"})
        counts: dict[str, list[int]] = {"create": [], "again": [], "delete": []}
        for _ in range(50):
            request = csi.CreateVolumeRequest(
                name=f"j-{uuid.uuid4().hex}", secrets=cluster.secrets, volume_capabilities=[capability]
            )
            volume = controller.create_volume(request).volume
            counts["create"].append(operations())
            controller.create_volume(request)
            counts["again"].append(operations())
            controller.delete_volume(csi.DeleteVolumeRequest(volume_id=volume.volume_id, secrets=cluster.secrets))
            counts["delete"].append(operations())
    finally:
        provisioner.Journal = before  # type: ignore[misc]
        clusters.close()
    goals = {"create": 2, "again": 2, "delete": 3}
    what = {"create": "a new volume", "again": "CreateVolume once more", "delete": "DeleteVolume"}
    return [
        Row(f"journal operations of {what[act]}", "operations", median(numbers), None, "", goals[act])
        for act, numbers in counts.items()
    ]


def list_rows(contestant: Ours, config: Path, count: int) -> list[Row]:
    from zonewise.ceph.backend.cluster import CephClusters
    from zonewise.ceph.config import CsiConfigFile
    from zonewise.ceph.controller import journal
    from zonewise.ceph.decide import ids
    from zonewise.ceph.decide.journal_entry import JournalEntry, JournalState

    clusters = CephClusters(CsiConfigFile(config), 60)
    cluster = clusters.own("lab")
    pool = cluster.config.rbd["topologyConstrainedPools"][0]["poolName"]
    number = cluster.require_pool(pool, "pool")
    lister_journal = journal.Journal(cluster, JOURNAL_POOL)
    entries = [
        JournalEntry(
            name=name,
            token=ids.token_of(name, uuid.uuid4().bytes[:4]),
            kind=ids.VolumeKind.RBD,
            object_type=ids.ObjectType.VOLUME,
            state=JournalState.READY,
            pool=pool,
            pool_id=number,
            size_bytes=1 << 30,
            created_seconds=int(time.time()),
            domain=(("zone", "zone-a"),),
        )
        for name in (f"listed-{index}-{uuid.uuid4().hex}" for index in range(count))
    ]
    timed([partial(lister_journal.reserve, entry) for entry in entries], 32)
    before = contestant.resident_mib()
    worked = contestant.cpu_seconds()
    seconds = []
    for _ in range(5):
        began = time.perf_counter()
        assert contestant.listed() == count
        seconds.append(time.perf_counter() - began)
    after = contestant.resident_mib()
    worked = (contestant.cpu_seconds() - worked) / len(seconds)
    timed([partial(lister_journal.forget, entry) for entry in entries], 32)
    clusters.close()
    return [
        Row(f"{count:,} volumes listed", "s", median(seconds), None, "", 2.0, [{"ours": run} for run in seconds]),
        Row(f"{count:,} volumes listed: CPU of the controller", "s", worked, None, "", None),
        Row("memory of the controller after all calls", "MiB", before, None, "", None),
        Row(f"memory of the controller after listing {count:,}", "MiB", after, None, "", None),
    ]


def main(trial: int | None = None) -> None:
    calls, rounds, listed = (trial, 1, 500) if trial else (CALLS, ROUNDS, LISTED)
    with tempfile.TemporaryDirectory(prefix="bench-ceph-") as name:
        folder = Path(name)
        cluster = ceph.start(folder / "ceph")
        try:
            config = folder / "config.json"
            config.write_text(json.dumps(cluster.csi_config()))
            floor = Librbd(cluster, config)
            with ours(cluster, folder, config) as mine:
                figures: Figures = {}
                contestants: list[Contestant] = [mine, floor, CommandLine(cluster)]
                batches(contestants, cluster.zones, 8, 8, {})  # warm up
                for number in range(rounds):
                    for parallel in PARALLEL:
                        batches(contestants, cluster.zones, calls, parallel, figures)
                    contestants.append(contestants.pop(0))  # rotate the order
                    print(f"round {number + 1} of {rounds}", file=sys.stderr)
                rows = [*call_rows(figures), *list_rows(mine, config, listed), *journal_rows(config, cluster)]
            floor.close()
        finally:
            ceph.remove(folder / "ceph")
    if trial:
        show(rows)
    else:
        publish("ceph", "make bench-ceph", rows, NOTES)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else None)
