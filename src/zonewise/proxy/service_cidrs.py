"""Where cluster IPs come from, as the API server says: what goes to one that no Service has is dropped on the node.

Only for a proxy that serves every Service; beside another one, that one knows what is allocated. An API server older
than the kind says nothing, and then nothing is dropped.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from zonewise import log
from zonewise.kube.client.client import Client
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import ApiError, Forbidden, NotFound
from zonewise.objects.networking import SERVICE_CIDRS, ServiceCIDR

_log = log.get_logger(__name__)


class ServiceCidrs:
    """`on_change` is told when `known` is other than before."""

    def __init__(self, client: Client, on_change: Callable[[], None]) -> None:
        self._client = client
        self._on_change = on_change
        self.known: tuple[str, ...] = ()

    async def run(self) -> None:
        """Until cancelled, or at once where the API server has no such kind."""
        try:
            self._learn((await self._client.list(SERVICE_CIDRS)).items)
        except (NotFound, Forbidden) as error:
            _log.warning("ranges of cluster IPs unknown: those of no Service are not dropped", error=str(error))
            return
        except ApiError:
            pass  # the watch below tries again until it works
        caches = Caches(self._client)
        found = caches.of(SERVICE_CIDRS)
        async with asyncio.TaskGroup() as group:
            group.create_task(caches.run(), name="service ranges")
            await found.wait_synced()
            self._learn(list(found))
            found.on_change(lambda _change: self._learn(list(found)))

    def _learn(self, found: list[ServiceCIDR]) -> None:
        known = tuple(sorted({cidr for each in found for cidr in each.spec.cidrs}))
        if known != self.known:
            self.known = known
            self._on_change()
