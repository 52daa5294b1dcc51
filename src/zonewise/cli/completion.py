"""`zonewise completion`: the script that teaches a shell our commands and flags, and what it completes them with."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:
    from zonewise.objects import Resource
    from zonewise.objects.meta import Metadata


def lab_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Of the labs on this machine; a shell is never told of errors."""
    from zonewise.lab import state

    with suppress(OSError):
        return [name for name in state.names() if name.startswith(incomplete)]
    return []


def zone_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Of the lab that is named so far, but for zones that stand on the line already."""
    from zonewise.errors import ZonewiseError
    from zonewise.lab import state

    with suppress(OSError, ZonewiseError):
        found = state.find(ctx.params.get("name") or state.DEFAULT_NAME)
        zones = found.zones if found is not None else ()
        return [zone for zone in zones if zone.startswith(incomplete) and zone not in ctx.params.values()]
    return []


def service_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """As NAMESPACE/NAME; as NAME within the namespace that was said."""
    namespace = ctx.params.get("namespace") or ""
    found = _listed(ctx, "services", lambda _: namespace)
    names = [each.name if namespace else f"{each.namespace}/{each.name}" for each in found]
    return _beginning(names, incomplete)


def pod_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Of one namespace: that before the slash, that of -n, or the context's; nobody wants a cluster's pods in a shell."""
    return _within(ctx, "pods", incomplete)


def claim_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return _within(ctx, "persistentvolumeclaims", incomplete)


def node_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """But for those that stand on the line already."""
    said = ctx.params.get(param.name or "") or ()
    return [
        name
        for name in _beginning([each.name for each in _listed(ctx, "nodes")], incomplete)
        if name not in tuple(said)
    ]


def namespace_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return _beginning([each.name for each in _listed(ctx, "namespaces")], incomplete)


def node_zones(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Those that nodes are labelled with."""
    from zonewise.topology import zone_of

    zones = {zone_of(each.labels) or "" for each in _listed(ctx, "nodes")}
    return _beginning(sorted(zones - {""}), incomplete)


def context_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from zonewise.kube.client import kubeconfig

    with suppress(Exception):
        return _beginning(kubeconfig.contexts(ctx.params.get("kubeconfig")), incomplete)
    return []


_PATIENCE_SECONDS = 2.0


def _within(ctx: click.Context, kind: str, incomplete: str) -> list[str]:
    before, slash, _ = incomplete.rpartition("/")
    said = before or ctx.params.get("namespace") or ""
    found = _listed(ctx, kind, lambda usual: said or usual)
    return _beginning([f"{before}{slash}{each.name}" for each in found], incomplete)


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _listed(ctx: click.Context, kind: str, namespace: Callable[[str], str] = lambda _: "") -> list[Metadata]:
    """Of the cluster that the line names; `namespace` is given the context's.

    Whatever goes wrong, a shell is told of nothing: a line that is being written is no place for errors.
    """
    import asyncio

    from zonewise.kube.client import kubeconfig
    from zonewise.kube.client.client import Client
    from zonewise.objects import NAMESPACES, NODES, PODS, SERVICES
    from zonewise.objects.storage import PERSISTENT_VOLUME_CLAIMS

    if ctx.params.get("file") is not None:
        return []  # a dump, not a cluster

    async def ask() -> list[Metadata]:
        access = kubeconfig.find(ctx.params.get("kubeconfig"), ctx.params.get("context"))
        known: tuple[Resource[Any], ...] = (NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES)
        resource = next(each for each in known if each.plural == kind)
        async with asyncio.timeout(_PATIENCE_SECONDS), Client(access, wait_for_server=False) as client:
            found = await client.list(resource, namespace(access.namespace), resource_version="0", page_size=0)
        return [each.metadata for each in found.items]

    with suppress(Exception):
        return asyncio.run(ask())
    return []


@click.command(epilog='Example: eval "$(zonewise completion bash)", best kept in ~/.bashrc.')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from zonewise.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None, "click knows the three shells we offer"
    click.echo(script(cli, {}, "zonewise", "_ZONEWISE_COMPLETE").source())
