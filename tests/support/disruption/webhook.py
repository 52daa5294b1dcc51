"""In-process guard replicas and leader for disruption tests, against a real API server."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from support.disruption.cluster import BUDGETS, DisruptionNamespace, charges_in
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
from zonewise.kube.clock import utc_now
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
        """Admission verdict; the pod is not deleted."""
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
        """`pod` is what the caller says is stored."""
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
    ns: DisruptionNamespace,
    user: str = "guard",
    config: Path | None = None,
    silent_seconds: float = 30.0,
    wall: Callable[[], datetime] = utc_now,
) -> AsyncIterator[Replica]:
    """Guard with its own synced caches, as `user`."""
    config = config or await asyncio.to_thread(user_kubeconfig, ns.plane, user)
    async with Client(kubeconfig.load(config)) as client:
        caches = Caches(client)
        sources = DisruptionInformers(caches)
        leader = LeaderMonitor(caches, Key(LEASE_NAMESPACE, DISRUPTION_LEASE), silent_seconds=silent_seconds)
        guard = EvictionGuard(client, sources, BudgetStore(client, sources.budgets), leader, wall=wall)
        async with caches:
            await caches.wait_synced()
            await eventually(lambda: guard.trouble() is None, "guard is ready")
            yield Replica(client, caches, guard, sources, ns.namespace)


@asynccontextmanager
async def leading(ns: DisruptionNamespace, user: str = "leader") -> AsyncIterator[None]:
    """Run the leader as a task."""
    await install(ns.plane)
    config = await asyncio.to_thread(user_kubeconfig, ns.plane, user)
    manager = Manager(kubeconfig.load(config), Health())
    lease = LeaseConfig(name=DISRUPTION_LEASE, namespace=LEASE_NAMESPACE, lease_seconds=6)
    disruption_app.add_to(manager, lease)
    task = asyncio.create_task(manager.run())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.wait([task])


async def zone_budget(ns: DisruptionNamespace, name: str = "budget", app: str = "web", **spec: Any) -> None:
    """Create a budget of one pod per zone, with `spec` on top, and wait until its status is published."""
    spec = {"selector": {"matchLabels": {"app": app}}, "maxUnavailable": 1, "nodeSelectorTerm": EACH_ZONE, **spec}
    await ns.budget(name, **{key: value for key, value in spec.items() if value is not None})
    await eventually(lambda: is_published(ns, name), f"budget {name} published")


async def is_published(ns: DisruptionNamespace, name: str = "budget") -> bool:
    budget = await ns.client.get(BUDGETS, name, ns.namespace)
    return budget.get("status", {}).get("observedGeneration") == budget["metadata"]["generation"]


async def status_of(ns: DisruptionNamespace, name: str = "budget") -> Json:
    status: Json = (await ns.client.get(BUDGETS, name, ns.namespace)).get("status", {})
    return status


async def charged(ns: DisruptionNamespace, name: str = "budget") -> list[str]:
    """Names of charged pods, oldest first."""
    return [charge.name for charge in charges_in(await status_of(ns, name))]


async def allowed(ns: DisruptionNamespace, name: str = "budget") -> dict[str, int]:
    return {domain["name"]: domain["allowed"] for domain in (await status_of(ns, name))["domains"]}


async def until_allowed(ns: DisruptionNamespace, expected: dict[str, int], name: str = "budget") -> None:
    async def reached() -> bool:
        return await allowed(ns, name) == expected

    await eventually(reached, f"allowed {expected}")


async def until_healthy(ns: DisruptionNamespace, pods: int, name: str = "budget") -> None:
    async def healthy() -> bool:
        return bool((await status_of(ns, name))["currentHealthy"] == pods)

    await eventually(healthy)


async def until_informed(replica: Replica, ns: DisruptionNamespace, pods: int, *budgets: str) -> None:
    """Wait until the replica's caches hold `pods` pods and the published status of the budgets."""

    def informed() -> bool:
        cached = [replica.sources.budgets.get(Key(ns.namespace, name)) for name in budgets or ("budget",)]
        counts = all(budget and budget.status.observed_generation for budget in cached)
        return counts and sum(pod.metadata.namespace == ns.namespace for pod in replica.sources.pods) == pods

    await eventually(informed, "replica caches are current")


async def set_ready(ns: DisruptionNamespace, name: str, *, ready: bool) -> None:
    new = {"type": "Ready", "status": str(ready), "lastTransitionTime": "2026-01-01T00:00:00Z"}
    pod = await ns.client.get(PODS.whole(), name, ns.namespace)
    conditions = [condition for condition in pod["status"]["conditions"] if condition["type"] != "Ready"]
    pod["status"]["conditions"] = [*conditions, new]
    await ns.client.update(PODS.whole(), pod, ns.namespace, subresource="status")
