"""Whether anybody would notice what a plan writes. Pure.

While a Service has ready endpoints, proxies and DNS look at nothing else: that another pod has got an address, or that
one which was already terminating is gone, makes no difference to them. Such news can wait a moment for company, so that
a rolling update writes its slices for what matters, and the rest on the way. A node whose clients get its own endpoints
alone (the Local traffic policies) falls back to those that terminate, so there everything matters.
"""

from __future__ import annotations

from zonewise.objects import Endpoint, EndpointSlice, Service
from zonewise.routing.endpoints import is_marked_ready
from zonewise.slices.decide.body import SliceBody, SliceUpdate
from zonewise.slices.decide.plan import SlicesPlan

_LOCAL = "Local"


def can_wait(service: Service, plan: SlicesPlan) -> bool:
    if plan.creates or plan.deletes or not plan.updates:
        return False
    if _LOCAL in {service.spec.internal_traffic_policy, service.spec.external_traffic_policy}:
        return False
    return all(map(_goes_unnoticed, plan.updates))


def _goes_unnoticed(update: SliceUpdate) -> bool:
    before, after = _ready(update.existing), _ready(update.draft)
    return (
        bool(after)
        and before == after
        and update.existing.metadata.labels == update.draft.labels
        and frozenset(update.existing.ports or ()) == frozenset(update.draft.ports)
    )


def _ready(found: EndpointSlice | SliceBody) -> list[Endpoint]:
    return [endpoint for endpoint in found.endpoints or () if is_marked_ready(endpoint)]
