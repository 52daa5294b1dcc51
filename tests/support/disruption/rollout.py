"""Helpers for rollout and scale-down tests: budgets, waiting for pods, and the leader's writes."""

from __future__ import annotations

from typing import Any

from support.disruption.cluster import BUDGETS, Call, DisruptionNamespace, Json
from support.disruption.kwok import READY_AFTER
from support.disruption.processes import LEADER
from support.waiting import eventually
from zonewise.objects import PODS, Pod
from zonewise.topology import ZONE

EVICT = {"zonewise.dev/update": "Evict"}
EACH_ZONE = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
SOON = {READY_AFTER: "300ms"}


async def create_budget(ns: DisruptionNamespace, app: str, **spec: Any) -> None:
    """Create a budget for the app (one pod per zone by default) and wait until its status is published."""
    spec = {"maxUnavailable": 1, "nodeSelectorTerm": EACH_ZONE, **spec}
    chosen = {key: value for key, value in spec.items() if value is not None}
    await ns.budget(app, selector={"matchLabels": {"app": app}}, **chosen)

    async def is_counted() -> bool:
        return "observedGeneration" in await budget_status(ns, app)

    await eventually(is_counted, "budget status published")


async def budget_status(ns: DisruptionNamespace, name: str) -> Json:
    status: Json = (await ns.client.get(BUDGETS, name, ns.namespace)).get("status", {})
    return status


async def until_image(
    ns: DisruptionNamespace, app: str, count: int, image: str = "none:2", *, other_pods: int = 0
) -> list[Pod]:
    """Wait until `count` pods run `image`, `other_pods` run another one, and all are available."""

    async def updated() -> bool:
        pods = (await ns.client.list(PODS.whole(), ns.namespace, selector=f"app={app}")).items
        new = sum(pod["spec"]["containers"][0]["image"] == image for pod in pods)
        return new == count and len(pods) == count + other_pods

    await eventually(updated, f"{count} pods of {app} run {image}")
    return await ns.until_ready(app, count + other_pods)


def writes(ns: DisruptionNamespace) -> list[Call]:
    """The leader's writes in this namespace, from the audit log."""
    return [call for call in ns.audit.calls(user=LEADER, namespace=ns.namespace) if call.is_write]


def evictions(ns: DisruptionNamespace) -> list[Call]:
    return [call for call in writes(ns) if call.verb == "evict"]


def refusals(ns: DisruptionNamespace) -> list[Call]:
    """Writes refused with 4xx; a conflict does not count, nor does a pod that its own controller has just deleted."""
    return [call for call in writes(ns) if 400 <= call.code < 500 and call.code not in {404, 409}]
