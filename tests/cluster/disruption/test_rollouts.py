"""StatefulSets and DaemonSets are updated by eviction, in waves over zones, and stock keeps their history.

Every change of a pod is looked at for a zone with less than it was promised, and every call of ours is counted.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest

from support.disruption.cluster import DAEMON_SETS, STATEFUL_SETS, ZONES, Bed
from support.disruption.kwok import HELD
from support.disruption.processes import POLICIES, Installed
from support.disruption.rollouts import EVICT, SOON, evictions, guard, refusals, until_image, writes
from support.disruption.violations import watching
from support.waiting import eventually
from zonewise.kube.wire.errors import Invalid
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import Pod

pytestmark = pytest.mark.xdist_group("disruption")

FLOORS = dict.fromkeys(ZONES, 2)


async def is_current(bed: Bed, name: str, replicas: int) -> bool:
    status = (await bed.client.get(STATEFUL_SETS, name, bed.namespace))["status"]
    current = status["currentRevision"] == status["updateRevision"]
    return bool(current and status.get("currentReplicas") == replicas)


async def test_a_stateful_set_is_updated_in_waves_and_rolled_back(bed: Bed, installed: Installed) -> None:
    await bed.stateful_set("db", 9, annotations=EVICT, pod_annotations=SOON)
    await bed.until_ready("db", 9)
    await guard(bed, "db")
    bed.audit.restart()
    async with watching(bed, "db", FLOORS) as watcher:
        await bed.new_version(STATEFUL_SETS, "db")
        await until_image(bed, "db", 9)
        await eventually(lambda: is_current(bed, "db", 9), "the update is the current revision")
    assert not watcher.violations
    assert dict(watcher.lowest) == FLOORS, "one of each zone was away at a time"

    # What a busy server did not answer in time is asked for again.
    assert sum(call.code < 500 for call in evictions(bed)) == 9
    calls = Counter((call.verb, call.resource) for call in writes(bed))
    assert calls["patch", "statefulsets/status"] in {1, 2}, "stock may overwrite it once with what it knew before"
    # Three waves, the count before the first if it is not published yet, what comes to light afterwards.
    assert calls["update", "topologydisruptionbudgets/status"] <= 3 + 3
    assert refusals(bed) == []

    await bed.kubectl("rollout", "undo", "statefulset/db")
    await until_image(bed, "db", 9, "none:1")
    await eventually(lambda: is_current(bed, "db", 9), "the old one is current again")
    history = await bed.kubectl("rollout", "history", "statefulset/db")
    assert re.findall(r"^\d+", history, re.MULTILINE) == ["2", "3"], history


async def test_a_daemon_set_is_updated_in_waves_whether_it_asks_or_its_guard_makes_it(
    bed: Bed, installed: Installed
) -> None:
    """Its own rolling update takes pods at random: a guard that lets one of each zone go would hold it up for ever."""
    await bed.daemon_set("asks", annotations=EVICT, pod_annotations=SOON)
    await bed.daemon_set("guarded", update="RollingUpdate", pod_annotations=SOON)
    await bed.daemon_set("surges", update="RollingUpdate", pod_annotations=SOON)
    surge = {"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}
    await bed.client.patch(DAEMON_SETS, "surges", MergePatch(surge), bed.namespace)
    await bed.until_ready("asks", 6)
    await bed.until_ready("guarded", 6)
    await bed.until_ready("surges", 6)
    await guard(bed, "asks")
    await guard(bed, "guarded")
    await guard(bed, "surges")
    floors = dict.fromkeys(ZONES, 1)
    async with watching(bed, "asks", floors) as asking, watching(bed, "guarded", floors) as guarded:
        await bed.new_version(DAEMON_SETS, "asks")
        await bed.new_version(DAEMON_SETS, "guarded")
        await until_image(bed, "asks", 6)
        await until_image(bed, "guarded", 6)
    assert not asking.violations + guarded.violations
    assert dict(asking.lowest) == floors
    async with watching(bed, "surges", dict.fromkeys(ZONES, 2)) as surging:
        await bed.new_version(DAEMON_SETS, "surges")
        await until_image(bed, "surges", 6)
    assert not surging.violations, "the new pod comes first"
    assert refusals(bed) == []


async def test_a_partition_is_kept_and_a_bad_revision_stops_after_one_wave(bed: Bed, installed: Installed) -> None:
    await bed.stateful_set("db", 9, annotations=EVICT | {"zonewise.dev/partition": "6"}, pod_annotations=SOON)
    await bed.until_ready("db", 9)
    await guard(bed, "db")
    await bed.new_version(STATEFUL_SETS, "db")
    pods = await until_image(bed, "db", 3, others=6)
    assert {
        pod.metadata.name for pod in pods if pod.metadata.labels["controller-revision-hash"] != revision_of(pods, 0)
    } == {
        "db-6",
        "db-7",
        "db-8",
    }

    bad = {"spec": {"template": {"metadata": {"annotations": {HELD: "yes"}}}}}
    await bed.client.patch(STATEFUL_SETS, "db", MergePatch(bad), bed.namespace)
    open_to_all = {"metadata": {"annotations": {"zonewise.dev/partition": None}}}
    await bed.client.patch(STATEFUL_SETS, "db", MergePatch(open_to_all), bed.namespace)

    async def one_away_in_each_zone() -> bool:
        return await bed.ready_by_zone("db") == FLOORS

    await eventually(one_away_in_each_zone, "the first wave")

    async def all_there() -> bool:
        return (
            sum(pod.status.phase == "Running" and not pod.metadata.deletion_timestamp for pod in await bed.pods("db"))
            == 9
        )

    await eventually(all_there, "they are back, not ready")
    bed.audit.restart()
    await asyncio.sleep(5)
    assert [call for call in writes(bed) if call.resource in {"pods/eviction", "pods"}] == []
    assert await bed.ready_by_zone("db") == FLOORS

    await bed.kubectl("rollout", "undo", "statefulset/db")
    await until_image(bed, "db", 9)
    assert await bed.ready_by_zone("db") == dict.fromkeys(ZONES, 3)


async def test_a_refusal_from_elsewhere_costs_few_calls_and_never_tries_the_same_pod_twice_in_a_row(
    bed: Bed, installed: Installed
) -> None:
    await bed.stateful_set("db", 6, annotations=EVICT, pod_annotations=SOON)
    await bed.until_ready("db", 6)
    await guard(bed, "db")
    async with nobody_evicts(bed):
        bed.audit.restart()
        await bed.new_version(STATEFUL_SETS, "db")
        await eventually(lambda: len(refusals(bed)) >= 3, "every zone is tried")
        await asyncio.sleep(10)
        tried = evictions(bed)
        assert len([call for call in writes(bed) if call.resource != "events"]) <= 6
        assert all(one.name != next_one.name for one, next_one in pairwise(tried))
        assert await bed.ready_by_zone("db") == dict.fromkeys(ZONES, 2)
    await bed.new_version(STATEFUL_SETS, "db", "none:3")
    await until_image(bed, "db", 6, "none:3")


@asynccontextmanager
async def nobody_evicts(bed: Bed) -> AsyncIterator[None]:
    """A policy of somebody else's."""
    name = f"{bed.namespace}-evictions"
    spec = {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": bed.namespace}},
        },
        "validations": [{"expression": "false", "message": "nobody is evicted here"}],
    }
    binding, policy = POLICIES
    await bed.client.create(policy, {"metadata": {"name": name}, "spec": spec})
    await bed.client.create(
        binding, {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    )
    pod = (await bed.pods("db"))[0].metadata.name

    async def is_refused() -> bool:
        with suppress(Invalid):
            await bed.client.evict(pod, bed.namespace, dry_run=True)
            return False
        return True

    await eventually(is_refused)
    yield
    await bed.client.delete(binding, name)
    await bed.client.delete(policy, name)

    async def is_let_go() -> bool:
        return not await is_refused()

    await eventually(is_let_go)


def revision_of(pods: list[Pod], ordinal: int) -> str:
    return next(
        pod.metadata.labels["controller-revision-hash"] for pod in pods if pod.metadata.name.endswith(f"-{ordinal}")
    )
