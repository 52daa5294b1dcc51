"""Store of budgets: the newest version known to this process, and compare-and-set writes of their status.

It stands between the watch and the code that charges or publishes. What this process wrote or read itself is newer than
the watch until that has caught up. A write names the version it was computed from. After a conflict the caller reads the
budget again and computes a new status; it never resends the old one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from prometheus_client import Counter

from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.status import PublishedStatus
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.kube.client.client import Client
from zonewise.kube.watch.cache import Cache
from zonewise.kube.wire.errors import ApiError, Conflict, DeadlineExceeded, NotFound, ServerTimeout, Unreachable
from zonewise.objects import Key, key_of
from zonewise.objects.change import Change
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS, TopologyDisruptionBudget

CALL_SECONDS: Final = 2.0
LOST: Final = (Conflict, DeadlineExceeded, ServerTimeout, Unreachable)
"""Errors after which the stored status is unknown: read it."""

_WRITES: Final = Counter("zonewise_budget_writes", "Status writes of budgets by how they ended", ["outcome"])
_READS: Final = Counter("zonewise_budget_reads", "Budgets read from the API server because the watch was not enough")


@dataclass(frozen=True, slots=True)
class BudgetVersion:
    """A budget as stored in one version, and parsed."""

    stored: TopologyDisruptionBudget
    case: BudgetCase

    @property
    def key(self) -> Key:
        return self.case.budget.key

    @property
    def version(self) -> str:
        return self.stored.metadata.resource_version

    @property
    def budget(self) -> Budget:
        return self.case.budget

    @property
    def status(self) -> PublishedStatus:
        return self.case.status


class BudgetStore:
    def __init__(self, client: Client, cache: Cache[TopologyDisruptionBudget]) -> None:
        self._client = client
        self._cache = cache
        self._versions: dict[Key, BudgetVersion] = {}
        cache.on_change(self._budget_changed)

    def newest(self, key: Key) -> BudgetVersion | None:
        """From memory. Raises BudgetError for a spec that can't be parsed."""
        cached = self._cache.get(key)
        remembered = self._versions.get(key)
        if remembered is not None and (cached is None or _number(cached) <= _number(remembered.stored)):
            return remembered
        return self._remember(cached) if cached is not None else None

    async def read(self, key: Key) -> BudgetVersion | None:
        """As the API server has it now; None when it is gone."""
        _READS.inc()
        try:
            stored = await self._client.get(
                TOPOLOGY_DISRUPTION_BUDGETS, key.name, key.namespace, deadline_seconds=CALL_SECONDS
            )
        except NotFound:
            self._versions.pop(key, None)
            return None
        return self._remember(stored)

    async def write(self, version: BudgetVersion, after: PublishedStatus) -> BudgetVersion:
        """Raises one of LOST when the status may not be stored, NotFound when the budget is gone."""
        key = version.key
        try:
            stored = await self._client.update(
                TOPOLOGY_DISRUPTION_BUDGETS,
                status_only(version.stored, status.document(after)),
                key.namespace,
                subresource="status",
                deadline_seconds=CALL_SECONDS,
            )
        except ApiError as error:
            _WRITES.labels(error.kind).inc()
            if isinstance(error, NotFound):
                self._versions.pop(key, None)
            raise
        _WRITES.labels("stored").inc()
        return self._remember(stored, after)

    def _remember(self, stored: TopologyDisruptionBudget, parsed: PublishedStatus | None = None) -> BudgetVersion:
        """`parsed` is its status where that is known, so that a long ledger is not parsed again."""
        key = key_of(stored)
        before = self._versions.get(key)
        if before is not None and _number(before.stored) >= _number(stored):
            return before
        budget = before.budget if before is not None and _same_spec(before.budget, stored) else Budget.parse(stored)
        version = BudgetVersion(stored, BudgetCase(budget, parsed or status.read(budget, stored)))
        self._versions[key] = version
        return version

    def _budget_changed(self, change: Change[TopologyDisruptionBudget]) -> None:
        if change.new is None:
            self._versions.pop(change.key, None)


def status_only(stored: TopologyDisruptionBudget, document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields that an API server takes of a status update; the rest stays as stored. A patch costs it up to half as
    much again.
    """
    metadata = stored.metadata
    version = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
    return {"metadata": {"name": metadata.name, **version}, "status": document}


def _same_spec(budget: Budget, stored: TopologyDisruptionBudget) -> bool:
    return (budget.uid, budget.generation) == (stored.metadata.uid, stored.metadata.generation)


def _number(stored: TopologyDisruptionBudget) -> int:
    """Kubernetes 1.35 documents that versions of one kind may be compared; they always were etcd's revisions."""
    return int(stored.metadata.resource_version or 0)
