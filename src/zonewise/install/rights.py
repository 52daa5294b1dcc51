"""What our manifests allow each program, and what whoever applies them must be allowed: read from the manifests. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import NamedTuple

from zonewise.install.components import Component, Document, Mode, Values, choose, documents, identity
from zonewise.install.kinds import BY_KIND

_WORKLOADS = ("Deployment", "DaemonSet", "StatefulSet")


class Right(NamedTuple):
    """This verb on these objects, in a namespace or anywhere, on those of a name or on all."""

    verb: str
    group: str
    resource: str
    namespace: str = ""
    name: str = ""

    def __str__(self) -> str:
        kind = f"{self.resource}.{self.group}" if self.group else self.resource
        return f"{self.verb} {kind}{f' {self.name}' if self.name else ''}{f' in {self.namespace}' if self.namespace else ''}"


@lru_cache(maxsize=4)
def rights_of_programs(namespace: str) -> dict[str, frozenset[Right]]:
    """By the name of its workload. Of one that comes in several forms, what all of them need."""
    found: dict[str, frozenset[Right]] = {}
    for component in Component:
        for mode in Mode:
            made = documents([component], mode, Values(image="", namespace=namespace))
            for workload in made:
                if workload["kind"] in _WORKLOADS:
                    account = workload["spec"]["template"]["spec"].get("serviceAccountName", "")
                    granted = frozenset(_granted(made, account))
                    name = workload["metadata"]["name"]
                    found[name] = found.get(name, granted) & granted
    return found


def rights_to_install(namespace: str) -> tuple[Right, ...]:
    """For what an install applies by default: an apply of what is not there yet both patches and creates."""
    made = documents(choose(()), Mode.OVERLAY, Values(image="", namespace=namespace))
    kinds = dict.fromkeys((each["kind"], each["metadata"].get("namespace", "")) for each in made)
    return tuple(
        Right(verb, BY_KIND[kind].group, BY_KIND[kind].plural, where)
        for kind, where in kinds
        for verb in ("create", "patch")
    )


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
