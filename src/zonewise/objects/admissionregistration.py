"""Views of admissionregistration.k8s.io: which webhooks the API server calls, and whose certificates it trusts there."""

from __future__ import annotations

from typing import Any

from zonewise.objects.meta import Metadata, View
from zonewise.objects.resource import Resource

_GROUP = "admissionregistration.k8s.io"


class WebhookService(View, frozen=True):
    namespace: str = ""
    name: str = ""
    path: str = ""
    port: int = 443


class WebhookClientConfig(View, frozen=True):
    """`ca_bundle` is PEM, base64-encoded; the server calls a Service or a URL."""

    ca_bundle: str = ""
    service: WebhookService | None = None
    url: str | None = None


class WebhookRule(View, frozen=True):
    resources: tuple[str, ...] = ()


class RegisteredWebhook(View, frozen=True):
    name: str = ""
    client_config: WebhookClientConfig = WebhookClientConfig()
    failure_policy: str = "Fail"
    rules: tuple[WebhookRule, ...] = ()
    namespace_selector: dict[str, Any] = {}
    """Empty selects all, which is the API server's default."""


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
