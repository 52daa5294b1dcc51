"""Webhooks that lack our CA bundle, and a patch of exactly these."""

import base64

import pytest

from zonewise.kube.client.client import Client
from zonewise.kube.client.kubeconfig import ClusterAccess
from zonewise.kube.server.ca_injector import CaInjector, missing_trust
from zonewise.kube.watch.informers import Caches
from zonewise.objects import Metadata
from zonewise.objects.admissionregistration import RegisteredWebhook, WebhookClientConfig, WebhookConfiguration

BUNDLE = b"-----BEGIN CERTIFICATE-----"
ENCODED = base64.b64encode(BUNDLE).decode()

CASES = {
    "all trust us": ({"a": ENCODED, "b": ENCODED}, []),
    "one was emptied": ({"a": ENCODED, "b": ""}, ["b"]),
    "all trust another": ({"a": "Cg==", "b": "Cg=="}, ["a", "b"]),
    "there is no webhook": ({}, []),
}


@pytest.mark.parametrize(("present", "lacking"), CASES.values(), ids=CASES)
def test_webhooks_without_the_bundle_are_patched(present: dict[str, str], lacking: list[str]) -> None:
    webhooks = tuple(
        RegisteredWebhook(name=name, client_config=WebhookClientConfig(ca_bundle=bundle))
        for name, bundle in present.items()
    )
    patch = missing_trust(WebhookConfiguration(metadata=Metadata(name="x"), webhooks=webhooks), BUNDLE)
    expected = [{"name": name, "clientConfig": {"caBundle": ENCODED}} for name in lacking]
    assert (patch.body if patch else {"webhooks": []}) == {"webhooks": expected}


async def test_selector_or_field_is_required() -> None:
    client = Client(ClusterAccess(server="https://127.0.0.1:1"))
    with pytest.raises(ValueError, match="say which webhook configurations are ours"):
        CaInjector(client, Caches(client))
