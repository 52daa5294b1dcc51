"""A webhook replica for tests: everything a webhook process runs, against a real API server, on loopback."""

import asyncio
import datetime as dt
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from support.waiting import eventually
from zonewise.kube.client.client import Client
from zonewise.kube.server.admission import AdmissionServer, Webhook
from zonewise.kube.server.ca_injector import CaInjector
from zonewise.kube.server.cert_manager import CertManager, utc_now
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

Whole = dict[str, Any]


class Judge:
    """Answers whatever it was told to, and remembers what it was asked."""

    def __init__(self) -> None:
        self.verdict = AdmissionVerdict.allow()
        self.asked: list[Review[Whole]] = []
        self.stuck = False

    async def __call__(self, review: Review[Whole]) -> AdmissionVerdict:
        self.asked.append(review)
        if self.stuck:
            await asyncio.Event().wait()
        return self.verdict


@dataclass
class Site:
    server: AdmissionServer
    certificate: CertManager
    judge: Judge = field(default_factory=Judge)

    def url(self, path: str, port: int = 0) -> str:
        return f"https://{HOST}:{port or self.server.port}/{path}"


@asynccontextmanager
async def site(
    client: Client,
    namespace: str,
    *,
    deadline_seconds: float = 20.0,
    lifetimes: Lifetimes = Lifetimes(),  # noqa: B008 - frozen
    clock: Callable[[], dt.datetime] = utc_now,
) -> AsyncIterator[Site]:
    """Serves one webhook at /judge, trusted by the configurations labelled with the namespace."""
    judge = Judge()
    async with Caches(client) as caches:
        injector = CaInjector(client, caches, selector=f"{LABEL}={namespace}")
        certificate = CertManager(
            client, Key(namespace, SECRET), [HOST], injector.inject, lifetimes=lifetimes, clock=clock
        )
        injector.on_change(certificate.wake)
        await certificate.renew()
        webhooks = [Webhook("judge", Whole, judge, LATE, deadline_seconds)]
        async with AdmissionServer(webhooks, certificate.context, host=HOST, port=0) as server:
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
    """Returns once the API server calls us: it learns of a configuration, and of its bundle, a moment after the write."""

    async def reached() -> bool:
        with suppress(ApiError):
            await client.create(CONFIG_MAPS, config_map("probe"), namespace, dry_run=True)
        return bool(running.judge.asked)

    await eventually(reached)
    running.judge.asked.clear()


def configuration(namespace: str, url: str, rules: Sequence[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """Called for the test's own namespace only."""
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
