"""Rights as the doctor asks about them, read from the manifests."""

from __future__ import annotations

from zonewise.diagnostics.decide.status.assemble import COMPONENTS
from zonewise.install.decide.right import Right
from zonewise.install.rights import rights_of_programs, rights_to_install


def test_every_program_that_status_knows_has_rights_in_its_manifest() -> None:
    found = rights_of_programs("here")
    assert {name for name, rights in found.items() if rights} == set(COMPONENTS)
    assert Right("watch", "coordination.k8s.io", "leases", "here", "zonewise-csi") in found["zonewise-dashboard"]
    slices = "discovery.k8s.io"
    both = {Right("patch", slices, "endpointslices"), Right("patch", "", "services")}
    assert both <= found["zonewise-controller"], "in either mode"
    assert Right("create", slices, "endpointslices") not in found["zonewise-controller"], "only in mode own"
    assert not {right.resource for rights in found.values() for right in rights} & {"*", "secrets/*"}


def test_roles_of_the_same_name_differ_by_namespace() -> None:
    found = {right for right in rights_of_programs("here")["zonewise-csi-node"] if right.namespace}
    events = {Right(verb, "events.k8s.io", "events", "default") for verb in ("create", "patch")}
    config = {Right(verb, "", "configmaps", "here", "zonewise-csi-config") for verb in ("list", "watch")}
    assert found == events | config


def test_install_needs_rights_on_every_kind() -> None:
    asked = set(map(str, rights_to_install("here")))
    assert {
        "create namespaces",
        "patch deployments.apps in here",
        "create customresourcedefinitions.apiextensions.k8s.io",
        "get mutatingwebhookconfigurations.admissionregistration.k8s.io",
        "get topologydisruptionbudgets.zonewise.dev",
        "list topologydisruptionbudgets.zonewise.dev",
    } <= asked


def test_install_needs_rights_to_grant_and_to_delete_the_other_mode() -> None:
    asked = rights_to_install("here")
    roles, policies = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
    granting = {(right.verb, right.resource) for right in asked if right.verb in {"escalate", "bind"}}
    assert granting == {(verb, kind) for verb in ("escalate", "bind") for kind in ("roles", "clusterroles")}
    assert {right for right in asked if right.verb == "delete"} == {
        Right("delete", roles, "clusterroles"),
        Right("delete", roles, "clusterrolebindings"),
        Right("delete", roles, "roles", "here"),
        Right("delete", roles, "rolebindings", "here"),
        Right("delete", "", "serviceaccounts", "here"),
        Right("delete", policies, "validatingadmissionpolicies"),
        Right("delete", policies, "validatingadmissionpolicybindings"),
    }
    said = str(Right("escalate", roles, "clusterroles"))
    assert said.startswith(f"escalate clusterroles.{roles} (to make a role with rights that you don't have yourself")
