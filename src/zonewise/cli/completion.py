"""`zonewise completion`: the completion script of a shell, and the functions that complete names of objects."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import click
from click.shell_completion import get_completion_class

if TYPE_CHECKING:
    from zonewise.objects import Resource
    from zonewise.objects.meta import Metadata


def lab_names(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Labs on this machine. Errors complete to nothing: the shell would print them into the line."""
    from zonewise.lab import state

    with suppress(OSError):
        return [name for name in state.names() if name.startswith(incomplete)]
    return []


def zone_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Zones of the lab that the line names, without those already on the line."""
    from zonewise.errors import ZonewiseError
    from zonewise.lab import state

    with suppress(OSError, ZonewiseError):
        lab = state.find(ctx.params.get("name") or state.DEFAULT_NAME)
        zones = lab.zones if lab is not None else ()
        return [zone for zone in zones if zone.startswith(incomplete) and zone not in ctx.params.values()]
    return []


def service_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """As NAMESPACE/NAME, or as NAME with --namespace."""
    namespace = ctx.params.get("namespace") or ""
    services = _list(ctx, "services", lambda _: namespace)
    names = [service.name if namespace else f"{service.namespace}/{service.name}" for service in services]
    return _matching(names, incomplete)


def pod_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Pods of one namespace: the one before the slash, of -n, or of the context. All pods of a cluster are too many."""
    return _in_namespace(ctx, "pods", incomplete)


def claim_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return _in_namespace(ctx, "persistentvolumeclaims", incomplete)


def node_names(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[str]:
    """Nodes, without those already on the line."""
    given = tuple(ctx.params.get(param.name or "") or ())
    return [name for name in _matching([node.name for node in _list(ctx, "nodes")], incomplete) if name not in given]


def namespace_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    return _matching([namespace.name for namespace in _list(ctx, "namespaces")], incomplete)


def node_zones(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Zones in the labels of nodes."""
    from zonewise.topology import zone_of

    zones = {zone_of(node.labels) or "" for node in _list(ctx, "nodes")}
    return _matching(sorted(zones - {""}), incomplete)


def context_names(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    from zonewise.kube.client import kubeconfig

    with suppress(Exception):
        return _matching(kubeconfig.contexts(ctx.params.get("kubeconfig")), incomplete)
    return []


_TIMEOUT_SECONDS: Final = 2.0


def _in_namespace(ctx: click.Context, kind: str, incomplete: str) -> list[str]:
    before, slash, _ = incomplete.rpartition("/")
    namespace = before or ctx.params.get("namespace") or ""
    objects = _list(ctx, kind, lambda default: namespace or default)
    return _matching([f"{before}{slash}{metadata.name}" for metadata in objects], incomplete)


def _matching(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _list(ctx: click.Context, kind: str, namespace: Callable[[str], str] = lambda _: "") -> list[Metadata]:
    """Objects of the cluster that the line names. `namespace` chooses one, given the context's.

    Every error gives an empty list: the shell would print it into the line that is being typed.
    """
    import asyncio

    from zonewise.kube.client import kubeconfig
    from zonewise.kube.client.client import Client
    from zonewise.objects import NAMESPACES, NODES, PODS, SERVICES
    from zonewise.objects.storage import PERSISTENT_VOLUME_CLAIMS

    if ctx.params.get("file") is not None:
        return []  # a dump, not a cluster

    async def read() -> list[Metadata]:
        access = kubeconfig.find(ctx.params.get("kubeconfig"), ctx.params.get("context"))
        resources: tuple[Resource[Any], ...] = (NAMESPACES, NODES, PERSISTENT_VOLUME_CLAIMS, PODS, SERVICES)
        resource = next(resource for resource in resources if resource.plural == kind)
        async with asyncio.timeout(_TIMEOUT_SECONDS), Client(access, wait_for_server=False) as client:
            objects = await client.list(resource, namespace(access.namespace), resource_version="0", page_size=0)
        return [item.metadata for item in objects.items]

    with suppress(Exception):
        return asyncio.run(read())
    return []


@click.command(epilog='Example: eval "$(zonewise completion bash)", for example in ~/.bashrc.')
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL."""
    from zonewise.cli.main import cli

    script = get_completion_class(shell)
    assert script is not None, "click supports all three shells"
    click.echo(script(cli, {}, "zonewise", "_ZONEWISE_COMPLETE").source())
