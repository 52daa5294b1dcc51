"""CA injection: keeps `caBundle` and path of our webhook configurations up to date.

API servers then trust our webhooks, and call them with the key that says who they are.
`missing_trust` decides from a cached configuration; `CaInjector` sends what it says. The patch names webhooks, their
bundle and their path only, so all other fields stay as they are. No applied document has these two fields, so no
apply resets them: server-side apply leaves alone what it never owned.
"""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any, Final
from urllib.parse import urlsplit, urlunsplit

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
    WebhookClientConfig,
    WebhookConfiguration,
)

_log = get_logger(__name__)

SYNC_SECONDS: Final = 30.0


def missing_trust(configuration: WebhookConfiguration, bundle_pem: bytes, keys: Sequence[str]) -> StrategicPatch | None:
    """The patch that makes every webhook trust `bundle_pem` and be called with the first key; None when all are so.

    The other keys are newer, and as good. A webhook's path begins with the first label of its name.
    """
    bundle = base64.b64encode(bundle_pem).decode()
    patches = []
    for webhook in configuration.webhooks:
        config = webhook.client_config
        paths = [f"/{webhook.name.partition('.')[0]}/{key}" for key in keys]
        if config.ca_bundle != bundle or _path(config) not in paths:
            patches.append({"name": webhook.name, "clientConfig": {"caBundle": bundle, **_address(config, paths[0])}})
    return StrategicPatch({"webhooks": patches}) if patches else None


def _path(config: WebhookClientConfig) -> str:
    return urlsplit(config.url).path if config.url else config.service.path if config.service else ""


def _address(config: WebhookClientConfig, path: str) -> dict[str, Any]:
    if config.url:
        return {"url": urlunsplit(urlsplit(config.url)._replace(path=path))}
    return {"service": {"path": path}}


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
        """Calls `wake` when a configuration changes, so that a removed bundle or key is put back."""
        for _, cache in self._caches:
            cache.on_change(lambda _change: wake())

    async def inject(self, bundle_pem: bytes, keys: Sequence[str]) -> None:
        """Returns when the server has stored bundle and key wherever they were missing. Raises ApiError."""
        for resource, cache in self._caches:
            await _synced(cache)
            for configuration in cache:
                patch = missing_trust(configuration, bundle_pem, keys)
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
