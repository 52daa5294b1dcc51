"""Reads from a cluster, once, what `volumeaccount` needs to speak of a claim's volume. Changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from zonewise.api.names import CSI_DRIVER
from zonewise.ceph import config
from zonewise.ceph.decide import parameters, pool_choice, takeover
from zonewise.ceph.decide.domains import DomainLabels, describe
from zonewise.ceph.decide.errors import CsiError
from zonewise.ceph.decide.takeover import DOCUMENT, NO_TAKEOVERS, TakeoverError, TakeoverMap
from zonewise.diagnostics.decide.explain import volume as explain_volume
from zonewise.diagnostics.decide.explain.volume import VolumeFacts, VolumeReport
from zonewise.errors import UsageError, ZonewiseError
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, NotFound
from zonewise.objects import CONFIG_MAPS, NODES, Key, Node, Resource
from zonewise.objects.storage import PERSISTENT_VOLUME_CLAIMS, PERSISTENT_VOLUMES

STORAGE_CLASSES: Final[Resource[dict[str, Any]]] = Resource(
    dict[str, Any], "StorageClass", "storageclasses", "storage.k8s.io", namespaced=False
)


class ForeignVolume(ZonewiseError):  # noqa: N818 - a fact about a volume
    """The volume is another driver's."""


async def inquire(client: Client, claim: Key, labels: DomainLabels, config_map: Key) -> VolumeReport:
    try:
        found = await client.get(PERSISTENT_VOLUME_CLAIMS, claim.name, claim.namespace)
    except NotFound:
        raise ZonewiseError(f"no claim {claim}: name it as NAME -n NAMESPACE, or NAMESPACE/NAME") from None
    nodes = (await client.list(NODES)).items
    data, problems = await _config(client, config_map)
    if not found.spec.volume_name:
        return await _waiting(client, claim, found.spec.storage_class_name or "", nodes, labels, data, problems)
    volume = await client.get(PERSISTENT_VOLUMES.whole(), found.spec.volume_name)
    if volume["spec"].get("csi", {}).get("driver") != CSI_DRIVER:
        raise ForeignVolume(f"{claim} has volume {found.spec.volume_name}, which {CSI_DRIVER} did not make")
    said, unread = _takeovers(data, labels)
    return explain_volume.account(VolumeFacts(str(claim), volume, nodes, labels, said, (*problems, *unread)))


async def _config(client: Client, place: Key) -> tuple[Mapping[str, str], tuple[str, ...]]:
    try:
        return (await client.get(CONFIG_MAPS, place.name, place.namespace)).data, ()
    except ApiError as error:
        return {}, (f"the config map {place} can't be read, so takeovers and pools are not known: {error}",)


def _takeovers(data: Mapping[str, str], labels: DomainLabels) -> tuple[TakeoverMap, tuple[str, ...]]:
    try:
        return takeover.parse_takeover_map(data, labels.names), ()
    except TakeoverError as error:
        return NO_TAKEOVERS, (str(error),)


async def _waiting(
    client: Client,
    claim: Key,
    name: str,
    nodes: Sequence[Node],
    labels: DomainLabels,
    data: Mapping[str, str],
    problems: tuple[str, ...],
) -> VolumeReport:
    try:
        found = await client.get(STORAGE_CLASSES, name) if name else {}
        if found.get("provisioner") != CSI_DRIVER:
            raise ForeignVolume(f"{claim} is of class {name or 'none'}, which {CSI_DRIVER} does not serve")
        said = parameters.parse_parameters(
            found.get("parameters") or {}, config.parse(data.get(DOCUMENT, "{}")), labels.names
        )
    except (CsiError, UsageError, NotFound) as error:
        return explain_volume.waiting(str(claim), name, (), (*problems, f"class {name}: {error}"))
    domains = sorted({labels.segments(node.metadata.labels) for node in nodes})
    chosen = []
    for segments in domains:
        fitting = pool_choice.narrowest_rules(said, segments) if segments else ()
        names = ", ".join(rule.pool for rule in fitting) or "any of its pools: none is for this domain"
        chosen.append((describe(segments), names))
    return explain_volume.waiting(str(claim), name, chosen, problems)
