"""Every budget in the newest version this process knows, and the one way to write a status: compare-and-set.

Between the watch and those who charge or publish. What we wrote or read ourselves is newer than the watch until that
has caught up. A write names the version it was worked out from; whoever loses reads again and works out afresh, never
sends the same again.
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
"""After these nobody knows what is stored now: read it, and find out."""

_WRITES: Final = Counter("zonewise_budget_writes", "Status writes of budgets by how they ended", ["outcome"])
_READS: Final = Counter("zonewise_budget_reads", "Budgets read from the API server because the watch was not enough")


@dataclass(frozen=True, slots=True)
class BudgetVersion:
    """A budget, read and parsed, and the version it was read from."""

    written: TopologyDisruptionBudget
    case: BudgetCase

    @property
    def key(self) -> Key:
        return self.case.budget.key

    @property
    def version(self) -> str:
        return self.written.metadata.resource_version

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
        self._pages: dict[Key, BudgetVersion] = {}
        cache.on_change(self._heard)

    def newest(self, key: Key) -> BudgetVersion | None:
        """From memory; raises BudgetError for a spec that can't be read."""
        cached = self._cache.get(key)
        page = self._pages.get(key)
        if page is not None and (cached is None or _version(cached) <= _version(page.written)):
            return page
        return self._turn_to(cached) if cached is not None else None

    async def read(self, key: Key) -> BudgetVersion | None:
        """As the API server has it now; None when it is gone."""
        _READS.inc()
        try:
            written = await self._client.get(
                TOPOLOGY_DISRUPTION_BUDGETS, key.name, key.namespace, deadline_seconds=CALL_SECONDS
            )
        except NotFound:
            self._pages.pop(key, None)
            return None
        return self._turn_to(written)

    async def write(self, page: BudgetVersion, after: PublishedStatus) -> BudgetVersion:
        """Raises one of LOST when it may not be stored, NotFound when the budget is gone."""
        key = page.key
        try:
            written = await self._client.update(
                TOPOLOGY_DISRUPTION_BUDGETS,
                status_only(page.written, status.document(after)),
                key.namespace,
                subresource="status",
                deadline_seconds=CALL_SECONDS,
            )
        except ApiError as error:
            _WRITES.labels(error.kind).inc()
            if isinstance(error, NotFound):
                self._pages.pop(key, None)
            raise
        _WRITES.labels("stored").inc()
        return self._turn_to(written, after)

    def _turn_to(self, written: TopologyDisruptionBudget, said: PublishedStatus | None = None) -> BudgetVersion:
        """`said` is the status where it is known to be what was written: a long ledger is not read again."""
        key = key_of(written)
        before = self._pages.get(key)
        if before is not None and _version(before.written) >= _version(written):
            return before
        budget = before.budget if before is not None and _same_spec(before.budget, written) else Budget.parse(written)
        page = self._pages[key] = BudgetVersion(written, BudgetCase(budget, said or status.read(budget, written)))
        return page

    def _heard(self, change: Change[TopologyDisruptionBudget]) -> None:
        if change.new is None:
            self._pages.pop(change.key, None)


def status_only(written: TopologyDisruptionBudget, document: Mapping[str, Any]) -> dict[str, Any]:
    """All that an API server takes of an update of the status; the rest stays as stored. A patch costs it up to half as much again."""
    metadata = written.metadata
    version = {"uid": metadata.uid, "resourceVersion": metadata.resource_version}
    return {"metadata": {"name": metadata.name, **version}, "status": document}


def _same_spec(budget: Budget, written: TopologyDisruptionBudget) -> bool:
    return (budget.uid, budget.generation) == (written.metadata.uid, written.metadata.generation)


def _version(written: TopologyDisruptionBudget) -> int:
    """Versions of one kind may be compared since Kubernetes 1.35 says so; they always were etcd's revisions."""
    return int(written.metadata.resource_version or 0)
