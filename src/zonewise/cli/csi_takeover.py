"""`zonewise csi takeover` and `giveback`: add and remove entries of the takeover map by hand."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from zonewise.cli.csi_server import CONFIG_MAP, DOMAIN_LABELS, config_map_key
from zonewise.cli.options import cluster_options
from zonewise.errors import UsageError, ZonewiseError

if TYPE_CHECKING:
    from zonewise.ceph.decide.takeover import TakeoverMap
    from zonewise.kube.wire.access import ClusterAccess
    from zonewise.objects import Key

_LABELS = click.option(
    "--domain-labels", default=DOMAIN_LABELS, show_default=True, help="Domain labels; must match the driver's flag."
)
_CONFIG_MAP = click.option(
    "--config-map",
    default=CONFIG_MAP,
    show_default=True,
    metavar="NAMESPACE/NAME",
    help="ConfigMap with the takeover map.",
)
_DRY_RUN = click.option("--dry-run", is_flag=True, help="Print the resulting map without writing it.")


@click.command(
    epilog="""\b
Examples:
  zonewise csi takeover zone=zone-a zone-b zone-c     nodes of these two zones may use zone-a's volumes
  zonewise csi takeover zone-a all
"""
)
@click.argument("source")
@click.argument("targets", nargs=-1, required=True)
@_LABELS
@_CONFIG_MAP
@_DRY_RUN
@cluster_options
def takeover(source: str, targets: tuple[str, ...], **options: Any) -> None:
    """Let nodes of TARGETS, or of `all` domains, use the volumes of the failed domain SOURCE.

    Make sure first that no node of SOURCE still writes: a node cut off from Kubernetes may still reach Ceph.
    """
    _change(options, {source: targets}, ())


@click.command(epilog="Example: zonewise csi giveback zone=zone-a")
@click.argument("source")
@_LABELS
@_CONFIG_MAP
@_DRY_RUN
@cluster_options
def giveback(source: str, **options: Any) -> None:
    """End the takeover of the domain SOURCE. Pods that run elsewhere stay until they are recreated."""
    _change(options, {}, (source,))


def _change(options: dict[str, Any], added: Mapping[str, Sequence[str]], removed: Sequence[str]) -> None:
    from zonewise.ceph.decide.domains import DomainLabels
    from zonewise.kube.client import kubeconfig

    names = DomainLabels.parse(options["domain_labels"]).names
    _check(added, names)
    access = kubeconfig.find(options["kubeconfig"], options["context"])
    config_map_name = config_map_key(options["config_map"])
    result = asyncio.run(_write(access, config_map_name, names, added, removed, dry_run=options["dry_run"]))
    click.echo(
        f"{config_map_name}{' would have' if options['dry_run'] else ' has'}:"
        if result
        else f"{config_map_name}: no takeover"
    )
    for source, targets in result.to_json().items():
        click.echo(f"  {source} is taken over by {', '.join(targets)}")


def _check(added: Mapping[str, Sequence[str]], names: Sequence[str]) -> None:
    """An entry that no map can hold is a usage error."""
    from zonewise.ceph.decide.takeover import MAP, TakeoverError, parse_takeover_map

    try:
        parse_takeover_map({MAP: json.dumps({source: list(targets) for source, targets in added.items()})}, names)
    except TakeoverError as error:
        raise UsageError(str(error)) from None


async def _write(
    access: ClusterAccess,
    config_map_name: Key,
    names: Sequence[str],
    added: Mapping[str, Sequence[str]],
    removed: Sequence[str],
    *,
    dry_run: bool,
) -> TakeoverMap:
    """Refuses an unreadable map. A concurrent write is a conflict."""
    from zonewise.ceph.decide.takeover import edit_config_map, parse_takeover_map
    from zonewise.kube.client.client import Client
    from zonewise.kube.wire.errors import NotFound
    from zonewise.kube.wire.patch import MergePatch
    from zonewise.objects import CONFIG_MAPS, ConfigMap

    async with Client(access, wait_for_server=False) as client:
        try:
            config_map: ConfigMap | None = await client.get(
                CONFIG_MAPS, config_map_name.name, config_map_name.namespace
            )
        except NotFound:
            config_map = None
        data = config_map.data if config_map else {}
        before = parse_takeover_map(data, names)
        gone = [_entry(before, source, names) for source in removed]
        changes = edit_config_map(
            data, {_spelled(before, source, names): targets for source, targets in added.items()}, gone
        )
        result = parse_takeover_map({**data, **changes}, names)
        if config_map is None:
            body = {"metadata": {"name": config_map_name.name}, "data": changes}
            await client.create(CONFIG_MAPS, body, config_map_name.namespace, dry_run=dry_run)
        else:
            version = {"resourceVersion": config_map.metadata.resource_version}
            patch = MergePatch({"metadata": version, "data": changes})
            await client.patch(CONFIG_MAPS, config_map_name.name, patch, config_map_name.namespace, dry_run=dry_run)
    return result


def _entry(result: TakeoverMap, source_text: str, names: Sequence[str]) -> str:
    """The entry of the map that `source_text` names."""
    config_map = _meant(result, source_text, names)
    if len(config_map) != 1:
        known = ", ".join(result.to_json()) or "none"
        raise ZonewiseError(f"{source_text!r} is not the name of one takeover; there are: {known}")
    return config_map[0]


def _spelled(takeovers: TakeoverMap, source: str, names: Sequence[str]) -> str:
    """As the map spells it, so that an existing entry is replaced."""
    matches = _meant(takeovers, source, names)
    return matches[0] if len(matches) == 1 else source


def _meant(takeovers: TakeoverMap, source: str, names: Sequence[str]) -> list[str]:
    """Entries of the same value whose label is the same, or absent on either side."""
    from zonewise.ceph.decide.domains import short_name

    label, _, value = source.rpartition("=")
    name = short_name(label)
    if label and name not in names:
        return []
    return [
        str(entry) for entry in takeovers.entries if entry.value == value and (not name or entry.name in {"", name})
    ]
