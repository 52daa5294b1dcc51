"""The policy that API servers evaluate themselves, on a real one: whose deletes of which pods need a grant."""

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Any

import pytest
import yaml

from support.disruption.cluster import Bed
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
    """Clients by user name; all may do all, as far as roles go."""

    bed: Bed
    stack: AsyncExitStack
    clients: dict[str, Client] = field(default_factory=dict)

    async def client(self, user: str, *groups: str) -> Client:
        if user not in self.clients:
            name = user.replace(":", "-")
            path = self.bed.plane.add_user(name, user, ("system:masters", *groups))
            self.clients[user] = await self.stack.enter_async_context(Client(kubeconfig.load(path)))
        return self.clients[user]

    async def may_delete(self, pod: str, user: str = CONTROLLER, *groups: str) -> bool:
        client = await self.client(user, *groups)
        try:
            await client.delete(PODS, pod, self.bed.namespace, dry_run=True)
        except Forbidden as error:
            if f"{self.bed.namespace}/{pod} is ready and guarded by TopologyDisruptionBudget" not in error.message:
                raise
            return False
        return True


@pytest.fixture
async def users(bed: Bed) -> AsyncIterator[Users]:
    await install(bed.plane)
    await bed.client.create(POLICIES, delete_policy("zonewise-system"))
    await bed.client.create(BINDINGS, delete_policy_binding())
    async with AsyncExitStack() as stack:
        yield Users(bed, stack)
    await bed.client.delete(BINDINGS, names.DELETE_POLICY)
    await bed.client.delete(POLICIES, names.DELETE_POLICY)


async def pod(bed: Bed, name: str, labels: Mapping[str, str], *, ready: bool = True) -> None:
    body = bed.template(name, spread=False, nodeName=bed.node("zone-a", 0))
    body["metadata"] = {"name": name, "labels": dict(labels)}
    await bed.client.create(PODS, body, bed.namespace)
    await eventually(lambda: is_ready(bed, name))
    if not ready:
        await set_ready(bed, name, ready=False)


async def is_ready(bed: Bed, name: str) -> bool:
    found = await bed.client.get(PODS, name, bed.namespace)
    return any(known.type == "Ready" and known.status == "True" for known in found.status.conditions)


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


async def budgets(bed: Bed) -> None:
    specs: dict[str, dict[str, Any]] = {
        "web": {},
        "dry": {"enforcement": "DryRun"},
        "off": {"enforcement": "Off"},
        "evictions": {"applyTo": ["Evictions"]},
    }
    for name, spec in specs.items():
        await bed.budget(name, selector={"matchLabels": {"app": name}}, maxUnavailable=1, **spec)
    await bed.budget("expressions", selector={"matchExpressions": EXPRESSIONS}, maxUnavailable=1)


async def test_what_a_workload_controller_may_delete(bed: Bed, users: Users) -> None:
    names = {case: f"pod-{number}" for number, case in enumerate(SELECTED)}
    for case, (labels, _) in SELECTED.items():
        await pod(bed, names[case], labels)
    await pod(bed, "unready", {"app": "web"}, ready=False)
    for case in SELECTED:
        assert await users.may_delete(names[case])  # a namespace without budgets
    await budgets(bed)

    async def in_force() -> bool:
        return not await users.may_delete(names["by labels"]) and not await users.may_delete(names["by expressions"])

    await eventually(in_force, "the API server has heard of policy and budgets")
    assert {case: await users.may_delete(names[case]) for case in SELECTED} == {
        case: free for case, (_, free) in SELECTED.items()
    }
    assert await users.may_delete("unready")


async def test_who_needs_a_grant_and_what_one_is(bed: Bed, users: Users) -> None:
    await pod(bed, "web", {"app": "web"})
    await budgets(bed)

    async def in_force() -> bool:
        return not await users.may_delete("web")

    await eventually(in_force, "the API server has heard of policy and budgets")
    assert {user: await users.may_delete("web", user) for user in WORKLOAD_CONTROLLERS} == dict.fromkeys(
        WORKLOAD_CONTROLLERS, False
    )
    for free in ("generic-garbage-collector", "pod-garbage-collector", "node-controller", "job-controller"):
        assert await users.may_delete("web", f"system:serviceaccount:kube-system:{free}")
    for user, group in (("system:node:n", "system:nodes"), ("system:kube-scheduler", ""), ("jane", "")):
        assert await users.may_delete("web", user, *filter(None, [group]))
    await annotate(bed, "web", "another-uid")
    assert not await users.may_delete("web")
    controller = await users.client(CONTROLLER)
    await controller.evict("web", bed.namespace, dry_run=True)  # evictions are not the policy's
    await annotate(bed, "web", (await bed.client.get(PODS, "web", bed.namespace)).metadata.uid)
    assert await users.may_delete("web")


async def annotate(bed: Bed, name: str, grant: str) -> None:
    patch = MergePatch({"metadata": {"annotations": {GRANTED: grant}}})
    await bed.client.patch(PODS, name, patch, bed.namespace)


def test_what_is_deployed_is_what_a_webhook_would_register() -> None:
    service = {"namespace": "zonewise-system", "name": "zonewise-guard", "port": 443}
    where = {
        name: {"service": {**service, "path": f"/{name}"}} for name in (registration.EVICTIONS, registration.DELETES)
    }
    applied = [
        found for found in documents("disruption.yaml") if found["apiVersion"].startswith("admissionregistration")
    ]
    assert applied == yaml.safe_load(yaml.safe_dump(registration.documents(where, "zonewise-system")))


def test_servers_without_policies_ask_about_controllers_too() -> None:
    where: dict[str, dict[str, Any]] = {registration.EVICTIONS: {}, registration.DELETES: {}}
    (alone,) = registration.documents(where, "zonewise-system", has_policies=False)
    deletes = alone["webhooks"][1]
    assert "matchConditions" not in deletes
    assert deletes["failurePolicy"] == "Ignore"
