"""`zonewise webhook`: the admission server for EndpointSlices and for evictions and deletes of pods.

Each part has its webhooks and the configuration that registers them; the parts share certificates, server and process.
"""

from __future__ import annotations

import sys
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from zonewise.api import names
from zonewise.cli.options import cluster_options, health_options, listen, log_options, parts_option
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from yarl import URL

    from zonewise.kube.manager import Manager
    from zonewise.kube.server.admission import Webhook
    from zonewise.kube.server.cert_manager import CertManager
    from zonewise.objects import Key

OVERLAY, DISRUPTION = "overlay", "disruption"

_LAMEDUCK_SECONDS: Final = 5.0
"""How long a Service may still send reviews after the process reports that it is not ready."""


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
    "--service", metavar="NAMESPACE/NAME", help="The Service through which API servers reach the webhook, on port 443."
)
@click.option("--url", metavar="URL", help="The address of the webhook without a Service: https, a host and a port.")
@click.option("--port", type=click.IntRange(0, 65535), default=8443, show_default=True, help="Port to listen on.")
@click.option("--host", help="The address to listen on. [default: all]")
@click.option(
    "--secret",
    metavar="NAMESPACE/NAME",
    default="zonewise-system/zonewise-webhook",
    show_default=True,
    help="The Secret with the certificate authority and the callers' keys; created when it is absent.",
)
@click.option(
    "--client-ca",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Also demand a client certificate, signed by a CA in this PEM file: for API servers whose AdmissionConfiguration "
    "names a kubeconfig with one.",
)
@click.option(
    "--register/--no-register",
    default=True,
    show_default=True,
    help="Create and correct the webhook configurations zonewise-overlay and zonewise-disruption.",
)
@click.option(
    "--lameduck-seconds",
    type=click.FloatRange(0),
    help="Seconds to keep serving after SIGTERM. [default: 5 with --service, otherwise 0]",
)
@click.option("--print", "printed", is_flag=True, help="Print these configurations as YAML and exit.")
@click.option(
    "--lease-namespace",
    default="kube-system",
    show_default=True,
    help="Namespace of the lease of `zonewise controller --parts disruption`. Without a leader, evictions of pods "
    "under a budget are refused.",
)
@click.option(
    "--hints",
    type=click.Choice(["stable", "strict"]),
    default="stable",
    show_default=True,
    help="stable: automatic hints without refusals and flapping; strict: exactly as the stock controller computes them. "
    "Must match the flag of `zonewise controller`.",
)
@cluster_options
@health_options(8081)
@log_options
def webhook(**options: Any) -> None:
    """Serve admission webhooks: add hints to slices of the stock controller, and guard pods under a budget.

    While it is down, slices are stored unchanged and deletes pass; evictions in guarded namespaces are refused.
    """
    from zonewise import log
    from zonewise.kube import process
    from zonewise.kube.client import kubeconfig
    from zonewise.kube.manager import Manager

    if not options["printed"]:
        log.configure(options["log_format"], options["log_level"])
    address = _address(options["service"], options["url"])
    secret = _key("--secret", options["secret"])
    if options["printed"]:
        _print(address, secret, options)
        return
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    sys.exit(
        process.run(
            lambda health: _run(Manager(access, health), address, secret, options),
            listen=listen(options, access),
            unready_seconds=_lameduck_seconds(options),
        )
    )


def _lameduck_seconds(options: dict[str, Any]) -> float:
    if options["lameduck_seconds"] is not None:
        return float(options["lameduck_seconds"])
    return _LAMEDUCK_SECONDS if options["service"] else 0.0


@dataclass(frozen=True)
class _Address:
    """How API servers reach the webhook: through a Service, or at a URL. The certificate must have the names `hosts`."""

    hosts: tuple[str, ...]
    service: Key | None = None
    url: URL | None = None

    def client_config(self, name: str, key: str = "") -> dict[str, Any]:
        """Without the path of a Service: that and the CA bundle are injected, and no document resets them."""
        if self.service is not None:
            return {"service": {"namespace": self.service.namespace, "name": self.service.name, "port": 443}}
        assert self.url is not None
        return {"url": str(self.url.with_path(f"/{name}/{key}" if key else f"/{name}"))}


@dataclass(frozen=True)
class _Part:
    configuration_name: str
    """The webhook configurations that carry the CA bundle and the callers' key."""
    webhooks: list[Webhook[Any]]
    register: Callable[[str], Awaitable[None]]
    """With the key that callers use."""
    trouble: Callable[[], str | None] | None = None
    """Why it should get no requests now; None where stale caches do no harm."""


async def _run(manager: Manager, address: _Address, secret: Key, options: dict[str, Any]) -> None:
    from zonewise.kube.server.ca_injector import CaInjector
    from zonewise.kube.server.cert_manager import CertManager

    parts = {name: _PARTS[name](manager, address, secret, options) for name in options["parts"]}
    for name, part in parts.items():
        if part.trouble is not None:
            manager.health.add_ready(name, part.trouble)
    injectors = [
        CaInjector(manager.client, manager.caches, fields=f"metadata.name={part.configuration_name}")
        for part in parts.values()
    ]

    async def trust(bundle_pem: bytes, keys: Sequence[str]) -> None:
        for injector in injectors:
            await injector.inject(bundle_pem, keys)

    certificate = CertManager(manager.client, secret, address.hosts, trust, client_ca=options["client_ca"])
    for injector in injectors:
        injector.on_change(certificate.wake)
    manager.add("webhook", lambda: _serve(manager, list(parts.values()), certificate, options))
    await manager.run()


async def _serve(manager: Manager, parts: list[_Part], certificate: CertManager, options: dict[str, Any]) -> None:
    from zonewise.kube.server.admission import AdmissionServer

    await certificate.renew()
    await manager.caches.wait_synced()
    webhooks = [webhook for part in parts for webhook in part.webhooks]
    server = AdmissionServer(
        webhooks,
        certificate.context,
        certificate.accepts,
        host=options["host"],
        port=options["port"],
        is_stopping=lambda: manager.health.is_stopping,
    )
    async with server:
        for part in parts if options["register"] else ():
            await part.register(certificate.caller_key)
        manager.health.started()
        await certificate.run()


def _overlay(manager: Manager, address: _Address, _secret: Key, options: dict[str, Any]) -> _Part:
    from zonewise.routing import HintsForm
    from zonewise.slices import webhook as slice_webhook
    from zonewise.slices.informers import SliceInformers, SlicesMode

    informers = SliceInformers(manager.caches, SlicesMode.OVERLAY)
    handler = slice_webhook.SliceWebhook(manager.client, informers, HintsForm(options["hints"]))

    async def register(key: str) -> None:
        body = slice_webhook.configuration(address.client_config(slice_webhook.NAME, key))
        await slice_webhook.register(manager.client, body)

    return _Part(names.OVERLAY_CONFIGURATION, [handler.webhook()], register)


def _disruption(manager: Manager, address: _Address, secret: Key, options: dict[str, Any]) -> _Part:
    from zonewise.disruption import app

    guard = app.guard(manager.client, manager.caches, options["lease_namespace"])
    return _Part(
        names.DISRUPTION_CONFIGURATION,
        guard.webhooks(),
        lambda key: app.register(manager.client, _disruption_client_configs(address, key), secret.namespace),
        guard.trouble,
    )


_PARTS = {OVERLAY: _overlay, DISRUPTION: _disruption}


def _print(address: _Address, secret: Key, options: dict[str, Any]) -> None:
    import json

    import yaml

    documents = [document for name in options["parts"] for document in _DOCUMENTS[name](address, secret)]
    copies = json.loads(json.dumps(documents))  # YAML would write a shared value as an alias
    click.echo(yaml.safe_dump_all(copies, sort_keys=False, width=118), nl=False)


def _overlay_documents(address: _Address, _secret: Key) -> list[dict[str, Any]]:
    from zonewise.slices.webhook import NAME, configuration

    return [configuration(address.client_config(NAME))]


def _disruption_documents(address: _Address, secret: Key) -> list[dict[str, Any]]:
    from zonewise.disruption.webhook import registration

    return registration.documents(_disruption_client_configs(address), secret.namespace)


def _disruption_client_configs(address: _Address, key: str = "") -> dict[str, dict[str, Any]]:
    from zonewise.disruption.webhook import registration

    return {name: address.client_config(name, key) for name in (registration.EVICTIONS, registration.DELETES)}


_DOCUMENTS = {OVERLAY: _overlay_documents, DISRUPTION: _disruption_documents}


def _address(service: str | None, url: str | None) -> _Address:
    from yarl import URL

    if bool(service) == bool(url):
        raise UsageError("say how API servers reach the webhook: either --service NAMESPACE/NAME or --url URL")
    if service:
        key = _key("--service", service)
        return _Address((f"{key.name}.{key.namespace}.svc",), service=key)
    try:
        parsed = URL(url or "")
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}") from error
    if parsed.scheme != "https" or not parsed.host or parsed.path not in {"", "/"}:
        raise UsageError(f"--url {url}: write https, a host and a port, as in https://10.0.0.5:8443")
    return _Address((parsed.host,), url=parsed)


def _key(option: str, text: str) -> Key:
    from zonewise.objects import Key

    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise UsageError(f"{option} {text}: write a namespace and a name, as in zonewise-system/zonewise-webhook")
    return Key(namespace, name)
