"""The manifests of deploy/ on a real API server that keeps an audit log: who may do what, and what each one did."""

import json
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from zonewise.kube.client import Client
from zonewise.lab.controlplane import ControlPlane
from zonewise.lab.programs import Program
from zonewise.objects import SERVICE_ACCOUNTS

MANIFESTS = Path(__file__).parents[1] / "deploy"
SYSTEM = "zonewise-system"
CAREFUL = (
    "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",  # who may say what keeps an owner
    "--feature-gates=WatchList=false",  # as older servers are: lists are no watches there
)

Right = tuple[str, str]
"""A verb, and a resource with its group."""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def granted(name: str, account: str) -> set[Right]:
    """All that the roles bound to a service account in a file allow."""
    found = documents(name)
    bound = {
        (document["roleRef"]["kind"], document["roleRef"]["name"])
        for document in found
        if document["kind"].endswith("RoleBinding") and document["subjects"][0]["name"] == account
    }
    rules = [rule for role in found if (role["kind"], role["metadata"]["name"]) in bound for rule in role["rules"]]
    return {
        (verb, f"{resource}.{group}".rstrip("."))
        for rule in rules
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def audit_flags(folder: Path) -> dict[Program, tuple[str, ...]]:
    policy = {
        "apiVersion": "audit.k8s.io/v1",
        "kind": "Policy",
        "omitStages": ["RequestReceived"],
        "rules": [{"level": "Metadata"}],
    }
    (folder / "policy.yaml").write_text(yaml.safe_dump(policy))
    log = folder / "audit.log"
    return {
        Program.APISERVER: (f"--audit-policy-file={folder / 'policy.yaml'}", f"--audit-log-path={log}", *CAREFUL),
    }


@dataclass(frozen=True)
class Deployed:
    plane: ControlPlane
    folder: Path

    def apply(self, name: str) -> None:
        kubectl = [str(self.plane.binaries / "kubectl"), "--kubeconfig", str(self.plane.kubeconfig)]
        command = [*kubectl, "apply", "-f", str(MANIFESTS / name)]
        done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr

    async def kubeconfig(self, client: Client, account: str, namespace: str = SYSTEM) -> Path:
        """As that service account, by a token as pods get it."""
        path = SERVICE_ACCOUNTS.path(namespace, account, "token")
        body = b'{"apiVersion":"authentication.k8s.io/v1","kind":"TokenRequest","spec":{}}'
        token = json.loads(await client.request("POST", path, body=body))["status"]["token"]
        cluster = {"server": self.plane.server, "certificate-authority": str(self.plane.ca_path)}
        document = {
            "current-context": "it",
            "clusters": [{"name": "c", "cluster": cluster}],
            "users": [{"name": "u", "user": {"token": token}}],
            "contexts": [{"name": "it", "context": {"cluster": "c", "user": "u"}}],
        }
        config = self.folder / f"{account}.config"
        config.write_text(yaml.safe_dump(document))
        return config

    def done(self, account: str, namespace: str = SYSTEM) -> set[Right]:
        """What the account did, and was let do."""
        return {right for right, code in self._calls(account, namespace) if code < 400 or code in {404, 409}}

    def refused(self, account: str, namespace: str = SYSTEM) -> set[Right]:
        return {right for right, code in self._calls(account, namespace) if code == 403}

    def _calls(self, account: str, namespace: str) -> Iterator[tuple[Right, int]]:
        for line in (self.folder / "audit.log").read_text().splitlines():
            call = json.loads(line)
            said = call.get("objectRef")
            if said and call["user"].get("username") == f"system:serviceaccount:{namespace}:{account}":
                resource = "/".join(filter(None, (said["resource"], said.get("subresource"))))
                name = f"{resource}.{said.get('apiGroup', '')}".rstrip(".")
                yield (call["verb"], name), call.get("responseStatus", {}).get("code", 0)
