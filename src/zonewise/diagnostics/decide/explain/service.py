"""Explanation of a Service's routing: the policy, the endpoints that each client gets, and why. Pure.

The policy is the controller's decision (`planning.forecast.route_family`). What clients get depends on their data plane and
on the present slices (`data_plane`). Where the two differ, the report says why.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from zonewise.diagnostics.decide.explain.data_plane import (
    DataPlaneView,
    EndpointsForClient,
    ServiceFrontend,
    endpoints_for,
    kube_proxy_endpoints,
    kubelet_minor,
    stock_dns_endpoints,
)
from zonewise.diagnostics.decide.explain.service_report import (
    ClientReport,
    EndpointShare,
    FrontendReport,
    KubeProxyReport,
    ServiceReport,
)
from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Namespace, Node, Service, ServicePort
from zonewise.planning.data_plane import STOCK, DataPlane, DataPlanes
from zonewise.planning.forecast import RUN_DNS, route_family
from zonewise.planning.snapshot import Snapshot, snapshot_service
from zonewise.proxy.decide.targets import port_numbers
from zonewise.routing import EVERYONE, NODE_NAME, Decision, HintsForm, RoutingCode, RoutingNodes, RoutingReason, report
from zonewise.routing.endpoints import is_draining, is_ready
from zonewise.routing.forecast import clients_alike, served_domains
from zonewise.routing.policy import read_policy, value_of
from zonewise.routing.report import EndpointReport
from zonewise.slices.decide.route import RoutedEndpoints
from zonewise.slices.decide.service_status import ServiceRoutingState, forecasts_of, state_of
from zonewise.topology import ZONE

_FALLBACKS: Final = {
    RoutingCode.MISSING_HINTS,
    RoutingCode.NODE_WITHOUT_ZONE,
    RoutingCode.ZONE_NOT_HINTED,
    RoutingCode.PROXY_IGNORES_HINTS,
    RoutingCode.ONLY_TERMINATING,
}
_DESCRIPTIONS: Final[Mapping[DataPlane, str]] = {
    DataPlane.ZONEWISE_PROXY: "the Zonewise proxy on each node",
    DataPlane.KUBE_PROXY: "kube-proxy, by the hints in the slices",
    DataPlane.DNS: "the Zonewise DNS server, with the addresses themselves: clients choose",
    DataPlane.STOCK_DNS: "stock DNS, with the addresses themselves: clients choose",
    DataPlane.OTHER: "another proxy; shown is what the Zonewise proxy would do",
    DataPlane.NONE: "DNS, as an alias of an external name",
}
_WRITE_HINTS: Final = (
    "run `zonewise controller`, and `zonewise webhook` beside a stock controller; `zonewise status` shows both"
)
_NO_PORTS: Final = (ServicePort(),)
"""A headless Service may have no port."""


def build_service_report(
    service: Service,
    slices: Sequence[EndpointSlice],
    nodes: Sequence[Node],
    namespaces: Iterable[Namespace] = (),
    *,
    client: str = "",
    node: str = "",
    data_planes: DataPlanes = STOCK,
    hints: HintsForm = HintsForm.STABLE,
) -> ServiceReport:
    """For clients on `node`, described as `client`; without a node, for the clients of all nodes."""
    item = snapshot_service(service, slices)
    snapshot = Snapshot(tuple(nodes), (item,), {namespace.metadata.name: namespace for namespace in namespaces})
    routed = {family.value: route_family(item, family, snapshot, hints) for family in item.by_family}
    state = _state(service, routed, snapshot.cluster)
    annotations = {name: namespace.metadata.annotations for name, namespace in snapshot.namespaces.items()}
    view = DataPlaneView(service, item.slices, snapshot.cluster, annotations)
    data_plane = data_planes.of(service)
    fronts = tuple(_fronts(view, data_plane, routed, node))
    reading = read_policy(service)
    losses = () if data_plane.is_ours else state.losses
    stale = _stale(view, routed) if data_plane is DataPlane.KUBE_PROXY else ""
    policy = report.of_policy([endpoints.decision for endpoints in routed.values()])
    assert policy is not None, "a Service has an address family"
    return ServiceReport(
        namespace=service.metadata.namespace,
        name=service.metadata.name,
        type="Headless" if data_plane.is_dns else service.spec.type,
        client=client,
        verdict=_verdict(fronts, data_plane, client, service),
        asks=f"{reading.source}: {value_of(service, reading.source)}" if reading.source else "",
        policy_name=state.policy,
        in_force=state.active,
        policy=policy,
        carrier=data_plane,
        carried=_DESCRIPTIONS[data_plane],
        fronts=fronts,
        losses=losses,
        stale=stale,
        remedies=tuple(_remedies(fronts, routed.values(), data_plane, losses, stale)),
    )


def _state(service: Service, routed: Mapping[str, RoutedEndpoints], cluster: RoutingNodes) -> ServiceRoutingState:
    decisions = {family: endpoints.decision for family, endpoints in routed.items()}
    expressions = {family: endpoints.expression for family, endpoints in routed.items()}
    return state_of(service, decisions, expressions, forecasts_of(decisions.values(), cluster), now="")


def _fronts(
    view: DataPlaneView, data_plane: DataPlane, routed: Mapping[str, RoutedEndpoints], node: str
) -> Iterator[FrontendReport]:
    """Ports of a family that lead to the same endpoints share one report."""
    if data_plane is DataPlane.NONE:
        return
    present = {slice_.address_type for slice_ in view.slices}
    for family in [name for name in routed if name in present] or list(routed)[:1]:
        by_clients: dict[tuple[ClientReport, ...], tuple[list[str], ServiceFrontend]] = {}
        for port in view.service.spec.ports or _NO_PORTS[: data_plane.is_dns]:
            front = ServiceFrontend(port, family)
            clients = tuple(_clients(view, front, data_plane, routed[family].decision, node))
            by_clients.setdefault(clients, ([], front))[0].append(str(front))
        for clients, (ports, front) in by_clients.items():
            endpoints = _offering(view.slices, front, data_plane)
            yield FrontendReport(
                ports=tuple(ports),
                family=family,
                ready=sum(map(is_ready, endpoints)),
                clients=clients,
                endpoints=tuple(
                    _endpoint(endpoint, clients, routed[family].decision, view, node) for endpoint in endpoints
                ),
            )


def _offering(slices: Iterable[EndpointSlice], front: ServiceFrontend, data_plane: DataPlane) -> list[Endpoint]:
    """Sorted by address. Slices without the port count for DNS only."""
    by_address = {
        endpoint.addresses[0]: endpoint
        for slice_ in slices
        if slice_.address_type == front.family and (data_plane.is_dns or any(port_numbers(slice_, front.port)))
        for endpoint in slice_.endpoints or ()
        if endpoint.addresses
    }
    return [by_address[address] for address in sorted(by_address, key=_numeric)]


def _numeric(address: str) -> tuple[int, ...] | tuple[str]:
    """Sorts IPv4 addresses by their numbers."""
    parts = address.split(".")
    return tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else (address,)


def _clients(
    view: DataPlaneView, front: ServiceFrontend, data_plane: DataPlane, decision: Decision, node: str
) -> Iterator[ClientReport]:
    if node:
        yield _client(view, front, data_plane, (node,))
        return
    groups: dict[tuple[object, ...], list[ClientReport]] = {}
    for names in _node_groups(view, decision):
        client = _client(view, front, data_plane, names)
        outcome = client.zone, client.shares, client.code, client.fell_back, client.stock.same
        groups.setdefault(outcome, []).append(client)
    yield from map(_merge, groups.values())


def _merge(clients: Sequence[ClientReport]) -> ClientReport:
    """One line for clients of one zone with the same outcome."""
    nodes = tuple(sorted(name for client in clients for name in client.nodes))
    in_zone = sum(client.in_zone * len(client.nodes) for client in clients) / len(nodes)
    return msgspec.structs.replace(clients[0], nodes=nodes, in_zone=in_zone)


def _node_groups(view: DataPlaneView, decision: Decision) -> list[tuple[str, ...]]:
    """Client nodes that get the same endpoints: nodes with endpoints or hints of their own are told apart."""
    endpoints = [endpoint for slice_ in view.slices for endpoint in slice_.endpoints or ()]
    named = {hint.name for endpoint in endpoints if endpoint.hints for hint in endpoint.hints.for_nodes}
    if view.service.spec.internal_traffic_policy == "Local":
        named |= {endpoint.node_name for endpoint in endpoints if endpoint.node_name}
    served = served_domains(decision)
    served[NODE_NAME] = served.get(NODE_NAME, set()) | named
    groups = clients_alike(view.cluster, served)
    return sorted((tuple(names) for _, names in groups), key=lambda names: (_zone(view, names[0]), names))


def _zone(view: DataPlaneView, name: str) -> str:
    return view.cluster.domains(ZONE).get(name, "")


def _client(view: DataPlaneView, front: ServiceFrontend, data_plane: DataPlane, names: tuple[str, ...]) -> ClientReport:
    node = view.cluster.nodes[names[0]]
    given = endpoints_for(view, front, node, data_plane)
    zone = _zone(view, names[0])
    total = sum(given.shares.values()) or 1.0
    homes = _homes(view, given.shares)
    tiers = (
        report.tiers(given.decision, given.choice, view.cluster, names[0]) if given.decision and given.choice else ()
    )
    return ClientReport(
        zone=zone,
        nodes=names,
        gets=len(given.shares),
        in_zone=sum(weight for address, weight in given.shares.items() if zone and homes[address] == zone) / total,
        fell_back=_fell_back(given),
        code=given.reason.code,
        sentence=given.reason.sentence,
        blame=tuple(map(str, given.reason.blame)),
        remedy=given.reason.remedy,
        shares=tuple(EndpointShare(address, given.shares[address] / total) for address in sorted(given.shares)),
        tiers=tuple(tiers),
        stock=_stock(view, front, node, data_plane, given),
    )


def _fell_back(given: EndpointsForClient) -> bool:
    if given.choice is not None and given.decision is not None:
        return given.choice.tier is EVERYONE and len(given.decision.tiers) > 1
    return given.reason.code in _FALLBACKS


def _homes(view: DataPlaneView, addresses: Iterable[str]) -> dict[str, str | None]:
    known = set(addresses)
    by_address = {
        endpoint.addresses[0]: endpoint
        for slice_ in view.slices
        for endpoint in slice_.endpoints or ()
        if endpoint.addresses and endpoint.addresses[0] in known
    }
    return view.cluster.homes(by_address, ZONE)


def _stock(
    view: DataPlaneView, front: ServiceFrontend, node: Node, data_plane: DataPlane, given: EndpointsForClient
) -> KubeProxyReport:
    headless = data_plane.is_dns
    stock = stock_dns_endpoints(view, front) if headless else kube_proxy_endpoints(view, front, node)
    return KubeProxyReport(
        program="stock DNS" if headless else f"kube-proxy 1.{kubelet_minor(node)}",
        same=set(stock.shares) == set(given.shares),
        code=stock.reason.code,
        sentence=stock.reason.sentence,
        addresses=tuple(sorted(stock.shares)),
    )


def _endpoint(
    endpoint: Endpoint, clients: Sequence[ClientReport], decision: Decision, view: DataPlaneView, node: str
) -> EndpointReport:
    address = endpoint.addresses[0]
    home = view.cluster.homes({address: endpoint}, ZONE)[address] or ""
    takers = [client for client in clients if any(share.address == address for share in client.shares)]
    return EndpointReport(
        address,
        endpoint.node_name or "",
        home,
        bool(takers),
        _why(endpoint, takers, clients, decision, bool(node)),
    )


def _why(
    endpoint: Endpoint,
    takers: Sequence[ClientReport],
    clients: Sequence[ClientReport],
    decision: Decision,
    one_client: bool,
) -> str:
    hints = ", ".join(hint.name for hint in endpoint.hints.for_zones) if endpoint.hints else ""
    if not takers:
        return _left_out(endpoint, clients, decision, hints)
    if one_client:
        return f"hinted for {hints}" if hints else "ready" if is_ready(endpoint) else "terminating, but still serves"
    if len(takers) == len(clients):
        return "for every client"
    zones = dict.fromkeys(client.zone or "(no zone)" for client in takers)
    return f"for {', '.join(zones)}"


def _left_out(endpoint: Endpoint, clients: Sequence[ClientReport], decision: Decision, hints: str) -> str:
    match endpoint:
        case _ if not is_ready(endpoint):
            return "terminating" if is_draining(endpoint) else "not ready"
        case _ if endpoint.addresses[0] in decision.drained:
            return "its zone is drained"
        case _ if all(client.code == RoutingCode.PROXY_LOCAL_ONLY for client in clients):
            return "not on the client's node"
        case _ if hints:
            return f"hinted for {hints}"
        case _:
            return "not for this client" if len(clients) == 1 else "for no client"


def _verdict(fronts: Sequence[FrontendReport], data_plane: DataPlane, client: str, service: Service) -> str:
    if data_plane is DataPlane.NONE:
        return f"an alias of {service.spec.external_name}: the servers of that name get the traffic"
    if not fronts:
        return "has no port, so there is no traffic" if not data_plane.is_dns else "has no endpoint"
    worst = min(fronts, key=_service_level)
    verdict = _front_verdict(worst, client)
    if all(_front_verdict(front, client) == verdict for front in fronts):
        return verdict
    return f"{', '.join(worst.ports)} over {worst.family}: {verdict}"


def _service_level(front: FrontendReport) -> tuple[float, float]:
    """The share of clients that reach an endpoint, and of their traffic that stays in its zone."""
    total = sum(len(client.nodes) for client in front.clients) or 1
    served = sum(len(client.nodes) for client in front.clients if client.gets)
    return served / total, sum(client.in_zone * len(client.nodes) for client in front.clients) / total


def _front_verdict(front: FrontendReport, client: str) -> str:
    if not front.ready and not any(reported.gets for reported in front.clients):
        return "no endpoint is ready"
    return _verdict_for_one(front, front.clients[0]) if client else _verdict_for_all(front)


def _verdict_for_one(front: FrontendReport, client: ClientReport) -> str:
    if not client.gets:
        return f"reaches none of {len(front.endpoints)} endpoints"
    extremes = {1.0: f"all in zone {client.zone}", 0.0: "none in its own zone"}
    share = extremes.get(client.in_zone, f"{client.in_zone * 100:.0f} % of traffic in zone {client.zone}")
    return f"{client.gets} of {front.ready or len(front.endpoints)} endpoints, {share}"


def _verdict_for_all(front: FrontendReport) -> str:
    cut_off = [client for client in front.clients if not client.gets]
    total = sum(len(client.nodes) for client in front.clients)
    if not total:
        return "there is no client node"
    if cut_off:
        zones = ", ".join(dict.fromkeys(client.zone or "(no zone)" for client in cut_off))
        return f"clients in {zones} reach no endpoint"
    if all(client.in_zone == 1.0 for client in front.clients):
        return "every client stays in its zone"
    share = sum(client.in_zone * len(client.nodes) for client in front.clients) / total
    leaving = dict.fromkeys(client.zone or "(no zone)" for client in front.clients if client.in_zone < 1.0)
    from_all_zones = len(leaving) == len({client.zone for client in front.clients})
    detail = "" if from_all_zones else f"; clients in {', '.join(leaving)} leave it"
    return f"{share * 100:.0f} % of traffic stays in its zone{detail}"


def _stale(view: DataPlaneView, routed: Mapping[str, RoutedEndpoints]) -> str:
    """Compares the hints that were decided with those in the slices; empty if they agree."""
    decided = {
        endpoint.addresses[0]: endpoint.hints
        for endpoints in routed.values()
        for group in endpoints.desired.values()
        for endpoint in group.values()
        if endpoint.addresses and is_ready(endpoint)
    }
    present = {
        endpoint.addresses[0]: endpoint.hints
        for slice_ in view.slices
        for endpoint in slice_.endpoints or ()
        if endpoint.addresses
    }
    stale = sum(_names(hints) != _names(present.get(address)) for address, hints in decided.items())
    if not stale:
        return ""
    return (
        f"the slices are not up to date: {stale} of {len(decided)} ready endpoints have other hints than were decided"
    )


def _names(hints: EndpointHints | None) -> tuple[frozenset[str], frozenset[str]]:
    if hints is None:
        return frozenset(), frozenset()
    return frozenset(hint.name for hint in hints.for_zones), frozenset(hint.name for hint in hints.for_nodes)


def _remedies(
    fronts: Iterable[FrontendReport],
    routed: Iterable[RoutedEndpoints],
    data_plane: DataPlane,
    losses: Sequence[str],
    stale: str,
) -> Iterator[str]:
    remedies = [_WRITE_HINTS] if stale else []
    remedies += [RUN_DNS] if data_plane is DataPlane.STOCK_DNS and losses else []
    remedies += [client.remedy for front in fronts for client in front.clients]
    for endpoints in routed:
        decision = endpoints.decision
        reasons: Sequence[RoutingReason] = (*decision.reasons, *decision.complaints)
        unexpressed = endpoints.expression.losses if data_plane is DataPlane.KUBE_PROXY else ()
        remedies += [reason.remedy for reason in (*reasons, *unexpressed)]
    yield from dict.fromkeys(remedy for remedy in remedies if remedy)
