"""Uninstall: everything that an install made, in an order in which what is left never needs what is gone.

Services go back to kube-proxy, then webhooks and policies with parameters go, then programs and rights, then the policies
that limit our accounts, the rules on the nodes, our annotations and labels on other objects, and last, where nothing of a
user's is in them or with `purge`, the CRD and the namespace.
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from zonewise.api import names as api
from zonewise.api.names import DISRUPTION_FIELD_MANAGER, GRANTED, PROXY_NAME_LABEL, ROUTING_STATE
from zonewise.errors import ZonewiseError
from zonewise.install import apply, contents
from zonewise.install.apply import ApplyChange, ApplyOutcome
from zonewise.install.components import InstallComponent, ManifestValues, everything
from zonewise.install.decide.document import Document, identity
from zonewise.install.decide.kinds import WORKLOADS
from zonewise.install.decide.ownership import ManifestObject, made_by_programs, why_elsewhere
from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, NotFound
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
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS
from zonewise.topology import is_ready

SLICE_METADATA: Final = {
    "labels": (api.CONSUMER,),
    "annotations": (api.STARTED, api.WEIGHTS),
}
NODE_LABELS: Final = (api.CSI_TOPOLOGY_PREFIX, api.CSI_TAKEOVER_PREFIX)
_CREATED: Final[dict[InstallComponent, tuple[tuple[str, str], ...]]] = {
    InstallComponent.SLICES: (("Lease", api.SLICES_LEASE), ("Secret", "zonewise-webhook")),
    InstallComponent.DISRUPTION: (("Lease", api.DISRUPTION_LEASE), ("Secret", "zonewise-guard")),
    InstallComponent.CSI: (("Lease", api.CSI_LEASE),),
}
"""What programs create while they run."""
_PROXIES: Final = {InstallComponent.PROXY, InstallComponent.PROXY_ALL}
_TIMEOUT_SECONDS: Final = 120.0
_HANDOVER_SECONDS: Final = 5.0
"""In which kube-proxy gets rules for Services that are returned to it; those of our proxy serve them until then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RemovalOptions:
    purge: bool = False
    """Also what users keep their data in: the kind with all budgets, and our namespace with everything in it."""
    keep_budgets: bool = False
    adopt: bool = False
    dry_run: bool = False


class Removal(msgspec.Struct, frozen=True, rename="camel"):
    """What `zonewise uninstall -o json` prints."""

    dry_run: bool
    outcomes: list[ApplyOutcome]


async def remove(
    client: Client, chosen: Iterable[InstallComponent], values: ManifestValues, options: RemovalOptions
) -> AsyncIterator[ApplyOutcome]:
    """Removes the objects that an install made, of all components or of some; what others made under their names is left.
    Users' data stays unless `purge` is set.
    """
    dry_run = options.dry_run
    components = set(chosen)
    whole = components >= set(InstallComponent)
    objects = await apply.find_objects(client, everything(components, values), values.namespace, adopt=options.adopt)
    namespaces = [obj for obj in objects if obj.document["kind"] == "Namespace"]
    crds = [obj for obj in objects if obj.document["kind"] == "CustomResourceDefinition"]
    others = [obj for obj in objects if obj not in namespaces and obj not in crds]
    components -= _still_running(others, components, values)
    proxy = next((obj for obj in others if identity(obj.document) == _proxy(values)), ManifestObject({}))
    returned = False
    if components & _PROXIES:
        async for outcome in _return_services(client, dry_run=dry_run):
            returned = True
            yield outcome
    unready = await _unready_nodes(client) if proxy.live is not None or whole else []
    async for outcome in apply.remove(client, others, dry_run=dry_run):
        yield outcome
    if components & _PROXIES and proxy.live is not None:
        if not dry_run:
            await asyncio.sleep(_HANDOVER_SECONDS if returned else 0)
            await _clean_nodes(client, proxy.live, unready, values.namespace)
        for outcome in _cleaned(unready):
            yield outcome
    async for outcome in _remove_traces(client, components, values.namespace, dry_run=dry_run):
        yield outcome
    async for outcome in _remove_data(
        client, crds, namespaces if whole else [], objects, unready, options, values.namespace
    ):
        yield outcome


def _still_running(
    others: Sequence[ManifestObject], components: Iterable[InstallComponent], values: ManifestValues
) -> set[InstallComponent]:
    """Components with a workload, or an account that rights are bound to, that is not ours: their traces in the cluster
    stay, too.
    """
    kinds = (*WORKLOADS, "ClusterRoleBinding", "RoleBinding")
    staying = {identity(obj.document) for obj in others if obj.foreign and obj.document["kind"] in kinds}
    return {
        component
        for component in components
        if staying & {identity(document) for document in everything([component], values)}
    }


def _cleaned(unready: Sequence[str]) -> Iterator[ApplyOutcome]:
    yield ApplyOutcome(f"rules of zonewise proxy on every {'ready ' if unready else ''}node", ApplyChange.DELETED)
    for name in unready:
        why = "it is not ready; run `zonewise proxy --cleanup` there when it is back"
        yield ApplyOutcome(f"rules of zonewise proxy on node {name}", ApplyChange.LEFT, why)


async def _remove_traces(
    client: Client, components: set[InstallComponent], namespace: str, *, dry_run: bool
) -> AsyncIterator[ApplyOutcome]:
    async for outcome in _remove_annotations(client, components, dry_run=dry_run):
        yield outcome
    if InstallComponent.CSI in components:
        async for outcome in _unlabel_nodes(client, dry_run=dry_run):
            yield outcome
    async for outcome in _remove_created(client, components, namespace, dry_run=dry_run):
        yield outcome


async def _remove_data(
    client: Client,
    crds: Sequence[ManifestObject],
    namespaces: Sequence[ManifestObject],
    objects: Sequence[ManifestObject],
    unready: Sequence[str],
    options: RemovalOptions,
    namespace: str,
) -> AsyncIterator[ApplyOutcome]:
    """The CRD and the namespaces, which may hold what users made."""
    to_delete: list[ManifestObject] = []
    for crd in (crd for crd in crds if crd.live is not None):
        why = why_elsewhere(crd.live or {}, namespace)
        if options.purge and not options.keep_budgets and not why:
            to_delete.append(crd)
        else:
            why = why or f"it holds all budgets ({await count_budgets(client)}); --purge deletes it with them"
            yield ApplyOutcome(apply.shown(crd.document), ApplyChange.LEFT, why)
    for own in (obj for obj in namespaces if obj.live is not None and not obj.foreign):
        name = own.document["metadata"]["name"]
        user_objects, why = await _of_users(client, name, objects)
        if why and not options.purge:
            yield ApplyOutcome(apply.shown(own.document), ApplyChange.LEFT, why)
            continue
        to_delete.append(own)
        for shown in user_objects:
            yield ApplyOutcome(f"{shown} in {name}", ApplyChange.DELETED)
    async for outcome in apply.remove(client, to_delete, dry_run=options.dry_run):
        yield outcome
    if not options.dry_run:
        async for outcome in _until_gone(client, to_delete, unready):
            yield outcome


async def _of_users(client: Client, namespace: str, objects: Sequence[ManifestObject]) -> tuple[list[str], str]:
    """Objects in our namespace that are not ours, and why it stays for them."""
    ours = {identity(obj.document) for obj in objects if not obj.foreign}
    try:
        others = await contents.of_users(client, namespace, ours)
    except ApiError as error:  # such as of an API whose server is away
        return [], f"what it holds can't be read ({error}); --purge deletes it with everything in it"
    user_objects = [apply.shown_live(live) for live in others if live["kind"] != "Secret" or not made_by_programs(live)]
    if not user_objects:
        return [], ""
    return user_objects, f"it holds {', '.join(user_objects)}, which no install made; --purge deletes them with it"


async def _until_gone(
    client: Client, deleted: Sequence[ManifestObject], unready: Sequence[str]
) -> AsyncIterator[ApplyOutcome]:
    """Does not wait for a namespace that pods on nodes that are not ready keep."""
    for obj in deleted:
        name = obj.document["metadata"]["name"]
        nodes = await _nodes_with_pods(client, name, unready) if obj.document["kind"] == "Namespace" else []
        for node in nodes:
            why = "they go when it is ready again, and so does their namespace"
            yield ApplyOutcome(f"pods of {name} on node {node}", ApplyChange.LEFT, why)
        if not nodes and not obj.foreign:
            await apply.until_gone(client, [obj.document], _TIMEOUT_SECONDS)


async def count_budgets(client: Client) -> int:
    try:
        return len((await client.list(TOPOLOGY_DISRUPTION_BUDGETS)).items)
    except NotFound:
        return 0


async def _unready_nodes(client: Client) -> list[str]:
    """Nodes that are not ready: no kubelet carries out requests there."""
    return sorted(node.metadata.name for node in (await client.list(NODES)).items if not is_ready(node))


async def _nodes_with_pods(client: Client, namespace: str, unready: Sequence[str]) -> list[str]:
    """Nodes that are not ready and have pods of ours: no kubelet there reports that these have ended."""
    pods = (await client.list(PODS, namespace)).items if unready else []
    return sorted({pod.spec.node_name for pod in pods} & set(unready))


async def _return_services(client: Client, *, dry_run: bool) -> AsyncIterator[ApplyOutcome]:
    """A Service labelled for a proxy that is gone has no proxy; unlabelled, kube-proxy serves it."""
    off = MergePatch({"metadata": {"labels": {PROXY_NAME_LABEL: None}}})
    for service in (await client.list(SERVICES, selector=f"{PROXY_NAME_LABEL}=zonewise")).items:
        await client.patch(SERVICES, service.metadata.name, off, service.metadata.namespace, dry_run=dry_run)
        yield ApplyOutcome(f"label {PROXY_NAME_LABEL} of service {key_of(service)}", ApplyChange.DELETED)


async def _remove_annotations(
    client: Client, components: set[InstallComponent], *, dry_run: bool
) -> AsyncIterator[ApplyOutcome]:
    """A changed Service is synced again by the stock controller, which removes hints that are not its own."""
    annotations: list[tuple[Resource[Any], str, MergePatch | Apply]] = []
    if InstallComponent.SLICES in components:
        async for outcome in _clean_slices(client, dry_run=dry_run):
            yield outcome
        annotations.append((SERVICES, ROUTING_STATE, MergePatch({"metadata": {"annotations": {ROUTING_STATE: None}}})))
    if InstallComponent.DISRUPTION in components:
        annotations.append((PODS, GRANTED, Apply({"metadata": {"annotations": {}}}, DISRUPTION_FIELD_MANAGER)))
    for resource, annotation, off in annotations:
        for viewed in await _annotated(client, resource, annotation):
            try:
                await client.patch(resource, viewed.metadata.name, off, viewed.metadata.namespace, dry_run=dry_run)
            except NotFound:
                continue
            yield ApplyOutcome(
                f"annotation {annotation} of {resource.kind.lower()} {key_of(viewed)}", ApplyChange.DELETED
            )


async def _clean_slices(client: Client, *, dry_run: bool) -> AsyncIterator[ApplyOutcome]:
    """Slices of mode own pass to the stock controller, whose label they have."""
    for viewed in (await client.list(ENDPOINT_SLICES)).items:
        present = {"labels": viewed.metadata.labels, "annotations": viewed.metadata.annotations}
        ours = {kind: [name for name in names if name in present[kind]] for kind, names in SLICE_METADATA.items()}
        if not any(ours.values()):
            continue
        off = MergePatch({"metadata": {kind: dict.fromkeys(names) for kind, names in ours.items() if names}})
        try:
            await client.patch(ENDPOINT_SLICES, viewed.metadata.name, off, viewed.metadata.namespace, dry_run=dry_run)
        except NotFound:
            continue
        removed = ", ".join(name for names in ours.values() for name in names)
        yield ApplyOutcome(f"{removed} of endpointslice {key_of(viewed)}", ApplyChange.DELETED)


async def _unlabel_nodes(client: Client, *, dry_run: bool) -> AsyncIterator[ApplyOutcome]:
    """Removes the domain labels that node plugins wrote. Volumes stay, and so does their node affinity."""
    for node in (await client.list(NODES)).items:
        ours = [label for label in node.metadata.labels if label.startswith(NODE_LABELS)]
        if ours:
            off = MergePatch({"metadata": {"labels": dict.fromkeys(ours)}})
            await client.patch(NODES, node.metadata.name, off, dry_run=dry_run)
            yield ApplyOutcome(f"labels {', '.join(ours)} of node {node.metadata.name}", ApplyChange.DELETED)


async def _annotated(client: Client, resource: Resource[Any], annotation: str) -> list[HasMetadata]:
    return [viewed for viewed in (await client.list(resource)).items if annotation in viewed.metadata.annotations]


async def _remove_created(
    client: Client, components: set[InstallComponent], namespace: str, *, dry_run: bool
) -> AsyncIterator[ApplyOutcome]:
    """Leases and Secrets that our programs created."""
    resources = {"Lease": LEASES.whole(), "Secret": SECRETS.whole()}
    for kind, name in (created for component in components for created in _CREATED.get(component, ())):
        shown = f"{kind.lower()} {namespace}/{name}"
        try:
            live = await client.get(resources[kind], name, namespace)
            if not made_by_programs(live):
                yield ApplyOutcome(shown, ApplyChange.LEFT, "no program of Zonewise made it")
                continue
            await client.delete(resources[kind], name, namespace, uid=live["metadata"]["uid"], dry_run=dry_run)
        except NotFound:
            continue
        yield ApplyOutcome(shown, ApplyChange.DELETED)


def _proxy(values: ManifestValues) -> tuple[str, str, str]:
    return "DaemonSet", values.namespace, api.APP_PROXY


async def _clean_nodes(client: Client, proxy: Document, unready: Sequence[str], namespace: str) -> None:
    """Rules stay when a proxy ends, so that connections do: a last pod on every node removes them, once no proxy is left
    that would write them again. Nodes that are not ready are left out: they would never answer.
    """
    await _until_no_pods(client, proxy, unready)
    document = cleaning(proxy, unready)
    apply.refuse_foreign(await apply.find_objects(client, [document], namespace))
    async for _ in apply.apply(client, [document], force=True):
        pass
    try:
        await apply.until_ready(client, [document], _TIMEOUT_SECONDS)
    except ZonewiseError as error:
        raise ZonewiseError(f"{error}; on the nodes that are left run `zonewise proxy --cleanup`") from error
    finally:
        async for _ in apply.remove(client, await apply.find_objects(client, [document], namespace)):
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
    """A DaemonSet like the proxy's own, whose pods remove a node's rules before they are ready. Pure.

    None runs on an unready node.
    """
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
