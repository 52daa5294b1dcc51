"""Why a client gets what it gets for a name: the server's own functions, asked once, with every fact that had a say.

`build_dns_report` builds the records that a server would have of the few objects concerned, asks them as the client would, and
sets beside the reply what `zonewise.routing` decided. Pure: `zonewise explain dns` reads the cluster and prints.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from zonewise.diagnostics.decide.explain import dns_report
from zonewise.diagnostics.decide.explain.dns_names import NameKind, ParsedName
from zonewise.diagnostics.decide.explain.dns_report import DnsClientReport, DnsReport
from zonewise.dns.decide.client_groups import decisions
from zonewise.dns.decide.handler import LARGEST, ForwardQuery, QuerySender, respond
from zonewise.dns.decide.record_builder import is_headless
from zonewise.dns.decide.table import RecordTable
from zonewise.dns.decide.zone import ClusterZone, ZoneConfig, ready_by_family
from zonewise.dns.wire.message import RecordType
from zonewise.dns.wire.names import to_text
from zonewise.dns.wire.text import TextReply, alias_in, query_for, shown
from zonewise.objects import EndpointSlice, Key, Node, Service
from zonewise.routing import ClientChoice, Decision, RoutingNodes, choose, drained_zones, report
from zonewise.routing.report import EndpointReport, TierReport

ServiceSlices = tuple[Service, Sequence[EndpointSlice]]
_FAMILIES = {RecordType.A: "IPv4", RecordType.AAAA: "IPv6"}


@dataclass(frozen=True, slots=True)
class DnsState:
    """What was read of the cluster: all nodes and namespaces (by name, with their annotations), and Services concerned."""

    nodes: Sequence[Node] = ()
    namespaces: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    services: Mapping[Key, ServiceSlices] = field(default_factory=dict)
    pods: Sequence[tuple[str, bytes]] = ()
    """Namespaces and addresses, for verified pod records."""


def build_dns_report(
    asked: ParsedName, type_: RecordType, client: DnsClientReport, state: DnsState, settings: ZoneConfig
) -> DnsReport:
    answer, elsewhere = _ask(asked, type_, client.node, state, settings)
    service, slices = state.services.get(asked.service, (None, ())) if asked.service else (None, ())
    cluster = RoutingNodes.of(state.nodes)
    of_types = [each for each in slices if _FAMILIES.get(type_, each.address_type) == each.address_type]
    headless = service is not None and is_headless(service)
    varied = headless and asked.kind in {NameKind.SERVICE, NameKind.PORT}
    made = _decided(service, of_types, cluster, state) if service and varied else []
    chosen = [choose(decision, cluster, client.node) for decision in made] if client.node else []
    return DnsReport(
        name=asked.name,
        type=type_.name,
        verdict=_verdict(asked, answer, service, made, chosen, elsewhere=elsewhere),
        kind=asked.kind.value,
        service=dns_report.dns_service_report(service) if service else None,
        client=client,
        policy=report.of_policy(made),
        tiers=tuple(_tiers(made, chosen, cluster, client.node)),
        endpoints=tuple(_endpoints(of_types, answer, made, chosen, cluster))
        if headless or asked.kind is NameKind.ENDPOINT
        else (),
        answer=answer,
        passed_on=elsewhere,
        remedies=tuple(_remedies(asked, service, made, chosen, answer)),
    )


def _ask(
    asked: ParsedName, type_: RecordType, node: str, state: DnsState, settings: ZoneConfig
) -> tuple[TextReply, bool]:
    """The reply, and whether others are asked for it, or for where it points."""
    found = respond(_table(state, settings), query_for(asked.name, type_), QuerySender(node), LARGEST)
    if isinstance(found, bytes):
        return shown(found), False
    return _known_of(found, settings.domain.ttl), True


def _known_of(found: ForwardQuery, ttl: int) -> TextReply:
    if not found.count:
        return TextReply("", None)
    return alias_in(to_text(found.query.name), found.name, ttl)


def _table(state: DnsState, settings: ZoneConfig) -> RecordTable:
    catalog, table = ClusterZone(settings), RecordTable(settings.domain.wire)
    updates = [*catalog.snapshot(), *catalog.set_nodes(state.nodes), *catalog.set_namespaces(state.namespaces)]
    for key, (service, slices) in state.services.items():
        updates += catalog.set_service(key, service, slices)
    for number, (namespace, address) in enumerate(state.pods):
        updates += catalog.set_pod(Key(namespace, str(number)), [address], "somewhere")
    for update in [*updates, ("loaded",)]:
        table.apply(update)
    return table


def _decided(
    service: Service, slices: Sequence[EndpointSlice], cluster: RoutingNodes, state: DnsState
) -> list[Decision]:
    said = state.namespaces.get(service.metadata.namespace, {})
    return decisions(service, ready_by_family(slices), cluster, drained_zones(service, said, cluster.node_drains))


def _tiers(
    made: Sequence[Decision], chosen: Sequence[ClientChoice], cluster: RoutingNodes, node: str
) -> Iterator[TierReport]:
    for decision, choice in zip(made, chosen, strict=False):  # none is chosen for a client nobody knows
        yield from report.tiers(decision, choice, cluster, node)


def _endpoints(
    slices: Iterable[EndpointSlice],
    answer: TextReply,
    made: Sequence[Decision],
    chosen: Sequence[ClientChoice],
    cluster: RoutingNodes,
) -> Iterator[EndpointReport]:
    given = {record.data for record in (*answer.records, *answer.additional) if record.type in {"A", "AAAA"}}
    drained = {address: found for decision in made for address, found in decision.drained.items()}
    pairs = zip(made, chosen, strict=False)  # none is chosen for a client nobody knows
    by_address = {address: choice for decision, choice in pairs for address in decision.endpoints}
    for each in slices:
        for endpoint in each.endpoints or ():
            yield report.of_endpoint(endpoint, given, by_address, drained, cluster)


def _verdict(
    asked: ParsedName,
    answer: TextReply,
    service: Service | None,
    made: Sequence[Decision],
    chosen: Sequence[ClientChoice],
    *,
    elsewhere: bool,
) -> str:
    count = sum(record.type in {"A", "AAAA", "SRV"} for record in answer.records)
    match answer.rcode:
        case _ if elsewhere:
            what = f"{answer.records[0].data} is not" if answer.records else "not"
            return f"{what} a name of the cluster: other servers are asked"
        case "NXDOMAIN":
            return _missing(asked, service)
        case _ if chosen:
            return "; ".join(dict.fromkeys(choice.reason.sentence for choice in chosen))
        case _ if made:
            return f"all {count}, because the client is on no known node"
        case _ if not answer.records:
            return "the name exists, but has no record of that type"
        case _ if service is not None and service.spec.type == "ExternalName":
            return "an alias, followed to its target: ask for that to see why"
        case _ if service is not None and asked.kind is NameKind.SERVICE:
            return "the cluster IP, whoever asks: the node's proxy chooses the endpoint"
        case _:
            return "the same for every client"


def _missing(asked: ParsedName, service: Service | None) -> str:
    match asked.kind:
        case NameKind.POD:
            return "no such pod, or the server does not answer for pods (see --pods)"
        case _ if asked.service is None:
            return "nothing in the cluster has that name"
        case _ if service is None:
            return f"there is no Service {asked.service}"
        case NameKind.SERVICE:
            return f"no endpoint of headless Service {asked.service} is ready"
        case NameKind.PORT:
            return f"Service {asked.service} has no port {asked.detail}"
        case NameKind.ENDPOINT:
            return f"Service {asked.service} has no ready endpoint {asked.detail!r}"
        case _:
            return f"nothing has that name below Service {asked.service}"


def _remedies(
    asked: ParsedName,
    service: Service | None,
    made: Sequence[Decision],
    chosen: Sequence[ClientChoice],
    answer: TextReply,
) -> Iterator[str]:
    """What would change the answer; nothing is amiss where there is none."""
    found = [choice.reason.remedy for choice in chosen]
    found += [reason.remedy for decision in made for reason in (*decision.reasons, *decision.complaints)]
    if asked.kind is NameKind.SERVICE and service is not None and not answer.records and answer.rcode == "NXDOMAIN":
        found.append("make a pod of the Service ready")
    yield from dict.fromkeys(remedy for remedy in found if remedy)
