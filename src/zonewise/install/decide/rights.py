"""What our manifests allow each program, and what whoever applies them must be allowed: read from the manifests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

from zonewise.install.components import (
    Document,
    InstallComponent,
    InstallMode,
    ManifestValues,
    choose,
    documents,
    identity,
    superseded,
)
from zonewise.install.decide.kinds import BY_KIND

_WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet")
_GRANTING = {
    "escalate": "to make a role with rights that you don't have yourself",
    "bind": "to give others a role with rights that you don't have yourself",
}
"""Kubernetes asks for these unless one has all that is granted: cluster-admin has both."""


class Right(NamedTuple):
    """This verb on these objects, in a namespace or anywhere, on those of a name or on all."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        said = f"{self.verb} {kind}{f' {self.name}' if self.name else ''}{f' in {self.namespace}' if self.namespace else ''}"
        return f"{said} ({_GRANTING[self.verb]})" if self.verb in _GRANTING else said


@lru_cache(maxsize=4)
def rights_of_programs(namespace: str) -> dict[str, frozenset[Right]]:
    """By the name of its workload. Of one that comes in several forms, what all of them need."""
    found: dict[str, frozenset[Right]] = {}
    for component in InstallComponent:
        for mode in InstallMode:
            made = documents([component], mode, ManifestValues(image="", namespace=namespace))
            for workload in made:
                if workload["kind"] in _WORKLOADS:
                    account = workload["spec"]["template"]["spec"].get("serviceAccountName", "")
                    granted = frozenset(_granted(made, account))
                    name = workload["metadata"]["name"]
                    found[name] = found.get(name, granted) & granted
    return found


def rights_to_install(namespace: str) -> tuple[Right, ...]:
    """For what an install does by default: it looks at every object, its apply of what is not there yet both patches and
    creates, roles grant what whoever applies them need not have, what only the other mode has is deleted, and who makes a
    policy must be allowed to read what it is parameterized by.
    """
    chosen, values = choose(()), ManifestValues(image="", namespace=namespace)
    made, gone = documents(chosen, InstallMode.OVERLAY, values), superseded(chosen, InstallMode.OVERLAY, values)
    needed = [(each, verb) for each in made for verb in ("get", "create", "patch")]
    needed += [(each, verb) for each in made if each["kind"].endswith("Role") for verb in _GRANTING]
    needed += [(each, "delete") for each in gone]
    return tuple(dict.fromkeys([*(_to_all_of_its_kind(each, verb) for each, verb in needed), *_to_parameters(made)]))


def _to_all_of_its_kind(document: Document, verb: str) -> Right:
    kind, namespace, _ = identity(document)
    return Right(verb, BY_KIND[kind].group, BY_KIND[kind].plural, namespace)


def _to_parameters(made: Sequence[Document]) -> Iterator[Right]:
    kinds = [each["spec"] for each in made if each["kind"] == "CustomResourceDefinition"]
    for policy in (each for each in made if each["kind"] == "ValidatingAdmissionPolicy"):
        for kind in kinds:
            if kind["names"]["kind"] == policy["spec"].get("paramKind", {}).get("kind"):
                yield from (Right(verb, kind["group"], kind["names"]["plural"]) for verb in ("get", "list"))


def _granted(made: Iterable[Document], account: str) -> Iterator[Right]:
    """Roles of one name may stand in several namespaces; a binding is of the one beside it."""
    roles = {identity(each): each for each in made if each["kind"].endswith("Role")}
    for binding in made:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        if account not in {subject["name"] for subject in binding["subjects"]}:
            continue
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        where = binding["metadata"].get("namespace", "")
        role = roles.get((kind, where if kind == "Role" else "", name), {})
        for rule in role.get("rules") or ():
            yield from _ruled(rule, where)


def _ruled(rule: Document, namespace: str) -> Iterator[Right]:
    for group in rule.get("apiGroups", ()):
        for resource in rule.get("resources", ()):
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield Right(verb, group, resource, namespace, name)
