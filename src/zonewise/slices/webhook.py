"""Mutating webhook of the overlay: sets hints while the stock EndpointSlice controller writes a slice.

The stock controller removes hints that it did not make. The webhook restores them in the same request, so that the
stored slice does not change and no watcher is woken. It decides over the cached slices of the Service, with the
reviewed slice instead of its cached version. On any error the slice is admitted as sent: traffic is then spread evenly.

A Service with many endpoints is decided in a thread, once at a time, and its slices share the decision: the event loop
stays free for the slices of others.
"""

from __future__ import annotations

import asyncio
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
from zonewise.objects import ENDPOINT_SLICES, SERVICES, EndpointSlice, Key, Service, key_of
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS
from zonewise.objects.discovery import service_key
from zonewise.routing import HintsForm
from zonewise.slices.decide.overlay import Operations, Overlay, as_remembered, is_stock
from zonewise.slices.decide.shared_overlay import OverlayInputs, SharedOverlay, decide_shared
from zonewise.slices.informers import SliceInformers

NAME: Final = "endpointslices"
DEADLINE_SECONDS: Final = 1.0
"""Writers of slices wait for the answer; after this time the slice is admitted as sent."""
TIMEOUT_SECONDS: Final = 2
LARGE: Final = 500
"""Endpoints of a Service that is decided off the event loop: fewer take some 30 ms, with 16 keys and 200 zones."""

_MOST_SHARED: Final = 100
_OURS: Final = (OVERLAY_FIELD_MANAGER, OWNING_MANAGER)
"""The controllers of both modes: running the webhook beside a controller in mode own does no harm."""
_REVIEWS: Final = Counter("zonewise_overlay_reviews", "Slices reviewed, by what became of their hints", ["outcome"])
_DECISIONS: Final = Counter("zonewise_overlay_decisions", "Services decided for reviews of their slices")


class WebhookOutcome(StrEnum):
    HINTED = "hinted"
    AGREED = "agreed"
    SILENT = "silent"
    OURS = "ours"
    FOREIGN = "foreign"
    ORPHANED = "orphaned"


class SliceWebhook:
    """Answers are valid once the caches of `informers` are synced."""

    def __init__(self, client: Client, informers: SliceInformers, hints: HintsForm = HintsForm.STABLE) -> None:
        self._client = client
        self._informers = informers
        self._hints = hints
        self._shared: dict[Key, SharedOverlay] = {}
        self._running: dict[Key, asyncio.Task[None]] = {}

    def webhook(self) -> Webhook[EndpointSlice]:
        return Webhook(NAME, EndpointSlice, self.review, AdmissionVerdict.allow(), DEADLINE_SECONDS)

    async def review(self, request: Review[EndpointSlice]) -> AdmissionVerdict:
        outcome, operations = await self._review(request)
        _REVIEWS.labels(outcome).inc()
        return AdmissionVerdict.allow(patch=operations)

    async def _review(self, request: Review[EndpointSlice]) -> tuple[WebhookOutcome, Operations]:
        endpoint_slice = request.object
        if endpoint_slice is None or not is_stock(endpoint_slice):
            return WebhookOutcome.FOREIGN, ()
        if (request.options or {}).get("fieldManager") in _OURS:
            return WebhookOutcome.OURS, ()  # its caches may be newer
        service = await self._service_of(endpoint_slice)
        if service is None:
            return WebhookOutcome.ORPHANED, ()
        answer = await self._decide(service, endpoint_slice, request.old_object)
        if answer.is_silent:
            return WebhookOutcome.SILENT, ()
        operations = answer.operations_on(endpoint_slice)
        return WebhookOutcome.HINTED if operations else WebhookOutcome.AGREED, operations

    async def _decide(self, service: Service, endpoint_slice: EndpointSlice, stored: EndpointSlice | None) -> Overlay:
        key = key_of(service)
        while True:
            inputs = self._inputs(service, endpoint_slice, stored)
            shared = self._shared.get(key)
            if shared is not None and shared.covers(inputs):
                return shared.answer
            if inputs.size < LARGE:
                _DECISIONS.inc()
                return decide_shared(inputs, self._hints).answer
            if key not in self._running:
                self._running[key] = asyncio.create_task(self._decide_in_thread(key, inputs))
            await asyncio.shield(self._running[key])  # a review that is late leaves the decision to the next one

    async def _decide_in_thread(self, key: Key, inputs: OverlayInputs) -> None:
        try:
            _DECISIONS.inc()
            self._shared.pop(key, None)
            self._shared[key] = await asyncio.to_thread(decide_shared, inputs, self._hints)
            for oldest in list(self._shared)[:-_MOST_SHARED]:
                del self._shared[oldest]
        finally:
            del self._running[key]

    def _inputs(self, service: Service, endpoint_slice: EndpointSlice, stored: EndpointSlice | None) -> OverlayInputs:
        other_slices = [
            cached
            for cached in self._informers.slices_of(key_of(service))
            if is_stock(cached) and key_of(cached) != key_of(endpoint_slice)
        ]
        restored = as_remembered(endpoint_slice, [*other_slices, stored] if stored else other_slices)
        drained = self._informers.drained_zones(service)
        return OverlayInputs(service, (*other_slices, restored), self._informers.cluster(), drained)

    async def _service_of(self, endpoint_slice: EndpointSlice) -> Service | None:
        """From the cache, or from the API server if the Service is too new for the cache."""
        key = service_key(endpoint_slice)
        cached = self._informers.services.get(key)
        if cached is not None and _owns(cached, endpoint_slice):
            return cached
        try:
            stored = await self._client.get(SERVICES, key.name, key.namespace, deadline_seconds=DEADLINE_SECONDS)
        except NotFound:
            return None
        return stored if _owns(stored, endpoint_slice) else None


def _owns(service: Service, endpoint_slice: EndpointSlice) -> bool:
    owners = [owner.uid for owner in endpoint_slice.metadata.owner_references if owner.controller]
    return service.metadata.uid in owners


def configuration(client_config: Mapping[str, Any], name: str = OVERLAY_CONFIGURATION) -> dict[str, Any]:
    """The MutatingWebhookConfiguration; `client_config` is `{"url": ...}` or `{"service": {...}}`.

    The CA bundle is injected later.
    """
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
    """Creates or corrects the configuration; a CA bundle in it is kept."""
    name = body["metadata"]["name"]
    await client.patch(MUTATING_WEBHOOK_CONFIGURATIONS, name, Apply(body, "zonewise-registration", force=True))
