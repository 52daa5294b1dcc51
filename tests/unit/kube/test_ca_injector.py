"""Webhooks that lack our CA bundle or the callers' key, and a patch of exactly these."""

import base64
from typing import Any

import pytest

from zonewise.kube.client.client import Client
from zonewise.kube.client.kubeconfig import ClusterAccess
from zonewise.kube.server.ca_injector import CaInjector, missing_trust
from zonewise.kube.watch.informers import Caches
from zonewise.objects import Metadata
from zonewise.objects.admissionregistration import (
    RegisteredWebhook,
    WebhookClientConfig,
    WebhookConfiguration,
    WebhookService,
)

BUNDLE = b"-----BEGIN CERTIFICATE-----"
ENCODED = base64.b64encode(BUNDLE).decode()

OLD, KEY, NEWER = "0" * 64, "1" * 64, "2" * 64


def config(bundle: str = ENCODED, path: str = f"/a/{KEY}") -> WebhookClientConfig:
    return WebhookClientConfig(ca_bundle=bundle, service=WebhookService(name="guard", path=path))


def url(path: str, bundle: str = ENCODED) -> WebhookClientConfig:
    return WebhookClientConfig(ca_bundle=bundle, url=f"https://10.0.0.5:8443{path}")


SERVICE = {"caBundle": ENCODED, "service": {"path": f"/a/{KEY}"}}
URL = {"caBundle": ENCODED, "url": f"https://10.0.0.5:8443/a/{KEY}"}
CASES = {
    "up to date": (config(), None),
    "bundle emptied": (config(""), SERVICE),
    "bundle of another": (config("Cg=="), SERVICE),
    "from before there were keys": (config(path="/a"), SERVICE),
    "path left out by an apply": (config(path=""), SERVICE),
    "old key": (config(path=f"/a/{OLD}"), SERVICE),
    "key of another webhook": (config(path=f"/b/{KEY}"), SERVICE),
    "newer key, by a replica whose clock is ahead": (config(path=f"/a/{NEWER}"), None),
    "url up to date": (url(f"/a/{KEY}"), None),
    "url without key": (url("/a"), URL),
    "url without bundle": (url(f"/a/{KEY}", ""), URL),
}


@pytest.mark.parametrize(("present", "expected"), CASES.values(), ids=CASES)
def test_webhooks_without_bundle_or_key_are_patched(
    present: WebhookClientConfig, expected: dict[str, Any] | None
) -> None:
    webhooks = (
        RegisteredWebhook(name="a.zonewise.dev", client_config=present),
        RegisteredWebhook(name="b.zonewise.dev", client_config=config(path=f"/b/{KEY}")),
    )
    patch = missing_trust(WebhookConfiguration(metadata=Metadata(name="x"), webhooks=webhooks), BUNDLE, [KEY, NEWER])
    patched = [{"name": "a.zonewise.dev", "clientConfig": expected}] if expected else []
    assert (patch.body if patch else {"webhooks": []}) == {"webhooks": patched}


async def test_selector_or_field_is_required() -> None:
    client = Client(ClusterAccess(server="https://127.0.0.1:1"))
    with pytest.raises(ValueError, match="say which webhook configurations are ours"):
        CaInjector(client, Caches(client))
