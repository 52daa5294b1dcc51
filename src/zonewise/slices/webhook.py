"""The webhook of the overlay: fills hints in while the stock EndpointSlice controller writes a slice.

The stock controller takes off hints it does not know; the webhook puts them back in the same request, so that what is
stored does not change and nobody is woken by it. It decides over the cached slices of the Service with the reviewed one
in the place of its cached version. Whatever goes wrong, the slice passes as it came: traffic is then spread as before.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

from prometheus_client import Counter

from zonewise.api.names import FIELD_MANAGER as OWNING_MANAGER
from zonewise.api.names import MANAGED_BY, OVERLAY_CONFIGURATION, OVERLAY_FIELD_MANAGER, STOCK_MANAGER
from zonewise.kube.client.client import Client
from zonewise.kube.server.admission import Webhook
from zonewise.kube.wire.admission_review import AdmissionVerdict, Review
from zonewise.kube.wire.errors import NotFound
from zonewise.kube.wire.patch import Apply
from zonewise.objects import ENDPOINT_SLICES, SERVICES, EndpointSlice, Service, key_of
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS
from zonewise.routing import HintsForm
from zonewise.slices.decide.body import service_key
from zonewise.slices.decide.overlay import Operations, as_remembered, is_stock, overlay
from zonewise.slices.informers import SliceInformers

NAME: Final = "endpointslices"
DEADLINE_SECONDS: Final = 1.0
"""Writers of slices wait for us; after this time they get what they sent."""
TIMEOUT_SECONDS: Final = 2

_OURS: Final = (OVERLAY_FIELD_MANAGER, OWNING_MANAGER)
"""The controllers of both modes: who runs the webhook beside a controller that owns slices does no harm."""
_REVIEWS: Final = Counter("zonewise_overlay_reviews", "Slices reviewed, by what became of their hints", ["outcome"])


class WebhookOutcome(StrEnum):
    HINTED = "hinted"
    AGREED = "agreed"
    SILENT = "silent"
    OURS = "ours"
    FOREIGN = "foreign"
    ORPHANED = "orphaned"


class SliceWebhook:
    """Its answers are right once the caches of `sources` are synced."""

    def __init__(self, client: Client, sources: SliceInformers, hints: HintsForm = HintsForm.STABLE) -> None:
        self._client = client
        self._sources = sources
        self._hints = hints

    def webhook(self) -> Webhook[EndpointSlice]:
        return Webhook(NAME, EndpointSlice, self.review, AdmissionVerdict.allow(), DEADLINE_SECONDS)

    async def review(self, asked: Review[EndpointSlice]) -> AdmissionVerdict:
        outcome, operations = await self._judge(asked)
        _REVIEWS.labels(outcome).inc()
        return AdmissionVerdict.allow(patch=operations)

    async def _judge(self, asked: Review[EndpointSlice]) -> tuple[WebhookOutcome, Operations]:
        written = asked.object
        if written is None or not is_stock(written):
            return WebhookOutcome.FOREIGN, ()
        if (asked.options or {}).get("fieldManager") in _OURS:
            return WebhookOutcome.OURS, ()  # it may know more than our caches do
        service = await self._service_of(written)
        if service is None:
            return WebhookOutcome.ORPHANED, ()
        return self._decide(service, written, asked.old_object)

    def _decide(
        self, service: Service, written: EndpointSlice, stored: EndpointSlice | None
    ) -> tuple[WebhookOutcome, Operations]:
        others = [
            found
            for found in self._sources.slices_of(key_of(service))
            if is_stock(found) and key_of(found) != key_of(written)
        ]
        reviewed = as_remembered(written, [*others, stored] if stored else others)
        drained = self._sources.drained_zones(service)
        cluster = self._sources.cluster()
        answer = overlay(service, [*others, reviewed], cluster, hints=self._hints, drained=drained)
        if answer.is_silent:
            return WebhookOutcome.SILENT, ()
        operations = answer.operations_on(written)
        return WebhookOutcome.HINTED if operations else WebhookOutcome.AGREED, operations

    async def _service_of(self, written: EndpointSlice) -> Service | None:
        """From the cache, or from the server if the slice is of a Service that the cache has not heard of yet."""
        key = service_key(written)
        cached = self._sources.services.get(key)
        if cached is not None and _owns(cached, written):
            return cached
        try:
            read = await self._client.get(SERVICES, key.name, key.namespace, deadline_seconds=DEADLINE_SECONDS)
        except NotFound:
            return None
        return read if _owns(read, written) else None


def _owns(service: Service, written: EndpointSlice) -> bool:
    owners = [owner.uid for owner in written.metadata.owner_references if owner.controller]
    return service.metadata.uid in owners


def configuration(client_config: Mapping[str, Any], name: str = OVERLAY_CONFIGURATION) -> dict[str, Any]:
    """What makes API servers ask us; `client_config` is `{"url": ...}` or `{"service": {...}}`, trust comes later."""
    rule = {
        "apiGroups": [ENDPOINT_SLICES.group],
        "apiVersions": [ENDPOINT_SLICES.version],
        "resources": [ENDPOINT_SLICES.plural],
        "operations": ["CREATE", "UPDATE"],
        "scope": "Namespaced",
    }
    webhook = {
        "name": f"{NAME}.zonewise.dev",
        "clientConfig": dict(client_config),
        "rules": [rule],
        "objectSelector": {"matchLabels": {MANAGED_BY: STOCK_MANAGER}},
        "failurePolicy": "Ignore",
        "matchPolicy": "Equivalent",
        "reinvocationPolicy": "IfNeeded",
        "sideEffects": "None",
        "timeoutSeconds": TIMEOUT_SECONDS,
        "admissionReviewVersions": ["v1"],
    }
    return {
        "apiVersion": MUTATING_WEBHOOK_CONFIGURATIONS.api_version,
        "kind": MUTATING_WEBHOOK_CONFIGURATIONS.kind,
        "metadata": {"name": name},
        "webhooks": [webhook],
    }


async def register(client: Client, body: Mapping[str, Any]) -> None:
    """Makes or corrects the configuration; the certificates it trusts, which it does not name, stay."""
    name = body["metadata"]["name"]
    await client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, name, Apply(body, "zonewise-registration", force=True))
