"""`zonewise webhook`: answers API servers while they write EndpointSlices, and registers itself with them."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.options import cluster_options, log_options
from zonewise.errors import UsageError

if TYPE_CHECKING:
    from zonewise.kube.access import Access
    from zonewise.kube.health import Health
    from zonewise.objects import Key

_NOTICED_SECONDS = 5.0
"""How long a Service may still send us reviews after we said that we go."""


@click.command(
    epilog="""\b
Examples:
  zonewise webhook --service zonewise-system/zonewise-webhook    in the cluster, behind that Service
  zonewise webhook --url https://10.0.0.5:8443                   anywhere that API servers reach
  zonewise webhook --url https://10.0.0.5:8443 --print           what would be registered
""",
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
    help="Keep the MutatingWebhookConfiguration zonewise-overlay, or leave that to somebody else.",
)
@click.option("--print", "printed", is_flag=True, help="Print that configuration as YAML and end.")
@click.option(
    "--hints",
    type=click.Choice(["stable", "strict"]),
    default="stable",
    show_default=True,
    help="Automatic hints without refusals and flapping, or exactly as the stock controller computes them. "
    "Say the same to `zonewise controller`, or the two disagree.",
)
@cluster_options
@click.option(
    "--health-port",
    type=click.IntRange(0, 65535),
    default=8081,
    show_default=True,
    help="Where /metrics, /livez and /readyz are served; 0 for any free port, which the log names.",
)
@log_options
def webhook(**options: Any) -> None:
    """Lay hints over the EndpointSlices that the stock controller writes.

    While it is away nothing breaks: slices are stored as they come, and traffic is spread over all endpoints.
    """
    from zonewise import log
    from zonewise.kube import kubeconfig, process

    client_config, hosts = _reached_at(options["service"], options["url"])
    if options["printed"]:
        _print(client_config)
        return
    secret = _key("--secret", options["secret"])
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    log.configure(options["log_format"], options["log_level"])
    sys.exit(
        process.run(
            lambda health: _serve(health, access, client_config, hosts, secret, options),
            listen=process.Listen(port=options["health_port"]),
            unready_seconds=_NOTICED_SECONDS if options["service"] else 0.0,
        )
    )


async def _serve(
    health: Health,
    access: Access,
    client_config: dict[str, Any],
    hosts: list[str],
    secret: Key,
    options: dict[str, Any],
) -> None:
    import asyncio

    from zonewise.kube.admission import AdmissionServer
    from zonewise.kube.client import Client
    from zonewise.kube.informers import Caches
    from zonewise.kube.serving import ServingCertificate
    from zonewise.kube.webhooks import TrustInjector
    from zonewise.routing import HintsForm
    from zonewise.slices import webhook as overlaying
    from zonewise.slices.sources import Mode, Sources

    async with Client(access) as client:
        caches = Caches(client)
        sources = Sources(caches, Mode.OVERLAY)
        injector = TrustInjector(client, caches, fields=f"metadata.name={overlaying.CONFIGURATION_NAME}")
        certificate = ServingCertificate(client, secret, hosts, injector.inject)
        injector.on_change(certificate.wake)
        async with caches, asyncio.TaskGroup() as group:
            await certificate.renew()
            await caches.wait_synced()
            answering = overlaying.SliceWebhook(client, sources, HintsForm(options["hints"]))
            where = {"host": options["host"], "port": options["port"]}
            async with AdmissionServer([answering.webhook()], certificate.context, **where):
                if options["register"]:
                    await overlaying.register(client, overlaying.configuration(client_config))
                group.create_task(certificate.run(), name="certificates")
                health.started()
                await asyncio.Event().wait()


def _print(client_config: dict[str, Any]) -> None:
    import yaml

    from zonewise.slices.webhook import configuration

    click.echo(yaml.safe_dump(configuration(client_config), sort_keys=False), nl=False)


def _reached_at(service: str | None, url: str | None) -> tuple[dict[str, Any], list[str]]:
    """How API servers are told to reach us, and the names our certificate must have for that."""
    from yarl import URL

    from zonewise.slices.webhook import NAME

    if bool(service) == bool(url):
        raise UsageError("say how API servers reach the webhook: either --service NAMESPACE/NAME or --url URL")
    if service:
        key = _key("--service", service)
        reference = {"namespace": key.namespace, "name": key.name, "path": f"/{NAME}", "port": 443}
        return {"service": reference}, [f"{key.name}.{key.namespace}.svc"]
    try:
        parsed = URL(url or "")
    except ValueError as error:
        raise UsageError(f"--url {url}: {error}") from error
    if parsed.scheme != "https" or not parsed.host or parsed.path not in {"", "/"}:
        raise UsageError(f"--url {url}: write https, a host and a port, as in https://10.0.0.5:8443")
    return {"url": str(parsed.with_path(f"/{NAME}"))}, [parsed.host]


def _key(option: str, text: str) -> Key:
    from zonewise.objects import Key

    namespace, _, name = text.partition("/")
    if not namespace or not name or "/" in name:
        raise UsageError(f"{option} {text}: write a namespace and a name, as in zonewise-system/zonewise-webhook")
    return Key(namespace, name)
