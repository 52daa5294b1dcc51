"""RBAC rights: those our manifests grant to each program, and those an install needs. Read from the manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

from zonewise.install.components import (
    InstallComponent,
    InstallMode,
    ManifestValues,
    choose,
    documents,
    superseded,
)
from zonewise.install.decide.document import Document, identity
from zonewise.install.decide.kinds import BY_KIND, WORKLOADS
from zonewise.install.decide.right import GRANTING_VERBS, Right


@lru_cache(maxsize=4)
def rights_of_programs(namespace: str) -> dict[str, frozenset[Right]]:
    """By workload name. Of a workload with several forms, the rights that all of them need."""
    rights: dict[str, frozenset[Right]] = {}
    for component in InstallComponent:
        for mode in InstallMode:
            made = documents([component], mode, ManifestValues(image="", namespace=namespace))
            for workload in made:
                if workload["kind"] in WORKLOADS:
                    account = workload["spec"]["template"]["spec"].get("serviceAccountName", "")
                    granted = frozenset(_granted(made, account))
                    name = workload["metadata"]["name"]
                    rights[name] = rights.get(name, granted) & granted
    return rights


def rights_to_install(namespace: str) -> tuple[Right, ...]:
    """Rights for a default install: it reads every object; an apply of a missing object both patches and
    creates; roles may grant rights that the user lacks; objects of the other mode only are deleted, once its pods are
    gone; and the author of a policy must be allowed to read its parameters.
    """
    chosen, values = choose(()), ManifestValues(image="", namespace=namespace)
    made, gone = documents(chosen, InstallMode.OVERLAY, values), superseded(chosen, InstallMode.OVERLAY, values)
    needed = [(document, verb) for document in made for verb in ("get", "create", "patch")]
    needed += [(document, verb) for document in made if document["kind"].endswith("Role") for verb in GRANTING_VERBS]
    needed += [(document, "delete") for document in gone]
    rights = [_to_kind(document, verb) for document, verb in needed]
    return tuple(dict.fromkeys([*rights, *_to_parameters(made), Right("list", "", "pods", namespace)]))


def _to_kind(document: Document, verb: str) -> Right:
    kind, namespace, _ = identity(document)
    return Right(verb, BY_KIND[kind].group, BY_KIND[kind].plural, namespace)


def _to_parameters(made: Sequence[Document]) -> Iterator[Right]:
    kinds = [document["spec"] for document in made if document["kind"] == "CustomResourceDefinition"]
    for policy in (document for document in made if document["kind"] == "ValidatingAdmissionPolicy"):
        for kind in kinds:
            if kind["names"]["kind"] == policy["spec"].get("paramKind", {}).get("kind"):
                yield from (Right(verb, kind["group"], kind["names"]["plural"]) for verb in ("get", "list"))


def _granted(made: Iterable[Document], account: str) -> Iterator[Right]:
    """Roles of one name may stand in several namespaces; a binding is of the one beside it."""
    roles = {identity(document): document for document in made if document["kind"].endswith("Role")}
    for binding in made:
        if not binding["kind"].endswith("RoleBinding"):
            continue
        if account not in {subject["name"] for subject in binding["subjects"]}:
            continue
        kind, name = binding["roleRef"]["kind"], binding["roleRef"]["name"]
        namespace = binding["metadata"].get("namespace", "")
        role = roles.get((kind, namespace if kind == "Role" else "", name), {})
        for rule in role.get("rules") or ():
            yield from _ruled(rule, namespace)


def _ruled(rule: Document, namespace: str) -> Iterator[Right]:
    for group in rule.get("apiGroups", ()):
        for resource in rule.get("resources", ()):
            for verb in rule["verbs"]:
                for name in rule.get("resourceNames", [""]):
                    yield Right(verb, group, resource, namespace, name)
