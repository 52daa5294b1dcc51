"""The DNS answer for one name and one client, explained from a live cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from zonewise.diagnostics.decide.explain.dns import DnsState, ServiceSlices, build_dns_report
from zonewise.diagnostics.decide.explain.dns_names import NameKind, ParsedName, parse_name, search_path
from zonewise.diagnostics.decide.explain.dns_report import DnsClientReport, DnsReport, client_on_node, locate_client
from zonewise.diagnostics.read.reader import ClusterReader
from zonewise.dns.decide.handler import MAX_ALIASES
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.decide.zone import ZoneConfig
from zonewise.dns.wire.message import Rcode, RecordType
from zonewise.dns.wire.names import WrongNameError, packed, to_text
from zonewise.errors import UsageError, ZonewiseError
from zonewise.objects import (
    ENDPOINT_SLICES,
    NAMESPACES,
    NODES,
    PODS,
    SERVICE_NAME,
    SERVICES,
    EndpointSlice,
    Key,
    Node,
    Pod,
    key_of,
)
from zonewise.objects.discovery import service_key

_DEFAULT_TYPES: Final = {NameKind.REVERSE: RecordType.PTR}


@dataclass(frozen=True, slots=True)
class DnsQuery:
    """The client is `pod`, `node` or `address`, at most one of them. `namespace` is the pod's, and heads its search path.

    `type` None stands for the usual type of such a name.
    """

    name: str
    namespace: str
    zone: ZoneConfig
    type: RecordType | None = None
    pod: str = ""
    node: str = ""
    address: str = ""
    locate_by_pods: bool = False

    @property
    def domain(self) -> str:
        return to_text(self.zone.domain.wire)


async def explain_name(reader: ClusterReader, query: DnsQuery) -> DnsReport:
    """Explains the first name of the search path that exists, or the last one.

    If the last one is forwarded to other servers, and an earlier one is of a Service in a namespace that exists, the
    report is of that Service's name: it is most likely what the client meant.
    """
    nodes, namespace_list, pods = await asyncio.gather(
        reader.list(NODES), reader.list(NAMESPACES), _read_pods(reader, query)
    )
    namespaces = {namespace.metadata.name: namespace.metadata.annotations for namespace in namespace_list}
    addresses = [(pod, packed(ip.ip)) for pod in pods for ip in pod.status.pod_ips]
    client = await _read_client(reader, query, nodes, addresses if query.locate_by_pods else ())
    records = tuple((pod.metadata.namespace, address) for pod, address in addresses if address)
    state = DnsState(nodes, namespaces, pods=records)
    report: DnsReport | None = None
    meant: DnsReport | None = None
    for name in _search_path(query):
        state = replace(state, services=await _read_services(reader, name, query.domain))
        report = build_dns_report(
            name, query.type or _DEFAULT_TYPES.get(name.kind, RecordType.A), client, state, query.zone
        )
        if report.answer.rcode != Rcode.NXDOMAIN.name:
            break
        if name.kind is NameKind.SERVICE and name.service and name.service.namespace in namespaces:
            meant = meant or report
    assert report is not None, "a search path has at least one name"
    return _forwarded(meant, report) if meant and report.passed_on else report


def _forwarded(meant: DnsReport, last: DnsReport) -> DnsReport:
    verdict = f"{meant.verdict}; other servers are asked for {last.name}"
    return msgspec.structs.replace(meant, verdict=verdict, passed_on=True)


def _search_path(query: DnsQuery) -> Iterator[ParsedName]:
    for name in search_path(query.name, query.namespace, query.domain):
        try:
            yield parse_name(name, query.domain)
        except (WrongNameError, UnicodeError) as error:
            raise UsageError(f"{name!r} is no DNS name: {error}") from None


async def _read_services(reader: ClusterReader, name: ParsedName, domain: str) -> dict[Key, ServiceSlices]:
    """The Service of the name and those that its aliases point to; for an address, all Services."""
    if name.kind is NameKind.REVERSE:
        return await _read_all_services(reader)
    services: dict[Key, ServiceSlices] = {}
    while name.service and name.service not in services and len(services) < MAX_ALIASES:
        key = name.service
        service = await reader.find(SERVICES, key.name, key.namespace)
        if service is None:
            break
        slices = await reader.list(ENDPOINT_SLICES, key.namespace, selector=f"{SERVICE_NAME}={key.name}")
        services[key] = service, tuple(slices)
        if service.spec.type != "ExternalName":
            break
        name = parse_name(service.spec.external_name, domain)
    return services


async def _read_all_services(reader: ClusterReader) -> dict[Key, ServiceSlices]:
    services, slices = await asyncio.gather(reader.list(SERVICES), reader.list(ENDPOINT_SLICES))
    by_service: dict[Key, list[EndpointSlice]] = {}
    for slice_ in slices:
        by_service.setdefault(service_key(slice_), []).append(slice_)
    return {key_of(service): (service, tuple(by_service.get(key_of(service), ()))) for service in services}


async def _read_pods(reader: ClusterReader, query: DnsQuery) -> list[Pod]:
    """Only where the server would watch pods, too."""
    if not query.locate_by_pods and query.zone.pods is not PodNameRecords.VERIFIED:
        return []
    pods = await reader.list(PODS, fields="status.phase!=Succeeded,status.phase!=Failed")
    return [pod for pod in pods if not pod.spec.host_network]


async def _read_client(
    reader: ClusterReader, query: DnsQuery, nodes: Sequence[Node], addresses: Sequence[tuple[Pod, bytes | None]]
) -> DnsClientReport:
    node_of = {address: pod.spec.node_name for pod, address in addresses if address and pod.spec.node_name}
    if query.pod:
        return await _read_client_pod(reader, query, nodes, node_of)
    if query.node:
        node = next((node for node in nodes if node.metadata.name == query.node), None)
        if node is None:
            raise ZonewiseError(f"no node {query.node}: `kubectl get nodes` lists them")
        return client_on_node(f"a client on node {query.node}", node)
    if query.address:
        if packed(query.address.partition("%")[0]) is None:
            raise UsageError(f"--from-ip {query.address!r} is no address; write one such as 10.0.0.7")
        return locate_client(query.address, query.address, nodes, node_of)
    return DnsClientReport("any client", sentence="no client was named: use --from-pod, --from-node or --from-ip")


async def _read_client_pod(
    reader: ClusterReader, query: DnsQuery, nodes: Sequence[Node], node_of: Mapping[bytes, str]
) -> DnsClientReport:
    who = f"pod {query.namespace}/{query.pod}"
    missing = f"no {who}: name its namespace with -n, or write NAMESPACE/NAME"
    pod = await reader.get(PODS, query.pod, query.namespace, missing=missing)
    address = pod.status.pod_ip or next((ip.ip for ip in pod.status.pod_ips), "")
    if not address:
        raise ZonewiseError(f"{who} has no address yet ({pod.status.phase or 'not started'}); try again when it runs")
    client = locate_client(who, address, nodes, node_of)
    runs_on = pod.spec.node_name
    if not client.node:
        advice = "the server can't find it" if query.locate_by_pods else "the server finds it with --locate pods"
        return msgspec.structs.replace(client, sentence=f"{client.sentence}; it runs on {runs_on}: {advice}")
    if client.node != runs_on:
        return msgspec.structs.replace(client, sentence=f"{client.sentence}, though it runs on {runs_on}")
    return client
