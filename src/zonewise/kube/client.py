"""The API server's verbs over typed views: what every capability calls.

Reads return views, which name only the fields in use. Writes never send a view back: `create` and `update` take plain
JSON, `patch` names the fields to change, so nothing a view does not know is dropped. `limited` and `guarded` give
clients of the same connection pool with a rate limit of their own, or that write only while a lease holds.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Self, TypeVar

import msgspec

from zonewise.kube import kubeconfig
from zonewise.kube.access import Access
from zonewise.kube.calls import Call, Caller, Guard
from zonewise.kube.errors import Gone, Unreachable
from zonewise.kube.patch import Apply, JsonPatch, Patch
from zonewise.kube.ratelimit import Limiter
from zonewise.kube.transport import Transport
from zonewise.kube.wire import (
    EventType,
    Lines,
    Listing,
    Page,
    WatchEvent,
    event_decoder,
    read_event,
    read_object,
    read_page,
)
from zonewise.objects import PODS, Key, Resource

__all__ = ["Client", "EventType", "Guard", "Listing", "Page", "Propagation", "WatchEvent"]

T = TypeVar("T")

DEADLINE_SECONDS = 30.0
FIELD_MANAGER = "zonewise"
PAGE_SIZE = 500
WATCH_SECONDS = 300
SILENCE_SECONDS = 90.0


class Propagation(StrEnum):
    """What happens to the objects a deleted one owns."""

    BACKGROUND = "Background"
    FOREGROUND = "Foreground"
    ORPHAN = "Orphan"


class Client:
    """`async with Client(kubeconfig.default()) as client: ...`"""

    def __init__(self, access: Access, *, field_manager: str = FIELD_MANAGER) -> None:
        self.access = access
        self.field_manager = field_manager
        self._transport = Transport(access)
        self._caller = Caller(self._transport)

    @classmethod
    async def connect(cls, path: Path | str | None = None, context: str | None = None) -> Self:
        """From a kubeconfig, else the surroundings; close it after use."""
        access = kubeconfig.load(path, context) if path or context else kubeconfig.default()
        return await cls(access).__aenter__()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.__aexit__()

    def limited(self, purpose: str, qps: float, burst: int) -> Self:
        """The same pool under a rate limit and a metrics label of its own."""
        return self._with(replace(self._caller, purpose=purpose, limiter=Limiter(qps, burst)))

    def guarded(self, guard: Guard) -> Self:
        """The same pool, writing only while `guard` allows it; it is asked right before each write is sent."""
        return self._with(replace(self._caller, guard=guard))

    def _with(self, caller: Caller) -> Self:
        other = copy.copy(self)
        other._caller = caller  # noqa: SLF001 - our own copy
        return other

    async def get(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        resource_version: str | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> T:
        call = _call("get", "GET", resource, namespace, name)
        if resource_version is not None:
            call = replace(call, query={"resourceVersion": resource_version})
        return read_object(await self._caller.perform(call, deadline_seconds), resource.view, call.action)

    async def list(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        selector: str = "",
        fields: str = "",
        resource_version: str | None = None,
        page_size: int = PAGE_SIZE,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> Listing[T]:
        """All pages; the deadline is per page. When the snapshot expires on the way, all again in one answer."""
        query = _selection(selector, fields, resource_version)
        try:
            return await self._collect(resource, namespace, query, page_size, deadline_seconds)
        except Gone:
            return await self._collect(resource, namespace, query, 0, deadline_seconds)

    async def _collect(
        self, resource: Resource[T], namespace: str, query: Mapping[str, str], page_size: int, deadline_seconds: float
    ) -> Listing[T]:
        items = []
        version = ""
        async with aclosing(self._pages(resource, namespace, query, page_size, deadline_seconds)) as pages:
            async for page in pages:
                items += page.items
                version = page.resource_version
        return Listing(items, version)

    def pages(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        selector: str = "",
        fields: str = "",
        resource_version: str | None = None,
        page_size: int = PAGE_SIZE,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> AsyncGenerator[Page[T], None]:
        """One page at a time, so that all need not be held; raises Gone when the snapshot expires on the way."""
        query = _selection(selector, fields, resource_version)
        return self._pages(resource, namespace, query, page_size, deadline_seconds)

    async def _pages(
        self, resource: Resource[T], namespace: str, query: Mapping[str, str], page_size: int, deadline_seconds: float
    ) -> AsyncGenerator[Page[T], None]:
        limited = {**query, "limit": str(page_size)} if page_size else dict(query)
        if query.get("resourceVersion"):
            # Without a match, a version and a limit together mean exactly that version.
            limited["resourceVersionMatch"] = "NotOlderThan"
        while True:
            call = _call("list", "GET", resource, namespace, query=limited)
            body = await self._caller.perform(call, deadline_seconds)
            page = read_page(body, resource.view, call.action)
            yield page
            if not page.next:
                return
            limited["continue"] = page.next
            # The token carries the version; the server refuses both together.
            for carried in ("resourceVersion", "resourceVersionMatch"):
                limited.pop(carried, None)

    async def watch(
        self,
        resource: Resource[T],
        namespace: str = "",
        *,
        selector: str = "",
        fields: str = "",
        resource_version: str,
        initial_events: bool = False,
        timeout_seconds: int = WATCH_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Changes since `resource_version`, and bookmarks, until the server ends the watch after `timeout_seconds`.

        Raises Gone when the version is too old, and Unreachable when nothing comes for `silence_seconds`.
        """
        query = _selection(selector, fields, resource_version)
        query |= {"watch": "true", "allowWatchBookmarks": "true", "timeoutSeconds": str(timeout_seconds)}
        if initial_events:
            query |= {"sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
        call = _call("watch", "GET", resource, namespace, query=query)
        decoder = event_decoder(resource.view)
        lines = Lines()
        async with await self._caller.open(call, deadline_seconds) as response:
            while chunk := await self._transport.read_some(response, call, silence_seconds):
                for line in lines.feed(chunk):
                    yield read_event(line, decoder, call.action)
            if lines.unfinished:
                raise Unreachable("the stream ended in the middle of an event", action=call.action)

    async def create(
        self,
        resource: Resource[T],
        body: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> T:
        call = self._write("create", "POST", resource, namespace, body, subresource, dry_run)
        return read_object(await self._caller.perform(call, deadline_seconds), resource.view, call.action)

    async def update(
        self,
        resource: Resource[T],
        body: Mapping[str, Any],
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> T:
        """Replaces the object by `body`, the whole of it as read with `resource.whole()`."""
        call = self._write("update", "PUT", resource, namespace, body, subresource, dry_run)
        return read_object(await self._caller.perform(call, deadline_seconds), resource.view, call.action)

    def _write(
        self,
        verb: str,
        method: str,
        resource: Resource[Any],
        namespace: str,
        body: Mapping[str, Any],
        subresource: str,
        dry_run: bool,
    ) -> Call:
        whole = _with_type(resource, _plain(body))
        metadata = whole.get("metadata") or {}
        name = metadata.get("name", "") if method == "PUT" or subresource else ""
        namespace = namespace or metadata.get("namespace", "")
        return _call(
            verb,
            method,
            resource,
            namespace,
            name,
            subresource,
            query=self._options(dry_run),
            body=msgspec.json.encode(whole),
            subject=str(Key(namespace, metadata.get("name") or metadata.get("generateName") or "")),
        )

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> T:
        query = self._options(dry_run)
        match patch:
            case Apply(body, manager, force):
                query |= {"fieldManager": manager or self.field_manager, "force": "true" if force else "false"}
                content: Any = _with_type(resource, _plain(body))
            case JsonPatch(operations):
                content = operations
            case _:
                content = _plain(patch.body)
        call = _call(
            "patch",
            "PATCH",
            resource,
            namespace,
            name,
            subresource,
            query=query,
            body=msgspec.json.encode(content),
            content_type=patch.content_type,
        )
        return read_object(await self._caller.perform(call, deadline_seconds), resource.view, call.action)

    async def delete(
        self,
        resource: Resource[Any],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """With `uid` or `resource_version`, only that very object: else Conflict."""
        options = _delete_options(uid, resource_version, grace_seconds, propagation, dry_run)
        call = _call("delete", "DELETE", resource, namespace, name, body=msgspec.json.encode(options))
        await self._caller.perform(call, deadline_seconds)

    async def delete_collection(
        self,
        resource: Resource[Any],
        namespace: str = "",
        *,
        selector: str = "",
        fields: str = "",
        grace_seconds: int | None = None,
        propagation: Propagation | None = None,
        dry_run: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        options = _delete_options("", "", grace_seconds, propagation, dry_run)
        query = _selection(selector, fields, None)
        call = _call("deletecollection", "DELETE", resource, namespace, query=query, body=msgspec.json.encode(options))
        await self._caller.perform(call, deadline_seconds)

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str = "",
        grace_seconds: int | None = None,
        dry_run: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """Asks for a pod to go. A budget's refusal is an answer: TooManyRequests is raised, not waited out."""
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": name, "namespace": namespace},
            "deleteOptions": _delete_options(uid, "", grace_seconds, None, dry_run),
        }
        call = _call(
            "evict",
            "POST",
            PODS,
            namespace,
            name,
            "eviction",
            query={"dryRun": "All"} if dry_run else {},
            body=msgspec.json.encode(eviction),
        )
        await self._caller.perform(replace(call, repeatable=False), deadline_seconds)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> bytes:
        """Any path, for what has no verb here."""
        call = Call(
            verb=method.lower(), method=method, path=path, query=params or {}, body=body, content_type=content_type
        )
        return await self._caller.perform(call, deadline_seconds)

    async def version(self) -> str:
        """Such as "v1.36.3"."""
        body = await self.request("GET", "/version")
        return read_object(body, dict[str, str], "get of /version")["gitVersion"]

    def _options(self, dry_run: bool) -> dict[str, str]:
        return {"fieldManager": self.field_manager} | ({"dryRun": "All"} if dry_run else {})


def _call(
    verb: str,
    method: str,
    resource: Resource[Any],
    namespace: str,
    name: str = "",
    subresource: str = "",
    *,
    query: Mapping[str, str] | None = None,
    body: bytes | None = None,
    content_type: str = "application/json",
    subject: str = "",
) -> Call:
    if resource.namespaced and not namespace and (name or method == "POST"):
        raise ValueError(f"{verb} of {resource} {name or subject}: a namespace is needed")
    return Call(
        verb=verb,
        method=method,
        path=resource.path(namespace, name, subresource),
        resource=str(resource),
        subject=subject or (str(Key(namespace, name)) if name else namespace and f"in {namespace}"),
        query=query or {},
        body=body,
        content_type=content_type,
    )


def _selection(selector: str, fields: str, resource_version: str | None) -> dict[str, str]:
    query = {"labelSelector": selector, "fieldSelector": fields}
    chosen = {name: value for name, value in query.items() if value}
    return chosen if resource_version is None else {**chosen, "resourceVersion": resource_version}


def _delete_options(
    uid: str, resource_version: str, grace_seconds: int | None, propagation: Propagation | None, dry_run: bool
) -> dict[str, Any]:
    given = {"uid": uid, "resourceVersion": resource_version}
    options = {
        "preconditions": {name: value for name, value in given.items() if value} or None,
        "gracePeriodSeconds": grace_seconds,
        "propagationPolicy": propagation,
        "dryRun": ["All"] if dry_run else None,
    }
    chosen = {name: value for name, value in options.items() if value is not None}
    return {"apiVersion": "v1", "kind": "DeleteOptions", **chosen}


def _plain(body: Any) -> Mapping[str, Any]:
    if not isinstance(body, Mapping):
        raise TypeError(
            f"a body is plain JSON, not {type(body).__name__}: a view would drop the fields it does not know"
        )
    return body


def _with_type(resource: Resource[Any], body: Mapping[str, Any]) -> dict[str, Any]:
    return {"apiVersion": resource.api_version, "kind": resource.kind, **body}
