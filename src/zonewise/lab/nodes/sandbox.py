"""Pod sandbox: a directory, and a network namespace with a routed link to the node.

The directory holds the pod's record, from which a restarted agent continues, its processes' records and logs, and
its volumes. The namespace carries the lab's name and the pod's uid, so that clean-up finds it without any record.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from zonewise.errors import UsageError
from zonewise.lab import processes, records
from zonewise.lab.decide.addresses import Addresses, NodePlan, pod_namespace_of
from zonewise.lab.decide.pod_lifecycle import ContainerState
from zonewise.lab.decide.podspec import RunPod
from zonewise.lab.network import namespaces, network
from zonewise.objects.stored import Stored

_RECORD = "pod.json"
RESOLVER = "resolv.conf"
"""In a pod's directory, where it does not use the machine's."""
_FIRST_POD, _LAST_POD = 1, 254  # within a node's /24; the same number is taken in the IPv6 subnet


class PodRecord(Stored, frozen=True):
    """`index` is the pod's address within its node's subnet; None for a pod in the node's own network."""

    pod: RunPod
    index: int | None
    since: float
    states: dict[str, ContainerState]


def pods_directory(lab_directory: Path, node: str) -> Path:
    return lab_directory / "nodes" / node / "pods"


def directory_of(pods: Path, pod: RunPod) -> Path:
    return pods / f"{pod.metadata.namespace}_{pod.metadata.name}_{pod.metadata.uid}"


class NoPodError(UsageError):
    pass


@dataclass(frozen=True, slots=True)
class PodSandbox:
    """Where a pod runs, for `lab exec`."""

    directory: Path
    namespace: str
    containers: tuple[str, ...]

    def command(self, argv: Sequence[str]) -> list[str]:
        return namespaces.command(self.namespace, argv, self.directory / RESOLVER)

    def log_path(self, container: str = "") -> Path:
        name = container or self.containers[0]
        if name not in self.containers:
            raise UsageError(f"the pod has no container {name!r}, only {', '.join(self.containers)}")
        return processes.log_path(self.directory, name)


def find(lab: str, lab_directory: Path, nodes: Iterable[NodePlan], name: str) -> PodSandbox:
    """The place of a pod by its `name` or `namespace/name`, from the nodes' records: it works in a cut zone too."""
    namespace, _, pod_name = name.rpartition("/")
    for node in nodes:
        pods = pods_directory(lab_directory, node.name)
        for record in recorded(pods):
            metadata = record.pod.metadata
            if metadata.name == pod_name and metadata.namespace == (namespace or "default"):
                inner = node.namespace if record.index is None else namespace_of(lab, record.pod)
                spec = record.pod.spec
                names = tuple(container.name for container in spec.containers + spec.init_containers)
                return PodSandbox(directory_of(pods, record.pod), inner, names)
    raise NoPodError(f"no pod {namespace or 'default'}/{pod_name} runs on a namespace node of lab {lab}")


def save(directory: Path, record: PodRecord) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    records.write(directory / _RECORD, record)


def recorded(pods: Path) -> Iterator[PodRecord]:
    """The pods of a node, running or left by an earlier agent."""
    for path in sorted(pods.glob(f"*/{_RECORD}")):
        try:
            record = records.read(path, PodRecord)
        except FileNotFoundError:  # the pod went while we looked
            continue
        yield record


def free_index(taken: Collection[int], last: int) -> int:
    """The next free number after the last one given, so that an address rests before it is used again."""
    numbers = range(_FIRST_POD, _LAST_POD + 1)
    for number in chain(range(last + 1, _LAST_POD + 1), numbers):
        if number not in taken:
            return number
    raise namespaces.NetworkError(
        f"all {len(numbers)} pod addresses of the node are taken: spread pods over more nodes"
    )


def namespace_of(lab: str, pod: RunPod) -> str:
    return pod_namespace_of(lab, pod.metadata.uid)


def attach(lab: str, node: NodePlan, pod: RunPod, addresses: Addresses) -> None:
    """Make the pod's namespace and link; run inside the node. What an interrupted attempt left is replaced."""
    detach(lab, node, pod)
    namespace = namespace_of(lab, pod)
    namespaces.ip([f"netns add {namespace}"])
    namespaces.sysctl(namespace, {"net.ipv6.conf.all.disable_ipv6": 0, "net.ipv6.conf.default.accept_dad": 0})
    namespaces.ip(network.pod_link_lines(node, namespace, link_of(pod), addresses), node.namespace)
    namespaces.ip(network.pod_lines(node, addresses), namespace)


def detach(lab: str, node: NodePlan, pod: RunPod) -> None:
    """End what still runs in the pod and take its network away. The link goes first, and with it the route to the pod."""
    namespace = namespace_of(lab, pod)
    if not namespaces.path(namespace).exists():
        return
    namespaces.kill_inside([namespace])
    if link_of(pod) in namespaces.links(node.namespace):
        namespaces.ip([f"link del {link_of(pod)}"], node.namespace)
    namespaces.remove([namespace])


def link_of(pod: RunPod) -> str:
    """The node's end of the pod's link; names of interfaces are short."""
    return f"pod{hashlib.sha256(pod.metadata.uid.encode()).hexdigest()[:12]}"


def forget(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)
