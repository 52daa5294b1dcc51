"""Registration of the disruption webhooks and of the admission policy for deletes.

Deletes by the built-in workload controllers are decided inside the API server, by a ValidatingAdmissionPolicy whose
parameters are the budgets of the pod's namespace: a ready pod that an enforcing budget selects goes only with a grant,
an annotation with the pod's own uid. No process of ours is on that path, so none can block it; without a leader there are
only no new grants. A policy can't answer 429 and can't count. So evictions, and deletes by all other clients where a
budget applies to those, go to the webhooks of `zonewise.disruption.webhook.guard`. That of evictions is a mutating one:
it adds the uid of the pod that it charged to the eviction's preconditions, so that the API server takes no other pod.

`zonewise webhook` registers these documents; deploy/disruption.yaml contains them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from zonewise.api.names import DELETE_POLICY, DISRUPTION_CONFIGURATION, DISRUPTION_LABEL, GRANTED
from zonewise.disruption.decide.eviction_steps import PodDeleter
from zonewise.kube.wire.admission_review import UserInfo

UNGUARDED: Final = "unguarded"
EVICTIONS: Final = "evictions"
DELETES: Final = "deletes"
EVICTION_WEBHOOK: Final = f"{EVICTIONS}.zonewise.dev"
EVICTION_TIMEOUT_SECONDS: Final = 10
"""Twice our own deadline: on a busy machine connections wait, too, and an unanswered request may be charged."""
DELETE_TIMEOUT_SECONDS: Final = 5

WORKLOAD_CONTROLLERS: Final = tuple(
    f"system:serviceaccount:kube-system:{name}"
    for name in ("replicaset-controller", "replication-controller", "statefulset-controller", "daemon-set-controller")
)
"""Their users if the controller manager runs with --use-service-account-credentials, which kubeadm sets.

Without it all of its controllers are one user, garbage collection and node lifecycle included, and none is refused.
"""

_REGISTRATION: Final = "admissionregistration.k8s.io/v1"
_PODS_DELETED: Final = {
    "apiGroups": [""],
    "apiVersions": ["v1"],
    "resources": ["pods"],
    "operations": ["DELETE"],
    "scope": "Namespaced",
}
_NODES: Final = "system:nodes"
_SYSTEM_USERS: Final = ("system:kube-", "system:apiserver", "system:node:", "system:serviceaccount:kube-system:")
_NOT_SYSTEM: Final = " && ".join(
    [
        f"!('{_NODES}' in request.userInfo.groups)",
        *(f"!request.userInfo.username.startsWith('{prefix}')" for prefix in _SYSTEM_USERS),
    ]
)
_READY: Final = (
    "has(oldObject.status.conditions) && oldObject.status.conditions.exists(c, c.type == 'Ready' && c.status == 'True')"
)
_NOT_TERMINATING: Final = "!has(oldObject.metadata.deletionTimestamp)"
_LABELS: Final = "has(oldObject.metadata.labels) ? oldObject.metadata.labels : {}"
_GRANTED: Final = (
    "has(oldObject.metadata.annotations) && "
    f"'{GRANTED}' in oldObject.metadata.annotations && "
    f"oldObject.metadata.annotations['{GRANTED}'] == oldObject.metadata.uid"
)
_ENFORCED: Final = "!has(params.spec.enforcement) || params.spec.enforcement == 'Enforce'"
_COVERS_CONTROLLERS: Final = "!has(params.spec.applyTo) || 'ControllerDeletes' in params.spec.applyTo"
_HAS_LABELS: Final = (
    "!has(params.spec.selector.matchLabels) || "
    "params.spec.selector.matchLabels.all(k, "
    "k in variables.labels && variables.labels[k] == params.spec.selector.matchLabels[k])"
)
_MEETS_EXPRESSIONS: Final = (
    "!has(params.spec.selector.matchExpressions) || "
    "params.spec.selector.matchExpressions.all(e, "
    "e.operator == 'In' ? e.key in variables.labels && variables.labels[e.key] in e.values : "
    "e.operator == 'NotIn' ? !(e.key in variables.labels && variables.labels[e.key] in e.values) : "
    "e.operator == 'Exists' ? e.key in variables.labels : "
    "!(e.key in variables.labels))"
)
_SELECTED: Final = f"has(params.spec.selector) && ({_HAS_LABELS}) && ({_MEETS_EXPRESSIONS})"
_MESSAGE: Final = (
    "'pod ' + oldObject.metadata.namespace + '/' + oldObject.metadata.name + ' is ready and guarded by "
    "TopologyDisruptionBudget ' + params.metadata.name + ': `zonewise controller` grants its deletion when the budget "
    "allows it; `kubectl describe tdb ' + params.metadata.name + '` says how things are'"
)


def documents(
    client_configs: Mapping[str, Mapping[str, Any]], system_namespace: str, *, has_policies: bool = True
) -> list[dict[str, Any]]:
    """All documents to register; `has_policies` since Kubernetes 1.30."""
    webhooks = [
        eviction_configuration(client_configs[EVICTIONS], system_namespace),
        delete_configuration(client_configs[DELETES], system_namespace, policy_guards_controllers=has_policies),
    ]
    return [delete_policy(system_namespace), delete_policy_binding(), *webhooks] if has_policies else webhooks


def delete_policy(system_namespace: str) -> dict[str, Any]:
    """Other clients than workload controllers, unready and terminating pods pass before any budget is read."""
    return {
        "apiVersion": _REGISTRATION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": DELETE_POLICY},
        "spec": {
            "failurePolicy": "Fail",
            "paramKind": {"apiVersion": "zonewise.dev/v1alpha1", "kind": "TopologyDisruptionBudget"},
            "matchConstraints": {
                "resourceRules": [_PODS_DELETED],
                "namespaceSelector": _guarded_namespaces(system_namespace),
                "objectSelector": {},
                "matchPolicy": "Equivalent",
            },
            "matchConditions": [
                {
                    "name": "by-a-workload-controller",
                    "expression": f"request.userInfo.username in {_list(WORKLOAD_CONTROLLERS)}",
                },
                {"name": "not-terminating", "expression": _NOT_TERMINATING},
                {"name": "ready", "expression": _READY},
            ],
            "variables": [
                {"name": "labels", "expression": _LABELS},
                {"name": "granted", "expression": _GRANTED},
                {"name": "selected", "expression": _SELECTED},
                {"name": "guards", "expression": f"({_ENFORCED}) && ({_COVERS_CONTROLLERS}) && variables.selected"},
            ],
            "validations": [
                {
                    "expression": "variables.granted || !variables.guards",
                    "messageExpression": _MESSAGE,
                    "reason": "Forbidden",
                }
            ],
        },
    }


def delete_policy_binding() -> dict[str, Any]:
    """All budgets of the pod's own namespace; without any, deletes are allowed."""
    return {
        "apiVersion": _REGISTRATION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": DELETE_POLICY},
        "spec": {
            "policyName": DELETE_POLICY,
            "paramRef": {"selector": {}, "parameterNotFoundAction": "Allow"},
            "validationActions": ["Deny"],
        },
    }


def _guarded_namespaces(system_namespace: str) -> dict[str, Any]:
    """Without the system namespaces, whose pods must be replaceable while we are down, and without those labelled out."""
    excluded = sorted({"kube-system", system_namespace})
    return {
        "matchExpressions": [
            {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": excluded},
            {"key": DISRUPTION_LABEL, "operator": "NotIn", "values": [UNGUARDED]},
        ]
    }


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def eviction_configuration(client_config: Mapping[str, Any], system_namespace: str) -> dict[str, Any]:
    """Evictions fail closed: without the webhook it is unknown what a budget allows. Path and CA bundle come later."""
    evictions = {
        "name": EVICTION_WEBHOOK,
        "clientConfig": dict(client_config),
        "rules": [{**_PODS_DELETED, "resources": ["pods/eviction"], "operations": ["CREATE"]}],
        "failurePolicy": "Fail",
        "timeoutSeconds": EVICTION_TIMEOUT_SECONDS,
        **_shared(system_namespace),
    }
    return {
        "apiVersion": _REGISTRATION,
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": DISRUPTION_CONFIGURATION},
        "webhooks": [evictions],
    }


def delete_configuration(
    client_config: Mapping[str, Any], system_namespace: str, *, policy_guards_controllers: bool = True
) -> dict[str, Any]:
    """Deletes fail open: a cluster must be able to clean up. Path and CA bundle come later.

    On servers without admission policies, deletes by workload controllers come to the webhook, too.
    """
    deletes = {
        "name": f"{DELETES}.zonewise.dev",
        "clientConfig": dict(client_config),
        "rules": [_PODS_DELETED],
        "failurePolicy": "Ignore",
        "timeoutSeconds": DELETE_TIMEOUT_SECONDS,
        **_shared(system_namespace),
    }
    if policy_guards_controllers:  # servers with policies support match conditions
        deletes["matchConditions"] = [
            {"name": "not-by-system", "expression": _NOT_SYSTEM},
            {"name": "not-terminating", "expression": _NOT_TERMINATING},
            {"name": "ready", "expression": _READY},
        ]
    return {
        "apiVersion": _REGISTRATION,
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": DISRUPTION_CONFIGURATION},
        "webhooks": [deletes],
    }


def _shared(system_namespace: str) -> dict[str, Any]:
    return {
        "namespaceSelector": _guarded_namespaces(system_namespace),
        "matchPolicy": "Equivalent",
        "sideEffects": "NoneOnDryRun",
        "admissionReviewVersions": ["v1"],
    }


def deleter(user: UserInfo) -> PodDeleter:
    """Kubelets, garbage collection, node lifecycle, namespaces, jobs and the scheduler are the system: never refused."""
    if user.username in WORKLOAD_CONTROLLERS:
        return PodDeleter.WORKLOAD
    if _NODES in user.groups or user.username.startswith(_SYSTEM_USERS):
        return PodDeleter.SYSTEM
    return PodDeleter.PERSON
