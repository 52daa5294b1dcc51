"""What tests of rollouts and scale-downs on the bed have in common: their budget, their pods, and what the leader wrote."""

from __future__ import annotations

from typing import Any

from support.disruption.cluster import BUDGETS, Bed, Call, Json
from support.disruption.kwok import READY_AFTER
from support.disruption.processes import LEADER
from support.waiting import eventually
from zonewise.objects import PODS, Pod
from zonewise.topology import ZONE

EVICT = {"zonewise.dev/update": "Evict"}
EACH_ZONE = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
SOON = {READY_AFTER: "300ms"}


async def guard(bed: Bed, app: str, **spec: Any) -> None:
    """A budget over the app's pods, one of each zone unless told otherwise, once it is counted."""
    written = {"maxUnavailable": 1, "nodeSelectorTerm": EACH_ZONE, **spec}
    chosen = {key: value for key, value in written.items() if value is not None}
    await bed.budget(app, selector={"matchLabels": {"app": app}}, **chosen)

    async def is_counted() -> bool:
        return "observedGeneration" in await budget_status(bed, app)

    await eventually(is_counted, "the budget is counted")


async def budget_status(bed: Bed, name: str) -> Json:
    status: Json = (await bed.client.get(BUDGETS, name, bed.namespace)).get("status", {})
    return status


async def until_image(bed: Bed, app: str, count: int, image: str = "none:2", *, others: int = 0) -> list[Pod]:
    """Once so many pods run `image`, besides so many `others`, and all are available."""

    async def updated() -> bool:
        pods = (await bed.client.list(PODS.whole(), bed.namespace, selector=f"app={app}")).items
        new = sum(pod["spec"]["containers"][0]["image"] == image for pod in pods)
        return new == count and len(pods) == count + others

    await eventually(updated, f"{count} pods of {app} run {image}")
    return await bed.until_ready(app, count + others)


def writes(bed: Bed) -> list[Call]:
    """What the leader wrote about this bed's objects, as the audit log has it."""
    return [call for call in bed.audit.calls(user=LEADER, namespace=bed.namespace) if call.is_write]


def evictions(bed: Bed) -> list[Call]:
    return [call for call in writes(bed) if call.verb == "evict"]


def refusals(bed: Bed) -> list[Call]:
    """A lost race for a status is none."""
    return [call for call in writes(bed) if 400 <= call.code < 500 and call.code != 409]
