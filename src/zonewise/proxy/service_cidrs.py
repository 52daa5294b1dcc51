"""ServiceCIDRs of the cluster: no Service may claim an address in them as an external one.

A proxy that serves every Service also drops traffic to their unallocated addresses. API servers before Kubernetes 1.33 have
no ServiceCIDRs: the ranges of a flag count there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from zonewise import log
from zonewise.kube.client.client import Client
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import ApiError, Forbidden, NotFound
from zonewise.objects.networking import SERVICE_CIDRS, ServiceCIDR

_log = log.get_logger(__name__)


def cidrs_of(objects: Iterable[ServiceCIDR]) -> tuple[str, ...]:
    return tuple(sorted({cidr for service_cidr in objects for cidr in service_cidr.spec.cidrs}))


class ServiceCidrs:
    """Calls `on_change` when `cidrs` changes. `fallback` counts while the API server has none to read."""

    def __init__(self, client: Client, on_change: Callable[[], None], fallback: tuple[str, ...] = ()) -> None:
        self._client = client
        self._on_change = on_change
        self.cidrs = fallback
        self.known = asyncio.Event()
        """Set after the first answer, even if there are none."""

    async def run(self) -> None:
        """Run until cancelled; return at once if the API server has no ServiceCIDRs."""
        try:
            self._set((await self._client.list(SERVICE_CIDRS)).items)
        except (NotFound, Forbidden) as error:
            if not self.cidrs:
                _log.warning("service ranges unknown, set --service-cidr", error=str(error))
            self.known.set()
            return
        except ApiError:
            pass  # the watch below retries
        caches = Caches(self._client)
        cache = caches.of(SERVICE_CIDRS)
        async with asyncio.TaskGroup() as group:
            group.create_task(caches.run(), name="ServiceCIDRs")
            await cache.wait_synced()
            self._set(list(cache))
            cache.on_change(lambda _change: self._set(list(cache)))

    def _set(self, objects: list[ServiceCIDR]) -> None:
        cidrs = cidrs_of(objects)
        if cidrs != self.cidrs:
            self.cidrs = cidrs
            self._on_change()
        self.known.set()
