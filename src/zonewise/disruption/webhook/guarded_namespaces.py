"""In which namespaces evictions are asked about: what API servers go by, not what somebody once meant to register.

`explain eviction` and `drain --plan` read it once: where nobody asks, a budget holds nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zonewise.disruption.webhook.registration import EVICTIONS
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.topology import LabelSelector

_NOBODY: Final = LabelSelector(None)
_NAME: Final = "kubernetes.io/metadata.name"
_WEBHOOK: Final = f"{EVICTIONS}.zonewise.dev"


def guarding(registered: WebhookConfiguration) -> LabelSelector:
    selectors = [webhook.namespace_selector for webhook in registered.webhooks if webhook.name == _WEBHOOK]
    return LabelSelector.parse(selectors[0]) if selectors else _NOBODY


def is_guarded(guarding: LabelSelector, namespace: str, labels: Mapping[str, str]) -> bool:
    """`labels` are empty where they may not be read: the name, which is one of them, is known."""
    return guarding.matches({_NAME: namespace, **labels})
