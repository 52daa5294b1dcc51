"""Guarded namespaces: those in which API servers call the eviction webhook, from the registered configuration.

`explain eviction` and `drain --plan` use it: where the webhook is not called, a budget refuses nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from zonewise.disruption.webhook.registration import EVICTIONS
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.topology import LabelSelector

_NONE: Final = LabelSelector(None)
_NAME: Final = "kubernetes.io/metadata.name"
_WEBHOOK: Final = f"{EVICTIONS}.zonewise.dev"


def guarding(registered: WebhookConfiguration) -> LabelSelector:
    selectors = [webhook.namespace_selector for webhook in registered.webhooks if webhook.name == _WEBHOOK]
    return LabelSelector.parse(selectors[0]) if selectors else _NONE


def is_guarded(guarding: LabelSelector, namespace: str, labels: Mapping[str, str]) -> bool:
    """`labels` are empty if they may not be read; the name label is known without them."""
    return guarding.matches({_NAME: namespace, **labels})
