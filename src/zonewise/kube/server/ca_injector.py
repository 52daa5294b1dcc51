"""CA injection: keeps `caBundle` of our webhook configurations up to date, so that API servers trust our webhooks.

`missing_trust` decides from a cached configuration; `CaInjector` sends what it says. The patch names webhooks and
their bundle only, so all other fields stay as they are.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable
from typing import Final

from zonewise.kube.client.client import Client
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import DeadlineExceeded, NotFound
from zonewise.kube.wire.patch import StrategicPatch
from zonewise.log import get_logger
from zonewise.objects import Resource
from zonewise.objects.admissionregistration import (
    MUTATING_WEBHOOK_CONFIGURATIONS,
    VALIDATING_WEBHOOK_CONFIGURATIONS,
    WebhookConfiguration,
)

_log = get_logger(__name__)

SYNC_SECONDS: Final = 30.0


def missing_trust(configuration: WebhookConfiguration, bundle_pem: bytes) -> StrategicPatch | None:
    """The patch that makes every webhook of the configuration trust `bundle_pem`; None when all do."""
    bundle = base64.b64encode(bundle_pem).decode()
    lacking = [webhook.name for webhook in configuration.webhooks if webhook.client_config.ca_bundle != bundle]
    if not lacking:
        return None
    return StrategicPatch({"webhooks": [{"name": name, "clientConfig": {"caBundle": bundle}} for name in lacking]})


class CaInjector:
    """Responsible for the configurations that a label selector or a field selector (`metadata.name=x`) picks."""

    def __init__(self, client: Client, caches: Caches, *, selector: str = "", fields: str = "") -> None:
        if not selector and not fields:
            raise ValueError("say which webhook configurations are ours: selector= or fields=")
        self._client = client
        self._caches: list[tuple[Resource[WebhookConfiguration], Cache[WebhookConfiguration]]] = [
            (resource, caches.of(resource, selector=selector, fields=fields))
            for resource in (VALIDATING_WEBHOOK_CONFIGURATIONS, MUTATING_WEBHOOK_CONFIGURATIONS)
        ]

    def on_change(self, wake: Callable[[], None]) -> None:
        """Calls `wake` when a configuration changes, so that a removed bundle is put back."""
        for _, cache in self._caches:
            cache.on_change(lambda _change: wake())

    async def inject(self, bundle_pem: bytes) -> None:
        """Returns when the server has stored the bundle wherever it was missing; raises ApiError when it can't."""
        for resource, cache in self._caches:
            await _synced(cache)
            for configuration in cache:
                patch = missing_trust(configuration, bundle_pem)
                if patch is not None:
                    await self._send(resource, configuration.metadata.name, patch)

    async def _send(self, resource: Resource[WebhookConfiguration], name: str, patch: StrategicPatch) -> None:
        try:
            await self._client.patch(resource, name, patch)
        except NotFound:
            return  # deleted since the cache was updated
        _log.info("webhook configuration trusts us", kind=resource.kind, name=name)


async def _synced(cache: Cache[WebhookConfiguration]) -> None:
    try:
        async with asyncio.timeout(SYNC_SECONDS):
            await cache.wait_synced()
    except TimeoutError:
        raise DeadlineExceeded(cache.problem or "not synced yet", action=f"first list of {cache.name}") from None
