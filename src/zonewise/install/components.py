"""Components and their manifests: files of this package, with four words in them replaced.

The files are complete as they stand, and `deploy/` links to them; the Helm chart in `deploy/chart` replaces the same
words. So every way to install gives the same objects.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.resources import files
from typing import Final

import yaml

from zonewise.api.names import SYSTEM_NAMESPACE
from zonewise.errors import UsageError
from zonewise.install.decide.document import Document, identity

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The one in C is ten times as fast, where there is one."""


class InstallMode(StrEnum):
    OVERLAY = "overlay"
    OWN = "own"


class InstallComponent(StrEnum):
    SLICES = "slices"
    DISRUPTION = "disruption"
    PROXY = "proxy"
    PROXY_ALL = "proxy-all"
    DNS = "dns"
    DNS_BEHIND = "dns-behind"
    DNS_NODE = "dns-node"
    CSI = "csi"
    DASHBOARD = "dashboard"


SUMMARY: Final = {
    InstallComponent.SLICES: "hints on EndpointSlices (mode overlay), or all EndpointSlices (mode own)",
    InstallComponent.DISRUPTION: "budgets per domain: the kind, their controller, the guard of evictions and deletes",
    InstallComponent.PROXY: "the node proxy, for Services that are labelled for it",
    InstallComponent.PROXY_ALL: "the node proxy instead of kube-proxy",
    InstallComponent.DNS: "the DNS server, behind the Service kube-dns",
    InstallComponent.DNS_BEHIND: "the DNS server behind CoreDNS",
    InstallComponent.DNS_NODE: "the DNS server on every node",
    InstallComponent.CSI: "the Ceph CSI driver; it needs a configuration of yours, see [storage](storage.md)",
    InstallComponent.DASHBOARD: "the live page, for users whom the API server authorises",
}
DEFAULT: Final = (
    InstallComponent.SLICES,
    InstallComponent.DISRUPTION,
    InstallComponent.PROXY,
    InstallComponent.DASHBOARD,
)
_EITHER: Final = (
    {InstallComponent.PROXY, InstallComponent.PROXY_ALL},
    {InstallComponent.DNS, InstallComponent.DNS_BEHIND, InstallComponent.DNS_NODE},
)
"""Of each of these a cluster has one."""
_SHARED: Final = {"Namespace", "CustomResourceDefinition"}
_METRICS: Final = "metrics.yaml"
"""Of every component: the right to read metrics."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ManifestValues:
    image: str
    namespace: str = SYSTEM_NAMESPACE
    replicas: int = 2
    api_server: tuple[str, int] = ("api.example.com", 6443)
    """The API server's address for a proxy that replaces kube-proxy: there are no rules for the cluster IP yet."""


def choose(names: Iterable[str]) -> tuple[InstallComponent, ...]:
    """Components by name, in the order of installation; no name means the default ones."""
    valid = {str(component) for component in InstallComponent}
    requested = set(names)
    for name in sorted(requested - valid):
        raise UsageError(f"no component {name!r}: write one or more of {', '.join(InstallComponent)}")
    chosen = tuple(component for component in InstallComponent if component in requested) or DEFAULT
    for group in _EITHER:
        both = [component for component in chosen if component in group]
        if len(both) > 1:
            raise UsageError(f"{both[0]} and {both[1]} do the same work: choose one of them")
    return chosen


def file_names(component: InstallComponent, mode: InstallMode) -> tuple[str, ...]:
    match component:
        case InstallComponent.SLICES:
            return (_METRICS, f"{mode}.yaml")
        case InstallComponent.DISRUPTION:
            return (_METRICS, "tdb.yaml", "disruption.yaml")
        case _:
            return (_METRICS, f"{component}.yaml")


def text(chosen: Sequence[InstallComponent], mode: InstallMode, values: ManifestValues) -> str:
    """All manifests as one YAML text, with the comments that say why."""
    parts = [part for part, _ in _parts(chosen, mode, values)]
    return "---\n".join(parts)


def documents(chosen: Sequence[InstallComponent], mode: InstallMode, values: ManifestValues) -> list[Document]:
    return [document for _, document in _parts(chosen, mode, values)]


def superseded(chosen: Sequence[InstallComponent], mode: InstallMode, values: ManifestValues) -> list[Document]:
    """Objects of the other mode, or of another component for the same work, that this choice does not have. Left behind,
    their rights or programs would stay. Namespaces and CRDs are shared and not listed.
    """
    kept = {identity(document) for document in documents(chosen, mode, values)}
    replaced = {
        identity(document): document
        for other, other_mode in _replaced(chosen, mode)
        for document in documents([other], other_mode, values)
    }
    return [document for name, document in replaced.items() if name not in kept and document["kind"] not in _SHARED]


def _replaced(chosen: Sequence[InstallComponent], mode: InstallMode) -> Iterator[tuple[InstallComponent, InstallMode]]:
    if InstallComponent.SLICES in chosen:
        yield InstallComponent.SLICES, InstallMode.OWN if mode is InstallMode.OVERLAY else InstallMode.OVERLAY
    for group in _EITHER:
        if group & set(chosen):
            yield from ((other, mode) for other in InstallComponent if other in group and other not in chosen)


def everything(components: Iterable[InstallComponent], values: ManifestValues) -> list[Document]:
    """The objects of these components in every mode, each once. What all components share is listed with all of them only."""
    chosen = set(components)
    objects: dict[tuple[str, str, str], Document] = {}
    for component in InstallComponent:
        for mode in InstallMode if component in chosen else ():
            objects |= {identity(document): document for document in documents([component], mode, values)}
    if not chosen >= set(InstallComponent):
        for _, document in _of_file(_METRICS, values):
            objects.pop(identity(document), None)
    return list(objects.values())


def _parts(
    chosen: Sequence[InstallComponent], mode: InstallMode, values: ManifestValues
) -> Iterator[tuple[str, Document]]:
    seen = set()
    for component in chosen:
        for name in file_names(component, mode):
            for part, document in _of_file(name, values):
                if identity(document) not in seen:
                    seen.add(identity(document))
                    yield part, document


def _of_file(name: str, values: ManifestValues) -> Iterator[tuple[str, Document]]:
    for part in re.split(r"^---\n", _render(_read(name), values), flags=re.MULTILINE):
        yield part, yaml.load(part, _LOADER)  # noqa: S506 - both are safe loaders


def _read(name: str) -> str:
    return files(__package__).joinpath("manifests", name).read_text(encoding="utf-8")


def _render(text: str, values: ManifestValues) -> str:
    host, port = values.api_server
    replaced = {
        r"(?m)^( *image: )zonewise$": rf"\g<1>{values.image}",
        r"(?m)^( *replicas: )2$": rf"\g<1>{values.replicas}",
        r"(?m)^( *value: )api\.example\.com$": rf'\g<1>"{host}"',
        r'(?m)^( *value: )"6443"$': rf'\g<1>"{port}"',
        rf"\b{SYSTEM_NAMESPACE}\b": values.namespace,
    }
    for pattern, replacement in replaced.items():
        text = re.sub(pattern, replacement, text)
    return text
