"""A store that keeps the status of two budgets and does as told; that real servers do the same is tested on one."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from unit.disruption.build import EXISTS, World, budget, spread
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
class Store:
    """`seen` is what the watch has told; `faults` befall the next writes, before or after they are stored."""

    stored: dict[str, PublishedStatus]
    seen: dict[str, PublishedStatus] = field(default_factory=dict)
    before: list[ApiError] = field(default_factory=list)
    after: list[ApiError] = field(default_factory=list)
    writes: int = 0
    reads: int = 0
    write_seconds: float = 0.0
    meanwhile: Callable[[], None] = lambda: None

    def _page(self, name: str, found: PublishedStatus) -> BudgetVersion:
        limit = {"web": WEB, "other": OTHER}[name]
        document = msgspec.convert(status.document(found), TopologyDisruptionBudgetStatus)
        written = TopologyDisruptionBudget(status=document)
        return BudgetVersion(written, BudgetCase(limit, status.read(limit, written)))

    def newest(self, key: Key) -> BudgetVersion:
        return self._page(key.name, self.seen.get(key.name, self.stored[key.name]))

    async def read(self, key: Key) -> BudgetVersion:
        self.reads += 1
        await asyncio.sleep(0)
        return self._page(key.name, self.stored[key.name])

    async def write(self, page: BudgetVersion, after: PublishedStatus) -> BudgetVersion:
        """A conflict where the page is not what is stored."""
        await asyncio.sleep(self.write_seconds)
        self.meanwhile()
        await asyncio.sleep(0)
        if self.before:
            raise self.before.pop()
        if page.status != self.newest_stored(page):
            raise Conflict("somebody wrote first")
        self.writes += 1
        self.stored[page.key.name] = after
        self.seen.pop(page.key.name, None)
        if self.after:
            raise self.after.pop()
        return page

    def newest_stored(self, page: BudgetVersion) -> PublishedStatus:
        return self._page(page.key.name, self.stored[page.key.name]).status


def fresh(world: World, limit: Budget = WEB) -> PublishedStatus:
    return world.status(limit)


def store(zones: str = "3/3/3") -> tuple[Store, World]:
    world = spread(zones)
    return Store({limit.key.name: fresh(world, limit) for limit in (WEB, OTHER)}), world


def request(world: World, name: str, *others: Budget, **more: Any) -> ChargeRequest:
    cases = tuple(BudgetCase(limit, PublishedStatus()) for limit in others or (WEB,))
    stamp = more.pop("time", f"time-of-{name}")
    return ChargeRequest(
        pod=world.pods[name], node_domains=world.atlas, owner="deployment", time=stamp, cases=cases, **more
    )


async def ask(kept: Store, *requests: ChargeRequest, budgets: Sequence[Budget] = (WEB,)) -> list[list[ChargeAnswer]]:
    charges = Charger(kept, chance=lambda: 0.0)
    keys = [limit.key for limit in budgets]
    return list(await asyncio.gather(*(charges.charge(each, keys) for each in requests)))


def outcomes(answers: Iterable[list[ChargeAnswer]]) -> list[ChargeResult]:
    return [each[-1].outcome for each in answers]
