"""Kinds of our manifests: their API paths, and the order in which they are created and deleted. Pure."""

from __future__ import annotations

from typing import Any, Final

from zonewise.objects import Resource

Whole = Resource[dict[str, Any]]
_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"


def _kind(kind: str, group: str = "", *, namespaced: bool = True) -> Whole:
    plural = f"{kind.lower()[:-1]}ies" if kind.endswith("y") else f"{kind.lower()}{'es' if kind.endswith('s') else 's'}"
    return Resource(dict[str, Any], kind, plural, group, namespaced=namespaced)


ORDER: Final = (
    _kind("Namespace", namespaced=False),
    _kind("CustomResourceDefinition", "apiextensions.k8s.io", namespaced=False),
    _kind("ServiceAccount"),
    _kind("ConfigMap"),
    _kind("Secret"),
    _kind("ClusterRole", _RBAC, namespaced=False),
    _kind("ClusterRoleBinding", _RBAC, namespaced=False),
    _kind("Role", _RBAC),
    _kind("RoleBinding", _RBAC),
    _kind("CSIDriver", "storage.k8s.io", namespaced=False),
    _kind("StorageClass", "storage.k8s.io", namespaced=False),
    _kind("Service"),
    _kind("PodDisruptionBudget", "policy"),
    _kind("NetworkPolicy", "networking.k8s.io"),
    _kind("Deployment", "apps"),
    _kind("StatefulSet", "apps"),
    _kind("DaemonSet", "apps"),
    _kind("ValidatingAdmissionPolicy", _ADMISSION, namespaced=False),
    _kind("ValidatingAdmissionPolicyBinding", _ADMISSION, namespaced=False),
    _kind("MutatingWebhookConfiguration", _ADMISSION, namespaced=False),
    _kind("ValidatingWebhookConfiguration", _ADMISSION, namespaced=False),
)
"""As they are made: nothing before what it needs. What makes API servers ask us comes last, and goes first: an API server
that asks in vain refuses evictions, and a policy whose parameters' kind is gone refuses deletes. Policies without
parameters are the exception, see `rank`.
"""

BY_KIND: Final = {resource.kind: resource for resource in (*ORDER, _kind("Pod"))}
WORKLOADS: Final = ("Deployment", "DaemonSet", "StatefulSet")
_RANK: Final = {resource.kind: 2 * number for number, resource in enumerate(ORDER)}
_POLICIES: Final = {"ValidatingAdmissionPolicy": "paramKind", "ValidatingAdmissionPolicyBinding": "paramRef"}


def rank(document: dict[str, Any]) -> int:
    """Policies that limit our accounts are made before the accounts get rights, and go after them."""
    kind = document["kind"]
    if kind in _POLICIES and _POLICIES[kind] not in document["spec"]:
        return _RANK["ServiceAccount"] - 1
    return _RANK[kind]
