"""API requests by verb: method, path, query and body. Pure; `client` makes them, `executor` sends them.

Views never go into a body: `update` refuses one anywhere inside, since it would drop the fields the view does not know.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import msgspec

from zonewise.kube.wire.patch import Apply, JsonPatch, Patch
from zonewise.objects import PODS, Key, Resource

AnyResource = Resource[Any]


class Propagation(StrEnum):
    """What happens to the objects a deleted one owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    verb: str
    method: str
    path: str
    resource: str = ""
    subject: str = ""
    """The object as people name it: "kube-system/dns-1"."""
    query: Mapping[str, str] = field(default_factory=dict)
    body: bytes | None = None
    content_type: str = "application/json"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    repeatable: bool = True
    """Whether the retry rules apply at all."""

    @property
    def is_read(self) -> bool:
        return self.method == "GET"

    @property
    def action(self) -> str:
        named = " ".join(part for part in (self.resource, self.subject) if part)
        return f"{self.verb} of {named or self.path}"


@dataclass(frozen=True, slots=True)
class Selection:
    """Which objects of a kind a list or watch is about."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        chosen = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in chosen.items() if value}


def get(resource: AnyResource, name: str, namespace: str, resource_version: str | None) -> ApiRequest:
    query = {} if resource_version is None else {"resourceVersion": resource_version}
    return _one("get", "GET", resource, namespace, name, query=query)


def list_page(
    resource: AnyResource, selection: Selection, *, page_size: int, resource_version: str | None, after: str
) -> ApiRequest:
    """`after` is the token of the page before; it carries the version, and the server refuses both together."""
    query = selection.query()
    if page_size:
        query["limit"] = str(page_size)
    if after:
        query["continue"] = after
    elif resource_version is not None:
        query["resourceVersion"] = resource_version
        if resource_version:
            # Without a match, a version and a limit together mean exactly that version.
            query["resourceVersionMatch"] = "NotOlderThan"
    return _many("list", "GET", resource, selection.namespace, query)


def watch(
    resource: AnyResource, selection: Selection, *, resource_version: str, initial_events: bool, timeout_seconds: int
) -> ApiRequest:
    query = {
        **selection.query(),
        "watch": "true",
        "allowWatchBookmarks": "true",
        "timeoutSeconds": str(timeout_seconds),
        "resourceVersion": resource_version,
    }
    if initial_events:
        query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    return _many("watch", "GET", resource, selection.namespace, query)


def create(resource: AnyResource, body: Mapping[str, Any], namespace: str, options: Mapping[str, str]) -> ApiRequest:
    whole = _typed(resource, body)
    metadata = whole.get("metadata") or {}
    namespace = namespace or metadata.get("namespace", "")
    name = metadata.get("name") or metadata.get("generateName", "")
    _require_namespace("create", resource, namespace, name)
    return ApiRequest(
        verb="create",
        method="POST",
        path=resource.path(namespace),
        resource=str(resource),
        subject=str(Key(namespace, name)),
        query=options,
        body=msgspec.json.encode(whole),
    )


def update(
    resource: AnyResource, body: Mapping[str, Any], namespace: str, subresource: str, options: Mapping[str, str]
) -> ApiRequest:
    _refuse_views(body)
    whole = _typed(resource, body)
    metadata = whole.get("metadata") or {}
    name = metadata.get("name", "")
    if not name:
        raise ValueError(f"update of {resource}: the body has no metadata.name")
    namespace = namespace or metadata.get("namespace", "")
    content = msgspec.json.encode(whole)
    return _one("update", "PUT", resource, namespace, name, subresource, query=options, body=content)


def patch(
    resource: AnyResource, name: str, change: Patch, namespace: str, subresource: str, options: Mapping[str, str]
) -> ApiRequest:
    query = dict(options)
    match change:
        case Apply(body, manager, force):
            query |= {"fieldManager": manager} if manager else {}
            query |= {"force": "true"} if force else {}
            content: Any = _named(_typed(resource, body), name)
        case JsonPatch(operations):
            content = operations
        case _:
            content = _plain(change.body)
    return _one(
        "patch",
        "PATCH",
        resource,
        namespace,
        name,
        subresource,
        query=query,
        body=msgspec.json.encode(content),
        content_type=change.content_type,
    )


def delete(resource: AnyResource, name: str, namespace: str, options: Mapping[str, Any]) -> ApiRequest:
    return _one("delete", "DELETE", resource, namespace, name, body=msgspec.json.encode(options))


def delete_collection(resource: AnyResource, selection: Selection, options: Mapping[str, Any]) -> ApiRequest:
    content = msgspec.json.encode(options)
    return _many("deletecollection", "DELETE", resource, selection.namespace, selection.query(), content)


def evict(
    name: str,
    namespace: str,
    options: Mapping[str, Any],
    *,
    annotations: Mapping[str, str] | None = None,
    dry_run: bool,
) -> ApiRequest:
    """Not retried: a 429 is the budget's answer."""
    metadata: dict[str, Any] = {"name": name, "namespace": namespace}
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": metadata | ({"annotations": annotations} if annotations else {}),
        "deleteOptions": options,
    }
    return _one(
        "evict",
        "POST",
        PODS,
        namespace,
        name,
        "eviction",
        query={"dryRun": "All"} if dry_run else {},
        body=msgspec.json.encode(eviction),
        repeatable=False,
    )


def delete_options(
    *,
    uid: str = "",
    resource_version: str = "",
    grace_seconds: int | None = None,
    propagation: Propagation | None = None,
    dry_run: bool = False,
) -> dict[str, Any]:
    preconditions = {"uid": uid, "resourceVersion": resource_version}
    options = {
        "preconditions": {name: value for name, value in preconditions.items() if value} or None,
        "gracePeriodSeconds": grace_seconds,
        "propagationPolicy": propagation,
        "dryRun": ["All"] if dry_run else None,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    return {"apiVersion": "v1", "kind": "DeleteOptions", **chosen}


def _one(
    verb: str, method: str, resource: AnyResource, namespace: str, name: str, subresource: str = "", **rest: Any
) -> ApiRequest:
    if not name:
        raise ValueError(f"{verb} of {resource}: a name is needed")
    _require_namespace(verb, resource, namespace, name)
    return ApiRequest(
        verb=verb,
        method=method,
        path=resource.path(namespace, name, subresource),
        resource=f"{resource}/{subresource}" if subresource else str(resource),
        subject=str(Key(namespace, name)),
        **rest,
    )


def _many(
    verb: str,
    method: str,
    resource: AnyResource,
    namespace: str,
    query: Mapping[str, str],
    body: bytes | None = None,
) -> ApiRequest:
    return ApiRequest(
        verb=verb,
        method=method,
        path=resource.path(namespace),
        resource=str(resource),
        subject=f"in {namespace}" if namespace else "",
        query=query,
        body=body,
    )


def _require_namespace(verb: str, resource: AnyResource, namespace: str, name: str) -> None:
    if resource.namespaced and not namespace:
        raise ValueError(f"{verb} of {resource} {name}: a namespace is needed")


def _typed(resource: AnyResource, body: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **_plain(body)}


def _named(body: dict[str, Any], name: str) -> dict[str, Any]:
    return {**body, "metadata": {"name": name, **body.get("metadata", {})}}


def _plain(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise TypeError(f"a body is plain JSON, not {type(body).__name__}; read it with Resource.whole()")
    return body


def _refuse_views(value: Any) -> None:
    if isinstance(value, msgspec.Struct):
        raise TypeError(f"a {type(value).__name__} view in an update would drop fields; read it with Resource.whole()")
    inner: Iterable[Any] = ()
    if isinstance(value, Mapping):
        inner = value.values()
    elif isinstance(value, list | tuple):
        inner = value
    for item in inner:
        _refuse_views(item)
