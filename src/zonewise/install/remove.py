"""Taking Zonewise out: what makes API servers ask us first, then Services go back to kube-proxy, then programs and rights,
the rules on the nodes, our marks on other people's objects, and last the kind and the namespace.
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

SLICE_MARKS: Final = {
    "labels": (api.CONSUMER,),
    "annotations": (api.STARTED, api.WEIGHTS),
}
LEASES_MADE: Final = (api.SLICES_LEASE, api.DISRUPTION_LEASE, api.CSI_LEASE)
NODE_LABELS: Final = (api.CSI_TOPOLOGY_PREFIX, api.CSI_TAKEOVER_PREFIX)
_SECRETS: Final = ("zonewise-webhook", "zonewise-guard")
_PROXIES: Final = {InstallComponent.PROXY, InstallComponent.PROXY_ALL}
_PATIENCE_SECONDS: Final = 120.0


async def remove(
    client: Client, chosen: Iterable[InstallComponent], values: ManifestValues, *, keep_budgets: bool = False
) -> AsyncIterator[ApplyOutcome]:
    """Of all components nothing stays; of some, what the others share. `keep_budgets` leaves the kind with its objects."""
    components = set(chosen)
    found = everything(components, values)
    namespaces = [each for each in found if each["kind"] == "Namespace"]
    kinds = [each for each in found if each["kind"] == "CustomResourceDefinition"]
    rest = [each for each in found if each not in namespaces and each not in kinds]
    if components & _PROXIES:
        async for outcome in _hand_back(client):
            yield outcome
    proxy = await _proxy(client, values) if components & _PROXIES else None
    whole = components >= set(InstallComponent)
    away = await _away(client) if proxy is not None or whole else []
    async for outcome in apply.remove(client, rest):
        yield outcome
    if proxy is not None:
        await _clean_nodes(client, proxy, away)
        yield ApplyOutcome(f"rules of zonewise proxy on every {'ready ' if away else ''}node", ApplyChange.DELETED)
        for name in away:
            why = "it is not ready; run `zonewise proxy --cleanup` there when it is back"
            yield ApplyOutcome(f"rules of zonewise proxy on node {name}", ApplyChange.LEFT, why)
    async for outcome in _unmark(client, components):
        yield outcome
    if InstallComponent.CSI in components:
        async for outcome in _unlabel_nodes(client):
            yield outcome
    async for outcome in _remove_made(client, values.namespace):
        yield outcome
    last = [] if keep_budgets else kinds
    homes = await _ours(client, namespaces) if whole else []
    async for outcome in apply.remove(client, [*last, *homes]):
        yield outcome
    held = await _held(client, values.namespace, away) if homes else []
    for name in held:
        why = "they go when it is ready again, and so does their namespace"
        yield ApplyOutcome(f"pods of {values.namespace} on node {name}", ApplyChange.LEFT, why)
    await apply.until_gone(client, last if held else [*last, *homes], _PATIENCE_SECONDS)


async def _away(client: Client) -> list[str]:
    """Nodes that are not ready: what is asked of them now, nobody does."""
    return sorted(node.metadata.name for node in (await client.list(NODES)).items if not is_ready(node))


async def _held(client: Client, namespace: str, away: Sequence[str]) -> list[str]:
    """Nodes that are not ready and have pods of ours: nobody there says that these have ended."""
    pods = (await client.list(PODS, namespace)).items if away else []
    return sorted({pod.spec.node_name for pod in pods} & set(away))


async def _hand_back(client: Client) -> AsyncIterator[ApplyOutcome]:
    """A Service labelled for a proxy that is gone is served by nobody; unlabelled, kube-proxy serves it."""
    off = MergePatch({"metadata": {"labels": {PROXY_NAME_LABEL: None}}})
    for service in (await client.list(SERVICES, selector=f"{PROXY_NAME_LABEL}=zonewise")).items:
        await client.patch(SERVICES, service.metadata.name, off, service.metadata.namespace)
        yield ApplyOutcome(f"label {PROXY_NAME_LABEL} of service {key_of(service)}", ApplyChange.DELETED)


async def _unmark(client: Client, components: set[InstallComponent]) -> AsyncIterator[ApplyOutcome]:
    """A Service that changes is looked at again by the stock controller, which takes hints off that are not its own."""
    marks: list[tuple[Resource[Any], str, MergePatch | Apply]] = []
    if InstallComponent.SLICES in components:
        async for outcome in _unmark_slices(client):
            yield outcome
        marks.append((SERVICES, ROUTING_STATE, MergePatch({"metadata": {"annotations": {ROUTING_STATE: None}}})))
    if InstallComponent.DISRUPTION in components:
        marks.append((PODS, GRANTED, Apply({"metadata": {"annotations": {}}}, DISRUPTION_FIELD_MANAGER)))
    for resource, mark, off in marks:
        for each in await _marked(client, resource, mark):
            try:
                await client.patch(resource, each.metadata.name, off, each.metadata.namespace)
            except NotFound:
                continue
            yield ApplyOutcome(f"annotation {mark} of {resource.kind.lower()} {key_of(each)}", ApplyChange.DELETED)


async def _unmark_slices(client: Client) -> AsyncIterator[ApplyOutcome]:
    """Those of mode own go over to the stock controller, whose label they have."""
    for each in (await client.list(ENDPOINT_SLICES)).items:
        said = {"labels": each.metadata.labels, "annotations": each.metadata.annotations}
        ours = {kind: [mark for mark in marks if mark in said[kind]] for kind, marks in SLICE_MARKS.items()}
        if not any(ours.values()):
            continue
        off = MergePatch({"metadata": {kind: dict.fromkeys(marks) for kind, marks in ours.items() if marks}})
        try:
            await client.patch(ENDPOINT_SLICES, each.metadata.name, off, each.metadata.namespace)
        except NotFound:
            continue
        named = ", ".join(mark for marks in ours.values() for mark in marks)
        yield ApplyOutcome(f"{named} of endpointslice {key_of(each)}", ApplyChange.DELETED)


async def _unlabel_nodes(client: Client) -> AsyncIterator[ApplyOutcome]:
    """The domains of volumes, which the node plugins wrote; volumes themselves stay, and so does what they name."""
    for node in (await client.list(NODES)).items:
        ours = [label for label in node.metadata.labels if label.startswith(NODE_LABELS)]
        if ours:
            off = MergePatch({"metadata": {"labels": dict.fromkeys(ours)}})
            await client.patch(NODES, node.metadata.name, off)
            yield ApplyOutcome(f"labels {', '.join(ours)} of node {node.metadata.name}", ApplyChange.DELETED)


async def _marked(client: Client, resource: Resource[Any], mark: str) -> list[HasMetadata]:
    return [each for each in (await client.list(resource)).items if mark in each.metadata.annotations]


async def _remove_made(client: Client, namespace: str) -> AsyncIterator[ApplyOutcome]:
    """What our programs made themselves, where the namespace does not go with it; those still needed are made anew."""
    for resource, names in ((LEASES, LEASES_MADE), (SECRETS, _SECRETS)):
        for name in names:
            try:
                await client.delete(resource, name, namespace)
            except NotFound:
                continue
            yield ApplyOutcome(f"{resource.kind.lower()} {namespace}/{name}", ApplyChange.DELETED)


async def _ours(client: Client, namespaces: list[Document]) -> list[Document]:
    """Those that were made by an install; one that was there before stays."""
    found = [(each, await apply.find(client, each)) for each in namespaces]
    return [each for each, live in found if live and PART_OF.items() <= live["metadata"].get("labels", {}).items()]


async def _proxy(client: Client, values: ManifestValues) -> Document | None:
    wanted = {"kind": "DaemonSet", "metadata": {"name": "zonewise-proxy", "namespace": values.namespace}}
    return await apply.find(client, wanted)


async def _clean_nodes(client: Client, proxy: Document, away: Sequence[str]) -> None:
    """Rules stay when a proxy ends, so that connections do: a last pod on every node removes them, once no proxy is left
    that would write them again. Nodes that are away would be waited for in vain.
    """
    await _until_no_pods(client, proxy, away)
    document = cleaning(proxy, away)
    async for _ in apply.apply(client, [document], force=True):
        pass
    try:
        await apply.until_ready(client, [document], _PATIENCE_SECONDS)
    except ZonewiseError as error:
        raise ZonewiseError(f"{error}; on the nodes that are left run `zonewise proxy --cleanup`") from error
    finally:
        async for _ in apply.remove(client, [document]):
            pass
    await apply.until_gone(client, [document], _PATIENCE_SECONDS)


async def _until_no_pods(client: Client, workload: Document, away: Sequence[str]) -> None:
    wanted = ",".join(f"{key}={value}" for key, value in workload["spec"]["selector"]["matchLabels"].items())
    namespace = workload["metadata"]["namespace"]
    pods = (await client.list(PODS, namespace, selector=wanted)).items
    for pod in (pod for pod in pods if pod.spec.node_name not in away):
        document = {"kind": "Pod", "metadata": {"name": pod.metadata.name, "namespace": namespace}}
        await apply.until_gone(client, [document], _PATIENCE_SECONDS)


def cleaning(proxy: Document, away: Sequence[str] = ()) -> Document:
    """A DaemonSet like the proxy's own, whose pods remove a node's rules before they are ready; none runs `away`. Pure."""
    name = f"{proxy['metadata']['name']}-cleanup"
    labels = {api.APP_NAME_LABEL: name}
    spec = copy.deepcopy(proxy["spec"]["template"]["spec"])
    if away:
        spec["affinity"] = _without(spec.get("affinity") or {}, away)
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
    """The same for all other nodes. Each term is a way to be chosen, and fields are matched with one value at a time."""
    required = "requiredDuringSchedulingIgnoredDuringExecution"
    nodes: Document = affinity.get("nodeAffinity") or {}
    others = [{"key": "metadata.name", "operator": "NotIn", "values": [name]} for name in names]
    terms = [
        term | {"matchFields": [*term.get("matchFields", ()), *others]}
        for term in nodes.get(required, {}).get("nodeSelectorTerms", [{}])
    ]
    return affinity | {"nodeAffinity": nodes | {required: {"nodeSelectorTerms": terms}}}
