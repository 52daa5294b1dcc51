"""Uninstall: webhooks and policies first, then Services go back to kube-proxy, then programs and rights,
the rules on the nodes, our annotations and labels on other objects, and last the CRD and the namespace.
"""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator, Iterable, Sequence
from typing import Any, Final

from zonewise.api import names as api
from zonewise.api.names import DISRUPTION_FIELD_MANAGER, GRANTED, PROXY_NAME_LABEL, ROUTING_STATE
from zonewise.errors import ZonewiseError
from zonewise.install import apply
from zonewise.install.apply import ApplyChange, ApplyOutcome
from zonewise.install.components import PART_OF, Document, InstallComponent, ManifestValues, everything
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import NotFound
from zonewise.kube.wire.patch import Apply, MergePatch
from zonewise.objects import (
    ENDPOINT_SLICES,
    LEASES,
    NODES,
    PODS,
    SECRETS,
    SERVICES,
    HasMetadata,
    Resource,
    key_of,
)
from zonewise.topology import is_ready

SLICE_METADATA: Final = {
    "labels": (api.CONSUMER,),
    "annotations": (api.STARTED, api.WEIGHTS),
}
LEASE_NAMES: Final = (api.SLICES_LEASE, api.DISRUPTION_LEASE, api.CSI_LEASE)
NODE_LABELS: Final = (api.CSI_TOPOLOGY_PREFIX, api.CSI_TAKEOVER_PREFIX)
_SECRETS: Final = ("zonewise-webhook", "zonewise-guard")
_PROXIES: Final = {InstallComponent.PROXY, InstallComponent.PROXY_ALL}
_TIMEOUT_SECONDS: Final = 120.0


async def remove(
    client: Client, chosen: Iterable[InstallComponent], values: ManifestValues, *, keep_budgets: bool = False
) -> AsyncIterator[ApplyOutcome]:
    """Removes all objects of all components; of some components, those that the others do not share."""
    components = set(chosen)
    documents = everything(components, values)
    namespaces = [document for document in documents if document["kind"] == "Namespace"]
    kinds = [document for document in documents if document["kind"] == "CustomResourceDefinition"]
    rest = [document for document in documents if document not in namespaces and document not in kinds]
    if components & _PROXIES:
        async for outcome in _return_services(client):
            yield outcome
    proxy = await _proxy(client, values) if components & _PROXIES else None
    whole = components >= set(InstallComponent)
    unready = await _unready_nodes(client) if proxy is not None or whole else []
    async for outcome in apply.remove(client, rest):
        yield outcome
    if proxy is not None:
        await _clean_nodes(client, proxy, unready)
        yield ApplyOutcome(f"rules of zonewise proxy on every {'ready ' if unready else ''}node", ApplyChange.DELETED)
        for name in unready:
            why = "it is not ready; run `zonewise proxy --cleanup` there when it is back"
            yield ApplyOutcome(f"rules of zonewise proxy on node {name}", ApplyChange.LEFT, why)
    async for outcome in _remove_annotations(client, components):
        yield outcome
    if InstallComponent.CSI in components:
        async for outcome in _unlabel_nodes(client):
            yield outcome
    async for outcome in _remove_created(client, values.namespace):
        yield outcome
    last = [] if keep_budgets else kinds
    homes = await _ours(client, namespaces) if whole else []
    async for outcome in apply.remove(client, [*last, *homes]):
        yield outcome
    held = await _nodes_with_pods(client, values.namespace, unready) if homes else []
    for name in held:
        why = "they go when it is ready again, and so does their namespace"
        yield ApplyOutcome(f"pods of {values.namespace} on node {name}", ApplyChange.LEFT, why)
    await apply.until_gone(client, last if held else [*last, *homes], _TIMEOUT_SECONDS)


async def _unready_nodes(client: Client) -> list[str]:
    """Nodes that are not ready: no kubelet carries out requests there."""
    return sorted(node.metadata.name for node in (await client.list(NODES)).items if not is_ready(node))


async def _nodes_with_pods(client: Client, namespace: str, unready: Sequence[str]) -> list[str]:
    """Nodes that are not ready and have pods of ours: no kubelet there reports that these have ended."""
    pods = (await client.list(PODS, namespace)).items if unready else []
    return sorted({pod.spec.node_name for pod in pods} & set(unready))


async def _return_services(client: Client) -> AsyncIterator[ApplyOutcome]:
    """A Service labelled for a proxy that is gone has no proxy; unlabelled, kube-proxy serves it."""
    off = MergePatch({"metadata": {"labels": {PROXY_NAME_LABEL: None}}})
    for service in (await client.list(SERVICES, selector=f"{PROXY_NAME_LABEL}=zonewise")).items:
        await client.patch(SERVICES, service.metadata.name, off, service.metadata.namespace)
        yield ApplyOutcome(f"label {PROXY_NAME_LABEL} of service {key_of(service)}", ApplyChange.DELETED)


async def _remove_annotations(client: Client, components: set[InstallComponent]) -> AsyncIterator[ApplyOutcome]:
    """A changed Service is synced again by the stock controller, which removes hints that are not its own."""
    annotations: list[tuple[Resource[Any], str, MergePatch | Apply]] = []
    if InstallComponent.SLICES in components:
        async for outcome in _clean_slices(client):
            yield outcome
        annotations.append((SERVICES, ROUTING_STATE, MergePatch({"metadata": {"annotations": {ROUTING_STATE: None}}})))
    if InstallComponent.DISRUPTION in components:
        annotations.append((PODS, GRANTED, Apply({"metadata": {"annotations": {}}}, DISRUPTION_FIELD_MANAGER)))
    for resource, annotation, off in annotations:
        for viewed in await _annotated(client, resource, annotation):
            try:
                await client.patch(resource, viewed.metadata.name, off, viewed.metadata.namespace)
            except NotFound:
                continue
            yield ApplyOutcome(
                f"annotation {annotation} of {resource.kind.lower()} {key_of(viewed)}", ApplyChange.DELETED
            )


async def _clean_slices(client: Client) -> AsyncIterator[ApplyOutcome]:
    """Slices of mode own pass to the stock controller, whose label they have."""
    for viewed in (await client.list(ENDPOINT_SLICES)).items:
        present = {"labels": viewed.metadata.labels, "annotations": viewed.metadata.annotations}
        ours = {kind: [name for name in names if name in present[kind]] for kind, names in SLICE_METADATA.items()}
        if not any(ours.values()):
            continue
        off = MergePatch({"metadata": {kind: dict.fromkeys(names) for kind, names in ours.items() if names}})
        try:
            await client.patch(ENDPOINT_SLICES, viewed.metadata.name, off, viewed.metadata.namespace)
        except NotFound:
            continue
        removed = ", ".join(name for names in ours.values() for name in names)
        yield ApplyOutcome(f"{removed} of endpointslice {key_of(viewed)}", ApplyChange.DELETED)


async def _unlabel_nodes(client: Client) -> AsyncIterator[ApplyOutcome]:
    """Removes the domain labels that node plugins wrote. Volumes stay, and so does their node affinity."""
    for node in (await client.list(NODES)).items:
        ours = [label for label in node.metadata.labels if label.startswith(NODE_LABELS)]
        if ours:
            off = MergePatch({"metadata": {"labels": dict.fromkeys(ours)}})
            await client.patch(NODES, node.metadata.name, off)
            yield ApplyOutcome(f"labels {', '.join(ours)} of node {node.metadata.name}", ApplyChange.DELETED)


async def _annotated(client: Client, resource: Resource[Any], annotation: str) -> list[HasMetadata]:
    return [viewed for viewed in (await client.list(resource)).items if annotation in viewed.metadata.annotations]


async def _remove_created(client: Client, namespace: str) -> AsyncIterator[ApplyOutcome]:
    """Objects that our programs created, if the namespace stays; those still needed are recreated."""
    for resource, names in ((LEASES, LEASE_NAMES), (SECRETS, _SECRETS)):
        for name in names:
            try:
                await client.delete(resource, name, namespace)
            except NotFound:
                continue
            yield ApplyOutcome(f"{resource.kind.lower()} {namespace}/{name}", ApplyChange.DELETED)


async def _ours(client: Client, namespaces: list[Document]) -> list[Document]:
    """Namespaces made by an install; one that was there before stays."""
    live = [(document, await apply.find(client, document)) for document in namespaces]
    return [document for document, now in live if now and PART_OF.items() <= now["metadata"].get("labels", {}).items()]


async def _proxy(client: Client, values: ManifestValues) -> Document | None:
    document = {"kind": "DaemonSet", "metadata": {"name": "zonewise-proxy", "namespace": values.namespace}}
    return await apply.find(client, document)


async def _clean_nodes(client: Client, proxy: Document, unready: Sequence[str]) -> None:
    """Rules stay when a proxy ends, so that connections do: a last pod on every node removes them, once no proxy is left
    that would write them again. Nodes that are not ready are left out: they would never answer.
    """
    await _until_no_pods(client, proxy, unready)
    document = cleaning(proxy, unready)
    async for _ in apply.apply(client, [document], force=True):
        pass
    try:
        await apply.until_ready(client, [document], _TIMEOUT_SECONDS)
    except ZonewiseError as error:
        raise ZonewiseError(f"{error}; on the nodes that are left run `zonewise proxy --cleanup`") from error
    finally:
        async for _ in apply.remove(client, [document]):
            pass
    await apply.until_gone(client, [document], _TIMEOUT_SECONDS)


async def _until_no_pods(client: Client, workload: Document, unready: Sequence[str]) -> None:
    selector = ",".join(f"{key}={value}" for key, value in workload["spec"]["selector"]["matchLabels"].items())
    namespace = workload["metadata"]["namespace"]
    pods = (await client.list(PODS, namespace, selector=selector)).items
    for pod in (pod for pod in pods if pod.spec.node_name not in unready):
        document = {"kind": "Pod", "metadata": {"name": pod.metadata.name, "namespace": namespace}}
        await apply.until_gone(client, [document], _TIMEOUT_SECONDS)


def cleaning(proxy: Document, unready: Sequence[str] = ()) -> Document:
    """A DaemonSet like the proxy's own, whose pods remove a node's rules before they are ready; none runs on an unready node. Pure."""
    name = f"{proxy['metadata']['name']}-cleanup"
    labels = {api.APP_NAME_LABEL: name}
    spec = copy.deepcopy(proxy["spec"]["template"]["spec"])
    if unready:
        spec["affinity"] = _without(spec.get("affinity") or {}, unready)
    (container,) = spec["containers"]
    plain = {key: container[key] for key in ("image", "command", "securityContext") if key in container}
    idle = {"command": ["python", "-c", "import signal; signal.pause()"]}
    kept = ("hostNetwork", "tolerations", "priorityClassName", "nodeSelector", "affinity", "imagePullSecrets")
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": proxy["metadata"]["namespace"]},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {key: spec[key] for key in kept if key in spec}
                | {
                    "automountServiceAccountToken": False,
                    "terminationGracePeriodSeconds": 1,
                    "initContainers": [plain | {"name": "cleanup", "args": ["proxy", "--cleanup"]}],
                    "containers": [plain | idle | {"name": "done"}],
                },
            },
        },
    }


def _without(affinity: Document, names: Iterable[str]) -> Document:
    """The affinity without these nodes. A node may match any term; a field takes one value at a time."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes: Document = affinity.get("nodeAffinity") or {}
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in names]
    terms = [
        term | {"matchFields": [*term.get("matchFields", ()), *others]}
        for term in nodes.get(required, {}).get("nodeSelectorTerms", [{}])
    ]
    return affinity | {"nodeAffinity": nodes | {required: {"nodeSelectorTerms": terms}}}
