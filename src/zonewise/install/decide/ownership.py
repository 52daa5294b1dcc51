"""Ownership: which live objects an install made, and so may change and remove. Pure.

Every install since 0.1 applies under the field manager `zonewise-install`, which the API server records in the object.
A foreign object of the same name lacks that record. The labels say whose the object is for other tools: Helm and kubectl
apply the same manifests under names of their own, and only `--adopt` takes over what they made.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from zonewise.api.names import (
    DISRUPTION_FIELD_MANAGER,
    FIELD_MANAGER,
    INSTALL_FIELD_MANAGER,
    INSTANCE_LABEL,
    OVERLAY_FIELD_MANAGER,
    PART_OF_LABEL,
)
from zonewise.install.decide.document import Document

_PROGRAMS: Final = {FIELD_MANAGER, OVERLAY_FIELD_MANAGER, DISRUPTION_FIELD_MANAGER}


@dataclass(frozen=True, slots=True)
class ManifestObject:
    """An object of the manifests, what is live under its name, and why that is not ours; empty if it is, or nothing is."""

    document: Document
    live: Document | None = None
    foreign: str = ""


def with_ownership(
    live_objects: Iterable[tuple[Document, Document | None]], namespace: str, *, adopt: bool = False
) -> list[ManifestObject]:
    """Of an install in this namespace. `adopt`: what carries our label is ours, even if another tool made it."""
    pairs = list(live_objects)
    accounts = _bound_accounts([live for _, live in pairs if live is not None])
    return [
        ManifestObject(document, live, why_foreign(live, namespace, accounts, adopt=adopt) if live else "")
        for document, live in pairs
    ]


def why_foreign(
    live: Document, namespace: str, accounts: Collection[tuple[str, str]] = (), *, adopt: bool = False
) -> str:
    """Empty for an object that an install in this namespace made.

    A ServiceAccount of 0.1 has no field that an apply could own: it is ours if a binding of 0.1 is for it.
    The CRD outlives the install that made it, and the next one in another namespace takes it over.
    """
    metadata = live["metadata"]
    if live["kind"] != "CustomResourceDefinition" and (why := why_elsewhere(live, namespace)):
        return why
    if _applied(live) or (adopt and metadata.get("labels", {}).get(PART_OF_LABEL) == "zonewise"):
        return ""
    if "managedFields" not in metadata and (metadata.get("namespace", ""), metadata["name"]) in accounts:
        return ""
    makers = ", ".join(sorted(_writers(live) - {INSTALL_FIELD_MANAGER}))
    return f"`zonewise install` did not make it{f', but {makers}' if makers else ''}"


def why_elsewhere(live: Document, namespace: str) -> str:
    """Empty for an object of the install in this namespace, and for one of 0.1, which does not say."""
    other = live["metadata"].get("labels", {}).get(INSTANCE_LABEL, namespace)
    return f"it belongs to the Zonewise in namespace {other}" if other != namespace else ""


def made_by_programs(live: Document) -> bool:
    """A Secret or Lease that a program of ours created while it ran, and that has no other writer."""
    writers = _writers(live)
    return bool(writers) and writers <= _PROGRAMS


def _applied(live: Document) -> bool:
    return any(
        entry.get("manager") == INSTALL_FIELD_MANAGER and entry.get("operation") == "Apply"
        for entry in live["metadata"].get("managedFields", ())
    )


def _writers(live: Document) -> set[str]:
    return {
        entry.get("manager", "") for entry in live["metadata"].get("managedFields", ()) if not entry.get("subresource")
    }


def _bound_accounts(lives: Sequence[Document]) -> set[tuple[str, str]]:
    """Of bindings of 0.1, which have no label of their install. Later ones come with accounts that have a record, and a
    binding of one component may name the account of another.
    """
    return {
        (subject.get("namespace", ""), subject["name"])
        for live in lives
        if live["kind"].endswith("RoleBinding") and _applied(live)
        if INSTANCE_LABEL not in live["metadata"].get("labels", {})
        for subject in live.get("subjects", ())
        if subject["kind"] == "ServiceAccount"
    }
