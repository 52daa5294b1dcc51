"""Reads a cluster once for a diagnostic command, and records what may not be read.

Diagnostics run with the caller's rights, against clusters in which our resource definitions may be missing. So there are
two kinds of reads: `list`, `find` and `get` raise if access is denied; `list_or_empty` and `get_or_none` return nothing and
record the denial in `unread`. A request is sent once, however many callers make it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from zonewise.errors import ZonewiseError
from zonewise.kube.client.client import Client
from zonewise.kube.wire.access import ClusterAccess
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects import Resource, View

T = TypeVar("T")
ObjectT = TypeVar("ObjectT", bound=View | dict[str, Any])

_CONCURRENT_REQUESTS: Final = 16


class _Request(NamedTuple):
    resource: Resource[Any]
    namespace: str = ""
    name: str | None = None
    selector: str = ""
    fields: str = ""


class ClusterReader:
    """One command's view of a cluster. Safe to use from several tasks at once."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._tasks: dict[_Request, asyncio.Task[Any]] = {}
        self._forbidden: dict[_Request, str] = {}
        self._missing: set[_Request] = set()
        self._slots = asyncio.Semaphore(_CONCURRENT_REQUESTS)

    @property
    def unread(self) -> list[str]:
        """A sentence for each kind that may not be read."""
        return sorted({f"{request.resource.plural}: {message}" for request, message in self._forbidden.items()})

    def is_forbidden(self, resource: Resource[Any], name: str = "", namespace: str = "") -> bool:
        """Whether a read of that object, or of any object of the kind, was denied."""
        return any(
            request.resource == resource and (not name or request[1:3] == (namespace, name))
            for request in self._forbidden
        )

    def is_defined(self, resource: Resource[Any]) -> bool | None:
        """Whether the API server serves a kind that was listed; None where it may not be listed."""
        if self.is_forbidden(resource):
            return None
        return not any(request.resource == resource for request in self._missing)

    async def list(
        self, resource: Resource[ObjectT], namespace: str = "", *, selector: str = "", fields: str = ""
    ) -> Sequence[ObjectT]:
        items: Sequence[ObjectT] = await self._send(_Request(resource, namespace, selector=selector, fields=fields))
        return items

    async def list_or_empty(
        self, resource: Resource[ObjectT], namespace: str = "", *, selector: str = "", fields: str = ""
    ) -> Sequence[ObjectT]:
        """Empty where the kind may not be listed, and where it is not defined."""
        request = _Request(resource, namespace, selector=selector, fields=fields)
        items = await self._unless_denied(request, self._send(request))
        return () if items is None else items

    async def list_named(self, resource: Resource[ObjectT], names: Iterable[str]) -> Sequence[ObjectT]:
        """Objects by name, in any namespace. Rights on these names are enough."""
        lists = await asyncio.gather(*(self.list_or_empty(resource, fields=f"metadata.name={name}") for name in names))
        return [item for items in lists for item in items]

    async def get(self, resource: Resource[ObjectT], name: str, namespace: str = "", *, missing: str) -> ObjectT:
        """`missing` is the error where there is no such object."""
        if (item := await self.find(resource, name, namespace)) is None:
            raise ZonewiseError(missing)
        return item

    async def find(self, resource: Resource[ObjectT], name: str, namespace: str = "") -> ObjectT | None:
        """None where there is no such object; raises where it may not be read."""
        try:
            item: ObjectT = await self._send(_Request(resource, namespace, name))
        except NotFound:
            return None
        return item

    async def get_or_none(self, resource: Resource[ObjectT], name: str, namespace: str = "") -> ObjectT | None:
        """None where there is no such object, and where it may not be read."""
        request = _Request(resource, namespace, name)
        return await self._unless_denied(request, self._send(request))

    async def _unless_denied(self, request: _Request, read: Awaitable[T]) -> T | None:
        try:
            return await read
        except NotFound:
            self._missing.add(request)
        except Forbidden as error:
            self._forbidden[request] = error.message
        return None

    def _send(self, request: _Request) -> asyncio.Task[Any]:
        if request not in self._tasks:
            self._tasks[request] = asyncio.create_task(self._read(request))
        return self._tasks[request]

    async def _read(self, request: _Request) -> Any:
        resource, namespace, name, selector, fields = request
        async with self._slots:
            if name is not None:
                return await self.client.get(resource, name, namespace)
            return (await self.client.list(resource, namespace, selector=selector, fields=fields)).items


def read_cluster(access: ClusterAccess, read: Callable[[ClusterReader], Awaitable[T]]) -> T:
    """Runs one command's reads. Does not wait for a server that is away."""

    async def run() -> T:
        async with Client(access, wait_for_server=False) as client:
            return await read(ClusterReader(client))

    return asyncio.run(run())
