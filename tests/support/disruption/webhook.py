"""The guard and the leader inside a test: replicas that are asked one by one, on the real API server of a bed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from support.disruption.cluster import BUDGETS, Bed, charges_in
from support.disruption.processes import install, user_kubeconfig
from support.waiting import eventually
from zonewise.api.names import DISRUPTION_LEASE
from zonewise.disruption import app as disruption_app
from zonewise.disruption.controller.budget_store import BudgetStore
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.webhook.guard import EvictionGuard
from zonewise.disruption.webhook.leader_monitor import LeaderMonitor
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.controller.elector import utc_now
from zonewise.kube.manager import LeaseConfig, Manager
from zonewise.kube.server.health import Health
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.admission_review import AdmissionVerdict, Operation, Review, UserInfo
from zonewise.objects import PODS, Key, Metadata, Pod
from zonewise.objects.policy import DeleteOptions, Eviction, Preconditions
from zonewise.topology import ZONE

EACH_ZONE = {"matchExpressions": [{"key": ZONE, "operator": "Exists"}]}
LEASE_NAMESPACE = "kube-system"

Json = dict[str, Any]


@dataclass
class Replica:
    client: Client
    caches: Caches
    guard: EvictionGuard
    sources: DisruptionInformers
    namespace: str

    async def evict(self, pod: str, *, uid: str = "", dry_run: bool = False) -> AdmissionVerdict:
        """What it answers; the pod stays."""
        options = DeleteOptions(preconditions=Preconditions(uid=uid)) if uid else None
        body = Eviction(metadata=Metadata(name=pod), delete_options=options)
        return await self.guard.review_eviction(
            Review(
                uid="r",
                operation=Operation.CREATE,
                name=pod,
                namespace=self.namespace,
                object=body,
                dry_run=dry_run,
            )
        )

    async def delete(self, pod: Pod, user: str, *groups: str) -> AdmissionVerdict:
        return await self.guard.review_delete(
            Review(
                uid="r",
                operation=Operation.DELETE,
                namespace=self.namespace,
                old_object=pod,
                user_info=UserInfo(username=user, groups=groups),
            )
        )


@asynccontextmanager
async def replica(
    bed: Bed,
    user: str = "guard",
    config: Path | None = None,
    silent_seconds: float = 30.0,
    wall: Callable[[], datetime] = utc_now,
) -> AsyncIterator[Replica]:
    """A guard with watches of its own, as `user`; synced."""
    config = config or await asyncio.to_thread(user_kubeconfig, bed.plane, user)
    async with Client(kubeconfig.load(config)) as client:
        caches = Caches(client)
        sources = DisruptionInformers(caches)
        leader = LeaderMonitor(caches, Key(LEASE_NAMESPACE, DISRUPTION_LEASE), silent_seconds=silent_seconds)
        guard = EvictionGuard(client, sources, BudgetStore(client, sources.budgets), leader, wall=wall)
        async with caches:
            await caches.wait_synced()
            await eventually(lambda: guard.trouble() is None, "it knows whether somebody leads")
            yield Replica(client, caches, guard, sources, bed.namespace)


@asynccontextmanager
async def leading(bed: Bed, user: str = "leader") -> AsyncIterator[None]:
    """The whole leader, as a task."""
    await install(bed.plane)
    config = await asyncio.to_thread(user_kubeconfig, bed.plane, user)
    manager = Manager(kubeconfig.load(config), Health())
    lease = LeaseConfig(name=DISRUPTION_LEASE, namespace=LEASE_NAMESPACE, lease_seconds=6)
    disruption_app.add_to(manager, lease)
    task = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def zone_budget(bed: Bed, name: str = "budget", app: str = "web", **spec: Any) -> None:
    """One pod per zone, unless `spec` says otherwise; published."""
    spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": 1, "nodeSelectorTerm": EACH_ZONE, **spec}
    await bed.budget(name, **{key: value for key, value in spec.items() if value is not None})
    await eventually(lambda: counted(bed, name), f"budget {name} counted")


async def counted(bed: Bed, name: str = "budget") -> bool:
    found = await bed.client.get(BUDGETS, name, bed.namespace)
    return found.get("status", {}).get("observedGeneration") == found["metadata"]["generation"]


async def status_of(bed: Bed, name: str = "budget") -> Json:
    found: Json = (await bed.client.get(BUDGETS, name, bed.namespace)).get("status", {})
    return found


async def charged(bed: Bed, name: str = "budget") -> list[str]:
    """Names of the charged pods, oldest first."""
    return [charge.name for charge in charges_in(await status_of(bed, name))]


async def allowed(bed: Bed, name: str = "budget") -> dict[str, int]:
    return {domain["name"]: domain["allowed"] for domain in (await status_of(bed, name))["domains"]}


async def until_allowed(bed: Bed, wanted: dict[str, int], name: str = "budget") -> None:
    async def reached() -> bool:
        return await allowed(bed, name) == wanted

    await eventually(reached, f"allowed {wanted}")


async def known(replica: Replica, bed: Bed, pods: int, *budgets: str) -> None:
    """Once the replica's watches have told it of so many pods and of the budgets as they are published."""

    def heard() -> bool:
        seen = [replica.sources.budgets.get(Key(bed.namespace, name)) for name in budgets or ("budget",)]
        counts = all(budget and budget.status.observed_generation for budget in seen)
        return counts and sum(pod.metadata.namespace == bed.namespace for pod in replica.sources.pods) == pods

    await eventually(heard, "the replica has heard of all")


async def set_ready(bed: Bed, name: str, *, ready: bool) -> None:
    condition = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod = await bed.client.get(PODS.whole(), name, bed.namespace)
    others = [known for known in pod["status"]["conditions"] if known["type"] != "Ready"]
    pod["status"]["conditions"] = [*others, condition]
    await bed.client.update(PODS.whole(), pod, bed.namespace, subresource="status")
