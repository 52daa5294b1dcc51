"""Leader crash during a rollout: the next leader continues from the ledger."""

import pytest

from support.disruption.cluster import STATEFUL_SETS, ZONES, DisruptionNamespace
from support.disruption.processes import zonewise
from support.disruption.rollout import EVICT, SOON, create_budget, evictions, refusals, until_image
from support.disruption.violations import watching
from support.waiting import eventually

pytestmark = pytest.mark.xdist_group("disruption")


async def test_next_leader_continues_a_killed_leaders_rollout(ns: DisruptionNamespace) -> None:
    async with zonewise(ns.client, ns.plane) as running:
        await ns.stateful_set("db", 12, annotations=EVICT, pod_annotations=SOON)
        await ns.until_ready("db", 12)
        await create_budget(ns, "db")
        ns.audit.restart()
        async with watching(ns, "db", dict.fromkeys(ZONES, 3)) as watcher:
            await ns.new_version(STATEFUL_SETS, "db")
            for evicted in (1, 5):
                await eventually(lambda evicted=evicted: len(evictions(ns)) >= evicted, "in the middle of a wave")
                await running.kill(running.leaders[0])
                await running.start_leader(0)
            await until_image(ns, "db", 12)
    assert not watcher.violations
    # An eviction whose response was lost in the crash may be repeated, by uid.
    assert len({call.name for call in evictions(ns) if call.code == 201}) == 12
    assert len(evictions(ns)) <= 12 + 2 * 3
    assert refusals(ns) == []
