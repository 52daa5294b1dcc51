"""Server-side apply of manifests, object by object.

Finds what is live under the names of the manifests and whose it is, applies or deletes, and waits until the pods are
ready.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from zonewise.api.names import INSTALL_FIELD_MANAGER, INSTANCE_LABEL
from zonewise.errors import ZonewiseError
from zonewise.install.decide.diff import difference
from zonewise.install.decide.document import Document, identity
from zonewise.install.decide.kinds import BY_KIND, Whole, rank
from zonewise.install.decide.ownership import ManifestObject, with_ownership
from zonewise.install.decide.server_version import NO_POLICIES, POLICIES_MINOR, UPGRADE
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Conflict, NotFound
from zonewise.objects import PODS

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


async def find_objects(
    client: Client, documents: Sequence[Document], namespace: str, *, adopt: bool = False
) -> list[ManifestObject]:
    """What is live under these names, and whether it is the install's in this namespace."""
    lives = await asyncio.gather(*(find(client, document) for document in documents))
    return with_ownership(zip(documents, lives, strict=True), namespace, adopt=adopt)


def refuse_foreign(objects: Iterable[ManifestObject]) -> None:
    """Raises one error with the names of all foreign objects. A foreign namespace is used as it is."""
    blocking = [obj for obj in objects if obj.foreign and obj.document["kind"] != "Namespace"]
    if blocking:
        names = "; ".join(f"{shown(obj.document)}: {obj.foreign}" for obj in blocking)
        raise ZonewiseError(
            f"nothing was changed, because these names are taken: {names}. Rename or remove them; --adopt takes over objects "
            "that kubectl or Helm made from the manifests of Zonewise"
        )


async def apply(client: Client, documents: Sequence[Document], *, force: bool = False) -> AsyncIterator[ApplyOutcome]:
    """In the order of their dependencies; objects of a kind concurrently."""
    if any(document["kind"] == "ValidatingAdmissionPolicy" for document in documents):
        _check_version(await client.version())
    for _, alike in itertools.groupby(sorted(documents, key=rank), key=rank):
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(_apply_one(client, document, force)) for document in alike]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from failed  # the first is enough
        for task in tasks:
            yield task.result()


def _check_version(version: str) -> None:
    """Before anything is made: without policies, accounts could write more than they own."""
    match = re.match(r"v?1\.(\d+)", version)
    if match and int(match[1]) < POLICIES_MINOR:
        raise ZonewiseError(f"the API server is {version} and {NO_POLICIES}: {UPGRADE}")


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


def compare_removed(objects: Iterable[ManifestObject]) -> str:
    """What `remove` would delete."""
    return "".join(difference(shown(obj.document), obj.live, None) for obj in _last_first(objects) if not obj.foreign)


async def remove(
    client: Client, objects: Iterable[ManifestObject], *, dry_run: bool = False
) -> AsyncIterator[ApplyOutcome]:
    """In the opposite order: the very objects that were found. Foreign ones are named and left."""
    for obj in _last_first(objects):
        if obj.foreign:
            yield ApplyOutcome(shown(obj.document), ApplyChange.LEFT, obj.foreign)
        elif obj.live is not None and (dry_run or await _delete(client, obj.live)):
            yield ApplyOutcome(shown(obj.document), ApplyChange.DELETED)


def _last_first(objects: Iterable[ManifestObject]) -> list[ManifestObject]:
    return sorted(objects, key=lambda obj: rank(obj.document), reverse=True)


async def _delete(client: Client, live: Document) -> bool:
    resource, namespace, name = _place(live)
    try:
        await client.delete(resource, name, namespace, uid=live["metadata"]["uid"])
    except NotFound:
        return False
    except Conflict as error:
        raise ZonewiseError(f"{shown(live)} was replaced meanwhile, and not deleted: run this again") from error
    return True


async def until_gone(client: Client, documents: Sequence[Document], timeout_seconds: float) -> None:
    """Waits for finalizers: a namespace goes with its contents, a CRD with its objects."""
    deadline = time.monotonic() + timeout_seconds
    for document in documents:
        while await find(client, document) is not None:
            await _pause(deadline, f"{shown(document)} is not gone after {timeout_seconds:g} s")


async def until_replaced(client: Client, documents: Sequence[Document], timeout_seconds: float) -> None:
    """No pod of a former template is left: one that is still ending may lead, and needs its rights. A Deployment's status
    does not count it.
    """
    deadline = time.monotonic() + timeout_seconds
    for document in documents:
        if document["kind"] == "Deployment":
            selector = ",".join(f"{key}={value}" for key, value in document["spec"]["selector"]["matchLabels"].items())
            while ending := await _ending_pods(client, document["metadata"]["namespace"], selector):
                names = ", ".join(ending)
                await _pause(deadline, f"pods of {shown(document)} do not end within {timeout_seconds:g} s: {names}")


async def _ending_pods(client: Client, namespace: str, selector: str) -> list[str]:
    pods = (await client.list(PODS, namespace, selector=selector)).items
    return [pod.metadata.name for pod in pods if pod.metadata.deletion_timestamp]


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
        if old := status.get("replicas", 0) - updated:  # some of the ready ones may be among them
            return f"{updated} of {wanted} pods are of the new version, {old} of a former one"
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
    """As kubectl names it: deployment.apps/zonewise-webhook; with the namespace where it is not the install's."""
    resource, namespace, name = _place(document)
    elsewhere = namespace != document["metadata"].get("labels", {}).get(INSTANCE_LABEL, namespace)
    where = f" in {namespace}" if namespace and elsewhere else ""
    return f"{resource.kind.lower()}{'.' if resource.group else ''}{resource.group}/{name}{where}"


def shown_live(live: Document) -> str:
    """The same, of an object of any kind."""
    return f"{live['kind'].lower()}/{live['metadata']['name']}"


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
