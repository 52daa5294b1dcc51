"""Reads a live cluster, once, as `drainplan` plays a drain on it. `zonewise drain --plan` asks for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.drain import DrainView
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.disruption.webhook.guarded_namespaces import is_guarded, read_guarding
from zonewise.errors import ZonewiseError
from zonewise.kube.client.client import Client
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.errors import Forbidden, NotFound
from zonewise.objects import NAMESPACES, PODS, Metadata, Resource, View, key_of
from zonewise.objects.policy import TOPOLOGY_DISRUPTION_BUDGETS

_SYNC_SECONDS: Final = 60.0
_SCALES_SECONDS: Final = 2.0


class _Volume(View, frozen=True):
    empty_dir: dict[str, Any] | None = None


class _PodSpec(View, frozen=True):
    volumes: tuple[_Volume, ...] = ()


class _PodWithVolumes(View, frozen=True):
    metadata: Metadata = Metadata()
    spec: _PodSpec = _PodSpec()


_PODS_WITH_VOLUMES: Final = Resource(_PodWithVolumes, PODS.kind, PODS.plural)
"""Read of a few nodes only: no cache need keep the volumes of all pods."""


async def survey(client: Client, drained: Iterable[str]) -> DrainView:
    """`drained` are the nodes of which more is asked than of others."""
    await _require_budgets(client)
    empty_dirs = await _with_empty_dirs(client, drained)
    guards = await _guards(client)
    caches = Caches(client)
    sources = DisruptionInformers(caches)
    workloads = WorkloadInformers(client, caches, sources)
    async with caches:
        await _synced(caches, sources, workloads)
        pods = [facts for key in sources.pods.keys() if (facts := sources.facts(key)) is not None]  # noqa: SIM118 - no dict
        await _read_scales(workloads, [pod for pod in pods if sources.budgets_of(pod)])
        return replace(_cluster(sources, workloads, pods, guards), empty_dirs=empty_dirs)


async def _require_budgets(client: Client) -> None:
    """A watch would wait for them to be defined."""
    try:
        await client.list(TOPOLOGY_DISRUPTION_BUDGETS)
    except NotFound:
        raise ZonewiseError(
            "the cluster does not know TopologyDisruptionBudgets: `zonewise install --only disruption` defines them"
        ) from None


async def _with_empty_dirs(client: Client, nodes: Iterable[str]) -> frozenset[str]:
    listings = [await client.list(_PODS_WITH_VOLUMES, fields=f"spec.nodeName={node}") for node in nodes]
    pods = [pod for listing in listings for pod in listing.items]
    return frozenset(pod.metadata.uid for pod in pods if any(map(_is_empty_dir, pod.spec.volumes)))


def _is_empty_dir(volume: _Volume) -> bool:
    return volume.empty_dir is not None


async def _guards(client: Client) -> Callable[[str], bool]:
    guarding = await read_guarding(client)
    try:
        listed = (await client.list(NAMESPACES)).items
    except Forbidden:
        listed = []
    labels = {namespace.metadata.name: namespace.metadata.labels for namespace in listed}
    return lambda namespace: is_guarded(guarding, namespace, labels.get(namespace, {}))


async def _synced(caches: Caches, sources: DisruptionInformers, workloads: WorkloadInformers) -> None:
    try:
        async with asyncio.timeout(_SYNC_SECONDS):
            await caches.wait_synced()
    except TimeoutError:
        watches = (sources.pods, sources.nodes, sources.pdbs, sources.replica_sets, workloads.deployments)
        problems = [f"{watch.name}: {watch.problem}" for watch in watches if watch.problem]
        raise ZonewiseError(
            f"the cluster could not be read within {_SYNC_SECONDS:g} s: {'; '.join(problems) or 'it is slow, try again'}"
        ) from None


async def _read_scales(workloads: WorkloadInformers, pods: Sequence[PodFacts]) -> None:
    """Of owners that only their scale subresource tells about; one that does not answer in time counts as none."""
    workloads.read_scales(pods)
    asked = {pod.controller_uid for pod in pods if pod.controller} - workloads.desired.keys()
    if not asked:
        return
    reading = asyncio.create_task(workloads.run())
    with suppress(TimeoutError):
        async with asyncio.timeout(_SCALES_SECONDS):
            while asked - workloads.desired.keys():  # noqa: ASYNC110 - looks once, for two seconds at most
                await asyncio.sleep(0.02)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def _cluster(
    sources: DisruptionInformers, workloads: WorkloadInformers, pods: Sequence[PodFacts], guards: Callable[[str], bool]
) -> DrainView:
    parsed = {key_of(written): (sources.budget(key_of(written)), written) for written in sources.budgets}
    readable = {key: (budget, written) for key, (budget, written) in parsed.items() if isinstance(budget, Budget)}
    return DrainView(
        pods=pods,
        nodes={node.metadata.name: node.metadata.labels for node in sources.nodes},
        unschedulable=frozenset(node.metadata.name for node in sources.nodes if node.spec.unschedulable),
        budgets=[budget for budget, _ in readable.values()],
        statuses={key: status.read(budget, written) for key, (budget, written) in readable.items()},
        stock=list(sources.pdbs),
        stock_selects=lambda pdb, pod: pdb.metadata.namespace == pod.namespace and pdb in sources.pdbs_of(pod),
        workloads=workloads.desired,
        guards=guards,
    )
