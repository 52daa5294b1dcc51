"""Namespaces covered by the eviction webhook, read from its registration in the API server.

`explain eviction` and `drain --plan` read it once: a budget in a namespace that is not covered holds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zonewise.api.names import DISRUPTION_CONFIGURATION
from zonewise.disruption.webhook.registration import EVICTIONS
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects.admissionregistration import VALIDATING_WEBHOOK_CONFIGURATIONS, WebhookConfiguration
from zonewise.topology import LabelSelector

_NONE: Final = LabelSelector(None)
_ALL: Final = LabelSelector(())
_NAME: Final = "kubernetes.io/metadata.name"
_WEBHOOK: Final = f"{EVICTIONS}.zonewise.dev"


async def read_guarding(client: Client) -> LabelSelector:
    """A selector of namespaces by their labels. If forbidden, assume that all are guarded."""
    try:
        return guarding(await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, DISRUPTION_CONFIGURATION))
    except NotFound:
        return _NONE
    except Forbidden:
        return _ALL


def guarding(registered: WebhookConfiguration) -> LabelSelector:
    selectors = [webhook.namespace_selector for webhook in registered.webhooks if webhook.name == _WEBHOOK]
    return LabelSelector.parse(selectors[0]) if selectors else _NONE


def is_guarded(guarding: LabelSelector, namespace: str, labels: Mapping[str, str]) -> bool:
    """`labels` may be empty if they are forbidden; the name label is added."""
    return guarding.matches({_NAME: namespace, **labels})
