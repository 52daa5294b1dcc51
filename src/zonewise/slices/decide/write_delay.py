"""Write delay: whether a plan can wait because no client would notice the change.

While a Service has ready endpoints, proxies and DNS use only those: a new pod address that is not ready, or a removed
pod that was terminating, makes no difference. Such changes wait a moment to be batched, so that a rolling update
writes slices for the changes that matter and takes the others along. With the Local traffic policies a node falls back
to its own terminating endpoints, so there every change matters.
"""

from __future__ import annotations

from typing import Final

from zonewise.objects import Endpoint, EndpointSlice, Service
from zonewise.routing.endpoints import is_marked_ready
from zonewise.slices.decide.body import SliceBody, SliceUpdate
from zonewise.slices.decide.plan import SlicesPlan

_LOCAL: Final = "Local"


def can_wait(service: Service, plan: SlicesPlan) -> bool:
    if plan.creates or plan.deletes or not plan.updates:
        return False
    if _LOCAL in {service.spec.internal_traffic_policy, service.spec.external_traffic_policy}:
        return False
    return all(map(_is_unnoticed, plan.updates))


def _is_unnoticed(update: SliceUpdate) -> bool:
    before, after = _ready(update.existing), _ready(update.body)
    return (
        bool(after)
        and before == after
        and update.existing.metadata.labels == update.body.labels
        and frozenset(update.existing.ports or ()) == frozenset(update.body.ports)
    )


def _ready(endpoint_slice: EndpointSlice | SliceBody) -> list[Endpoint]:
    return [endpoint for endpoint in endpoint_slice.endpoints or () if is_marked_ready(endpoint)]
