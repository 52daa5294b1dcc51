"""Admission policies of the manifests: with a stolen token, an account writes the fields it owns and nothing else.

Each attempt is a dry run as that service account against a real API server. What must fail must fail by the policy:
RBAC allows it.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from support.install import attempts
from support.install.attempts import SHOP, Attempt, Json, endpoint_slice, event, large_slice, metadata, named, volume
from support.install.deployed import SYSTEM, Deployed, documents, scopes
from support.lab import shared_cluster
from support.process import wait_for
from support.waiting import eventually
from zonewise.api.names import API_VERSION, GRANTED, ROUTING_STATE, STOCK_MANAGER
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden
from zonewise.lab.controlplane.controlplane import StatusError
from zonewise.lab.controlplane.programs import Program

pytestmark = pytest.mark.xdist_group("policies")

MANIFESTS = ("tdb.yaml", "disruption.yaml", "own.yaml", "overlay.yaml", "csi.yaml")
"""Both modes, as during a change from one to the other: their programs run side by side."""
TENANT = "jane"
NODE_NAME = "Impersonate-Extra-authentication.kubernetes.io%2Fnode-name"
KEPT = {"annotations": {"example.com/kept": ""}}
FROZEN = {"selector": {"matchLabels": {"app": "web"}}, "maxUnavailable": 0}
ROLE_API = "rbac.authorization.k8s.io"
HELD = {
    "zonewise-overlay-controller": ("zonewise-overlay-controller", attempts.OVERLAY),
    "zonewise-controller": ("zonewise-controller", attempts.OWN),
    "zonewise-webhook": ("zonewise-webhook", attempts.WEBHOOK),
    "zonewise-disruption-controller": ("zonewise-disruption", attempts.DISRUPTION),
    "zonewise-guard": ("zonewise-guard", attempts.GUARD),
    "zonewise-csi-controller": ("zonewise-csi-controller", attempts.CSI),
}
"""By policy: the account, what passes and what fails."""


@dataclass(frozen=True)
class Site:
    deployed: Deployed

    def act_as(self, user: str, *headers: tuple[str, str]) -> Client:
        access = kubeconfig.load(self.deployed.plane.kubeconfig)
        return Client(replace(access, impersonation=(("Impersonate-User", user), *headers)))

    def account(self, name: str) -> Client:
        return self.act_as(f"system:serviceaccount:{SYSTEM}:{name}")

    async def refusal(self, client: Client, attempt: Attempt) -> str:
        """The policy that refuses it; empty if it passes. Any other error is the test's own."""
        method, content_type = attempt.method, "application/json"
        body = attempt.body
        if "/" in method:
            method, content_type = "PATCH", method
        elif method == "PUT":
            body = merged(self.deployed.plane.request("GET", attempt.path), body)
        try:
            await client.request(
                method,
                attempt.path,
                params={"dryRun": "All"},
                body=None if body is None else json.dumps(body).encode(),
                content_type=content_type,
            )
        except Forbidden as error:
            if "ValidatingAdmissionPolicy '" not in error.message:
                raise
            return error.message.split("'")[1]
        return ""


def merged(live: Any, change: Any) -> Any:
    """RFC 7386."""
    if not isinstance(change, dict):
        return change
    whole = dict(live) if isinstance(live, dict) else {}
    for key, value in change.items():
        if value is None:
            whole.pop(key, None)
        else:
            whole[key] = merged(whole.get(key), value)
    return whole


@contextmanager
def started(run: shared_cluster.Run, folder: Path, *manifests: str) -> Iterator[Site]:
    plane = run.private(programs=(Program.ETCD, Program.APISERVER))
    deployed = Deployed(plane, folder)
    for manifest in manifests:
        deployed.apply(manifest)
        for document in documents(manifest):
            if document["kind"].endswith("WebhookConfiguration"):
                deployed.apply_as_install(document)
    create_objects(deployed, manifests)
    yield Site(deployed)
    run.remove(plane)


@pytest.fixture(scope="module")
def site(run_directory: shared_cluster.Run, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with started(run_directory, tmp_path_factory.mktemp("overlay"), *MANIFESTS) as site:
        yield site


def create_objects(deployed: Deployed, manifests: Collection[str]) -> None:
    """One object of each kind that the accounts write, with metadata that is not theirs."""

    def post(path: str, body: Json) -> None:
        deployed.plane.request("POST", path, body)

    post("/api/v1/namespaces", named("shop"))
    for namespace in ("shop", "kube-system", SYSTEM):
        post(f"/api/v1/namespaces/{namespace}/serviceaccounts", named("default"))
    port = {"port": 80, "protocol": "TCP"}
    web = {"selector": {"app": "web"}, "ports": [port]}
    post(f"{SHOP}/services", {"metadata": {"name": "web", **KEPT}, "spec": web})
    post(f"{SHOP}/services", {"metadata": {"name": "noted", "annotations": {ROUTING_STATE: "{}"}}, "spec": web})
    post(f"{SHOP}/services", named("bare", spec=web))
    post(attempts.SLICES, endpoint_slice("web-1", STOCK_MANAGER))
    post(attempts.SLICES, endpoint_slice("mirrored", "endpointslicemirroring-controller.k8s.io"))
    post(attempts.SLICES, large_slice(1000))
    pod = {"containers": [{"name": "main", "image": "none:1"}], "nodeName": "n"}
    post(f"{SHOP}/pods", {"metadata": {"name": "web", **KEPT}, "spec": pod})
    post(f"{SHOP}/pods", named("pending", spec={"containers": pod["containers"]}))
    post("/api/v1/namespaces/kube-system/pods", named("dns", spec=pod))
    post(f"{SHOP}/pods", named("granted", spec=pod))
    for name, strategy in (("db", "OnDelete"), ("rolling", "RollingUpdate")):
        template = {"metadata": {"labels": {"app": name}}, "spec": {"containers": pod["containers"]}}
        spec = {"selector": {"matchLabels": {"app": name}}, "template": template, "updateStrategy": {"type": strategy}}
        post(attempts.SETS, {"metadata": {"name": name, **KEPT}, "spec": {"serviceName": name, **spec}})
        status = {"replicas": 3, "currentRevision": "db-1", "updateRevision": "db-2", "observedGeneration": 1}
        deployed.plane.request("PATCH", f"{attempts.SETS}/{name}/status", {"status": status})
    post(attempts.LEASES, named("zonewise-held"))
    post(attempts.EVENTS, event("foreign", "kubelet"))
    post(attempts.VOLUMES, volume("ours", csi={"driver": attempts.DRIVER, "volumeHandle": "v"}))
    post(attempts.VOLUMES, volume("foreign", **attempts.HOST_PATH))
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
    bound = claim | {"storageClassName": "ceph-rbd", "volumeName": "ours"}
    post(f"{SHOP}/persistentvolumeclaims", {"metadata": {"name": "data", **KEPT}, "spec": bound})
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}}
    deployed.plane.request("PATCH", f"{attempts.CLAIM}/status", {"status": status})
    config = {"config.json": '{"clusters": []}', "topology-takeover": "{}"}
    post(attempts.CONFIG.rpartition("/")[0], {"metadata": {"name": "zonewise-csi-config", **KEPT}, "data": config})
    budget = {"apiVersion": API_VERSION, "kind": "TopologyDisruptionBudget", **named("web", spec=FROZEN)}
    post(f"/apis/{API_VERSION}/namespaces/shop/topologydisruptionbudgets", budget)
    create_snapshot_contents(deployed)
    for configuration in attempts.CONFIGURATIONS if "overlay.yaml" in manifests else ():
        deployed.plane.request("PATCH", configuration, {"metadata": KEPT})
    # What the controller manager, which does not run here, aggregates to the role `edit`.
    role = {"apiGroup": ROLE_API, "kind": "ClusterRole", "name": "system:aggregate-to-edit"}
    subjects = [{"apiGroup": ROLE_API, "kind": "User", "name": TENANT}]
    post(f"/apis/{ROLE_API}/v1/namespaces/shop/rolebindings", named(TENANT, roleRef=role, subjects=subjects))


def create_snapshot_contents(deployed: Deployed) -> None:
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1", "served": True, "storage": True, "schema": schema}
    plural, group = "volumesnapshotcontents", "snapshot.storage.k8s.io"
    names = {"plural": plural, "kind": "VolumeSnapshotContent"}
    spec = {"group": group, "scope": "Cluster", "names": names, "versions": [version]}
    approved = metadata(
        name=f"{plural}.{group}", annotations={"api-approved.kubernetes.io": "unapproved, a test's stand-in"}
    )
    deployed.plane.request("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", approved | {"spec": spec})
    for name, driver in (("ours", attempts.DRIVER), ("foreign", "other.example")):
        body = {"apiVersion": f"{group}/v1", "kind": names["kind"], **named(name, spec={"driver": driver})}
        wait_for(lambda body=body: _created(deployed, body))


def _created(deployed: Deployed, body: Json) -> bool:
    try:
        deployed.plane.request("POST", attempts.CONTENTS, body)
    except StatusError:
        return False
    return True


async def outcomes(site: Site, policy: str, account: str, passes: list[Attempt], fails: list[Attempt]) -> None:
    async with site.account(account) as thief:
        await eventually(lambda: site.refusal(thief, fails[0]), f"{policy} is in force")
        assert {attempt.what: await site.refusal(thief, attempt) for attempt in passes} == {
            attempt.what: "" for attempt in passes
        }
        assert {attempt.what: await site.refusal(thief, attempt) for attempt in fails} == {
            attempt.what: policy for attempt in fails
        }


@pytest.mark.parametrize("policy", HELD)
async def test_stolen_token_writes_only_what_the_account_owns(site: Site, policy: str) -> None:
    account, (passes, fails) = HELD[policy]
    await outcomes(site, policy, account, passes, fails)


async def test_node_plugin_writes_labels_of_its_own_node_only(site: Site) -> None:
    node, events = "/api/v1/nodes/{}", attempts.EVENTS.replace("/shop/", "/default/")
    site.deployed.plane.request("POST", events, event("foreign", "kubelet", "default"))
    for name in ("n", "other"):
        site.deployed.plane.request("POST", "/api/v1/nodes", named(name))
    label = metadata(labels={f"takeover.{attempts.DRIVER}/zone.a": "active"})
    user = f"system:serviceaccount:{SYSTEM}:zonewise-csi-node"
    fails = [
        Attempt("another node", node.format("other"), label),
        Attempt("another label", node.format("n"), metadata(labels={"topology.kubernetes.io/zone": "x"})),
        Attempt("its spec", node.format("n"), {"spec": {"unschedulable": True}}),
        Attempt("an event in another's name", events, event("mine", "kubelet", "default"), "POST"),
        Attempt("an event of another", f"{events}/foreign", {"series": attempts.SERIES}),
    ]
    async with site.act_as(user, (NODE_NAME, "n")) as plugin:
        await eventually(lambda: site.refusal(plugin, fails[0]), "the policy is in force")
        assert [await site.refusal(plugin, attempt) for attempt in fails] == ["zonewise-csi-node"] * len(fails)
        assert not await site.refusal(plugin, Attempt("its label", node.format("n"), label))
        assert not await site.refusal(
            plugin, Attempt("its event", events, event("mine", "zonewise.dev/csi", "default"), "POST")
        )


GRANT = metadata(annotations={GRANTED: "x"})
BINDING = {"metadata": {"name": "pending", **GRANT["metadata"]}, "target": {"kind": "Node", "name": "n"}}
CONTAINERS = {"containers": [{"name": "main", "image": "none"}]}


async def test_nobody_but_the_leader_writes_a_grant(site: Site) -> None:
    """Set, changed, and at creation, as a template would; as a tenant with the rules of `edit`, and as an admin."""
    live = Attempt("set", attempts.POD, GRANT)
    forged = [
        live,
        Attempt("changed", f"{SHOP}/pods/granted", GRANT),
        Attempt("replaced", attempts.POD, GRANT, "PUT"),
        Attempt(
            "created", f"{SHOP}/pods", {"metadata": {"name": "new", **GRANT["metadata"]}, "spec": CONTAINERS}, "POST"
        ),
    ]
    by_admin = [
        *forged,
        Attempt("by status", f"{attempts.POD}/status", GRANT),
        Attempt("by binding", f"{SHOP}/pods/pending/binding", BINDING, "POST"),
        Attempt("by the old binding", f"{SHOP}/bindings", BINDING, "POST"),
    ]
    async with site.act_as(TENANT) as tenant, Client(kubeconfig.load(site.deployed.plane.kubeconfig)) as admin:
        await eventually(lambda: site.refusal(tenant, live), "the policy is in force")
        async with site.account("zonewise-disruption") as leader:
            assert not await site.refusal(leader, live)
            await leader.request(
                "PATCH",
                f"{SHOP}/pods/granted",
                body=json.dumps(metadata(annotations={GRANTED: "y"})).encode(),
                content_type=attempts.MERGE,
            )
        for client, table in ((tenant, forged), (admin, by_admin)):
            assert {attempt.what: await site.refusal(client, attempt) for attempt in table} == {
                attempt.what: "zonewise-grants" for attempt in table
            }
            for harmless in (
                Attempt("removed", f"{SHOP}/pods/granted", metadata(annotations={GRANTED: None})),
                Attempt("kept", f"{SHOP}/pods/granted", metadata(labels={"app": "x"})),
                Attempt("unrelated", attempts.POD, metadata(annotations={"example.com/note": "x"})),
            ):
                assert not await site.refusal(client, harmless), harmless.what


async def test_only_controller_and_guard_write_the_status_of_budgets(site: Site) -> None:
    status = Attempt("status", attempts.BUDGET_STATUS, {"status": {"disruptionsAllowed": 100}}, "PUT")
    async with Client(kubeconfig.load(site.deployed.plane.kubeconfig)) as admin, site.act_as(TENANT) as tenant:
        await eventually(lambda: site.refusal(admin, status), "the policy is in force")
        with pytest.raises(Forbidden, match="cannot update resource"):
            await site.refusal(tenant, status)
    for account in ("zonewise-disruption", "zonewise-guard"):
        async with site.account(account) as ours:
            assert not await site.refusal(ours, status)


def test_every_account_that_writes_has_a_policy() -> None:
    """Beside its lease and events, which the policies limit, too; and reviews, which are not stored."""
    for manifest in (
        "overlay.yaml",
        "own.yaml",
        "disruption.yaml",
        "csi.yaml",
        "dashboard.yaml",
        "proxy.yaml",
        "proxy-all.yaml",
        "dns.yaml",
        "dns-behind.yaml",
        "dns-node.yaml",
    ):
        found = documents(manifest)
        policies = {
            condition["expression"].rpartition(":")[2].rstrip("'")
            for document in found
            if document["kind"] == "ValidatingAdmissionPolicy"
            for condition in document["spec"].get("matchConditions", ())
        }
        for account in (document["metadata"]["name"] for document in found if document["kind"] == "ServiceAccount"):
            writes = {
                scope.resource
                for scope in scopes(manifest, account)
                if scope.verb not in {"get", "list", "watch"}
                and not scope.resource.endswith(("reviews.authentication.k8s.io", "reviews.authorization.k8s.io"))
            }
            assert not writes or account in policies, (manifest, account, writes)
