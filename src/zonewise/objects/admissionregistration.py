"""Views of admissionregistration.k8s.io: which webhooks the API server calls, and whose certificates it trusts there."""

from __future__ import annotations

from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource

_GROUP = "admissionregistration.k8s.io"


class WebhookClientConfig(View, frozen=True):
    """`ca_bundle` is PEM, base64-encoded."""

    ca_bundle: str = ""


class RegisteredWebhook(View, frozen=True):
    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()


class WebhookConfiguration(View, frozen=True):
    """The validating and the mutating kind are alike in what is read of them."""

    metadata: Metadata = Metadata()
    webhooks: tuple[RegisteredWebhook, ...] = ()


VALIDATING_WEBHOOK_CONFIGURATIONS = Resource(
    view=WebhookConfiguration,
    kind="ValidatingWebhookConfiguration",
    plural="validatingwebhookconfigurations",
    group=_GROUP,
    namespaced=False,
)
MUTATING_WEBHOOK_CONFIGURATIONS = Resource(
    view=WebhookConfiguration,
    kind="MutatingWebhookConfiguration",
    plural="mutatingwebhookconfigurations",
    group=_GROUP,
    namespaced=False,
)
