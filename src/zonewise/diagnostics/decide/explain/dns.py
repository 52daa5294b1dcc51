"""Explanation of a DNS answer: the reply of the server's own functions, with the facts that led to it. Pure.

`build_dns_report` builds the records that a server would have for the objects concerned, queries them as the client would,
and adds the decision of `zonewise.routing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from zonewise.diagnostics.decide.explain import dns_report
from zonewise.diagnostics.decide.explain.dns_names import NameKind, ParsedName
from zonewise.diagnostics.decide.explain.dns_report import DnsClientReport, DnsReport
from zonewise.dns.decide.client_groups import decisions
from zonewise.dns.decide.handler import MAX_MESSAGE_BYTES, ForwardQuery, QuerySender, respond
from zonewise.dns.decide.record_builder import is_headless
from zonewise.dns.decide.table import RecordTable
from zonewise.dns.decide.zone import ClusterZone, ZoneConfig
from zonewise.dns.wire.message import RecordType
from zonewise.dns.wire.names import to_text
from zonewise.dns.wire.text import TextReply, alias_reply, build_query, text_reply
from zonewise.objects import EndpointSlice, Key, Node, Service
from zonewise.routing import ClientChoice, Decision, RoutingNodes, choose, drained_zones, report
from zonewise.routing.report import EndpointReport, TierReport

ServiceSlices = tuple[Service, Sequence[EndpointSlice]]
_FAMILIES: Final = {RecordType.A: "IPv4", RecordType.AAAA: "IPv6"}


@dataclass(frozen=True, slots=True)
class DnsState:
    """All nodes, the annotations of all namespaces, and the Services concerned."""

    nodes: Sequence[Node] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    services: Mapping[Key, ServiceSlices] = field(default_factory=dict)
    pods: Sequence[tuple[str, bytes]] = ()
    """Namespaces and addresses of pods, for verified pod records."""


def build_dns_report(
    name: ParsedName, type_: RecordType, client: DnsClientReport, state: DnsState, zone: ZoneConfig
) -> DnsReport:
    answer, forwarded = _query(name, type_, client.node, state, zone)
    service, slices = state.services.get(name.service, (None, ())) if name.service else (None, ())
    cluster = RoutingNodes.of(state.nodes)
    of_types = [slice_ for slice_ in slices if _FAMILIES.get(type_, slice_.address_type) == slice_.address_type]
    headless = service is not None and is_headless(service)
    depends_on_client = headless and name.kind in {NameKind.SERVICE, NameKind.PORT}
    decided = _decisions(service, of_types, cluster, state) if service and depends_on_client else []
    choices = [choose(decision, cluster, client.node) for decision in decided] if client.node else []
    return DnsReport(
        name=name.name,
        type=type_.name,
        verdict=_verdict(name, answer, service, decided, choices, forwarded=forwarded),
        kind=name.kind.value,
        service=dns_report.dns_service_report(service) if service else None,
        client=client,
        policy=report.of_policy(decided),
        tiers=tuple(_tiers(decided, choices, cluster, client.node)),
        endpoints=tuple(_endpoints(of_types, answer, decided, choices, cluster))
        if headless or name.kind is NameKind.ENDPOINT
        else (),
        answer=answer,
        passed_on=forwarded,
        remedies=tuple(_remedies(name, service, decided, choices, answer)),
    )


def _query(name: ParsedName, type_: RecordType, node: str, state: DnsState, zone: ZoneConfig) -> tuple[TextReply, bool]:
    """The reply, and whether the query, or that for its alias, is forwarded to other servers."""
    reply = respond(_table(state, zone), build_query(name.name, type_), QuerySender(node), MAX_MESSAGE_BYTES)
    if isinstance(reply, bytes):
        return text_reply(reply), False
    return _partial_reply(reply, zone.domain.ttl), True


def _partial_reply(forward: ForwardQuery, ttl: int) -> TextReply:
    """The aliases that are followed before the query is forwarded."""
    if not forward.count:
        return TextReply("", None)
    return alias_reply(to_text(forward.query.name), forward.name, ttl)


def _table(state: DnsState, zone: ZoneConfig) -> RecordTable:
    cluster_zone, table = ClusterZone(zone), RecordTable(zone.domain.wire)
    updates = [
        *cluster_zone.snapshot(),
        *cluster_zone.set_nodes(state.nodes),
        *cluster_zone.set_namespaces(state.namespaces),
    ]
    for key, (service, slices) in state.services.items():
        updates += cluster_zone.set_service(key, service, slices)
    for number, (namespace, address) in enumerate(state.pods):
        updates += cluster_zone.set_pod(Key(namespace, str(number)), [address], "somewhere")
    for update in [*updates, ("loaded",)]:
        table.apply(update)
    return table


def _decisions(
    service: Service, slices: Sequence[EndpointSlice], cluster: RoutingNodes, state: DnsState
) -> list[Decision]:
    annotations = state.namespaces.get(service.metadata.namespace, {})
    return decisions(service, slices, cluster, drained_zones(service, annotations, cluster.node_drains))


def _tiers(
    decided: Sequence[Decision], choices: Sequence[ClientChoice], cluster: RoutingNodes, node: str
) -> Iterator[TierReport]:
    for decision, choice in zip(decided, choices, strict=False):  # a client on no known node has no choice
        yield from report.tiers(decision, choice, cluster, node)


def _endpoints(
    slices: Iterable[EndpointSlice],
    answer: TextReply,
    decided: Sequence[Decision],
    choices: Sequence[ClientChoice],
    cluster: RoutingNodes,
) -> Iterator[EndpointReport]:
    given = {record.data for record in (*answer.records, *answer.additional) if record.type in {"A", "AAAA"}}
    drained = {address: endpoint for decision in decided for address, endpoint in decision.drained.items()}
    pairs = zip(decided, choices, strict=False)  # a client on no known node has no choice
    by_address = {address: choice for decision, choice in pairs for address in decision.endpoints}
    for slice_ in slices:
        for endpoint in slice_.endpoints or ():
            yield report.of_endpoint(endpoint, given, by_address, drained, cluster)


def _verdict(
    name: ParsedName,
    answer: TextReply,
    service: Service | None,
    decided: Sequence[Decision],
    choices: Sequence[ClientChoice],
    *,
    forwarded: bool,
) -> str:
    count = sum(record.type in {"A", "AAAA", "SRV"} for record in answer.records)
    match answer.rcode:
        case _ if forwarded:
            what = f"{answer.records[0].data} is not" if answer.records else "not"
            return f"{what} a name of the cluster: other servers are name"
        case "NXDOMAIN":
            return _missing(name, service)
        case _ if choices:
            return "; ".join(dict.fromkeys(choice.reason.sentence for choice in choices))
        case _ if decided:
            return f"all {count}, because the client is on no known node"
        case _ if not answer.records:
            return "the name exists, but has no record of that type"
        case _ if service is not None and service.spec.type == "ExternalName":
            return "an alias, followed to its target: explain that name to see why"
        case _ if service is not None and name.kind is NameKind.SERVICE:
            return "the cluster IP for every client: the node's proxy chooses the endpoint"
        case _:
            return "the same for every client"


def _missing(name: ParsedName, service: Service | None) -> str:
    match name.kind:
        case NameKind.POD:
            return "no such pod, or the server does not answer for pods (see --pods)"
        case _ if name.service is None:
            return "nothing in the cluster has that name"
        case _ if service is None:
            return f"there is no Service {name.service}"
        case NameKind.SERVICE:
            return f"no endpoint of headless Service {name.service} is ready"
        case NameKind.PORT:
            return f"Service {name.service} has no port {name.detail}"
        case NameKind.ENDPOINT:
            return f"Service {name.service} has no ready endpoint {name.detail!r}"
        case _:
            return f"nothing has that name below Service {name.service}"


def _remedies(
    name: ParsedName,
    service: Service | None,
    decided: Sequence[Decision],
    choices: Sequence[ClientChoice],
    answer: TextReply,
) -> Iterator[str]:
    """Changes that would alter the answer."""
    remedies = [choice.reason.remedy for choice in choices]
    remedies += [reason.remedy for decision in decided for reason in (*decision.reasons, *decision.complaints)]
    if name.kind is NameKind.SERVICE and service is not None and not answer.records and answer.rcode == "NXDOMAIN":
        remedies.append("make a pod of the Service ready")
    yield from dict.fromkeys(remedy for remedy in remedies if remedy)
