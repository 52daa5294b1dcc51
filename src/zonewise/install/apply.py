"""Install: server-side apply of the manifests, object by object, and waiting until their pods are ready."""

from __future__ import annotations

import asyncio
import itertools
import json
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zonewise.api.names import INSTALL_FIELD_MANAGER
from zonewise.errors import ZonewiseError
from zonewise.install.components import Document, identity
from zonewise.install.decide.diff import difference
from zonewise.install.decide.kinds import BY_KIND, Whole, rank
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Conflict, NotFound

_POLL_SECONDS = 0.3
_DEADLINE_SECONDS = 120.0
"""The API server validates CRDs and policies on write, which is slow on a busy server."""


class ApplyChange(StrEnum):
    CREATED = "created"
    CONFIGURED = "configured"
    UNCHANGED = "unchanged"
    DELETED = "deleted"
    LEFT = "left behind"


@dataclass(frozen=True, slots=True)
class ApplyOutcome:
    name: str
    change: ApplyChange
    why: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.change}{f': {self.why}' if self.why else ''}"


async def apply(client: Client, documents: Sequence[Document], *, force: bool = False) -> AsyncIterator[ApplyOutcome]:
    """In the order of their dependencies; objects of a kind concurrently."""
    for _, alike in itertools.groupby(sorted(documents, key=rank), key=rank):
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_apply_one(client, document, force)) for document in alike]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed  # the first is enough
        for task in tasks:
            yield task.result()


async def _apply_one(client: Client, document: Document, force: bool) -> ApplyOutcome:
    live = await find(client, document)
    made = await _send(client, document, force=force)
    if live is None:
        change = ApplyChange.CREATED
    else:
        same = live["metadata"]["resourceVersion"] == made["metadata"]["resourceVersion"]
        change = ApplyChange.UNCHANGED if same else ApplyChange.CONFIGURED
    return ApplyOutcome(shown(document), change)


async def compare(client: Client, documents: Sequence[Document], *, force: bool = False) -> AsyncIterator[str]:
    """What `apply` would change, by a server-side dry run."""
    for document in sorted(documents, key=rank):
        live = await find(client, document)
        try:
            made = await _send(client, document, force=force, dry_run=True)
        except NotFound:  # its namespace is not there yet
            made = document
        if text := difference(shown(document), live, made):
            yield text


async def compare_removed(client: Client, documents: Sequence[Document]) -> AsyncIterator[str]:
    """What `remove` would delete."""
    for document in sorted(documents, key=rank, reverse=True):
        if text := difference(shown(document), await find(client, document), None):
            yield text


async def remove(client: Client, documents: Sequence[Document]) -> AsyncIterator[ApplyOutcome]:
    """In the opposite order; missing objects are skipped."""
    for document in sorted(documents, key=rank, reverse=True):
        resource, namespace, name = _place(document)
        try:
            await client.delete(resource, name, namespace)
        except NotFound:
            continue
        yield ApplyOutcome(shown(document), ApplyChange.DELETED)


async def until_gone(client: Client, documents: Sequence[Document], timeout_seconds: float) -> None:
    """Waits for finalizers: a namespace goes with its contents, a CRD with its objects."""
    deadline = time.monotonic() + timeout_seconds
    for document in documents:
        while await find(client, document) is not None:
            await _pause(deadline, f"{shown(document)} is not gone after {timeout_seconds:g} s")


async def until_ready(client: Client, documents: Sequence[Document], timeout_seconds: float) -> None:
    """Every Deployment and DaemonSet runs all its pods, in their newest form."""
    deadline = time.monotonic() + timeout_seconds
    for document in documents:
        if document["kind"] in {"Deployment", "DaemonSet"}:
            while lacks := missing(await find(client, document)):
                namespace = document["metadata"]["namespace"]
                await _pause(
                    deadline,
                    f"{shown(document)} is not ready after {timeout_seconds:g} s: {lacks}; look at "
                    f"`kubectl -n {namespace} describe pods`",
                )


def missing(workload: dict[str, Any] | None) -> str:
    """What a Deployment or DaemonSet lacks until it runs as asked; empty when nothing."""
    if workload is None:
        return "it is not there"
    status, metadata = workload.get("status", {}), workload["metadata"]
    if status.get("observedGeneration", 0) < metadata["generation"]:
        return "its controller has not seen it"
    if workload["kind"] == "DaemonSet":
        wanted = status.get("desiredNumberScheduled", 0)
        updated, ready = status.get("updatedNumberScheduled", 0), status.get("numberReady", 0)
    else:
        wanted = workload["spec"]["replicas"]
        updated, ready = status.get("updatedReplicas", 0), status.get("readyReplicas", 0)
    there = min(updated, ready)
    return "" if there >= wanted else f"{there} of {wanted} pods are ready"


async def find(client: Client, document: Document) -> dict[str, Any] | None:
    resource, namespace, name = _place(document)
    try:
        live = await client.get(resource, name, namespace)
    except NotFound:
        return None
    return {"apiVersion": resource.api_version, "kind": resource.kind, **live}


def shown(document: Document) -> str:
    """As kubectl names it: deployment.apps/zonewise-webhook."""
    resource, _, name = _place(document)
    return f"{resource.kind.lower()}{'.' if resource.group else ''}{resource.group}/{name}"


def _place(document: Document) -> tuple[Whole, str, str]:
    kind, namespace, name = identity(document)
    return BY_KIND[kind], namespace, name


async def _send(client: Client, document: Document, *, force: bool, dry_run: bool = False) -> dict[str, Any]:
    resource, namespace, name = _place(document)
    options = {"fieldManager": INSTALL_FIELD_MANAGER, "fieldValidation": "Strict", "force": str(force).lower()}
    try:
        answer = await client.request(
            "PATCH",
            resource.path(namespace, name),
            params=options | ({"dryRun": "All"} if dry_run else {}),
            body=json.dumps(document).encode(),
            content_type="application/apply-patch+yaml",
            deadline_seconds=_DEADLINE_SECONDS,
        )
    except Conflict as error:
        fields = ", ".join(cause.field for cause in error.causes) or error.message
        raise ZonewiseError(
            f"{shown(document)}: others have written {fields}: take their values into what you install, or overwrite them "
            "with --force-conflicts"
        ) from error
    made: dict[str, Any] = json.loads(answer)
    return made


async def _pause(deadline: float, otherwise: str) -> None:
    if time.monotonic() > deadline:
        raise ZonewiseError(otherwise)
    await asyncio.sleep(_POLL_SECONDS)
