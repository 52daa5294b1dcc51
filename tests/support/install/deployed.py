"""The manifests of deploy/ on a real API server that keeps an audit log: who may do what, and what each one did."""

import json
import subprocess
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from zonewise.kube.client.client import Client
from zonewise.lab.controlplane.controlplane import ControlPlane
from zonewise.lab.controlplane.programs import Program
from zonewise.objects import SERVICE_ACCOUNTS

MANIFESTS = Path(__file__).parents[3] / "deploy"
SYSTEM = "zonewise-system"
CAREFUL = (
    "--enable-admission-plugins=OwnerReferencesPermissionEnforcement",  # who may say what keeps an owner
    "--feature-gates=WatchList=false",  # as older servers are: lists are no watches there
)

Right = tuple[str, str]
"""A verb, and a resource with its group."""


class Scope(NamedTuple):
    """A right, in a namespace or anywhere, on the object of a name or on all."""

    verb: str
    resource: str
    namespace: str = ""
    name: str = ""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((MANIFESTS / name).read_text()))


def granted(name: str, account: str) -> set[Right]:
    """All that the roles bound to a service account in a file allow."""
    return {(scope.verb, scope.resource) for scope in scopes(name, account)}


def scopes(name: str, account: str) -> set[Scope]:
    """The same, and where: a binding in a namespace is good there, and a rule that names objects is good for these."""
    found = documents(name)
    roles = {_place(each): each["rules"] for each in found if each["kind"] in {"Role", "ClusterRole"}}
    return {
        Scope(verb, f"{resource}.{group}".rstrip("."), where, named)
        for binding in found
        if binding["kind"].endswith("RoleBinding") and binding["subjects"][0]["name"] == account
        for where in [binding["metadata"].get("namespace", "")]
        for rule in roles[binding["roleRef"]["kind"], where, binding["roleRef"]["name"]]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for named in rule.get("resourceNames", [""])
    }


def _place(document: dict[str, Any]) -> tuple[str, str, str]:
    metadata = document["metadata"]
    return document["kind"], metadata.get("namespace", ""), metadata["name"]


def narrowed(calls: Iterable[Scope], homes: Collection[str]) -> Iterator[Scope]:
    """The least that would have allowed these calls: what is only ever done in our own namespaces needs no right elsewhere,
    and what is only ever done to objects of our own none on others. Nobody can be allowed to create by name.
    """
    alike: dict[Right, list[Scope]] = {}
    for call in calls:
        alike.setdefault((call.verb, call.resource), []).append(call)
    for (verb, resource), found in alike.items():
        at_home = all(call.namespace in homes for call in found)
        our_own = verb != "create" and all(call.name.startswith("zonewise") for call in found)
        for call in found:
            yield Scope(verb, resource, call.namespace if at_home else "", call.name if our_own else "")


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
        return {(call.verb, call.resource) for call in self._let(account, namespace)}

    def used(self, name: str, account: str, namespace: str = SYSTEM) -> set[Scope]:
        """The least that would have let it do so, in the terms in which a file grants it."""
        homes = {namespace} | {scope.namespace for scope in scopes(name, account) if scope.namespace}
        return set(narrowed(self._let(account, namespace), homes))

    def refused(self, account: str, namespace: str = SYSTEM) -> set[Right]:
        return {(call.verb, call.resource) for call, code in self._calls(account, namespace) if code == 403}

    def _let(self, account: str, namespace: str) -> Iterator[Scope]:
        return (call for call, code in self._calls(account, namespace) if code < 400 or code in {404, 409})

    def _calls(self, account: str, namespace: str) -> Iterator[tuple[Scope, int]]:
        whole, _, _being_written = (self.folder / "audit.log").read_text().rpartition("\n")
        for line in whole.splitlines():
            call = json.loads(line)
            said = call.get("objectRef")
            if said and call["user"].get("username") == f"system:serviceaccount:{namespace}:{account}":
                resource = "/".join(filter(None, (said["resource"], said.get("subresource"))))
                kind = f"{resource}.{said.get('apiGroup', '')}".rstrip(".")
                scope = Scope(call["verb"], kind, said.get("namespace", ""), said.get("name", ""))
                yield scope, call.get("responseStatus", {}).get("code", 0)
