"""Services that another proxy takes over: their rules stay until it has its own.

A watch by label reports a Service that lost the label as it reports a deleted one. So the Service is read once more: while
it exists, its rules stay as they are for some seconds, in which kube-proxy notices it. Rules of both may be in place at
once: the kernel translates a connection once, by whichever comes first.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError
from zonewise.log import get_logger
from zonewise.objects import SERVICES, Key, Service
from zonewise.objects.change import Change

HANDOVER_SECONDS: Final = 5.0
"""kube-proxy syncs a second after a change, and later on a busy node."""
_log: Final = get_logger(__name__)


class Handover:
    """Give it each change of a Service, and run it; `on_dirty` gets those whose rules may go."""

    def __init__(self, client: Client, on_dirty: Callable[[Iterable[Key]], None]) -> None:
        self._client = client
        self._on_dirty = on_dirty
        self._leaving: dict[Key, Service] = {}
        self._left: asyncio.Queue[Key] = asyncio.Queue()

    def holds(self, service: Key) -> bool:
        """Whether its rules stay as they are for now."""
        return service in self._leaving

    def service_changed(self, change: Change[Service]) -> None:
        if change.new is not None:
            self._leaving.pop(change.key, None)
        elif change.old is not None:
            self._leaving[change.key] = change.old
            self._left.put_nowait(change.key)

    async def run(self) -> None:
        """Until cancelled."""
        async with asyncio.TaskGroup() as group:
            while True:
                key = await self._left.get()
                if (service := self._leaving.get(key)) is not None:
                    group.create_task(self._hand_over(key, service), name=f"handover of {key}")

    async def _hand_over(self, key: Key, service: Service) -> None:
        if await self._exists(key, service):
            _log.info("Service left to another proxy", service=str(key), rules_stay_seconds=HANDOVER_SECONDS)
            await asyncio.sleep(HANDOVER_SECONDS)
        if self._leaving.get(key) is service:  # it has not come back meanwhile
            del self._leaving[key]
            self._on_dirty((key,))

    async def _exists(self, key: Key, service: Service) -> bool:
        """Also if the API server can't tell."""
        try:
            named = await self._client.list(SERVICES, key.namespace, fields=f"metadata.name={key.name}")
        except ApiError:
            return True
        return any(other.metadata.uid == service.metadata.uid for other in named.items)
