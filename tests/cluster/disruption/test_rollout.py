"""Rollouts of StatefulSets and DaemonSets by eviction, in waves over zones; stock controllers keep the revision history.

Every pod event is checked against a floor per zone, and the leader's calls are counted in the audit log.
"""

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import pairwise

import pytest

from support.disruption.cluster import DAEMON_SETS, STATEFUL_SETS, ZONES, DisruptionNamespace
from support.disruption.kwok import STAY_UNREADY
from support.disruption.processes import POLICIES, Installed
from support.disruption.rollout import EVICT, SOON, create_budget, evictions, refusals, until_image, writes
from support.disruption.violations import watching
from support.waiting import eventually
from zonewise.kube.wire.errors import Invalid
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import Pod

pytestmark = pytest.mark.xdist_group("disruption")

FLOORS = dict.fromkeys(ZONES, 2)


async def is_current(ns: DisruptionNamespace, name: str, replicas: int) -> bool:
    status = (await ns.client.get(STATEFUL_SETS, name, ns.namespace))["status"]
    current = status["currentRevision"] == status["updateRevision"]
    return bool(current and status.get("currentReplicas") == replicas)


async def test_stateful_set_is_updated_in_waves_and_rolled_back(ns: DisruptionNamespace, installed: Installed) -> None:
    await ns.stateful_set("db", 9, annotations=EVICT, pod_annotations=SOON)
    await ns.until_ready("db", 9)
    await create_budget(ns, "db")
    ns.audit.restart()
    async with watching(ns, "db", FLOORS) as watcher:
        await ns.new_version(STATEFUL_SETS, "db")
        await until_image(ns, "db", 9)
        await eventually(lambda: is_current(ns, "db", 9), "the update revision is current")
    assert not watcher.violations
    assert dict(watcher.lowest) == FLOORS, "one pod per zone was unavailable at a time"

    # Evictions that a busy server did not answer in time are retried.
    assert sum(call.code < 500 for call in evictions(ns)) == 9
    calls = Counter((call.verb, call.resource) for call in writes(ns))
    assert calls["patch", "statefulsets/status"] in {1, 2}, (
        "the stock controller may overwrite it once from a stale cache"
    )
    # Three waves, possibly the first publication, and later corrections.
    assert calls["update", "topologydisruptionbudgets/status"] <= 3 + 3
    assert refusals(ns) == []

    await ns.kubectl("rollout", "undo", "statefulset/db")
    await until_image(ns, "db", 9, "none:1")
    await eventually(lambda: is_current(ns, "db", 9), "the old revision is current again")
    history = await ns.kubectl("rollout", "history", "statefulset/db")
    assert re.findall(r"^\d+", history, re.MULTILINE) == ["2", "3"], history


async def test_daemon_set_is_updated_in_waves_if_annotated_or_guarded(
    ns: DisruptionNamespace, installed: Installed
) -> None:
    """The stock rolling update picks pods at random: a budget of one pod per zone would block it for ever."""
    await ns.daemon_set("asks", annotations=EVICT, pod_annotations=SOON)
    await ns.daemon_set("guarded", update="RollingUpdate", pod_annotations=SOON)
    await ns.daemon_set("surges", update="RollingUpdate", pod_annotations=SOON)
    surge = {"spec": {"updateStrategy": {"rollingUpdate": {"maxSurge": 1, "maxUnavailable": 0}}}}
    await ns.client.patch(DAEMON_SETS, "surges", MergePatch(surge), ns.namespace)
    await ns.until_ready("asks", 6)
    await ns.until_ready("guarded", 6)
    await ns.until_ready("surges", 6)
    await create_budget(ns, "asks")
    await create_budget(ns, "guarded")
    await create_budget(ns, "surges")
    floors = dict.fromkeys(ZONES, 1)
    async with watching(ns, "asks", floors) as annotated, watching(ns, "guarded", floors) as guarded:
        await ns.new_version(DAEMON_SETS, "asks")
        await ns.new_version(DAEMON_SETS, "guarded")
        await until_image(ns, "asks", 6)
        await until_image(ns, "guarded", 6)
    assert not annotated.violations + guarded.violations
    assert dict(annotated.lowest) == floors
    async with watching(ns, "surges", dict.fromkeys(ZONES, 2)) as surging:
        await ns.new_version(DAEMON_SETS, "surges")
        await until_image(ns, "surges", 6)
    assert not surging.violations, "the new pod starts first"
    assert refusals(ns) == []


async def test_partition_is_kept_and_bad_revision_stops_after_one_wave(
    ns: DisruptionNamespace, installed: Installed
) -> None:
    await ns.stateful_set("db", 9, annotations=EVICT | {"zonewise.dev/partition": "6"}, pod_annotations=SOON)
    await ns.until_ready("db", 9)
    await create_budget(ns, "db")
    await ns.new_version(STATEFUL_SETS, "db")
    pods = await until_image(ns, "db", 3, other_pods=6)
    assert {
        pod.metadata.name for pod in pods if pod.metadata.labels["controller-revision-hash"] != revision_of(pods, 0)
    } == {
        "db-6",
        "db-7",
        "db-8",
    }

    bad = {"spec": {"template": {"metadata": {"annotations": {STAY_UNREADY: "yes"}}}}}
    await ns.client.patch(STATEFUL_SETS, "db", MergePatch(bad), ns.namespace)
    no_partition = {"metadata": {"annotations": {"zonewise.dev/partition": None}}}
    await ns.client.patch(STATEFUL_SETS, "db", MergePatch(no_partition), ns.namespace)

    async def one_unavailable_per_zone() -> bool:
        return await ns.ready_by_zone("db") == FLOORS

    await eventually(one_unavailable_per_zone, "the first wave")

    async def all_running() -> bool:
        return (
            sum(pod.status.phase == "Running" and not pod.metadata.deletion_timestamp for pod in await ns.pods("db"))
            == 9
        )

    await eventually(all_running, "all are running but not ready")
    ns.audit.restart()
    await asyncio.sleep(5)
    assert [call for call in writes(ns) if call.resource in {"pods/eviction", "pods"}] == []
    assert await ns.ready_by_zone("db") == FLOORS

    await ns.kubectl("rollout", "undo", "statefulset/db")
    await until_image(ns, "db", 9)
    assert await ns.ready_by_zone("db") == dict.fromkeys(ZONES, 3)


async def test_foreign_denial_backs_off_and_never_retries_the_same_pod(
    ns: DisruptionNamespace, installed: Installed
) -> None:
    await ns.stateful_set("db", 6, annotations=EVICT, pod_annotations=SOON)
    await ns.until_ready("db", 6)
    await create_budget(ns, "db")
    async with evictions_denied(ns):
        ns.audit.restart()
        await ns.new_version(STATEFUL_SETS, "db")
        await eventually(lambda: len(refusals(ns)) >= 3, "an eviction is tried in every zone")
        await asyncio.sleep(10)
        tried = evictions(ns)
        assert len([call for call in writes(ns) if call.resource != "events"]) <= 6
        assert all(first.name != second.name for first, second in pairwise(tried))
        assert await ns.ready_by_zone("db") == dict.fromkeys(ZONES, 2)
    await ns.new_version(STATEFUL_SETS, "db", "none:3")
    await until_image(ns, "db", 6, "none:3")


@asynccontextmanager
async def evictions_denied(ns: DisruptionNamespace) -> AsyncIterator[None]:
    """An admission policy of another party denies all evictions."""
    name = f"{ns.namespace}-evictions"
    spec = {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods/eviction"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": ns.namespace}},
        },
        "validations": [{"expression": "false", "message": "no evictions here"}],
    }
    binding, policy = POLICIES
    await ns.client.create(policy, {"metadata": {"name": name}, "spec": spec})
    await ns.client.create(
        binding, {"metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]}}
    )
    pod = (await ns.pods("db"))[0].metadata.name

    async def is_refused() -> bool:
        with suppress(Invalid):
            await ns.client.evict(pod, ns.namespace, dry_run=True)
            return False
        return True

    await eventually(is_refused)
    yield
    await ns.client.delete(binding, name)
    await ns.client.delete(policy, name)

    async def is_accepted() -> bool:
        return not await is_refused()

    await eventually(is_accepted)


def revision_of(pods: list[Pod], ordinal: int) -> str:
    return next(
        pod.metadata.labels["controller-revision-hash"] for pod in pods if pod.metadata.name.endswith(f"-{ordinal}")
    )
