"""The volume of a claim, explained from a live cluster: its pool, its domain, and which nodes reach it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final

from zonewise.api.names import CSI_DRIVER
from zonewise.ceph import config
from zonewise.ceph.decide import parameters, pool_choice, takeover
from zonewise.ceph.decide.domains import DomainLabels, describe
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.takeover import DOCUMENT, NO_TAKEOVERS, TakeoverError, TakeoverMap
from zonewise.diagnostics.decide.explain.volume import (
    VolumeFacts,
    VolumeReport,
    build_unbound_report,
    build_volume_report,
)
from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.errors import UsageError, ZonewiseError
from zonewise.kube.wire.errors import ApiError
from zonewise.objects import CONFIG_MAPS, NODES, Key, Node, Resource
from zonewise.objects.storage import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES

STORAGE_CLASSES: Final[Resource[dict[str, Any]]] = Resource(
    dict[str, Any], "StorageClass", "storageclasses", "storage.k8s.io", namespaced=False
)


class ForeignVolume(ZonewiseError):  # noqa: N818 - a fact about a volume
    """The volume belongs to another driver."""


async def explain_claim(reader: ClusterReader, claim: Key, labels: DomainLabels, config_map: Key) -> VolumeReport:
    missing = f"no claim {claim}: name it as NAME -n NAMESPACE, or NAMESPACE/NAME"
    spec = (await reader.get(PERSISTENT_VOLUME_CLAIMS, claim.name, claim.namespace, missing=missing)).spec
    nodes, (data, problems) = await asyncio.gather(reader.list(NODES), _read_config(reader, config_map))
    if not spec.volume_name:
        return await _explain_unbound(reader, claim, spec.storage_class_name or "", nodes, labels, data, problems)
    missing = f"{claim} is bound to volume {spec.volume_name}, which does not exist"
    volume = await reader.get(PERSISTENT_VOLUMES.whole(), spec.volume_name, missing=missing)
    if volume["spec"].get("csi", {}).get("driver") != CSI_DRIVER:
        raise ForeignVolume(f"{claim} has volume {spec.volume_name}, which {CSI_DRIVER} did not make")
    takeovers, errors = _takeovers(data, labels)
    return build_volume_report(VolumeFacts(str(claim), volume, nodes, labels, takeovers, (*problems, *errors)))


async def _read_config(reader: ClusterReader, key: Key) -> tuple[Mapping[str, str], tuple[str, ...]]:
    try:
        config_map = await reader.find(CONFIG_MAPS, key.name, key.namespace)
    except ApiError as error:
        return {}, (f"config map {key} can't be read ({error}), so takeovers and pools are not known",)
    if config_map is None:
        return {}, (f"config map {key} can't be read (not found), so takeovers and pools are not known",)
    return config_map.data, ()


def _takeovers(data: Mapping[str, str], labels: DomainLabels) -> tuple[TakeoverMap, tuple[str, ...]]:
    try:
        return takeover.parse_takeover_map(data, labels.names), ()
    except TakeoverError as error:
        return NO_TAKEOVERS, (str(error),)


async def _explain_unbound(
    reader: ClusterReader,
    claim: Key,
    class_name: str,
    nodes: Sequence[Node],
    labels: DomainLabels,
    data: Mapping[str, str],
    problems: tuple[str, ...],
) -> VolumeReport:
    """The pools that a volume would be made in, by the domain of the first pod that uses it."""
    storage_class = await reader.find(STORAGE_CLASSES, class_name) if class_name else {}
    if storage_class is None:
        return build_unbound_report(str(claim), class_name, (), (*problems, f"class {class_name}: not found"))
    if storage_class.get("provisioner") != CSI_DRIVER:
        raise ForeignVolume(f"{claim} is of class {class_name or 'none'}, which {CSI_DRIVER} does not serve")
    try:
        pool_config = config.parse(data.get(DOCUMENT, "{}"))
        rules = parameters.parse_parameters(storage_class.get("parameters") or {}, pool_config, labels.names)
    except (CsiError, UsageError) as error:
        return build_unbound_report(str(claim), class_name, (), (*problems, f"class {class_name}: {error}"))
    pools = []
    for segments in sorted({labels.segments(node.metadata.labels) for node in nodes}):
        fitting = pool_choice.narrowest_rules(rules, segments) if segments else ()
        names = ", ".join(rule.pool for rule in fitting) or "any of its pools: none is for this domain"
        pools.append((describe(segments), names))
    return build_unbound_report(str(claim), class_name, pools, problems)
