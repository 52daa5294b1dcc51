"""`zonewise webhook`: answers API servers before they store slices or take pods, and registers itself with them.

Each part brings its webhooks and the objects that make API servers ask them; certificates, the server and the process
are common to all.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from zonewise.api import names
from zonewise.cli.options import cluster_options, health_option, log_options, parts_option
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from yarl import URL

    from zonewise.kube.client.client import Client
    from zonewise.kube.server.admission import Webhook
    from zonewise.kube.server.health import Health
    from zonewise.kube.watch.informers import Caches
    from zonewise.kube.wire.access import ClusterAccess
    from zonewise.objects import Key

OVERLAY, DISRUPTION = "overlay", "disruption"

_NOTICED_SECONDS = 5.0
"""How long a Service may still send us reviews after we said that we go."""


@click.command(
    epilog="""\b
Examples:
  zonewise webhook --service zonewise-system/zonewise-webhook    in the cluster, behind that Service
  zonewise webhook --url https://10.0.0.5:8443                   anywhere that API servers reach
  zonewise webhook --url https://10.0.0.5:8443 --print           what would be registered
  zonewise webhook --parts overlay,disruption --url ...          evictions are guarded, too
""",
)
@parts_option(
    [OVERLAY, DISRUPTION],
    "overlay: hints on the slices of the stock controller; disruption: evictions and deletes of pods under a budget.",
)
@click.option(
    "--service", metavar="NAMESPACE/NAME", help="The Service through which API servers reach us, on port 443."
)
@click.option("--url", metavar="URL", help="Where API servers reach us without a Service: https, a host and a port.")
@click.option("--port", type=click.IntRange(0, 65535), default=8443, show_default=True, help="Where to listen.")
@click.option("--host", help="The address to listen on. [default: all]")
@click.option(
    "--secret",
    metavar="NAMESPACE/NAME",
    default="zonewise-system/zonewise-webhook",
    show_default=True,
    help="The Secret that keeps our certificate authority; made when it is absent.",
)
@click.option(
    "--register/--no-register",
    default=True,
    show_default=True,
    help="Keep the objects that make API servers ask us (zonewise-overlay, zonewise-disruption), or leave that to others.",
)
@click.option("--print", "printed", is_flag=True, help="Print those objects as YAML and end.")
@click.option(
    "--lease-namespace",
    default="kube-system",
    show_default=True,
    help="Where the lease of `zonewise controller --parts disruption` is: without a leader, evictions that a budget "
    "counts are refused.",
)
@click.option(
    "--hints",
    type=click.Choice(["stable", "strict"]),
    default="stable",
    show_default=True,
    help="Automatic hints without refusals and flapping, or exactly as the stock controller computes them. "
    "Say the same to `zonewise controller`, or the two disagree.",
)
@cluster_options
@health_option(8081)
@log_options
def webhook(**options: Any) -> None:
    """Answer API servers: lay hints over slices that the stock controller writes, guard pods that a budget covers.

    While it is away slices are stored as they come and deletes pass; evictions in guarded namespaces are refused.
    """
    from zonewise import log
    from zonewise.kube import process
    from zonewise.kube.client import kubeconfig

    reach = _reached_at(options["service"], options["url"])
    secret = _key("--secret", options["secret"])
    if options["printed"]:
        _print(reach, secret, options)
        return
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    log.configure(options["log_format"], options["log_level"])
    sys.exit(
        process.run(
            lambda health: _serve(health, access, reach, secret, options),
            listen=process.HealthListen(port=options["health_port"]),
            unready_seconds=_NOTICED_SECONDS if options["service"] else 0.0,
        )
    )


@dataclass(frozen=True)
class _Reach:
    """How API servers reach us: through a Service, or at a URL; `hosts` are the names our certificate must have."""

    hosts: tuple[str, ...]
    service: Key | None = None
    url: URL | None = None

    def client_config(self, path: str) -> dict[str, Any]:
        if self.service is not None:
            where = {"namespace": self.service.namespace, "name": self.service.name}
            return {"service": {**where, "path": f"/{path}", "port": 443}}
        assert self.url is not None
        return {"url": str(self.url.with_path(f"/{path}"))}


@dataclass(frozen=True)
class _Part:
    configuration_name: str
    """The webhook configuration in which API servers are told to trust us."""
    webhooks: list[Webhook[Any]]
    register: Callable[[], Awaitable[None]]
    trouble: Callable[[], str | None] | None = None
    """Why it should get no requests now; None where old knowledge does no harm."""


async def _serve(health: Health, access: ClusterAccess, reach: _Reach, secret: Key, options: dict[str, Any]) -> None:
    import asyncio

    from zonewise.kube.client.client import Client
    from zonewise.kube.server.admission import AdmissionServer
    from zonewise.kube.server.ca_injector import CaInjector
    from zonewise.kube.server.cert_manager import CertManager
    from zonewise.kube.watch.informers import Caches

    async with Client(access) as client:
        caches = Caches(client)
        parts = [_PARTS[name](client, caches, reach, secret, options) for name in options["parts"]]
        for name, part in zip(options["parts"], parts, strict=True):
            if part.trouble is not None:
                health.add_ready(name, part.trouble)
        injectors = [CaInjector(client, caches, fields=f"metadata.name={part.configuration_name}") for part in parts]

        async def trust(bundle_pem: bytes) -> None:
            for injector in injectors:
                await injector.inject(bundle_pem)

        certificate = CertManager(client, secret, reach.hosts, trust)
        for injector in injectors:
            injector.on_change(certificate.wake)
        async with caches, asyncio.TaskGroup() as group:
            await certificate.renew()
            await caches.wait_synced()
            webhooks = [webhook for part in parts for webhook in part.webhooks]
            where = {"host": options["host"], "port": options["port"]}
            async with AdmissionServer(webhooks, certificate.context, **where):
                for part in parts if options["register"] else ():
                    await part.register()
                group.create_task(certificate.run(), name="certificates")
                health.started()
                await asyncio.Event().wait()


def _overlay(client: Client, caches: Caches, reach: _Reach, _secret: Key, options: dict[str, Any]) -> _Part:
    from zonewise.routing import HintsForm
    from zonewise.slices import webhook as overlaying
    from zonewise.slices.informers import SliceInformers, SlicesMode

    answering = overlaying.SliceWebhook(client, SliceInformers(caches, SlicesMode.OVERLAY), HintsForm(options["hints"]))
    body = overlaying.configuration(reach.client_config(overlaying.NAME))
    return _Part(names.OVERLAY_CONFIGURATION, [answering.webhook()], lambda: overlaying.register(client, body))


def _disruption(client: Client, caches: Caches, reach: _Reach, secret: Key, options: dict[str, Any]) -> _Part:
    from zonewise.disruption import app
    from zonewise.disruption.webhook import registration

    guard = app.guard(client, caches, options["lease_namespace"])
    where = {name: reach.client_config(name) for name in (registration.EVICTIONS, registration.DELETES)}
    return _Part(
        names.DISRUPTION_CONFIGURATION,
        guard.webhooks(),
        lambda: app.register(client, where, secret.namespace),
        guard.trouble,
    )


_PARTS = {OVERLAY: _overlay, DISRUPTION: _disruption}


def _print(reach: _Reach, secret: Key, options: dict[str, Any]) -> None:
    import json

    import yaml

    documents = [document for name in options["parts"] for document in _DOCUMENTS[name](reach, secret)]
    apart = json.loads(json.dumps(documents))  # what two of them share would be written as a reference
    click.echo(yaml.safe_dump_all(apart, sort_keys=False, width=118), nl=False)


def _overlay_documents(reach: _Reach, _secret: Key) -> list[dict[str, Any]]:
    from zonewise.slices.webhook import NAME, configuration

    return [configuration(reach.client_config(NAME))]


def _disruption_documents(reach: _Reach, secret: Key) -> list[dict[str, Any]]:
    from zonewise.disruption.webhook import registration

    where = {name: reach.client_config(name) for name in (registration.EVICTIONS, registration.DELETES)}
    return registration.documents(where, secret.namespace)


_DOCUMENTS = {OVERLAY: _overlay_documents, DISRUPTION: _disruption_documents}


def _reached_at(service: str | None, url: str | None) -> _Reach:
    from yarl import URL

    if bool(service) == bool(url):
        raise UsageError("say how API servers reach the webhook: either --service NAMESPACE/NAME or --url URL")
    if service:
        key = _key("--service", service)
        return _Reach((f"{key.name}.{key.namespace}.svc",), service=key)
    try:
        parsed = URL(url or "")
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}") from error
    if parsed.scheme != "https" or not parsed.host or parsed.path not in {"", "/"}:
        raise UsageError(f"--url {url}: write https, a host and a port, as in https://10.0.0.5:8443")
    return _Reach((parsed.host,), url=parsed)


def _key(option: str, text: str) -> Key:
    from zonewise.objects import Key

    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise UsageError(f"{option} {text}: write a namespace and a name, as in zonewise-system/zonewise-webhook")
    return Key(namespace, name)
