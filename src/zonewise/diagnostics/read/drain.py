"""A live cluster as `zonewise drain --plan` needs it: pods, nodes, budgets and workloads."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from zonewise.diagnostics.read.eviction import list_budgets, read_guard_selector
from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.disruption.decide import status
from zonewise.disruption.decide.budget import Budget
from zonewise.disruption.decide.drain import DrainView
from zonewise.disruption.decide.pods import PodFacts
from zonewise.disruption.watch.informers import DisruptionInformers
from zonewise.disruption.watch.replicas import WorkloadInformers
from zonewise.disruption.webhook.guarded_namespaces import is_guarded
from zonewise.errors import ZonewiseError
from zonewise.kube.watch.informers import Caches
from zonewise.objects import NAMESPACES, PODS, Metadata, Resource, View, key_of

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
"""Read for the drained nodes only: caches do not keep the volumes of all pods."""


async def read_drain_view(reader: ClusterReader, drained: Iterable[str]) -> DrainView:
    """`drained`: the nodes whose pods are read with their volumes."""
    await list_budgets(reader)  # a watch would wait until the kind is defined
    empty_dirs = await _pods_with_empty_dirs(reader, drained)
    guards = await _read_guards(reader)
    caches = Caches(reader.client)
    informers = DisruptionInformers(caches)
    workloads = WorkloadInformers(reader.client, caches, informers)
    async with caches:
        await _wait_synced(caches, informers, workloads)
        pods = [facts for key in informers.pods.keys() if (facts := informers.facts(key)) is not None]  # noqa: SIM118 - no dict
        await _read_scales(workloads, [pod for pod in pods if informers.budgets_of(pod)])
        return replace(_drain_view(informers, workloads, pods, guards), empty_dirs=empty_dirs)


async def _pods_with_empty_dirs(reader: ClusterReader, nodes: Iterable[str]) -> frozenset[str]:
    lists = await asyncio.gather(*(reader.list(_PODS_WITH_VOLUMES, fields=f"spec.nodeName={node}") for node in nodes))
    return frozenset(
        pod.metadata.uid
        for pods in lists
        for pod in pods
        if any(volume.empty_dir is not None for volume in pod.spec.volumes)
    )


async def _read_guards(reader: ClusterReader) -> Callable[[str], bool]:
    selector, namespaces = await asyncio.gather(read_guard_selector(reader), reader.list_or_empty(NAMESPACES))
    labels = {namespace.metadata.name: namespace.metadata.labels for namespace in namespaces}
    return lambda namespace: is_guarded(selector, namespace, labels.get(namespace, {}))


async def _wait_synced(caches: Caches, informers: DisruptionInformers, workloads: WorkloadInformers) -> None:
    try:
        async with asyncio.timeout(_SYNC_SECONDS):
            await caches.wait_synced()
    except TimeoutError:
        watches = (informers.pods, informers.nodes, informers.pdbs, informers.replica_sets, workloads.deployments)
        problems = [f"{watch.name}: {watch.problem}" for watch in watches if watch.problem]
        raise ZonewiseError(
            f"the cluster could not be read within {_SYNC_SECONDS:g} s: {'; '.join(problems) or 'it is slow, try again'}"
        ) from None


async def _read_scales(workloads: WorkloadInformers, pods: Sequence[PodFacts]) -> None:
    """Replicas of owners that only their scale subresource shows. One that is not read in time counts as unknown."""
    workloads.read_scales(pods)
    owners = {pod.controller_uid for pod in pods if pod.controller}
    if owners <= workloads.desired.keys():
        return
    reading = asyncio.create_task(workloads.run())
    with suppress(TimeoutError):
        async with asyncio.timeout(_SCALES_SECONDS):
            while owners - workloads.desired.keys():  # noqa: ASYNC110 - for two seconds at most
                await asyncio.sleep(0.02)
    reading.cancel()
    await asyncio.gather(reading, return_exceptions=True)


def _drain_view(
    informers: DisruptionInformers,
    workloads: WorkloadInformers,
    pods: Sequence[PodFacts],
    guards: Callable[[str], bool],
) -> DrainView:
    parsed = [(informers.budget(key_of(item)), item) for item in informers.budgets]
    budgets = [(budget, item) for budget, item in parsed if isinstance(budget, Budget)]
    return DrainView(
        pods=pods,
        nodes={node.metadata.name: node.metadata.labels for node in informers.nodes},
        unschedulable=frozenset(node.metadata.name for node in informers.nodes if node.spec.unschedulable),
        budgets=[budget for budget, _ in budgets],
        statuses={key_of(item): status.read(budget, item) for budget, item in budgets},
        stock=list(informers.pdbs),
        stock_selects=lambda pdb, pod: pdb.metadata.namespace == pod.namespace and pdb in informers.pdbs_of(pod),
        workloads=workloads.desired,
        guards=guards,
    )
