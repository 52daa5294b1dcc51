"""`zonewise install` and `zonewise uninstall`: apply and remove the manifests of Zonewise (`zonewise.install`)."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from zonewise import __version__
from zonewise.cli.options import cluster_options
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from zonewise.install.components import Document, InstallComponent, InstallMode, ManifestValues
    from zonewise.kube.client.client import Client
    from zonewise.kube.wire.access import ClusterAccess


F = TypeVar("F", bound=Callable[..., Any])
_COMPONENTS: Final = "slices, disruption, proxy, dashboard, proxy-all, dns, dns-behind, dns-node, csi"


def _component_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from zonewise.install.components import InstallComponent

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in InstallComponent if name.startswith(last)]


def _only(default: str) -> Callable[[F], F]:
    return click.option(
        "--only",
        default="",
        metavar="NAME,...",
        shell_complete=_component_names,
        help=f"Components, separated by commas: {_COMPONENTS}. [default: {default}]",
    )


_namespace = click.option(
    "-n", "--namespace", default="zonewise-system", show_default=True, help="Namespace of the components."
)


@click.command(
    epilog="""\b
Examples:
  zonewise install -o yaml | less             the manifests, with a reason for every permission
  zonewise install --diff                     what would change; exits with 1 if something would
  zonewise install --image registry.example.com/zonewise:1 --wait
  zonewise install --mode own --only slices   on a control plane without the stock EndpointSlice controller
  zonewise install --only dns                 next to CoreDNS, behind the Service kube-dns
"""
)
@_only("the first four")
@click.option(
    "--mode",
    type=click.Choice(["overlay", "own"]),
    default="overlay",
    show_default=True,
    help="overlay: add hints to the slices of the stock controller. own: write all slices; the stock controller must be off.",
)
@click.option(
    "--image",
    default=f"zonewise:{__version__}",
    show_default=True,
    help="Container image, as built from the Containerfile.",
)
@_namespace
@click.option(
    "--replicas", type=click.IntRange(1, 9), default=2, show_default=True, help="Replicas of each Deployment."
)
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), help="Print the manifests without applying them.")
@click.option(
    "--diff", is_flag=True, help="Print what would be changed and deleted, by a server-side dry run; change nothing."
)
@click.option("--force-conflicts", is_flag=True, help="Overwrite fields of other field managers.")
@click.option("--wait", is_flag=True, help="Wait until every pod is ready.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=120, show_default=True, help="Timeout of --wait in seconds."
)
@cluster_options
@click.pass_context
def install(ctx: click.Context, /, **options: Any) -> None:
    """Install Zonewise in a cluster by server-side apply: workloads, permissions, custom resources and policies.

    A second run applies the differences. If the mode changes, or a component replaces another one (dns-node instead of
    dns), objects of the former are removed; with --wait, after the new pods are ready.
    """
    from zonewise.install import components

    if options["diff"] and options["output"]:
        raise UsageError("use only one of --diff and --output")
    chosen = components.choose(_words(options["only"]))
    mode = components.InstallMode(options["mode"])
    access = None if options["output"] else _access(options)
    values = components.ManifestValues(
        image=options["image"],
        namespace=options["namespace"],
        replicas=options["replicas"],
        api_server=_server(access),
    )
    if options["output"]:
        _print(options["output"], chosen, mode, values)
    else:
        assert access is not None
        ctx.exit(asyncio.run(_install(access, chosen, mode, values, options)))


@click.command(
    epilog="""\b
Examples:
  zonewise uninstall --yes                    everything, including budgets
  zonewise uninstall --keep-budgets           everything but the CRD TopologyDisruptionBudget and its objects
  zonewise uninstall --only proxy             the proxy; its Services return to kube-proxy
"""
)
@_only("all")
@_namespace
@click.option("--keep-budgets", is_flag=True, help="Keep the CRD TopologyDisruptionBudget and all budgets.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@cluster_options
def uninstall(**options: Any) -> None:
    """Remove Zonewise from a cluster completely.

    Webhook configurations are removed first, so that no request is refused meanwhile. Services of the node proxy return
    to kube-proxy. Objects that the components created are removed too: leases, certificates, annotations, and the
    nftables rules on nodes.
    """
    from zonewise.install import components

    names = _words(options["only"])
    chosen = components.choose(names) if names else tuple(components.InstallComponent)
    values = components.ManifestValues(image="", namespace=options["namespace"])
    access = _access(options)
    asyncio.run(_uninstall(access, chosen, values, keep=options["keep_budgets"], confirmed=options["yes"]))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _access(options: dict[str, Any]) -> ClusterAccess:
    from zonewise.kube.client import kubeconfig

    return kubeconfig.find(options["kubeconfig"], options["context"])


def _server(access: ClusterAccess | None) -> tuple[str, int]:
    """Printed manifests get a placeholder."""
    url = urlsplit(access.server if access else "https://api.example.com:6443")
    return url.hostname or "", url.port or 443


def _print(output: str, chosen: Sequence[InstallComponent], mode: InstallMode, values: ManifestValues) -> None:
    import json

    from zonewise.install import components

    if output == "yaml":
        click.echo(components.text(chosen, mode, values), nl=False)
    else:
        items = components.documents(chosen, mode, values)
        click.echo(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=2))


async def _install(
    access: ClusterAccess,
    chosen: Sequence[InstallComponent],
    mode: InstallMode,
    values: ManifestValues,
    options: dict[str, Any],
) -> int:
    from zonewise.install import apply, components
    from zonewise.kube.client.client import Client

    force = options["force_conflicts"]
    superseded = components.superseded(chosen, mode, values)
    async with Client(access, wait_for_server=False) as client:
        documents = await _with_own_namespace(client, components.documents(chosen, mode, values))
        if options["diff"]:
            return await _diff(client, documents, superseded, force=force)
        async for outcome in apply.apply(client, documents, force=force):
            click.echo(outcome)
        if options["wait"]:  # before the objects that it replaces are removed
            await apply.until_ready(client, documents, options["timeout"])
        async for outcome in apply.remove(client, superseded):
            click.echo(outcome)
    return 0


async def _diff(client: Client, documents: list[Document], superseded: list[Document], *, force: bool) -> int:
    from zonewise.install import apply

    differs = False
    for differences in (apply.compare(client, documents, force=force), apply.compare_removed(client, superseded)):
        async for difference in differences:
            click.echo(difference, nl=False)
            differs = True
    return 1 if differs else 0


async def _with_own_namespace(client: Client, documents: list[Document]) -> list[Document]:
    """A namespace that Zonewise did not create is used unchanged, and never owned."""
    from zonewise.install import apply
    from zonewise.install.components import PART_OF

    kept = []
    for document in documents:
        live = await apply.find(client, document) if document["kind"] == "Namespace" else None
        if live is None or PART_OF.items() <= live["metadata"].get("labels", {}).items():
            kept.append(document)
    return kept


async def _uninstall(
    access: ClusterAccess, chosen: Sequence[InstallComponent], values: ManifestValues, *, keep: bool, confirmed: bool
) -> None:
    from zonewise.install import remove
    from zonewise.install.components import InstallComponent
    from zonewise.kube.client.client import Client
    from zonewise.kube.wire.errors import NotFound
    from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS

    async with Client(access, wait_for_server=False) as client:
        if not confirmed:
            budgets = 0
            if InstallComponent.DISRUPTION in chosen and not keep:
                with suppress(NotFound):
                    budgets = len((await client.list(TOPOLOGY_DISRUPTION_BUDGETS)).items)
            _confirm(chosen, access.server, budgets)
        nothing = True
        async for outcome in remove.remove(client, chosen, values, keep_budgets=keep):
            click.echo(outcome)
            nothing = False
        if nothing:
            click.echo(f"nothing of Zonewise is at {access.server}", err=True)


def _confirm(chosen: Sequence[InstallComponent], server: str, budgets: int) -> None:
    lost = f", and with it {budgets} budgets (TopologyDisruptionBudget)" if budgets else ""
    question = f"Remove {', '.join(chosen)} from {server}{lost}?"
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Confirm with --yes: stdin is not a terminal")
    if not click.confirm(question, err=True):
        raise ZonewiseError("nothing was removed")
