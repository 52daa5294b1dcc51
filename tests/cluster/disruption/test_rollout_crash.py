"""A leader that is killed in the middle of a wave leaves nothing undone: the ledger tells the next one."""

import pytest

from support.disruption.cluster import STATEFUL_SETS, ZONES, Bed
from support.disruption.processes import zonewise
from support.disruption.rollouts import EVICT, SOON, evictions, guard, refusals, until_image
from support.disruption.violations import watching
from support.waiting import eventually

pytestmark = pytest.mark.xdist_group("disruption")


async def test_whoever_leads_next_goes_on_where_the_last_was_killed(bed: Bed) -> None:
    async with zonewise(bed.client, bed.plane) as running:
        await bed.stateful_set("db", 12, annotations=EVICT, pod_annotations=SOON)
        await bed.until_ready("db", 12)
        await guard(bed, "db")
        bed.audit.restart()
        async with watching(bed, "db", dict.fromkeys(ZONES, 3)) as watcher:
            await bed.new_version(STATEFUL_SETS, "db")
            for evicted in (1, 5):
                await eventually(lambda evicted=evicted: len(evictions(bed)) >= evicted, "in the middle of a wave")
                await running.kill(running.leaders[0])
                await running.start_leader(0)
            await until_image(bed, "db", 12)
    assert not watcher.violations
    # One that was killed between an eviction and its answer may be asked for again, by its uid.
    assert len({call.name for call in evictions(bed) if call.code == 201}) == 12
    assert len(evictions(bed)) <= 12 + 2 * 3
    assert refusals(bed) == []
