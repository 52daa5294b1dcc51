"""Fake budget store with two budgets and scripted faults; tests on a real server show the same behaviour."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from unit.disruption.build import EXISTS, Cluster, budget, spread
from zonewise.disruption.controller.budget_store import BudgetVersion
from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.charge import ChargeAnswer, ChargeRequest, ChargeResult
from zonewise.disruption.decide.status import PublishedStatus
from zonewise.disruption.decide.verdict import BudgetCase
from zonewise.disruption.webhook.charger import Charger
from zonewise.kube.wire.errors import ApiError, Conflict
from zonewise.objects import Key
from zonewise.objects.policy import TopologyDisruptionBudget, TopologyDisruptionBudgetStatus

WEB, OTHER = (budget(EXISTS, name=name, maxUnavailable=1) for name in ("web", "other"))


@dataclass
class FakeStore:
    """`cached`: statuses in the cache. `before` and `after`: errors of the next writes, before or after they are stored."""

    stored: dict[str, PublishedStatus]
    cached: dict[str, PublishedStatus] = field(default_factory=dict)
    before: list[ApiError] = field(default_factory=list)
    after: list[ApiError] = field(default_factory=list)
    writes: int = 0
    reads: int = 0
    write_seconds: float = 0.0
    meanwhile: Callable[[], None] = lambda: None

    def _version(self, name: str, current: PublishedStatus) -> BudgetVersion:
        limit = {"web": WEB, "other": OTHER}[name]
        document = msgspec.convert(status.document(current), TopologyDisruptionBudgetStatus)
        stored_object = TopologyDisruptionBudget(status=document)
        return BudgetVersion(stored_object, BudgetCase(limit, status.read(limit, stored_object)))

    def newest(self, key: Key) -> BudgetVersion:
        return self._version(key.name, self.cached.get(key.name, self.stored[key.name]))

    async def read(self, key: Key) -> BudgetVersion:
        self.reads += 1
        await asyncio.sleep(0)
        return self._version(key.name, self.stored[key.name])

    async def write(self, version: BudgetVersion, after: PublishedStatus) -> BudgetVersion:
        """Raises Conflict if the version is not the stored one."""
        await asyncio.sleep(self.write_seconds)
        self.meanwhile()
        await asyncio.sleep(0)
        if self.before:
            raise self.before.pop()
        if version.status != self.newest_stored(version):
            raise Conflict("conflict")
        self.writes += 1
        self.stored[version.key.name] = after
        self.cached.pop(version.key.name, None)
        if self.after:
            raise self.after.pop()
        return version

    def newest_stored(self, version: BudgetVersion) -> PublishedStatus:
        return self._version(version.key.name, self.stored[version.key.name]).status


def fresh(cluster: Cluster, limit: Budget = WEB) -> PublishedStatus:
    return cluster.status(limit)


def fake_store(zones: str = "3/3/3") -> tuple[FakeStore, Cluster]:
    cluster = spread(zones)
    return FakeStore({limit.key.name: fresh(cluster, limit) for limit in (WEB, OTHER)}), cluster


def request(cluster: Cluster, name: str, *others: Budget, **more: Any) -> ChargeRequest:
    cases = tuple(BudgetCase(limit, PublishedStatus()) for limit in others or (WEB,))
    stamp = more.pop("time", f"time-of-{name}")
    return ChargeRequest(
        pod=cluster.pods[name], node_domains=cluster.node_domains, owner="deployment", time=stamp, cases=cases, **more
    )


async def ask(
    store: FakeStore, *requests: ChargeRequest, budgets: Sequence[Budget] = (WEB,)
) -> list[list[ChargeAnswer]]:
    charges = Charger(store, chance=lambda: 0.0)
    keys = [limit.key for limit in budgets]
    return list(await asyncio.gather(*(charges.charge(one, keys) for one in requests)))


def outcomes(answers: Iterable[list[ChargeAnswer]]) -> list[ChargeResult]:
    return [one[-1].outcome for one in answers]
