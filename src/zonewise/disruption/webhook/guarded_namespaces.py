"""In which namespaces evictions are asked about: what API servers go by, not what somebody once meant to register.

`explain eviction` and `drain --plan` read it once: where nobody asks, a budget holds nothing.
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

_NOBODY: Final = LabelSelector(None)
_ALL: Final = LabelSelector(())
_NAME: Final = "kubernetes.io/metadata.name"
_WEBHOOK: Final = f"{EVICTIONS}.zonewise.dev"


async def read_guarding(client: Client) -> LabelSelector:
    """Selects namespaces by their labels. Who may not look takes it for granted that all are guarded."""
    try:
        return guarding(await client.get(VALIDATING_WEBHOOK_CONFIGURATIONS, DISRUPTION_CONFIGURATION))
    except NotFound:
        return _NOBODY
    except Forbidden:
        return _ALL


def guarding(registered: WebhookConfiguration) -> LabelSelector:
    selectors = [webhook.namespace_selector for webhook in registered.webhooks if webhook.name == _WEBHOOK]
    return LabelSelector.parse(selectors[0]) if selectors else _NOBODY


def is_guarded(guarding: LabelSelector, namespace: str, labels: Mapping[str, str]) -> bool:
    """`labels` are empty where they may not be read: the name, which is one of them, is known."""
    return guarding.matches({_NAME: namespace, **labels})
