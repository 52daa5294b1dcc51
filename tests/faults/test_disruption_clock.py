"""Budgets while the clocks of the leader and of the webhook jump: leases, charges and certificates go by no clock alone."""

import asyncio
import itertools
import os
from random import Random

import pytest

from support.clock import DAY_SECONDS, SHIFTS, WallClock
from support.disruption.cluster import ZONES, DisruptionNamespace
from support.disruption.faults import allows, create_database, evict, outcome, roll_out_during
from support.disruption.processes import zonewise
from support.fault_report import Report
from support.waiting import eventually

pytestmark = [pytest.mark.xdist_group("disruption-faults"), pytest.mark.timeout(1800)]

LONG = os.environ.get("ZONEWISE_FAULTS") == "long"
SEED = int(os.environ.get("ZONEWISE_SEED", "1"))
ROUNDS = 3 if LONG else 1
RENEWAL_SECONDS = 8 * DAY_SECONDS
"""So far ahead, the serving certificate is due."""


@pytest.fixture
def ns(budget_namespace: DisruptionNamespace) -> DisruptionNamespace:
    return budget_namespace


async def jump(clock: WallClock, shifts: tuple[int, ...], random: Random) -> None:
    for shift in shifts:
        await asyncio.sleep(random.uniform(0.2, 1))
        clock.shift(shift)


async def test_clock_jumps_keep_the_budget_and_the_lease(
    ns: DisruptionNamespace, wall_clock: WallClock, report: Report
) -> None:
    """Forward and back during a rollout and a drain; another leader, whose clock is right, waits."""
    random, changes, versions = Random(SEED), 0, itertools.count(2)
    await create_database(ns)
    try:
        async with zonewise(ns.client, ns.plane, environ=wall_clock.environ) as running:
            await eventually(lambda: allows(ns, "db", 3), "budget published")
            second = await running.start_leader(1)
            await asyncio.to_thread(second.line, "another process leads")
            for _ in range(ROUNDS):
                for shifts in (SHIFTS[:2], SHIFTS[2:]):
                    jumps, node = jump(wall_clock, shifts, random), ns.node(random.choice(ZONES))
                    changes += await roll_out_during(ns, f"none:{next(versions)}", [node], jumps)
            assert "leadership lost" not in running.leaders[0].events
            assert "leadership gained" not in second.events
    finally:
        wall_clock.shift(0)
    row = "clock of leader and webhook set an hour and a day forward and back"
    report(**outcome(row, ROUNDS * len(SHIFTS), changes, "pod changes"))


@pytest.mark.skipif(not LONG, reason="certificates are looked at once a minute: `make test-faults` runs it")
async def test_certificate_made_under_a_wrong_clock_is_replaced(
    ns: DisruptionNamespace, wall_clock: WallClock, report: Report
) -> None:
    """API servers do not trust one that is not valid yet: evictions fail closed until the clock is right again."""
    await create_database(ns)
    failed = 0
    try:
        async with zonewise(ns.client, ns.plane, environ=wall_clock.environ) as running:
            await eventually(lambda: allows(ns, "db", 3), "budget published")
            webhook = running.webhooks[0]
            (pod, *_) = await ns.in_zone("db", ZONES[0])
            wall_clock.shift(RENEWAL_SECONDS)
            await eventually(lambda: webhook.events.count("serving certificate renewed") == 2, "a renewal")
            running.balancer.reset()
            assert "not yet valid" in await evict(ns, pod)
            wall_clock.shift(0)

            async def passes() -> bool:
                nonlocal failed
                await asyncio.sleep(1)
                running.balancer.reset()
                result = await evict(ns, pod)
                failed += result != "gone"
                return result == "gone"

            await eventually(passes, "evictions pass again")
    finally:
        wall_clock.shift(0)
    row = "serving certificate renewed by a clock 8 days ahead"
    report(**outcome(row, 1, failed + 2, refused=failed + 1))
