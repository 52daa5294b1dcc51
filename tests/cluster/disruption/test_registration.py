"""Admission policy on a real API server: which deletes of which pods need a grant."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from support.disruption.cluster import DisruptionNamespace
from support.disruption.processes import install
from support.disruption.webhook import set_ready
from support.install.deployed import documents
from support.waiting import eventually
from zonewise.api import names
from zonewise.api.names import GRANTED
from zonewise.disruption.webhook import registration
from zonewise.disruption.webhook.registration import WORKLOAD_CONTROLLERS, delete_policy, delete_policy_binding
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden
from zonewise.kube.wire.patch import MergePatch
from zonewise.objects import PODS, Resource

pytestmark = pytest.mark.xdist_group("disruption")

POLICIES, BINDINGS = (
    Resource(dict[str, Any], kind, f"{stem}s", "admissionregistration.k8s.io", namespaced=False)
    for kind, stem in (
        ("ValidatingAdmissionPolicy", "validatingadmissionpolicie"),
        ("ValidatingAdmissionPolicyBinding", "validatingadmissionpolicybinding"),
    )
)
CONTROLLER = "system:serviceaccount:kube-system:replicaset-controller"


@dataclass
class Users:
    """Clients by user name; all have every RBAC right."""

    ns: DisruptionNamespace
    stack: AsyncExitStack
    clients: dict[str, Client] = field(default_factory=dict)

    async def client(self, user: str, *groups: str) -> Client:
        if user not in self.clients:
            name = user.replace(":", "-")
            path = self.ns.plane.add_user(name, user, ("system:masters", *groups))
            self.clients[user] = await self.stack.enter_async_context(Client(kubeconfig.load(path)))
        return self.clients[user]

    async def may_delete(self, create_pod: str, user: str = CONTROLLER, *groups: str) -> bool:
        client = await self.client(user, *groups)
        try:
            await client.delete(PODS, create_pod, self.ns.namespace, dry_run=True)
        except Forbidden as error:
            if (
                f"{self.ns.namespace}/{create_pod} is ready and guarded by TopologyDisruptionBudget"
                not in error.message
            ):
                raise
            return False
        return True


@pytest.fixture
async def users(ns: DisruptionNamespace) -> AsyncIterator[Users]:
    await install(ns.plane)
    await ns.client.create(POLICIES, delete_policy("zonewise-system"))
    await ns.client.create(BINDINGS, delete_policy_binding())
    async with AsyncExitStack() as stack:
        yield Users(ns, stack)
    await ns.client.delete(BINDINGS, names.DELETE_POLICY)
    await ns.client.delete(POLICIES, names.DELETE_POLICY)


async def create_pod(ns: DisruptionNamespace, name: str, labels: Mapping[str, str], *, ready: bool = True) -> None:
    body = ns.template(name, spread=False, nodeName=ns.node("zone-a", 0))
    body["metadata"] = {"name": name, "labels": dict(labels)}
    await ns.client.create(PODS, body, ns.namespace)
    await eventually(lambda: is_ready(ns, name))
    if not ready:
        await set_ready(ns, name, ready=False)


async def is_ready(ns: DisruptionNamespace, name: str) -> bool:
    pod = await ns.client.get(PODS, name, ns.namespace)
    return any(condition.type == "Ready" and condition.status == "True" for condition in pod.status.conditions)


EXPRESSIONS = [
    {"key": "tier", "operator": "In", "values": ["x", "y"]},
    {"key": "track", "operator": "NotIn", "values": ["canary"]},
    {"key": "team", "operator": "Exists"},
    {"key": "spare", "operator": "DoesNotExist"},
]
SELECTED = {
    "by labels": ({"app": "web"}, False),
    "by no budget": ({"app": "other"}, True),
    "without labels": ({}, True),
    "by expressions": ({"tier": "x", "team": "t"}, False),
    "not: another value": ({"tier": "z", "team": "t"}, True),
    "not: an excluded value": ({"tier": "x", "team": "t", "track": "canary"}, True),
    "not: a key is missing": ({"tier": "x"}, True),
    "not: a key is there": ({"tier": "x", "team": "t", "spare": "yes"}, True),
    "in a dry run": ({"app": "dry"}, True),
    "switched off": ({"app": "off"}, True),
    "for evictions only": ({"app": "evictions"}, True),
}


async def create_budgets(ns: DisruptionNamespace) -> None:
    specs: dict[str, dict[str, Any]] = {
        "web": {},
        "dry": {"enforcement": "DryRun"},
        "off": {"enforcement": "Off"},
        "evictions": {"applyTo": ["Evictions"]},
    }
    for name, spec in specs.items():
        await ns.budget(name, selector={"matchLabels": {"app": name}}, maxUnavailable=1, **spec)
    await ns.budget("expressions", selector={"matchExpressions": EXPRESSIONS}, maxUnavailable=1)


async def test_controller_may_delete_only_unguarded_or_unready_pods(ns: DisruptionNamespace, users: Users) -> None:
    names = {case: f"pod-{number}" for number, case in enumerate(SELECTED)}
    for case, (labels, _) in SELECTED.items():
        await create_pod(ns, names[case], labels)
    await create_pod(ns, "unready", {"app": "web"}, ready=False)
    for case in SELECTED:
        assert await users.may_delete(names[case])  # the namespace has no budgets yet
    await create_budgets(ns)

    async def in_force() -> bool:
        return not await users.may_delete(names["by labels"]) and not await users.may_delete(names["by expressions"])

    await eventually(in_force, "policy and budgets are in force")
    assert {case: await users.may_delete(names[case]) for case in SELECTED} == {
        case: free for case, (_, free) in SELECTED.items()
    }
    assert await users.may_delete("unready")


async def test_only_workload_controllers_need_a_grant_of_the_pods_uid(ns: DisruptionNamespace, users: Users) -> None:
    await create_pod(ns, "web", {"app": "web"})
    await create_budgets(ns)

    async def in_force() -> bool:
        return not await users.may_delete("web")

    await eventually(in_force, "policy and budgets are in force")
    assert {user: await users.may_delete("web", user) for user in WORKLOAD_CONTROLLERS} == dict.fromkeys(
        WORKLOAD_CONTROLLERS, False
    )
    for controller_name in ("generic-garbage-collector", "pod-garbage-collector", "node-controller", "job-controller"):
        assert await users.may_delete("web", f"system:serviceaccount:kube-system:{controller_name}")
    for user, group in (("system:node:n", "system:nodes"), ("system:kube-scheduler", ""), ("jane", "")):
        assert await users.may_delete("web", user, *filter(None, [group]))
    await annotate(ns, "web", "another-uid")
    assert not await users.may_delete("web")
    controller = await users.client(CONTROLLER)
    await controller.evict("web", ns.namespace, dry_run=True)  # the policy does not cover evictions
    await annotate(ns, "web", (await ns.client.get(PODS, "web", ns.namespace)).metadata.uid)
    assert await users.may_delete("web")


async def annotate(ns: DisruptionNamespace, name: str, grant: str) -> None:
    patch = MergePatch({"metadata": {"annotations": {GRANTED: grant}}})
    await ns.client.patch(PODS, name, patch, ns.namespace)


def test_manifest_equals_what_a_webhook_registers() -> None:
    service = {"namespace": "zonewise-system", "name": "zonewise-guard", "port": 443}
    client_configs = {name: {"service": service} for name in (registration.EVICTIONS, registration.DELETES)}
    registered = registration.documents(client_configs, "zonewise-system")
    objects = {(document["kind"], document["metadata"]["name"]) for document in registered}
    applied = [
        document | {"metadata": {"name": document["metadata"]["name"]}}  # without the labels of an install
        for document in documents("disruption.yaml")
        if (document["kind"], document["metadata"]["name"]) in objects
    ]
    assert applied == yaml.safe_load(yaml.safe_dump(registered))


def test_webhook_covers_controllers_without_admission_policies() -> None:
    client_configs: dict[str, dict[str, Any]] = {registration.EVICTIONS: {}, registration.DELETES: {}}
    _, configuration = registration.documents(client_configs, "zonewise-system", has_policies=False)
    (deletes,) = configuration["webhooks"]
    assert "matchConditions" not in deletes
    assert deletes["failurePolicy"] == "Ignore"
