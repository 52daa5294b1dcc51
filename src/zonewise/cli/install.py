"""`zonewise install` and `zonewise uninstall`: Zonewise into a cluster, and out of it. All is done by `zonewise.install`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any
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


def _component_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from zonewise.install.components import InstallComponent

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in InstallComponent if name.startswith(last)]


_only = click.option(
    "--only",
    default="",
    metavar="NAME,...",
    shell_complete=_component_names,
    help="Which components: slices, disruption, proxy, dashboard; not by default: proxy-all, dns, dns-behind, dns-node, csi.",
)
_namespace = click.option(
    "-n", "--namespace", default="zonewise-system", show_default=True, help="Where the programs live."
)


@click.command(
    epilog="""\b
Examples:
  zonewise install -o yaml | less             what would be applied, with the reason of every right
  zonewise install --diff                     how that differs from what is there; 1 when it does
  zonewise install --image registry.example.com/zonewise:1 --wait
  zonewise install --mode own --only slices   on a control plane without the stock EndpointSlice controller
  zonewise install --only dns                 beside CoreDNS, behind the Service kube-dns
"""
)
@_only
@click.option(
    "--mode",
    type=click.Choice(["overlay", "own"]),
    default="overlay",
    show_default=True,
    help="Hints on the slices of the stock controller, or all slices by ours: the stock one must then be off.",
)
@click.option("--image", default=f"zonewise:{__version__}", show_default=True, help="As built from the Containerfile.")
@_namespace
@click.option("--replicas", type=click.IntRange(1, 9), default=2, show_default=True, help="Of each Deployment.")
@click.option("-o", "--output", type=click.Choice(["yaml", "json"]), help="Print the manifests and apply nothing.")
@click.option(
    "--diff", is_flag=True, help="Print what installing would change and delete, as the API server sees it; do nothing."
)
@click.option("--force-conflicts", is_flag=True, help="Overwrite fields that others have written.")
@click.option("--wait", is_flag=True, help="Until every pod is ready.")
@click.option("--timeout", type=click.FloatRange(1), default=120, show_default=True, help="In seconds, with --wait.")
@cluster_options
@click.pass_context
def install(ctx: click.Context, /, **options: Any) -> None:
    """Put Zonewise into a cluster: programs, rights, budgets and policies, by server-side apply.

    Applied again it changes what differs. In another mode, or with another component for the same work (dns-node in the
    place of dns), it also removes what only the former had; with --wait, once the new pods are ready.
    """
    from zonewise.install import components

    if options["diff"] and options["output"]:
        raise UsageError("--diff prints a difference and --output the manifests: ask for one of them")
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
  zonewise uninstall --yes                    everything, also the budgets
  zonewise uninstall --keep-budgets           all but the kind TopologyDisruptionBudget and its objects
  zonewise uninstall --only proxy             its Services go back to kube-proxy, its rules leave the nodes
"""
)
@_only
@_namespace
@click.option("--keep-budgets", is_flag=True, help="Leave the kind TopologyDisruptionBudget, and so all budgets.")
@click.option("--yes", is_flag=True, help="Don't ask.")
@cluster_options
def uninstall(**options: Any) -> None:
    """Take Zonewise out of a cluster: nothing of it stays.

    What makes API servers ask us goes first, so that nothing is refused meanwhile. Services that the node proxy serves go
    back to kube-proxy. Also removed is what our programs made or wrote: leases, certificates, annotations, nodes' rules.
    """
    from zonewise.install import components

    names = _words(options["only"])
    chosen = components.choose(names) if names else tuple(components.InstallComponent)
    values = components.ManifestValues(image="", namespace=options["namespace"])
    access = _access(options)
    asyncio.run(_uninstall(access, chosen, values, keep=options["keep_budgets"], sure=options["yes"]))


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _access(options: dict[str, Any]) -> ClusterAccess:
    from zonewise.kube.client import kubeconfig

    return kubeconfig.find(options["kubeconfig"], options["context"])


def _server(access: ClusterAccess | None) -> tuple[str, int]:
    """For printed manifests a place to write it."""
    found = urlsplit(access.server if access else "https://api.example.com:6443")
    return found.hostname or "", found.port or 443


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
    gone = components.superseded(chosen, mode, values)
    async with Client(access, wait_for_server=False) as client:
        documents = await _with_own_namespace(client, components.documents(chosen, mode, values))
        if options["diff"]:
            return await _diff(client, documents, gone, force=force)
        async for outcome in apply.apply(client, documents, force=force):
            click.echo(outcome)
        if options["wait"]:  # before what it replaces is gone
            await apply.until_ready(client, documents, options["timeout"])
        async for outcome in apply.remove(client, gone):
            click.echo(outcome)
    return 0


async def _diff(client: Client, documents: list[Document], gone: list[Document], *, force: bool) -> int:
    from zonewise.install import apply

    differs = False
    for found in (apply.compare(client, documents, force=force), apply.compare_removed(client, gone)):
        async for said in found:
            click.echo(said, nl=False)
            differs = True
    return 1 if differs else 0


async def _with_own_namespace(client: Client, documents: list[Document]) -> list[Document]:
    """A namespace that somebody else made is used as it is, and stays theirs."""
    from zonewise.install import apply
    from zonewise.install.components import PART_OF

    kept = []
    for document in documents:
        live = await apply.find(client, document) if document["kind"] == "Namespace" else None
        if live is None or PART_OF.items() <= live["metadata"].get("labels", {}).items():
            kept.append(document)
    return kept


async def _uninstall(
    access: ClusterAccess, chosen: Sequence[InstallComponent], values: ManifestValues, *, keep: bool, sure: bool
) -> None:
    from zonewise.install import remove
    from zonewise.install.components import InstallComponent
    from zonewise.kube.client.client import Client
    from zonewise.kube.wire.errors import NotFound
    from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS

    async with Client(access, wait_for_server=False) as client:
        if not sure:
            budgets = 0
            if InstallComponent.DISRUPTION in chosen and not keep:
                try:
                    budgets = len((await client.list(TOPOLOGY_DISRUPTION_BUDGETS)).items)
                except NotFound:
                    budgets = 0
            _ask(chosen, access.server, budgets)
        nothing = True
        async for outcome in remove.remove(client, chosen, values, keep_budgets=keep):
            click.echo(outcome)
            nothing = False
        if nothing:
            click.echo(f"nothing of Zonewise is at {access.server}", err=True)


def _ask(chosen: Sequence[InstallComponent], server: str, budgets: int) -> None:
    lost = f", and with it {budgets} budgets (TopologyDisruptionBudget)" if budgets else ""
    question = f"Remove {', '.join(chosen)} from {server}{lost}?"
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Say so with --yes: nobody can be asked here")
    if not click.confirm(question, err=True):
        raise ZonewiseError("nothing was removed")
