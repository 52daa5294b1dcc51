"""Admission policy for kwok, which plays kubelets: it may remove only pods that end. Pure.

kwok deletes by name, at times twice, and names no uid. On a busy machine the second delete came so late that it removed the
pod's successor of the same name, which nobody had asked to end.
"""

from __future__ import annotations

from typing import Any, Final

NAME: Final = "kwok-removes-only-what-ends"
PATH: Final = "/apis/admissionregistration.k8s.io/v1"


def documents(user: str) -> dict[str, dict[str, Any]]:
    """By the path they are posted to."""
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["DELETE"], "resources": ["pods"]}
    return {
        f"{PATH}/validatingadmissionpolicies": {
            "metadata": {"name": NAME},
            "spec": {
                "matchConstraints": {"resourceRules": [pods]},
                "matchConditions": [{"name": "by-kwok", "expression": f"request.userInfo.username == '{user}'"}],
                "validations": [
                    {
                        "expression": "has(oldObject.metadata.deletionTimestamp)",
                        "message": "this pod does not end: it has the name of one that kwok removed",
                    }
                ],
            },
        },
        f"{PATH}/validatingadmissionpolicybindings": {
            "metadata": {"name": NAME},
            "spec": {"policyName": NAME, "validationActions": ["Deny"]},
        },
    }
