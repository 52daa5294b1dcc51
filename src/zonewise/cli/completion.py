"""`zonewise completion`: the script that teaches a shell our commands and flags, and what it completes them with."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import click
from click.shell_completion import get_completion_class


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
    keys = _listed(ctx, "services", namespace)
    names = [name if namespace else f"{place}/{name}" for place, name in keys]
    return [name for name in names if name.startswith(incomplete)]


def node_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return [name for _, name in _listed(ctx, "nodes", "") if name.startswith(incomplete)]


_PATIENCE_SECONDS = 2.0


def _listed(ctx: click.Context, plural: str, namespace: str) -> list[tuple[str, str]]:
    """Namespaces and names, of the cluster that the line names; a shell is told of nothing where it can't be asked."""
    import asyncio

    from zonewise.errors import ZonewiseError
    from zonewise.kube import kubeconfig
    from zonewise.kube.client import Client
    from zonewise.objects import NODES, SERVICES

    async def ask() -> list[tuple[str, str]]:
        access = kubeconfig.find(ctx.params.get("kubeconfig"), ctx.params.get("context"))
        resource: Any = {"nodes": NODES, "services": SERVICES}[plural]
        async with asyncio.timeout(_PATIENCE_SECONDS), Client(access, wait_for_server=False) as client:
            found = await client.list(resource, namespace, resource_version="0", page_size=0)
        return [(each.metadata.namespace, each.metadata.name) for each in found.items]

    with suppress(OSError, ZonewiseError, TimeoutError):
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
