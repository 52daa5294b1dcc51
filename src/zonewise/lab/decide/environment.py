"""Environment and command line of a container, with references resolved. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from zonewise.lab.decide.addresses import Addresses
from zonewise.lab.decide.podspec import EnvVar, RunContainer, RunPod
from zonewise.objects import Service

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]+)\))")
_ENTRY = re.compile(r"metadata\.(labels|annotations)\['([^']+)'\]")


class ContainerConfigError(Exception):
    """The container's configuration can't be made; its waiting state says why."""


@dataclass(frozen=True, slots=True)
class PodEnvironment:
    """What a pod may ask about where it runs. `topology` are labels a pod has from its node, where the API server copies them."""

    host: Addresses
    addresses: Addresses
    topology: Mapping[str, str]
    api_server: tuple[str, int]
    services: Sequence[Service]
    config_maps: Mapping[str, Mapping[str, str]]
    kubeconfig: Path | None = None
    """With the token of its service account, if it names one."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """$(NAME) becomes the variable's value, $$ a dollar sign, and what names no variable stays."""

    def value(match: re.Match[str]) -> str:
        name: str | None = match[1]
        return "$" if name is None else variables.get(name, match[0])

    return _REFERENCE.sub(value, text)


def command_line(container: RunContainer, variables: Mapping[str, str]) -> list[str]:
    return [expand(word, variables) for word in (*container.command, *container.args)]


def config_maps_of(pod: RunPod, container: RunContainer) -> set[str]:
    """The config maps that the container's variables and volumes name."""
    sources = (variable.value_from for variable in container.env)
    mounted = {mount.name for mount in container.volume_mounts}
    volumes = (volume for volume in pod.spec.volumes if volume.name in mounted)
    named = {source.config_map_key_ref.name for source in sources if source and source.config_map_key_ref}
    return named | {volume.config_map.name for volume in volumes if volume.config_map}


def variables(pod: RunPod, container: RunContainer, around: PodEnvironment) -> dict[str, str]:
    """The API server is named directly, not by its Service: pods find it whether or not a proxy runs."""
    host, port = around.api_server
    variables = dict(_links(around.services)) if pod.spec.enable_service_links else {}
    variables |= {"HOSTNAME": pod.metadata.name, "KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": str(port)}
    variables |= {"KUBECONFIG": str(around.kubeconfig)} if around.kubeconfig else {}
    for variable in container.env:
        value = _value(pod, variable, variables, around)
        if value is not None:
            variables[variable.name] = value
    return variables


def resolver(pod: RunPod, cluster_dns: str) -> str:
    """A resolv.conf as a kubelet writes it for a pod that uses the cluster's DNS server; empty for one that has the machine's."""
    if not cluster_dns or pod.spec.host_network or pod.spec.dns_policy != "ClusterFirst":
        return ""
    domains = (f"{pod.metadata.namespace}.svc.cluster.local", "svc.cluster.local", "cluster.local")
    return f"search {' '.join(domains)}\nnameserver {cluster_dns}\noptions ndots:5\n"


def _links(services: Iterable[Service]) -> Iterator[tuple[str, str]]:
    for service in services:
        address = service.spec.cluster_ip
        if address in {"", "None"} or not service.spec.ports:
            continue
        prefix = service.metadata.name.upper().replace("-", "_")
        yield f"{prefix}_SERVICE_HOST", address
        yield f"{prefix}_SERVICE_PORT", str(service.spec.ports[0].port)
        for port in service.spec.ports:
            if port.name:
                yield f"{prefix}_SERVICE_PORT_{port.name.upper().replace('-', '_')}", str(port.port)


def _value(pod: RunPod, variable: EnvVar, known: Mapping[str, str], around: PodEnvironment) -> str | None:
    source = variable.value_from
    if source is None:
        return expand(variable.value, known)
    if source.field_ref is not None:
        return _field(pod, source.field_ref.field_path, around)
    if source.config_map_key_ref is None:
        raise ContainerConfigError(
            f"variable {variable.name}: the lab supports value, fieldRef and configMapKeyRef only"
        )
    reference = source.config_map_key_ref
    value = around.config_maps.get(reference.name, {}).get(reference.key)
    if value is None and not reference.optional:
        raise ContainerConfigError(f"variable {variable.name}: no key {reference.key} in configmap {reference.name}")
    return value


def _field(pod: RunPod, path: str, around: PodEnvironment) -> str:
    if entry := _ENTRY.fullmatch(path):
        entries = pod.metadata.labels if entry[1] == "labels" else pod.metadata.annotations
        return entries.get(entry[2]) or around.topology.get(entry[2], "")
    fields = {
        "metadata.name": pod.metadata.name,
        "metadata.namespace": pod.metadata.namespace,
        "metadata.uid": pod.metadata.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.hostIP": str(around.host.v4),
        "status.hostIPs": ",".join(map(str, around.host)),
        "status.podIP": str(around.addresses.v4),
        "status.podIPs": ",".join(map(str, around.addresses)),
    }
    if path not in fields:
        raise ContainerConfigError(
            f"fieldRef {path} is not supported by the lab; use labels, annotations, {', '.join(fields)}"
        )
    return fields[path]
