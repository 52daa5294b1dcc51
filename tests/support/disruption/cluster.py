"""Control plane for disruption tests: stock controllers, scheduler, kwok nodes in three zones, and an audit log.

Each test gets its own namespace and nodes on the shared control plane, so it may drain and relabel them. kwok acts as
the kubelets: a pod is ready at once, or after the delay in its annotations.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from support.disruption.kwok import STAY_UNREADY, write_stages
from support.waiting import eventually
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import AlreadyExists
from zonewise.kube.wire.patch import MergePatch, StrategicPatch
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.lab.nodes import kwok
from zonewise.objects import EVENTS, NAMESPACES, NODES, PODS, SERVICE_ACCOUNTS, Pod, Resource
from zonewise.objects.policy import BudgetCharge, TopologyDisruptionBudgetStatus
from zonewise.topology import ZONE

Json = dict[str, Any]

ZONES = ("zone-a", "zone-b", "zone-c")
PROGRAMS = tuple(Program)
_REMOVAL_SECONDS = 300.0
NODE_LABEL = "test-namespace"
CONTROLLERS = ",".join(
    f"{name}-controller"
    for name in (
        *("deployment", "replicaset", "statefulset", "daemonset", "replicationcontroller", "disruption", "job"),
        *(
            "garbage-collector",
            "namespace",
            "serviceaccount",
            "node-lifecycle",
            "taint-eviction",
            "pod-garbage-collector",
        ),
    )
)
"""Only the controllers that create and delete pods, to save CPU."""


def _apps(kind: str, plural: str, group: str = "apps") -> Resource[Json]:
    return Resource(dict[str, Any], kind, plural, group)


DEPLOYMENTS = _apps("Deployment", "deployments")
REPLICA_SETS = _apps("ReplicaSet", "replicasets")
STATEFUL_SETS = _apps("StatefulSet", "statefulsets")
DAEMON_SETS = _apps("DaemonSet", "daemonsets")
REPLICATION_CONTROLLERS = _apps("ReplicationController", "replicationcontrollers", "")
STOCK_BUDGETS = _apps("PodDisruptionBudget", "poddisruptionbudgets", "policy")
BUDGETS: Resource[Json] = Resource(
    dict[str, Any], "TopologyDisruptionBudget", "topologydisruptionbudgets", "zonewise.dev", "v1alpha1"
)


def control_plane_settings(folder: Path) -> Json:
    """Settings to start the control plane with; its files, among them `audit.log`, go to `folder`."""
    policy = {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"]}
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy | {"rules": [{"level": "Metadata"}]}))
    audit = (f"--audit-policy-file={folder / 'policy.yaml'}", f"--audit-log-path={folder / 'audit.log'}")
    stages = write_stages(folder / "stages.yaml")
    return {
        "programs": PROGRAMS,
        "controllers": CONTROLLERS,
        "flags": {Program.APISERVER: audit, Program.KWOK: (f"--config={stages}",)},
    }


@dataclass(frozen=True)
class Call:
    """One request in the API server's audit log; `verb` is "evict" for a created eviction."""

    user: str
    verb: str
    resource: str
    namespace: str
    name: str
    code: int
    at: str

    @property
    def is_write(self) -> bool:
        return self.verb not in {"get", "list", "watch"}


@dataclass
class Audit:
    """Calls since construction or the last `restart`."""

    log: Path
    _from: int = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        self._from = self.log.stat().st_size

    def calls(self, *, user: str = "", namespace: str | None = None) -> list[Call]:
        """Calls of users whose name ends in `user`, in `namespace`."""
        calls = (_call(line) for line in self._lines())
        return [
            call
            for call in calls
            if call and call.user.endswith(user) and (namespace is None or call.namespace == namespace)
        ]

    def _lines(self) -> Iterator[str]:
        """Whole ones: the last may be incomplete, and so may the first have been at the time of `restart`."""
        with self.log.open("rb") as log:
            if self._from:
                log.seek(self._from - 1)
                log.readline()
            yield from (line.decode() for line in log if line.endswith(b"\n"))


def _call(line: str) -> Call | None:
    event = json.loads(line)
    ref = event.get("objectRef")
    if ref is None:
        return None
    resource = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
    verb = "evict" if resource == "pods/eviction" else event["verb"]
    code = event.get("responseStatus", {}).get("code", 0)
    namespace, name = ref.get("namespace", ""), ref.get("name", "")
    return Call(event["user"]["username"], verb, resource, namespace, name, code, event["stageTimestamp"])


@dataclass
class DisruptionNamespace:
    """One namespace with its own nodes: two in each zone, named `NAMESPACE-ZONE-0` and `-1`."""

    plane: ControlPlane
    client: Client
    namespace: str
    folder: Path
    audit: Audit
    zones: tuple[str, ...] = ()

    def node(self, zone: str, number: int = 0) -> str:
        return f"{self.namespace}-{zone}-{number}"

    async def make_nodes(self, zones: Sequence[str] = ZONES, per_zone: int = 2) -> None:
        self.zones = (*self.zones, *zones)
        nodes = [(zone, number) for zone in zones for number in range(per_zone)]
        await asyncio.gather(*(self.make_node(*node) for node in nodes))

    async def make_node(self, zone: str, number: int = 0, *, labelled: bool = True) -> None:
        body = kwok.manifest(0, zone, 0, tainted=False)
        metadata = body["metadata"]
        labels = metadata["labels"] | {NODE_LABEL: self.namespace, "kubernetes.io/hostname": self.node(zone, number)}
        if not labelled:
            del labels[ZONE]
        metadata |= {"name": self.node(zone, number), "labels": labels}
        await self.client.create(NODES, body)

    async def label_node(self, name: str, labels: Mapping[str, str | None]) -> None:
        await self.client.patch(NODES, name, MergePatch({"metadata": {"labels": dict(labels)}}))

    async def cordon(self) -> None:
        """Cordon all nodes, so that deleted pods are not replaced."""
        for name in await self.zone_of_nodes():
            await self.client.patch(NODES, name, MergePatch({"spec": {"unschedulable": True}}))

    async def remove(self) -> None:
        """Delete the pods first: pods on a deleted node would wait for the garbage collector."""
        options = {"deadline_seconds": _REMOVAL_SECONDS}  # one call deletes all pods in sequence
        await self.client.delete_collection(PODS, self.namespace, grace_seconds=0, **options)
        await self.client.delete(NAMESPACES, self.namespace)
        await self.client.delete_collection(NODES, selector=f"{NODE_LABEL}={self.namespace}", **options)

    # Workloads. Their pods carry app=NAME, run on this namespace's nodes, and spread evenly over the zones.

    def template(self, app: str, *, spread: bool = True, annotations: Mapping[str, str] = {}, **spec: Any) -> Json:
        """A pod template; see `support.disruption.kwok` for the annotations that kwok obeys."""
        even = {"maxSkew": 1, "topologyKey": ZONE, "whenUnsatisfiable": "DoNotSchedule"}
        constraint = even | {"labelSelector": {"matchLabels": {"app": app}}}
        pod = {
            "containers": [{"name": "main", "image": "none:1"}],
            "nodeSelector": {NODE_LABEL: self.namespace},
            "terminationGracePeriodSeconds": 1,
            **({"topologySpreadConstraints": [constraint]} if spread else {}),
            **spec,
        }
        return {"metadata": {"labels": {"app": app}, "annotations": dict(annotations)}, "spec": pod}

    async def deployment(self, name: str, replicas: int, *, strategy: Json | None = None, **template: Any) -> Json:
        spec = {"replicas": replicas, **({"strategy": strategy} if strategy else {})}
        return await self._workload(DEPLOYMENTS, name, spec, {}, template)

    async def replica_set(self, name: str, replicas: int, **template: Any) -> Json:
        return await self._workload(REPLICA_SETS, name, {"replicas": replicas}, {}, template)

    async def replication_controller(self, name: str, replicas: int) -> Json:
        return await self._workload(
            REPLICATION_CONTROLLERS, name, {"replicas": replicas, "selector": {"app": name}}, {}, {}
        )

    async def stateful_set(
        self,
        name: str,
        replicas: int,
        *,
        annotations: Mapping[str, str] = {},
        update: str = "OnDelete",
        **template: Any,
    ) -> Json:
        """Parallel pod management; `annotations` are the StatefulSet's own, such as `zonewise.dev/update`."""
        strategy = {"podManagementPolicy": "Parallel", "updateStrategy": {"type": update}}
        spec = {"replicas": replicas, "serviceName": name, **strategy}
        return await self._workload(STATEFUL_SETS, name, spec, annotations, template)

    async def daemon_set(
        self, name: str, *, annotations: Mapping[str, str] = {}, update: str = "OnDelete", **template: Any
    ) -> Json:
        spec = {"updateStrategy": {"type": update}}
        return await self._workload(DAEMON_SETS, name, spec, annotations, {"spread": False, **template})

    async def _workload(
        self, resource: Resource[Json], name: str, spec: Json, annotations: Mapping[str, str], template: Json
    ) -> Json:
        pods = self.template(name, **{key.removeprefix("pod_"): value for key, value in template.items()})
        selector = {"matchLabels": {"app": name}}
        body = {
            "metadata": {"name": name, "annotations": dict(annotations)},
            "spec": {"selector": selector, "template": pods, **spec},
        }
        return await self.client.create(resource, body, self.namespace)

    async def scale(self, resource: Resource[Json], name: str, replicas: int) -> None:
        await self.client.patch(resource, name, MergePatch({"spec": {"replicas": replicas}}), self.namespace)

    async def new_version(self, resource: Resource[Json], name: str, image: str = "none:2") -> None:
        """Change the pod template, which starts a rollout."""
        container = [{"name": "main", "image": image}]
        patch = StrategicPatch({"spec": {"template": {"spec": {"containers": container}}}})
        await self.client.patch(resource, name, patch, self.namespace)

    async def budget(self, name: str = "budget", *, resource: Resource[Json] = BUDGETS, **spec: Any) -> Json:
        """`ns.budget(selector={"matchLabels": {"app": "web"}}, maxUnavailable=1, nodeSelectorTerm=...)`."""
        return await self.client.create(resource, {"metadata": {"name": name}, "spec": spec}, self.namespace)

    # Pods.

    async def pods(self, app: str = "") -> list[Pod]:
        selector = f"app={app}" if app else ""
        return list((await self.client.list(PODS, self.namespace, selector=selector)).items)

    async def zone_of_nodes(self) -> dict[str, str]:
        nodes = (await self.client.list(NODES, selector=f"{NODE_LABEL}={self.namespace}")).items
        return {node.metadata.name: node.metadata.labels.get(ZONE, "") for node in nodes}

    async def ready_by_zone(self, app: str) -> Counter[str]:
        zones = await self.zone_of_nodes()
        return Counter(zones[pod.spec.node_name] for pod in await self.pods(app) if is_available(pod))

    async def in_zone(self, app: str, zone: str) -> list[str]:
        """Sorted names of the app's available pods in `zone`."""
        zones = await self.zone_of_nodes()
        return sorted(
            pod.metadata.name for pod in await self.pods(app) if is_available(pod) and zones[pod.spec.node_name] == zone
        )

    async def until_ready(self, app: str, count: int) -> list[Pod]:
        """Wait until the app has exactly `count` pods, all available."""

        async def all_ready() -> list[Pod]:
            pods = await self.pods(app)
            if len(pods) == count and all(map(is_available, pods)):
                return pods
            await asyncio.sleep(0.1)
            return []

        return await eventually(all_ready, f"{count} pods of {app} ready")

    async def set_unready(self, name: str) -> None:
        """Set Ready to False and stop kwok from setting it back."""
        annotate = MergePatch({"metadata": {"annotations": {STAY_UNREADY: "yes"}}})
        await self.client.patch(PODS, name, annotate, self.namespace)
        condition = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
        patch = StrategicPatch({"status": {"conditions": [condition]}})
        await self.client.patch(PODS, name, patch, self.namespace, subresource="status")

    async def events(self, reason: str = "") -> list[Json]:
        events = (await self.client.list(EVENTS.whole(), self.namespace)).items
        return [event for event in events if not reason or event["reason"] == reason]

    # Command-line tools.

    def kubectl_command(self, *arguments: str) -> list[str]:
        program = str(self.plane.binaries / "kubectl")
        return [program, "--kubeconfig", str(self.plane.kubeconfig), "--namespace", self.namespace, *arguments]

    async def kubectl(self, *arguments: str, code: int | None = 0, timeout_seconds: float = 120) -> str:
        """Combined output; asserts exit code `code` unless that is None."""
        command = self.kubectl_command(*arguments)
        result = await asyncio.to_thread(
            subprocess.run, command, capture_output=True, text=True, timeout=timeout_seconds, check=False
        )
        output = result.stdout + result.stderr
        assert code in {None, result.returncode}, output
        return output

    async def drain(self, *nodes: str, code: int | None = 0, patience_seconds: int = 60) -> str:
        """Run `kubectl drain` with --timeout `patience_seconds`."""
        flags = ("--ignore-daemonsets", "--delete-emptydir-data", "--force", f"--timeout={patience_seconds}s")
        return await self.kubectl("drain", *nodes, *flags, code=code, timeout_seconds=300)


def charges_in(status: Json) -> tuple[BudgetCharge, ...]:
    """Ledger of a budget's raw status."""
    return TopologyDisruptionBudgetStatus(charges=status.get("charges", "")).ledger


def is_available(pod: Pod) -> bool:
    ready = any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)
    return ready and pod.metadata.deletion_timestamp is None


@asynccontextmanager
async def disruption_namespace(plane: ControlPlane, folder: Path) -> AsyncIterator[DisruptionNamespace]:
    """Namespace without nodes; `make_nodes` adds them."""
    name = f"t-{uuid.uuid4().hex[:6]}"
    async with Client(kubeconfig.load(plane.kubeconfig)) as client:
        ns = DisruptionNamespace(plane, client, name, folder, Audit(folder / "audit.log"))
        await client.create(NAMESPACES, {"metadata": {"name": name}})
        with suppress(AlreadyExists):  # created here because waiting for its controller is slower
            await client.create(SERVICE_ACCOUNTS, {"metadata": {"name": "default"}}, name)
        try:
            yield ns
        finally:
            await ns.remove()
