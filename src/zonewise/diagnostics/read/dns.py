"""Reads from a cluster, once, what it takes to explain one name for one client. `explanation` does the rest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import msgspec

from zonewise.diagnostics.decide.explain.dns import DnsState, explain
from zonewise.diagnostics.decide.explain.dns_names import NameKind, NameMeaning, candidates, meaning
from zonewise.diagnostics.decide.explain.dns_report import DnsClientReport, DnsReport, located, on_node
from zonewise.dns.decide.handler import MAX_ALIASES
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.decide.zone import ZoneConfig
from zonewise.dns.wire.message import Rcode, RecordType
from zonewise.dns.wire.names import WrongNameError, packed, to_text
from zonewise.errors import UsageError, ZonewiseError
from zonewise.kube.client import client as api
from zonewise.kube.wire.errors import NotFound
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
    Service,
)

_USUAL_TYPES = {NameKind.REVERSE: RecordType.PTR}


@dataclass(frozen=True, slots=True)
class DnsReadings:
    """`pod`, `node` or `address` is who asks, at most one of them; the namespace is the pod's own, and where its
    search path begins. `type` None means the one that such a name is mostly asked for.
    """

    name: str
    namespace: str
    settings: ZoneConfig
    type: RecordType | None = None
    pod: str = ""
    node: str = ""
    address: str = ""
    locate_by_pods: bool = False

    @property
    def domain(self) -> str:
        return to_text(self.settings.domain.wire)


async def inquire(client: api.Client, inquiry: DnsReadings) -> DnsReport:
    """The account of the first name of the search path that exists, or of the last; of a Service's name where only
    other servers may know it, and no Service of a namespace that exists does.
    """
    nodes = (await client.list(NODES)).items
    namespaces = {each.metadata.name: each.metadata.annotations for each in (await client.list(NAMESPACES)).items}
    pods = await _pods(client, inquiry)
    asker = await _client(client, inquiry, nodes, _by_address(pods) if inquiry.locate_by_pods else {})
    each = ((pod.metadata.namespace, packed(ip.ip)) for pod in pods for ip in pod.status.pod_ips)
    records = tuple((namespace, address) for namespace, address in each if address)
    state = DnsState(nodes, namespaces, pods=records)
    account: DnsReport | None = None
    meant: DnsReport | None = None
    for asked in _meanings(inquiry):
        state = replace(state, services=await _services(client, asked, inquiry.domain))
        type_ = inquiry.type or _USUAL_TYPES.get(asked.kind, RecordType.A)
        account = explain(asked, type_, asker, state, inquiry.settings)
        if account.answer.rcode != Rcode.NXDOMAIN.name:
            break
        if asked.kind is NameKind.SERVICE and asked.service and asked.service.namespace in namespaces:
            meant = meant or account
    assert account is not None, "a name is a candidate at least once"
    return _then_others(meant, account) if meant and account.passed_on else account


def _then_others(meant: DnsReport, last: DnsReport) -> DnsReport:
    verdict = f"{meant.verdict}; other servers are asked for {last.name}"
    return msgspec.structs.replace(meant, verdict=verdict, passed_on=True)


def _meanings(inquiry: DnsReadings) -> Iterator[NameMeaning]:
    for name in candidates(inquiry.name, inquiry.namespace, inquiry.domain):
        try:
            yield meaning(name, inquiry.domain)
        except (WrongNameError, UnicodeError) as error:
            raise UsageError(f"{name!r} can be no name: {error}") from None


async def _services(
    client: api.Client, asked: NameMeaning, domain: str
) -> dict[Key, tuple[Service, tuple[EndpointSlice, ...]]]:
    """The one that the name is of, and those that it points to; all, where any may have the address."""
    if asked.kind is NameKind.REVERSE:
        return await _all_services(client)
    found: dict[Key, tuple[Service, tuple[EndpointSlice, ...]]] = {}
    while asked.service and asked.service not in found and len(found) < MAX_ALIASES:
        try:
            service = await client.get(SERVICES, asked.service.name, asked.service.namespace)
        except NotFound:
            break
        selector = f"{SERVICE_NAME}={asked.service.name}"
        slices = (await client.list(ENDPOINT_SLICES, asked.service.namespace, selector=selector)).items
        found[asked.service] = service, tuple(slices)
        if service.spec.type != "ExternalName":
            break
        asked = meaning(service.spec.external_name, domain)
    return found


async def _all_services(client: api.Client) -> dict[Key, tuple[Service, tuple[EndpointSlice, ...]]]:
    slices: dict[Key, list[EndpointSlice]] = {}
    for each in (await client.list(ENDPOINT_SLICES)).items:
        owner = Key(each.metadata.namespace, each.metadata.labels.get(SERVICE_NAME, ""))
        slices.setdefault(owner, []).append(each)
    services = (await client.list(SERVICES)).items
    keys = [Key(service.metadata.namespace, service.metadata.name) for service in services]
    return {key: (service, tuple(slices.get(key, ()))) for key, service in zip(keys, services, strict=True)}


async def _pods(client: api.Client, inquiry: DnsReadings) -> list[Pod]:
    if not inquiry.locate_by_pods and inquiry.settings.pods is not PodNameRecords.VERIFIED:
        return []
    found = (await client.list(PODS, fields="status.phase!=Succeeded,status.phase!=Failed")).items
    return [pod for pod in found if not pod.spec.host_network]


def _by_address(pods: list[Pod]) -> dict[bytes, str]:
    found = ((packed(ip.ip), pod.spec.node_name) for pod in pods for ip in pod.status.pod_ips)
    return {address: node for address, node in found if address and node}


async def _client(
    client: api.Client, inquiry: DnsReadings, nodes: list[Node], pods: Mapping[bytes, str]
) -> DnsClientReport:
    if inquiry.pod:
        return await _from_pod(client, inquiry, nodes, pods)
    if inquiry.node:
        node = next((each for each in nodes if each.metadata.name == inquiry.node), None)
        if node is None:
            raise ZonewiseError(f"no node {inquiry.node}: `kubectl get nodes` lists them")
        return on_node(f"a client on node {inquiry.node}", node)
    if inquiry.address:
        if packed(inquiry.address.partition("%")[0]) is None:
            raise UsageError(f"--from-ip {inquiry.address!r} is no address; write one such as 10.0.0.7")
        return located(inquiry.address, inquiry.address, nodes, pods)
    return DnsClientReport("anybody", sentence="no client was named: say --from-pod, --from-node or --from-ip")


async def _from_pod(
    client: api.Client, inquiry: DnsReadings, nodes: list[Node], pods: Mapping[bytes, str]
) -> DnsClientReport:
    who = f"pod {inquiry.namespace}/{inquiry.pod}"
    try:
        pod = await client.get(PODS, inquiry.pod, inquiry.namespace)
    except NotFound:
        raise ZonewiseError(f"no {who}: name its namespace with -n, or write NAMESPACE/NAME") from None
    address = pod.status.pod_ip or next((each.ip for each in pod.status.pod_ips), "")
    if not address:
        raise ZonewiseError(f"{who} has no address yet ({pod.status.phase or 'not started'}): ask when it runs")
    found = located(who, address, nodes, pods)
    runs_on = pod.spec.node_name
    if not found.node:
        advice = "the server finds it with --locate pods" if not inquiry.locate_by_pods else "the server can't find it"
        return msgspec.structs.replace(found, sentence=f"{found.sentence}; it runs on {runs_on}: {advice}")
    if found.node != runs_on:
        return msgspec.structs.replace(found, sentence=f"{found.sentence}, though it runs on {runs_on}")
    return found
