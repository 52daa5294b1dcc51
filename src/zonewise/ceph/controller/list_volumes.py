"""Every volume or snapshot in all journals, page by page. The token says where the page ended: cluster, journal pool, key."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

from zonewise.ceph.backend.cluster import CephCluster, CephClusters
from zonewise.ceph.controller import journal_pools
from zonewise.ceph.controller.journal import Journal, JournalEntry, JournalState
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType

LARGEST_PAGE = 5000  # a message may have 4 MiB


class VolumeLister:
    """With the driver's own users, as these requests carry no secrets; clusters that have none are left out."""

    def __init__(self, clusters: CephClusters) -> None:
        self._clusters = clusters
        self._lock = threading.Lock()
        self._has_journal: dict[tuple[str, str], dict[str, bool]] = {}

    def page(
        self, thing: ObjectType, most: int, start: str, wanted: Callable[[JournalEntry], bool] = lambda _entry: True
    ) -> tuple[list[tuple[Journal, JournalEntry]], str]:
        if most < 0:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"max_entries is {most}")
        size = min(most or LARGEST_PAGE, LARGEST_PAGE)
        page: list[tuple[Journal, JournalEntry]] = []
        last = ""
        for token, written, entry in self._from(thing, start):
            if not wanted(entry) or entry.state is not JournalState.READY:
                continue
            if len(page) == size:
                return page, last
            page.append((written, entry))
            last = token
        return page, ""

    def _from(self, thing: ObjectType, start: str) -> Iterator[tuple[str, Journal, JournalEntry]]:
        first = _parsed(start)
        for name in sorted(self._clusters.config.clusters):
            if name < first[0] or not self._clusters.config.clusters[name].user:
                continue
            cluster = self._clusters.own(name)
            for pool in sorted(self.pools(cluster)):
                if (name, pool) < first[:2]:
                    continue
                written = Journal(cluster, pool)
                after = first[2] if (name, pool) == first[:2] else ""
                for key, entry in written.entries(thing, after):
                    yield f"{name}/{pool}/{key}", written, entry

    def pools(self, cluster: CephCluster) -> set[str]:
        """Pools with a journal; UNAVAILABLE while one can't be asked that may have one: a list without it would be believed.

        One that had none when it was asked last is believed to have none while it is away: a zone's pool seldom has a journal.
        """
        key = (cluster.name, cluster.user)
        with self._lock:
            known = dict(self._has_journal.get(key, {}))
        seen = journal_pools.look(cluster, {pool for pool, has in known.items() if has})
        missing = [(pool, why) for pool, why in sorted(seen.away.items()) if known.get(pool, True)]
        if missing:
            raise CsiError(GrpcCode.UNAVAILABLE, "; ".join(journal_pools.missing(cluster, *each) for each in missing))
        with self._lock:
            self._has_journal.setdefault(key, {}).update(
                {**dict.fromkeys(seen.none, False), **dict.fromkeys(seen.found, True)}
            )
        return seen.found


def _parsed(token: str) -> tuple[str, str, str]:
    if not token:
        return ("", "", "")
    parts = token.split("/")
    shard, dash, key = parts[-1].partition("-")
    if len(parts) != 3 or not dash or len(shard) != 1 or shard not in "0123456789abcdef" or not key:
        raise CsiError(GrpcCode.ABORTED, f"starting_token {token[:80]!r} is none of ours: list from the beginning")
    return parts[0], parts[1], parts[2]
