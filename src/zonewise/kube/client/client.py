"""The API client: get, list, watch, create, update, patch, delete and evict over typed views.

Reads return views, which name only the fields in use. Writes never send a view back: `create` and `update` take plain
JSON, `patch` names the fields to change, so nothing a view does not know is dropped. `limited` and `guarded` give
clients of the same connection pool with a rate limit of their own, or that write only while a lease holds.

Every call has a deadline. Within it reads are repeated on failures that pass, writes only when the server surely did
not process them (see `retry`).
"""

from __future__ import annotations

import copy
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from pathlib import Path
from typing import Any, Self, TypeVar

from zonewise.api.names import FIELD_MANAGER
from zonewise.kube.client import kubeconfig
from zonewise.kube.client.executor import CallExecutor, RetryGuard
from zonewise.kube.client.transport import Transport
from zonewise.kube.wire import requests
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.codec import (
    EventType,
    ListPage,
    ObjectList,
    WatchEvent,
    WatchLines,
    event_decoder,
    read_event,
    read_object,
    read_page,
)
from zonewise.kube.wire.errors import Gone, Unreachable
from zonewise.kube.wire.patch import Patch
from zonewise.kube.wire.requests import ApiRequest, Propagation, Selection
from zonewise.objects import Resource

__all__ = ["Client", "EventType", "ListPage", "ObjectList", "Propagation", "RetryGuard", "WatchEvent"]

T = TypeVar("T")

DEADLINE_SECONDS = 30.0
PAGE_SIZE = 500
WATCH_SECONDS = 300
SILENCE_SECONDS = 150.0
"""A watch gets a bookmark about every minute; one may be left out when the kind is quiet."""


class Client:
    """`async with Client(kubeconfig.default()) as client: ...`"""

    def __init__(
        self, access: ClusterAccess, *, field_manager: str = FIELD_MANAGER, wait_for_server: bool = True
    ) -> None:
        """`wait_for_server`: calls wait, within their deadline, for a server that refuses connections."""
        self.access = access
        self.field_manager = field_manager
        self._transport = Transport(access)
        self._caller = CallExecutor(transport=self._transport, wait_for_server=wait_for_server)

    @classmethod
    async def connect(cls, path: Path | str | None = None, context: str | None = None) -> Self:
        """From a kubeconfig, else the surroundings: `async with await Client.connect() as client`."""
        return await cls(kubeconfig.find(path, context)).__aenter__()

    async def __aenter__(self) -> Self:
        await self._transport.__aenter__()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._transport.__aexit__()

    def limited(self, purpose: str, qps: float, burst: int) -> Self:
        """A client of the same pool with its own rate limit and metrics label."""
        return self._calling(self._caller.limited(purpose, qps, burst))

    def guarded(self, guard: RetryGuard) -> Self:
        """The same pool, writing only while `guard` allows it; it is asked right before each write is sent."""
        return self._calling(self._caller.guarded(guard))

    def named(self, field_manager: str) -> Self:
        """The same pool, writing under another field manager's name."""
        other = copy.copy(self)
        other.field_manager = field_manager
        return other

    def _calling(self, caller: CallExecutor) -> Self:
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
        """With `resource_version` "0", any version from the server's cache; without, the latest."""
        return await self._object(resource, requests.get(resource, name, namespace, resource_version), deadline_seconds)

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
    ) -> ObjectList[T]:
        """All pages; the deadline is each page's. When the snapshot expires on the way, all again in one answer."""
        selection = Selection(namespace, selector, fields)
        try:
            return await self._collect(resource, selection, resource_version, page_size, deadline_seconds)
        except Gone:
            return await self._collect(resource, selection, resource_version, 0, deadline_seconds)

    async def _collect(
        self,
        resource: Resource[T],
        selection: Selection,
        resource_version: str | None,
        page_size: int,
        deadline_seconds: float,
    ) -> ObjectList[T]:
        items = []
        version = ""
        async with aclosing(self._pages(resource, selection, resource_version, page_size, deadline_seconds)) as pages:
            async for page in pages:
                items += page.items
                version = page.resource_version
        return ObjectList(items, version)

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
    ) -> AsyncGenerator[ListPage[T], None]:
        """One page at a time, so that all need not be held; raises Gone when the snapshot expires on the way."""
        selection = Selection(namespace, selector, fields)
        return self._pages(resource, selection, resource_version, page_size, deadline_seconds)

    async def _pages(
        self,
        resource: Resource[T],
        selection: Selection,
        resource_version: str | None,
        page_size: int,
        deadline_seconds: float,
    ) -> AsyncGenerator[ListPage[T], None]:
        after = ""
        while True:
            call = requests.list_page(
                resource, selection, page_size=page_size, resource_version=resource_version, after=after
            )
            body = await self._caller.perform(call, deadline_seconds)
            page = read_page(body, resource.view, call.action)
            yield page
            after = page.next
            if not after:
                return

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
        on_open: Callable[[], None] = lambda: None,
        rest_after: Callable[[int], float] = lambda _events: 0.0,
    ) -> AsyncGenerator[WatchEvent[T], None]:
        """Changes since `resource_version`, and bookmarks, until the server ends the watch after `timeout_seconds`.

        `on_open` is called when the server has accepted it, long before there may be anything to tell; `rest_after`,
        with how many events came at once, says how many seconds to wait before more are read. Raises Gone when the
        version is too old, and Unreachable when nothing comes for `silence_seconds`. To leave it early, close it:
        `async with aclosing(client.watch(...)) as events`.
        """
        call = requests.watch(
            resource,
            Selection(namespace, selector, fields),
            resource_version=resource_version,
            initial_events=initial_events,
            timeout_seconds=timeout_seconds,
        )
        decoder = event_decoder(resource.view)
        lines = WatchLines()
        async with await self._caller.open(call, deadline_seconds) as response:
            on_open()
            try:
                while chunk := await self._transport.read_some(response, call, silence_seconds):
                    whole = lines.feed(chunk)
                    for line in whole:
                        yield read_event(line, decoder, call.action)
                    if seconds := rest_after(len(whole)):
                        await self._transport.rest(response, seconds)
            finally:
                self._transport.hang_up(response)
            if lines.unfinished:
                raise Unreachable("the stream ended in the middle of an event", action=call.action)

    async def create(
        self,
        resource: Resource[T],
        body: Mapping[str, Any],
        namespace: str = "",
        *,
        dry_run: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> T:
        """`apiVersion` and `kind` may be left out."""
        call = requests.create(resource, body, namespace, self._options(dry_run))
        return await self._object(resource, call, deadline_seconds)

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
        """Replaces the object by `body`, the whole of it as read with `resource.whole()`.

        An update of `subresource` replaces only that, so `body` needs no more than it and the object's metadata.
        """
        call = requests.update(resource, body, namespace, subresource, self._options(dry_run))
        return await self._object(resource, call, deadline_seconds)

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
        call = requests.patch(resource, name, patch, namespace, subresource, self._options(dry_run))
        return await self._object(resource, call, deadline_seconds)

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
        options = requests.delete_options(
            uid=uid,
            resource_version=resource_version,
            grace_seconds=grace_seconds,
            propagation=propagation,
            dry_run=dry_run,
        )
        await self._caller.perform(requests.delete(resource, name, namespace, options), deadline_seconds)

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
        options = requests.delete_options(grace_seconds=grace_seconds, propagation=propagation, dry_run=dry_run)
        call = requests.delete_collection(resource, Selection(namespace, selector, fields), options)
        await self._caller.perform(call, deadline_seconds)

    async def evict(
        self,
        name: str,
        namespace: str,
        *,
        uid: str = "",
        grace_seconds: int | None = None,
        annotations: Mapping[str, str] | None = None,
        dry_run: bool = False,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> None:
        """Asks for a pod to go. A budget's refusal is an answer: TooManyRequests is raised, not waited out.

        `annotations` are the request's own: webhooks read them, nothing keeps them.
        """
        options = requests.delete_options(uid=uid, grace_seconds=grace_seconds)
        call = requests.evict(name, namespace, options, annotations=annotations, dry_run=dry_run)
        await self._caller.perform(call, deadline_seconds)

    async def request(
        self,
        method: str,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: bytes | None = None,
        content_type: str = "application/json",
        headers: Mapping[str, str] | None = None,
        deadline_seconds: float = DEADLINE_SECONDS,
    ) -> bytes:
        """Any path, for what has no verb here."""
        call = ApiRequest(
            verb=method.lower(),
            method=method,
            path=path,
            query=params or {},
            body=body,
            content_type=content_type,
            headers=headers or {},
        )
        return await self._caller.perform(call, deadline_seconds)

    async def version(self) -> str:
        """Such as "v1.36.3"."""
        body = await self.request("GET", "/version")
        return read_object(body, dict[str, str], "get of /version")["gitVersion"]

    async def _object(self, resource: Resource[T], call: ApiRequest, deadline_seconds: float) -> T:
        return read_object(await self._caller.perform(call, deadline_seconds), resource.view, call.action)

    def _options(self, dry_run: bool) -> dict[str, str]:
        return {"fieldManager": self.field_manager} | ({"dryRun": "All"} if dry_run else {})
