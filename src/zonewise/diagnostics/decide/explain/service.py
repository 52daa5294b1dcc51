"""What becomes of a Service's traffic, step by step: the rule, what it leaves of the endpoints for whom, and why. Pure.

The rule is what the controller decides (`planning.outlook.routed`), what clients get is what their node's carrier makes
of the slices as they are (`dataplane`); where the two differ, that is what there is to explain.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

import msgspec

from zonewise.diagnostics.decide.explain import data_plane
from zonewise.diagnostics.decide.explain.data_plane import DataPlaneView, EndpointsForClient, ServiceFrontend
from zonewise.diagnostics.decide.explain.service_report import (
    ClientReport,
    EndpointShare,
    FrontendReport,
    KubeProxyReport,
    ServiceReport,
)
from zonewise.objects import Endpoint, EndpointHints, EndpointSlice, Namespace, Node, Service, ServicePort
from zonewise.planning.data_plane import STOCK, DataPlane, DataPlanes
from zonewise.planning.forecast import RUN_DNS, routed
from zonewise.planning.snapshot import Snapshot, served_by
from zonewise.proxy.decide.targets import port_numbers
from zonewise.routing import EVERYONE, Decision, HintsForm, RoutingCode, RoutingNodes, RoutingReason, report
from zonewise.routing.endpoints import is_draining, is_ready
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
_CARRIED: Final[Mapping[DataPlane, str]] = {
    DataPlane.ZONEWISE_PROXY: "the Zonewise proxy on each node",
    DataPlane.KUBE_PROXY: "kube-proxy, by the hints in the slices",
    DataPlane.DNS: "the Zonewise DNS server, with the addresses themselves: clients choose",
    DataPlane.STOCK_DNS: "stock DNS, with the addresses themselves: clients choose",
    DataPlane.OTHER: "another proxy; told here is what Zonewise's would do",
    DataPlane.NOBODY: "DNS, as an alias of a name elsewhere",
}
_WRITE_THEM: Final = (
    "run `zonewise controller`, with `zonewise webhook` beside a stock controller; `zonewise status` tells"
)
_UNNAMED: Final = (ServicePort(),)
"""A headless Service needs no port."""


def explain(
    service: Service,
    slices: Sequence[EndpointSlice],
    nodes: Sequence[Node],
    namespaces: Iterable[Namespace] = (),
    *,
    client: str = "",
    node: str = "",
    carriers: DataPlanes = STOCK,
    hints: HintsForm = HintsForm.STABLE,
) -> ServiceReport:
    """For clients on `node`, who are called `client`; for those of all nodes without one."""
    served = served_by(service, slices)
    situation = Snapshot(tuple(nodes), (served,), {each.metadata.name: each for each in namespaces})
    made = {family.value: routed(served, family, situation, hints) for family in served.by_family}
    state = _state(service, made, situation.cluster)
    said = {name: each.metadata.annotations for name, each in situation.namespaces.items()}
    scene = DataPlaneView(service, served.slices, situation.cluster, said)
    carrier = carriers.of(service)
    fronts = tuple(_fronts(scene, carrier, made, node))
    reading = read_policy(service)
    losses = () if carrier.is_ours else state.losses
    stale = _stale(scene, made) if carrier is DataPlane.KUBE_PROXY else ""
    policy = report.of_policy([each.decision for each in made.values()])
    assert policy is not None, "a Service has a family"
    return ServiceReport(
        namespace=service.metadata.namespace,
        name=service.metadata.name,
        type="Headless" if carrier.is_dns else service.spec.type,
        client=client,
        verdict=_verdict(fronts, carrier, client, service),
        asks=f"{reading.source}: {value_of(service, reading.source)}" if reading.source else "",
        policy_name=state.policy,
        in_force=state.active,
        policy=policy,
        carrier=carrier,
        carried=_CARRIED[carrier],
        fronts=fronts,
        losses=losses,
        stale=stale,
        remedies=tuple(_remedies(fronts, made.values(), carrier, losses, stale)),
    )


def _state(service: Service, made: Mapping[str, RoutedEndpoints], cluster: RoutingNodes) -> ServiceRoutingState:
    decisions = {family: each.decision for family, each in made.items()}
    expressions = {family: each.expression for family, each in made.items()}
    return state_of(service, decisions, expressions, forecasts_of(decisions.values(), cluster), now="")


def _fronts(
    scene: DataPlaneView, carrier: DataPlane, made: Mapping[str, RoutedEndpoints], node: str
) -> Iterator[FrontendReport]:
    """Those of a family whose ports lead to the same endpoints are told once."""
    if carrier is DataPlane.NOBODY:
        return
    present = {found.address_type for found in scene.slices}
    for family in [name for name in made if name in present] or list(made)[:1]:
        told: dict[tuple[ClientReport, ...], tuple[list[str], ServiceFrontend]] = {}
        for port in scene.service.spec.ports or _UNNAMED[: carrier.is_dns]:
            front = ServiceFrontend(port, family)
            clients = tuple(_clients(scene, front, carrier, made[family].decision, node))
            told.setdefault(clients, ([], front))[0].append(str(front))
        for clients, (ports, front) in told.items():
            endpoints = _offering(scene.slices, front, carrier)
            yield FrontendReport(
                ports=tuple(ports),
                family=family,
                ready=sum(map(is_ready, endpoints)),
                clients=clients,
                endpoints=tuple(_endpoint(each, clients, made[family].decision, scene, node) for each in endpoints),
            )


def _offering(slices: Iterable[EndpointSlice], front: ServiceFrontend, carrier: DataPlane) -> list[Endpoint]:
    """By address; a slice without the port has none for it, which DNS does not mind."""
    found = {
        endpoint.addresses[0]: endpoint
        for each in slices
        if each.address_type == front.family and (carrier.is_dns or any(port_numbers(each, front.port)))
        for endpoint in each.endpoints or ()
        if endpoint.addresses
    }
    return [found[address] for address in sorted(found, key=_numeric)]


def _numeric(address: str) -> tuple[int, ...] | tuple[str]:
    """IPv4 in the order of its numbers."""
    parts = address.split(".")
    return tuple(map(int, parts)) if all(map(str.isdecimal, parts)) else (address,)


def _clients(
    scene: DataPlaneView, front: ServiceFrontend, carrier: DataPlane, decision: Decision, node: str
) -> Iterator[ClientReport]:
    if node:
        yield _client(scene, front, carrier, (node,))
        return
    alike: dict[tuple[object, ...], list[ClientReport]] = {}
    for names in _groups(scene, decision):
        found = _client(scene, front, carrier, names)
        alike.setdefault((found.zone, found.gets, found.code, found.fell_back, found.stock.same), []).append(found)
    yield from map(_joined, alike.values())


def _joined(found: Sequence[ClientReport]) -> ClientReport:
    """Clients of one zone that are told the same words are one line."""
    nodes = tuple(sorted(name for each in found for name in each.nodes))
    weight = sum(each.in_zone * len(each.nodes) for each in found) / len(nodes)
    return msgspec.structs.replace(found[0], nodes=nodes, in_zone=weight)


def _groups(scene: DataPlaneView, decision: Decision) -> list[tuple[str, ...]]:
    """Client nodes that nothing tells apart; each alone where endpoints are for nodes."""
    asked = [tier.key for tier in (*decision.tiers, decision.walls) if tier and tier is not EVERYONE]
    local = scene.service.spec.internal_traffic_policy == "Local"
    hinted = any(
        endpoint.hints and endpoint.hints.for_nodes for found in scene.slices for endpoint in found.endpoints or ()
    )
    if local or hinted:
        return [(name,) for name in scene.cluster.clients]
    keys = (ZONE, *dict.fromkeys(key for key in asked if key != ZONE))
    groups = scene.cluster.clients_by(keys)
    return [groups[alike] for alike in sorted(groups, key=lambda alike: tuple(part or "" for part in alike))]


def _client(scene: DataPlaneView, front: ServiceFrontend, carrier: DataPlane, names: tuple[str, ...]) -> ClientReport:
    node = scene.cluster.nodes[names[0]]
    given = data_plane.given(scene, front, node, carrier)
    zone = scene.cluster.domains(ZONE).get(names[0], "")
    whole = sum(given.shares.values()) or 1.0
    homes = _homes(scene, given.shares)
    tiers = (
        report.tiers(given.decision, given.choice, scene.cluster, names[0]) if given.decision and given.choice else ()
    )
    return ClientReport(
        zone=zone,
        nodes=names,
        gets=len(given.shares),
        in_zone=sum(weight for address, weight in given.shares.items() if zone and homes[address] == zone) / whole,
        fell_back=_fell_back(given),
        code=given.reason.code,
        sentence=given.reason.sentence,
        blame=tuple(map(str, given.reason.blame)),
        remedy=given.reason.remedy,
        shares=tuple(EndpointShare(address, given.shares[address] / whole) for address in sorted(given.shares)),
        tiers=tuple(tiers),
        stock=_stock(scene, front, node, carrier, given),
    )


def _fell_back(given: EndpointsForClient) -> bool:
    if given.choice is not None and given.decision is not None:
        return given.choice.tier is EVERYONE and len(given.decision.tiers) > 1
    return given.reason.code in _FALLBACKS


def _homes(scene: DataPlaneView, addresses: Iterable[str]) -> dict[str, str | None]:
    wanted = set(addresses)
    found = {
        endpoint.addresses[0]: endpoint
        for each in scene.slices
        for endpoint in each.endpoints or ()
        if endpoint.addresses and endpoint.addresses[0] in wanted
    }
    return scene.cluster.homes(found, ZONE)


def _stock(
    scene: DataPlaneView, front: ServiceFrontend, node: Node, carrier: DataPlane, given: EndpointsForClient
) -> KubeProxyReport:
    headless = carrier.is_dns
    stock = data_plane.by_stock_dns(scene, front) if headless else data_plane.by_kube_proxy(scene, front, node)
    return KubeProxyReport(
        program="stock DNS" if headless else f"kube-proxy 1.{data_plane.minor_of(node)}",
        same=set(stock.shares) == set(given.shares),
        code=stock.reason.code,
        sentence=stock.reason.sentence,
        addresses=tuple(sorted(stock.shares)),
    )


def _endpoint(
    endpoint: Endpoint, clients: Sequence[ClientReport], decision: Decision, scene: DataPlaneView, node: str
) -> EndpointReport:
    address = endpoint.addresses[0]
    home = scene.cluster.homes({address: endpoint}, ZONE)[address] or ""
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
            return "not for this client" if len(clients) == 1 else "for nobody"


def _verdict(fronts: Sequence[FrontendReport], carrier: DataPlane, client: str, service: Service) -> str:
    if carrier is DataPlane.NOBODY:
        return f"an alias of {service.spec.external_name}: whoever serves that name serves this one"
    if not fronts:
        return "has no port, so nothing is carried" if not carrier.is_dns else "has no endpoint"
    worst = min(fronts, key=_how_well)
    said = _verdict_on(worst, client)
    if all(_verdict_on(front, client) == said for front in fronts):
        return said
    return f"{', '.join(worst.ports)} over {worst.family}: {said}"


def _how_well(front: FrontendReport) -> tuple[float, float]:
    """How many of the clients reach anything, and how much of their traffic stays in its zone."""
    whole = sum(len(each.nodes) for each in front.clients) or 1
    reached = sum(len(each.nodes) for each in front.clients if each.gets)
    return reached / whole, sum(each.in_zone * len(each.nodes) for each in front.clients) / whole


def _verdict_on(front: FrontendReport, client: str) -> str:
    if not front.ready and not any(each.gets for each in front.clients):
        return "no endpoint is ready"
    return _verdict_for(front, front.clients[0]) if client else _verdict_for_all(front)


def _verdict_for(front: FrontendReport, one: ClientReport) -> str:
    if not one.gets:
        return f"reaches none of {len(front.endpoints)} endpoints"
    stays = {1.0: f"all in zone {one.zone}", 0.0: "none in its own zone"}
    share = stays.get(one.in_zone, f"{one.in_zone * 100:.0f} % of traffic in zone {one.zone}")
    return f"{one.gets} of {front.ready or len(front.endpoints)} endpoints, {share}"


def _verdict_for_all(front: FrontendReport) -> str:
    cut = [each for each in front.clients if not each.gets]
    whole = sum(len(each.nodes) for each in front.clients)
    if not whole:
        return "there is no client node"
    if cut:
        zones = ", ".join(dict.fromkeys(each.zone or "(no zone)" for each in cut))
        return f"clients in {zones} reach no endpoint"
    if all(each.in_zone == 1.0 for each in front.clients):
        return "every client stays in its zone"
    share = sum(each.in_zone * len(each.nodes) for each in front.clients) / whole
    leaving = dict.fromkeys(each.zone or "(no zone)" for each in front.clients if each.in_zone < 1.0)
    everywhere = len(leaving) == len({each.zone for each in front.clients})
    who = "" if everywhere else f"; clients in {', '.join(leaving)} leave it"
    return f"{share * 100:.0f} % of traffic stays in its zone{who}"


def _stale(scene: DataPlaneView, made: Mapping[str, RoutedEndpoints]) -> str:
    """Whether somebody has yet to write the hints that were decided."""
    wanted = {
        endpoint.addresses[0]: endpoint.hints
        for each in made.values()
        for bucket in each.desired.values()
        for endpoint in bucket.values()
        if endpoint.addresses and is_ready(endpoint)
    }
    written = {
        endpoint.addresses[0]: endpoint.hints
        for each in scene.slices
        for endpoint in each.endpoints or ()
        if endpoint.addresses
    }
    behind = sum(_names(hints) != _names(written.get(address)) for address, hints in wanted.items())
    if not behind:
        return ""
    return f"the slices do not say so yet: {behind} of {len(wanted)} ready endpoints have other hints than were decided"


def _names(hints: EndpointHints | None) -> tuple[frozenset[str], frozenset[str]]:
    if hints is None:
        return frozenset(), frozenset()
    return frozenset(hint.name for hint in hints.for_zones), frozenset(hint.name for hint in hints.for_nodes)


def _remedies(
    fronts: Iterable[FrontendReport],
    made: Iterable[RoutedEndpoints],
    carrier: DataPlane,
    losses: Sequence[str],
    stale: str,
) -> Iterator[str]:
    found = [_WRITE_THEM] if stale else []
    found += [RUN_DNS] if carrier is DataPlane.STOCK_DNS and losses else []
    found += [client.remedy for front in fronts for client in front.clients]
    for each in made:
        reasons: Sequence[RoutingReason] = (*each.decision.reasons, *each.decision.complaints)
        unsaid = each.expression.losses if carrier is DataPlane.KUBE_PROXY else ()
        found += [reason.remedy for reason in (*reasons, *unsaid)]
    yield from dict.fromkeys(remedy for remedy in found if remedy)
