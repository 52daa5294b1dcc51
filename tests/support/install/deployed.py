"""Manifests of deploy/ on a real API server: granted rights, and used rights from the audit log."""

import json
import subprocess
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from zonewise.api.names import INSTALL_FIELD_MANAGER
from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import SERVICE_ACCOUNTS

MANIFESTS = Path(__file__).parents[3] / "deploy"
SYSTEM = "zonewise-system"
STRICT_FLAGS = (
    "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",  # checks who may set ownerReferences
    "--feature-gates=WatchList=false",  # as in older servers, where lists are not served by watches
)

Right = tuple[str, str]
"""Verb, and resource with its group."""


class Scope(NamedTuple):
    """A right; empty `namespace` and `name` mean all."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def granted(name: str, account: str) -> set[Right]:
    """Rights of the roles bound to a service account in a manifest."""
    return {(scope.verb, scope.resource) for scope in scopes(name, account)}


def scopes(name: str, account: str) -> set[Scope]:
    """As `granted`, with the namespace of the binding and the resourceNames of the rule."""
    manifest = documents(name)
    roles = {
        _role_key(document): document["rules"] for document in manifest if document["kind"] in {"Role", "ClusterRole"}
    }
    return {
        Scope(verb, f"{resource}.{group}".rstrip("."), namespace, object_name)
        for binding in manifest
        if binding["kind"].endswith("RoleBinding") and binding["subjects"][0]["name"] == account
        for namespace in [binding["metadata"].get("namespace", "")]
        for rule in roles[binding["roleRef"]["kind"], namespace, binding["roleRef"]["name"]]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for object_name in rule.get("resourceNames", [""])
    }


def _role_key(document: dict[str, Any]) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def least_scopes(calls: Iterable[Scope], own_namespaces: Collection[str]) -> Iterator[Scope]:
    """Least scopes that allow these calls.

    Calls made only in our own namespaces need no cluster-wide right; calls made only on our own objects need a right on
    these names only, except for create, which cannot be restricted by name.
    """
    by_right: dict[Right, list[Scope]] = {}
    for call in calls:
        by_right.setdefault((call.verb, call.resource), []).append(call)
    for (verb, resource), calls_of_right in by_right.items():
        in_own_namespaces = all(call.namespace in own_namespaces for call in calls_of_right)
        own_objects = verb != "create" and all(call.name.startswith("zonewise") for call in calls_of_right)
        for call in calls_of_right:
            yield Scope(verb, resource, call.namespace if in_own_namespaces else "", call.name if own_objects else "")


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
        Program.APISERVER: (f"--audit-policy-file={folder / 'policy.yaml'}", f"--audit-log-path={log}", *STRICT_FLAGS),
    }


async def token_of(client: Client, account: str, namespace: str = SYSTEM, **spec: Any) -> str:
    path = SERVICE_ACCOUNTS.path(namespace, account, "token")
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
    answer = json.loads(await client.request("POST", path, body=json.dumps(body).encode()))
    return str(answer["status"]["token"])


def token_in(config: Path) -> str:
    return str(yaml.safe_load(config.read_text())["users"][0]["user"]["token"])


@dataclass(frozen=True)
class Deployed:
    plane: ControlPlane
    folder: Path

    def apply(self, name: str) -> None:
        self._kubectl("apply", "-f", str(MANIFESTS / name))

    def apply_as_install(self, document: dict[str, Any]) -> None:
        """Server-side, so that the API server's record says that an install made it."""
        options = ("--server-side", f"--field-manager={INSTALL_FIELD_MANAGER}")
        self._kubectl("apply", *options, "-f", "-", stdin=json.dumps(document))

    def _kubectl(self, *arguments: str, stdin: str = "") -> None:
        command = [str(self.plane.binaries / "kubectl"), "--kubeconfig", str(self.plane.kubeconfig), *arguments]
        result = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, input=stdin)
        assert result.returncode == 0, result.stderr

    async def kubeconfig(self, client: Client, account: str, namespace: str = SYSTEM) -> Path:
        """Kubeconfig with a token of that service account."""
        token = await token_of(client, account, namespace)
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

    def used_rights(self, account: str, namespace: str = SYSTEM) -> set[Right]:
        """Rights of the account's successful calls."""
        return {(call.verb, call.resource) for call in self._allowed_calls(account, namespace)}

    def used(self, name: str, account: str, namespace: str = SYSTEM) -> set[Scope]:
        """Least scopes of the account's successful calls, comparable with `scopes`."""
        own_namespaces = {namespace} | {scope.namespace for scope in scopes(name, account) if scope.namespace}
        return set(least_scopes(self._allowed_calls(account, namespace), own_namespaces))

    def refused(self, account: str, namespace: str = SYSTEM) -> set[Right]:
        return {(call.verb, call.resource) for call, code in self._calls(account, namespace) if code == 403}

    def _allowed_calls(self, account: str, namespace: str) -> Iterator[Scope]:
        return (call for call, code in self._calls(account, namespace) if code < 400 or code in {404, 409})

    def _calls(self, account: str, namespace: str) -> Iterator[tuple[Scope, int]]:
        lines, _, _incomplete = (self.folder / "audit.log").read_text().rpartition("\n")
        for line in lines.splitlines():
            event = json.loads(line)
            ref = event.get("objectRef")
            if ref and event["user"].get("username") == f"system:serviceaccount:{namespace}:{account}":
                resource = "/".join(filter(None, (ref["resource"], ref.get("subresource"))))
                kind = f"{resource}.{ref.get('apiGroup', '')}".rstrip(".")
                scope = Scope(event["verb"], kind, ref.get("namespace", ""), ref.get("name", ""))
                yield scope, event.get("responseStatus", {}).get("code", 0)
