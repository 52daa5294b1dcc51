"""Random Services and pods of every kind that the stock EndpointSlice controller supports, from a seed."""

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from random import Random
from typing import Any

from support.slices.cluster import ClusterNamespace
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import PODS, SERVICES

APPS = tuple(f"app-{number}" for number in range(24))
TIERS = ("gold", "tin")
NODES = ("zone-a-0", "zone-b-0", "zone-c-0", "nowhere", "missing")
AT_ONCE = 16

PORTS: Sequence[Mapping[str, Any]] = (
    {"name": "number", "port": 80, "targetPort": 8080},
    {"name": "named", "port": 81, "targetPort": "web"},
    {"name": "udp", "port": 53, "targetPort": "dns", "protocol": "UDP"},
    {"name": "wrong-protocol", "port": 54, "targetPort": "dns", "protocol": "TCP"},
    {"name": "sidecar", "port": 82, "targetPort": "side", "appProtocol": "kubernetes.io/h2c"},
    {"name": "nobody", "port": 83, "targetPort": "unknown"},
    {"name": "sctp", "port": 84, "targetPort": 84, "protocol": "SCTP"},
)
FAMILIES: Sequence[Mapping[str, Any]] = (
    {},
    {"ipFamilyPolicy": "RequireDualStack"},
    {"ipFamilyPolicy": "SingleStack", "ipFamilies": ["IPv6"]},
    {"ipFamilyPolicy": "PreferDualStack", "ipFamilies": ["IPv6", "IPv4"]},
)
LABELS: Sequence[Mapping[str, str]] = (
    {},
    {"team": "blue", "example.com/tier": "1"},
    {"kubernetes.io/service-name": "other", "endpointslice.kubernetes.io/managed-by": "me"},
    {"service.kubernetes.io/headless": "no"},
)


async def concurrently(work: Iterable[Awaitable[Any]]) -> None:
    slots = asyncio.Semaphore(AT_ONCE)

    async def limited(item: Awaitable[Any]) -> None:
        async with slots:
            await item

    await asyncio.gather(*(limited(item) for item in work))


class RandomCluster:
    def __init__(self, ns: ClusterNamespace, seed: int) -> None:
        self.ns = ns
        self.random = Random(seed)
        self.pods: list[str] = []
        self.services: list[str] = []

    async def populate(self, services: int, pods: int) -> None:
        await self.ns.node("nowhere", None)
        await concurrently([self._new_pod() for _ in range(pods)])
        await concurrently([self._new_service() for _ in range(services)])

    async def churn(self, changes: int) -> None:
        """Every pod and Service is touched once at most, so that the changes may come in any order."""
        self.random.shuffle(self.pods)
        self.random.shuffle(self.services)
        pods = [self._change_pod(self.pods.pop()) for _ in range(changes)]
        services = [self._change_service(name) for name in self.services[:changes]]
        await concurrently([*pods, *services, *(self._new_pod() for _ in range(changes // 2))])

    def _new_pod(self) -> Awaitable[Any]:
        pick = self.random
        name = f"pod-{len(self.pods)}-{pick.getrandbits(32):x}"
        self.pods.append(name)
        spec: dict[str, Any] = pick.choice(
            [{}, {}, {"hostname": "host", "subdomain": pick.choice(APPS)}, {"initContainers": [_sidecar()]}]
        )
        return self.ns.pod(
            name,
            {"app": pick.choice(APPS), "tier": pick.choice(TIERS)},
            pick.choices(NODES, (8, 8, 8, 1, 1))[0],
            ready=pick.random() < 0.8,
            families=pick.choice([("IPv4",), ("IPv6",), ("IPv4", "IPv6"), ("IPv6", "IPv4"), ()]),
            ports=[
                {"name": "web", "containerPort": pick.choice([8080, 9090])},
                {"name": "dns", "containerPort": 5353, "protocol": "UDP"},
            ],
            spec=spec,
            phase=pick.choices(["Running", "Pending", "Succeeded", "Failed"], (20, 2, 1, 1))[0],
        )

    def _new_service(self) -> Awaitable[Any]:
        pick = self.random
        name = pick.choice([f"{pick.choice(APPS)}", "x" * 63]) if pick.random() < 0.1 else ""
        name = name if name and name not in self.services else f"service-{len(self.services)}"
        self.services.append(name)
        spec: dict[str, Any] = {"selector": self._selector(), **pick.choice(FAMILIES)}
        ports = self._ports()
        if pick.random() < 0.3:
            spec["clusterIP"] = "None"
            ports = ports if pick.random() < 0.7 else []
        if pick.random() < 0.2:
            spec["publishNotReadyAddresses"] = True
        return self.ns.service(name, labels=pick.choice(LABELS), ports=ports, **spec)

    def _selector(self) -> dict[str, str]:
        selector = {"app": self.random.choice((*APPS, "nobody"))}
        return selector | ({"tier": self.random.choice(TIERS)} if self.random.random() < 0.4 else {})

    def _ports(self) -> list[Mapping[str, Any]]:
        return self.random.sample(PORTS, self.random.randint(1, 3))

    def _change_pod(self, name: str) -> Awaitable[Any]:
        client, namespace, pick = self.ns.client, self.ns.namespace, self.random
        match pick.randrange(5):
            case 0:
                return self.ns.delete_pod(name)
            case 1:  # it stays, terminating: no kubelet ends it
                return client.delete(PODS, name, namespace, grace_seconds=30)
            case 2:
                labels = {"app": pick.choice(APPS)}
                return client.patch(PODS, name, MergePatch({"metadata": {"labels": labels}}), namespace)
            case 3:
                return self.ns.pod_status(name, ready=False)
            case _:
                return self.ns.pod_status(name, ready=True)

    def _change_service(self, name: str) -> Awaitable[Any]:
        patch: dict[str, Any] = self.random.choice(
            [
                {"spec": {"selector": None}},
                {"spec": {"selector": {**self._selector(), "tier": "gold"}}},
                {"spec": {"publishNotReadyAddresses": self.random.random() < 0.5}},
                {"spec": {"ports": self._ports()}},
                {"metadata": {"labels": {"team": "red", "new": "yes"}}},
                {"metadata": {"annotations": {"touched": "yes"}}},
            ]
        )
        return self.ns.client.patch(SERVICES, name, MergePatch(patch), self.ns.namespace)


def _sidecar() -> dict[str, Any]:
    return {
        "name": "side",
        "image": "none",
        "restartPolicy": "Always",
        "ports": [{"name": "side", "containerPort": 7070}],
    }
