"""Webhook server for tests: certificates, CA injection and admission on loopback, against a real API server."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.clock import utc_now
from zonewise.kube.server.admission import AdmissionServer, Webhook
from zonewise.kube.server.ca_injector import CaInjector
from zonewise.kube.server.cert_manager import CertManager
from zonewise.kube.server.certificates import Lifetimes
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.admission_review import AdmissionVerdict, Review
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import CONFIG_MAPS, Key, Resource
from zonewise.objects.admissionregistration import MUTATING_WEBHOOK_CONFIGURATIONS, VALIDATING_WEBHOOK_CONFIGURATIONS

HOST = "127.0.0.1"
SECRET = "webhook-authorities"
LABEL = "zonewise.dev/test"
LATE = AdmissionVerdict.deny("no decision in time", code=503)

Json = dict[str, Any]


class Judge:
    """Webhook handler that returns `verdict` and records its requests."""

    def __init__(self) -> None:
        self.verdict = AdmissionVerdict.allow()
        self.requests: list[Review[Json]] = []
        self.stuck = False

    async def __call__(self, review: Review[Json]) -> AdmissionVerdict:
        self.requests.append(review)
        if self.stuck:
            await asyncio.Event().wait()
        return self.verdict


@dataclass
class Site:
    server: AdmissionServer
    certificate: CertManager
    judge: Judge = field(default_factory=Judge)

    def url(self, path: str, port: int = 0) -> str:
        """Without the callers' key, which is injected."""
        return f"https://{HOST}:{port or self.server.port}/{path}"


@asynccontextmanager
async def site(
    client: Client,
    namespace: str,
    *,
    deadline_seconds: float = 20.0,
    late: AdmissionVerdict = LATE,
    lifetimes: Lifetimes = Lifetimes(),  # noqa: B008 - frozen
    clock: Callable[[], dt.datetime] = utc_now,
) -> AsyncIterator[Site]:
    """Serve one webhook at /judge; its CA is injected into configurations labelled with the namespace."""
    judge = Judge()
    async with Caches(client) as caches:
        injector = CaInjector(client, caches, selector=f"{LABEL}={namespace}")
        certificate = CertManager(
            client, Key(namespace, SECRET), [HOST], injector.inject, lifetimes=lifetimes, clock=clock
        )
        injector.on_change(certificate.wake)
        await certificate.renew()
        webhooks = [Webhook("judge", Json, judge, late, deadline_seconds)]
        async with AdmissionServer(webhooks, certificate.context, certificate.accepts, host=HOST, port=0) as server:
            renewing = asyncio.create_task(certificate.run())
            try:
                yield Site(server, certificate, judge)
            finally:
                renewing.cancel()
                await asyncio.wait([renewing])


def rule(resource: str, *operations: str, group: str = "") -> dict[str, Any]:
    return {"apiGroups": [group], "apiVersions": ["v1"], "resources": [resource], "operations": list(operations)}


CONFIG_MAP_RULE = rule("configmaps", "CREATE", "UPDATE", "DELETE")


def config_map(name: str, **labels: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels}, "data": {"a": "1"}}


async def trusted(client: Client, namespace: str, running: Site) -> None:
    """Wait until the API server calls the webhook: configuration and CA bundle take effect shortly after the write."""

    async def reached() -> bool:
        with suppress(ApiError):
            await client.create(CONFIG_MAPS, config_map("probe"), namespace, dry_run=True)
        return bool(running.judge.requests)

    await eventually(reached)
    running.judge.requests.clear()


def configuration(namespace: str, url: str, rules: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Webhook configuration for the test's own namespace only."""
    webhook = {
        "name": "judge.zonewise.dev",
        "clientConfig": {"url": url},
        "rules": list(rules),
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}},
        "failurePolicy": "Fail",
        "sideEffects": "NoneOnDryRun",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 30,
        **more,
    }
    return {"metadata": {"name": f"test-{namespace}", "labels": {LABEL: namespace}}, "webhooks": [webhook]}


@asynccontextmanager
async def registered(
    client: Client, body: dict[str, Any], *, mutating: bool = False
) -> AsyncIterator[Resource[dict[str, Any]]]:
    resource = (MUTATING_WEBHOOK_CONFIGURATIONS if mutating else VALIDATING_WEBHOOK_CONFIGURATIONS).whole()
    await client.create(resource, body)
    try:
        yield resource
    finally:
        await client.delete(resource, body["metadata"]["name"])
