"""ListVolumes and ListSnapshots over all journals. The token has cluster, journal pool and key of the last entry."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Final

from zonewise.ceph.backend.cluster import CephCluster, CephClusters
from zonewise.ceph.controller import journal_pools
from zonewise.ceph.controller.journal import Journal
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.ids import ObjectType
from zonewise.ceph.decide.journal_entry import JournalEntry, JournalState

LARGEST_PAGE: Final = 5000  # a gRPC message is limited to 4 MiB


class VolumeLister:
    """Uses the driver's own users, as these requests carry no secrets; clusters without one are left out."""

    def __init__(self, clusters: CephClusters) -> None:
        self._clusters = clusters
        self._lock = threading.Lock()
        self._has_journal: dict[tuple[str, str], dict[str, bool]] = {}

    def page(
        self,
        object_type: ObjectType,
        max_entries: int,
        start: str,
        matches: Callable[[JournalEntry], bool] = lambda _entry: True,
    ) -> tuple[list[tuple[Journal, JournalEntry]], str]:
        if max_entries < 0:
            raise CsiError(GrpcCode.INVALID_ARGUMENT, f"max_entries is {max_entries}: it must not be negative")
        size = min(max_entries or LARGEST_PAGE, LARGEST_PAGE)
        page: list[tuple[Journal, JournalEntry]] = []
        last = ""
        for token, journal, entry in self._entries_from(object_type, start):
            if not matches(entry) or entry.state is not JournalState.READY:
                continue
            if len(page) == size:
                return page, last
            page.append((journal, entry))
            last = token
        return page, ""

    def _entries_from(self, object_type: ObjectType, start: str) -> Iterator[tuple[str, Journal, JournalEntry]]:
        begin = _parse_token(start)
        for name in sorted(self._clusters.config.clusters):
            if name < begin[0] or not self._clusters.config.clusters[name].user:
                continue
            cluster = self._clusters.own(name)
            for pool in sorted(self.pools(cluster)):
                if (name, pool) < begin[:2]:
                    continue
                journal = Journal(cluster, pool)
                after = begin[2] if (name, pool) == begin[:2] else ""
                for key, entry in journal.entries(object_type, after):
                    yield f"{name}/{pool}/{key}", journal, entry

    def pools(self, cluster: CephCluster) -> set[str]:
        """Pools with a journal. Raises UNAVAILABLE if one can't be read: the list would be incomplete.

        An unavailable pool without a journal at its last check is skipped: pools of a zone seldom have one.
        """
        key = (cluster.name, cluster.user)
        with self._lock:
            cached = dict(self._has_journal.get(key, {}))
        current = journal_pools.find_journal_pools(cluster, {pool for pool, has in cached.items() if has})
        unreadable = [(pool, why) for pool, why in sorted(current.unavailable.items()) if cached.get(pool, True)]
        if unreadable:
            raise CsiError(
                GrpcCode.UNAVAILABLE,
                "; ".join(journal_pools.unreadable_message(cluster, pool, why) for pool, why in unreadable),
            )
        with self._lock:
            self._has_journal.setdefault(key, {}).update(
                {**dict.fromkeys(current.without_journal, False), **dict.fromkeys(current.with_journal, True)}
            )
        return current.with_journal


def _parse_token(token: str) -> tuple[str, str, str]:
    if not token:
        return ("", "", "")
    parts = token.split("/")
    shard, dash, key = parts[-1].partition("-")
    if len(parts) != 3 or not dash or len(shard) != 1 or shard not in "0123456789abcdef" or not key:
        raise CsiError(GrpcCode.ABORTED, f"starting_token {token[:80]!r} is invalid: list from the beginning")
    return parts[0], parts[1], parts[2]
