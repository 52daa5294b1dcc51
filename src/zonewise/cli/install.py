"""`zonewise install` and `zonewise uninstall`: apply and remove the manifests of Zonewise (`zonewise.install`)."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar
from urllib.parse import urlsplit

import click

from zonewise import __version__
from zonewise.cli.options import cluster_options
from zonewise.cli.printing import echo_data, output_option
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Sequence

    from zonewise.install.apply import ApplyOutcome
    from zonewise.install.components import InstallComponent, InstallMode, ManifestValues
    from zonewise.install.decide.document import Document
    from zonewise.install.decide.ownership import ManifestObject
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


def _namespace_name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", value):
        raise UsageError(f"-n {value!r} is no name of a namespace: use lower-case letters, digits and `-`")
    return value


def _image_name(_ctx: click.Context, _param: click.Parameter, value: str) -> str:
    if not re.fullmatch(r"[\w.:/@-]+", value):
        raise UsageError(f"--image {value!r} is no name of an image: write one such as registry.example.com/zonewise:1")
    return value


_namespace = click.option(
    "-n",
    "--namespace",
    default="zonewise-system",
    show_default=True,
    callback=_namespace_name,
    help="Namespace of the components. Only dns is in kube-system, where the Service kube-dns is.",
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
    callback=_image_name,
    help="Container image, built from the Containerfile, where nodes can pull it. csi needs the one of --target csi.",
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
@click.option(
    "--adopt",
    is_flag=True,
    help="Take over objects that Helm or kubectl made from the same manifests; includes --force-conflicts.",
)
@click.option("--wait", is_flag=True, help="Wait until every pod is ready.")
@click.option(
    "--timeout", type=click.FloatRange(1), default=120, show_default=True, help="How long to wait for pods, in seconds."
)
@cluster_options
@click.pass_context
def install(ctx: click.Context, /, **options: Any) -> None:
    """Install Zonewise in a cluster by server-side apply: workloads, permissions, custom resources and policies.

    A second run applies the differences. If the mode changes, or a component replaces another one (dns-node instead of
    dns), objects of the former are removed when the new pods are ready and the old ones gone.

    If an object that something else made has the name of one of ours, nothing is changed, and all such objects are named.
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
  zonewise uninstall --dry-run                what would be deleted, and what would be left behind and why
  zonewise uninstall --yes                    everything but budgets and what you keep in the namespace
  zonewise uninstall --purge                  these, too
  zonewise uninstall --only proxy             the proxy; its Services return to kube-proxy
"""
)
@_only("all")
@_namespace
@click.option(
    "--purge",
    is_flag=True,
    help="Also delete the CRD TopologyDisruptionBudget with all budgets, and the namespace with everything in it.",
)
@click.option("--keep-budgets", is_flag=True, help="With --purge: keep that CRD and all budgets.")
@click.option("--adopt", is_flag=True, help="Also remove objects that Helm or kubectl made from the same manifests.")
@click.option("--dry-run", is_flag=True, help="Print what would be deleted and left behind; change nothing.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@output_option("text", "json")
@cluster_options
def uninstall(**options: Any) -> None:
    """Remove Zonewise from a cluster.

    Webhook configurations are removed first, so that no request is refused meanwhile. Services of the node proxy return
    to kube-proxy. Objects that the components created are removed too: leases, certificates, annotations, and the
    nftables rules on nodes.

    Only what `zonewise install` or the programs made is removed. Budgets, and a namespace with objects of yours, are
    named and left behind without --purge.
    """
    from zonewise.install import components

    names = _words(options["only"])
    chosen = components.choose(names) if names else tuple(components.InstallComponent)
    values = components.ManifestValues(image="", namespace=options["namespace"])
    asyncio.run(_uninstall(_access(options), chosen, values, options))


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

    adopt, timeout = options["adopt"], options["timeout"]
    force = options["force_conflicts"] or adopt
    async with Client(access, wait_for_server=False) as client:
        wanted = await apply.find_objects(
            client, components.documents(chosen, mode, values), values.namespace, adopt=adopt
        )
        apply.refuse_foreign(wanted)
        documents = [obj.document for obj in wanted if not obj.foreign]
        superseded = await apply.find_objects(
            client, components.superseded(chosen, mode, values), values.namespace, adopt=adopt
        )
        if options["diff"]:
            return await _diff(client, documents, superseded, force=force)
        async for outcome in apply.apply(client, documents, force=force):
            click.echo(outcome)
        replaces = any(obj.live and not obj.foreign for obj in superseded)
        if options["wait"] or replaces:
            await apply.until_ready(client, documents, timeout)
        if replaces:  # pods that are still ending need their rights
            await apply.until_replaced(client, documents, timeout)
        async for outcome in apply.remove(client, superseded):
            click.echo(outcome)
    return 0


async def _diff(client: Client, documents: list[Document], superseded: list[ManifestObject], *, force: bool) -> int:
    from zonewise.install import apply

    differs = False
    async for difference in apply.compare(client, documents, force=force):
        click.echo(difference, nl=False)
        differs = True
    removed = apply.compare_removed(superseded)
    click.echo(removed, nl=False)
    return 1 if differs or removed else 0


async def _uninstall(
    access: ClusterAccess, chosen: Sequence[InstallComponent], values: ManifestValues, options: dict[str, Any]
) -> None:
    from dataclasses import replace

    from zonewise.install import remove
    from zonewise.install.components import InstallComponent
    from zonewise.kube.client.client import Client

    wanted = remove.RemovalOptions(**{name: options[name] for name in ("purge", "keep_budgets", "adopt", "dry_run")})
    async with Client(access, wait_for_server=False) as client:
        if not (options["yes"] or wanted.dry_run):
            loses = InstallComponent.DISRUPTION in chosen and wanted.purge and not wanted.keep_budgets
            budgets = await remove.count_budgets(client) if loses else 0
            await _confirm(
                chosen,
                access.server,
                budgets,
                remove.remove(client, chosen, values, replace(wanted, dry_run=True)),
            )
        outcomes = []
        async for outcome in remove.remove(client, chosen, values, wanted):
            outcomes.append(outcome)
            if options["output"] == "text":
                click.echo(f"{outcome}{' (dry run)' if wanted.dry_run else ''}")
    if options["output"] == "json":
        echo_data(remove.Removal(wanted.dry_run, outcomes), "json")
    elif not outcomes:
        click.echo(f"nothing of Zonewise is at {access.server}", err=True)


async def _confirm(
    chosen: Sequence[InstallComponent], server: str, budgets: int, plan: AsyncIterator[ApplyOutcome]
) -> None:
    lost = f", and all budgets with it (TopologyDisruptionBudget: {budgets})" if budgets else ""
    question = f"Remove {', '.join(chosen)} from {server}{lost}?"
    if not sys.stdin.isatty():
        raise UsageError(f"{question} Confirm with --yes, or look first with --dry-run: stdin is not a terminal")
    async for outcome in plan:
        click.echo(f"{outcome} (planned)", err=True)
    if not click.confirm(question, err=True):
        raise ZonewiseError("nothing was removed")
