"""Budgets under faults: what their tests do to workloads meanwhile, and what they report."""

import asyncio
import subprocess
from collections.abc import Coroutine, Sequence
from typing import Any

from support.disruption.cluster import BUDGETS, STATEFUL_SETS, ZONES, DisruptionNamespace, Json, is_available
from support.disruption.kwok import GONE_AFTER, READY_AFTER
from support.disruption.violations import watching
from support.waiting import eventually
from zonewise.kube.wire.errors import ApiError, TooManyRequests
from zonewise.objects import PODS

EVICT = {"zonewise.dev/update": "Evict"}
ONE_PER_ZONE = {
    "maxUnavailable": 1,
    "nodeSelectorTerm": {"matchExpressions": [{"key": "topology.kubernetes.io/zone", "operator": "Exists"}]},
}


async def create_budget(ns: DisruptionNamespace, app: str, **spec: Any) -> None:
    """Budget of one pod per zone."""
    await ns.budget(app, selector={"matchLabels": {"app": app}}, **{**ONE_PER_ZONE, **spec})


async def status(ns: DisruptionNamespace, app: str) -> Json:
    budget = await ns.client.get(BUDGETS, app, ns.namespace)
    status: Json = budget.get("status", {})
    return status


async def allows(ns: DisruptionNamespace, app: str, allowed: int) -> bool:
    return bool((await status(ns, app)).get("disruptionsAllowed") == allowed)


async def evict(ns: DisruptionNamespace, pod: str) -> str:
    """Outcome: "gone", or code and reason of the denial."""
    try:
        await ns.client.evict(pod, ns.namespace)
    except TooManyRequests as error:
        return "429 budget" if any(cause.reason == "DisruptionBudget" for cause in error.causes) else "429 other"
    except ApiError as error:
        return f"{error.status} {error.message}"
    return "gone"


def outcome(fault: str, rounds: int, events: int, what: str = "evictions", **more: Any) -> dict[str, Any]:
    """A row of the report; violations fail the test before."""
    return {"component": "disruption", "fault": fault, "rounds": rounds, "requests": events, "what": what, **more}


def tried_evictions(ns: DisruptionNamespace) -> int:
    """How many the API server has logged."""
    return sum(call.verb == "evict" for call in ns.audit.calls(namespace=ns.namespace))


async def drain_until_done(ns: DisruptionNamespace, node: str) -> None:
    """Restart a drain that failed because a webhook was killed, as an operator would."""
    while True:
        command = ns.kubectl_command("drain", node, "--ignore-daemonsets", "--force", "--timeout=20s")
        result = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
        if result.returncode == 0:
            return
        await asyncio.sleep(0.5)


async def is_updated(ns: DisruptionNamespace, app: str, image: str) -> bool:
    await asyncio.sleep(0.2)
    pods = (await ns.client.list(PODS.whole(), ns.namespace, selector=f"app={app}")).items
    ready = sum(is_available(pod) for pod in await ns.pods(app))
    return ready == 9 and [pod["spec"]["containers"][0]["image"] for pod in pods] == [image] * 9


async def create_database(ns: DisruptionNamespace) -> None:
    """Nine quick pods of StatefulSet "db", which is updated by evictions, and their budget."""
    await ns.stateful_set("db", 9, annotations=EVICT, pod_annotations={READY_AFTER: "300ms", GONE_AFTER: "200ms"})
    await ns.until_ready("db", 9)
    await create_budget(ns, "db")


async def roll_out_during(
    ns: DisruptionNamespace,
    image: str,
    nodes: Sequence[str],
    fault: Coroutine[Any, Any, None],
    *,
    through_outages: bool = False,
) -> int:
    """Update the database and drain `nodes` during the fault: no zone falls below its floor, and both end.

    Returns the number of pod changes.
    """
    async with watching(ns, "db", dict.fromkeys(ZONES, 2), through_outages=through_outages) as watcher:
        await ns.new_version(STATEFUL_SETS, "db", image)
        async with asyncio.timeout(600), asyncio.TaskGroup() as group:
            group.create_task(fault)
            for node in nodes:
                group.create_task(drain_until_done(ns, node))
        await eventually(lambda: is_updated(ns, "db", image), f"the rollout of {image} ends")
    assert watcher.events > 18 or through_outages
    assert not watcher.violations, f"rollout of {image}: {watcher.violations}"
    await ns.kubectl("uncordon", *nodes)
    return watcher.events


async def policy_in_force(ns: DisruptionNamespace, pod: str) -> bool:
    """API servers enforce a policy shortly after it is stored."""
    user = "--as=system:serviceaccount:kube-system:replicaset-controller"
    return "guarded by" in await ns.kubectl("delete", "pod", pod, "--dry-run=server", user, code=None)
