"""Container launch: read what its configuration refers to, then start its process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zonewise.kube.client.client import Client
from zonewise.kube.wire.errors import ApiError, NotFound
from zonewise.lab.decide import environment
from zonewise.lab.decide.addresses import Addresses, NodePlan
from zonewise.lab.decide.environment import PodEnvironment
from zonewise.lab.decide.podspec import RunContainer, RunPod
from zonewise.lab.nodes import containers, identities, sandbox
from zonewise.lab.processes import Process
from zonewise.objects import CONFIG_MAPS, SERVICES, Service

API_DEADLINE_SECONDS = 5.0
TOPOLOGY_LABELS = ("topology.kubernetes.io/zone", "topology.kubernetes.io/region")


class PodServices:
    """The Services of a namespace as of now, or as last known while the API server is away.

    Not a watch: a pod's event may arrive before that of a Service created earlier.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: dict[str, Sequence[Service]] = {}

    async def of(self, namespace: str) -> Sequence[Service]:
        try:
            listing = await self._client.list(SERVICES, namespace, deadline_seconds=API_DEADLINE_SECONDS)
        except ApiError:
            if namespace not in self._known:
                raise  # a pod that starts without would never find them
            return self._known[namespace]
        self._known[namespace] = listing.items
        return listing.items


@dataclass(frozen=True, slots=True)
class LaunchNode:
    """What every pod of a node shares."""

    lab: str
    plan: NodePlan
    labels: Mapping[str, str]
    pods_directory: Path
    client: Client
    api_server: tuple[str, int]
    services: PodServices
    kubeconfig: Path
    """The agent's own."""
    cluster_dns: str = ""


async def start(
    node: LaunchNode, pod: RunPod, container: RunContainer, directory: Path, namespace: str, addresses: Addresses
) -> Process:
    """Raises ContainerConfigError for what is wrong with the container, and ApiError for what could not be read."""
    around = PodEnvironment(
        host=node.plan.address,
        addresses=addresses,
        topology={label: node.labels[label] for label in TOPOLOGY_LABELS},
        api_server=node.api_server,
        services=await node.services.of(pod.metadata.namespace),
        config_maps=await _config_maps(node.client, pod, container),
        kubeconfig=await _kubeconfig(node, pod, directory),
    )
    containers.make_volumes(directory, pod, container, around.config_maps)
    variables = environment.variables(pod, container, around)
    if text := environment.resolver(pod, node.cluster_dns):
        (directory / sandbox.RESOLVER).write_text(text)
    return containers.start(directory, namespace, container, environment.command_line(container, variables), variables)


async def _kubeconfig(node: LaunchNode, pod: RunPod, directory: Path) -> Path | None:
    if not identities.needed(pod):
        return None
    return await identities.write(node.client, pod, node.kubeconfig, directory, API_DEADLINE_SECONDS)


async def _config_maps(client: Client, pod: RunPod, container: RunContainer) -> dict[str, Mapping[str, str]]:
    """The ConfigMaps that exist; a container that needs a missing one reports it."""
    data: dict[str, Mapping[str, str]] = {}
    for name in environment.config_maps_of(pod, container):
        try:
            answer = await client.get(CONFIG_MAPS, name, pod.metadata.namespace, deadline_seconds=API_DEADLINE_SECONDS)
        except NotFound:
            continue
        data[name] = answer.data
    return data
