"""Zone drains: the zones that traffic should leave, by `zonewise.dev/drain-zone` on a Service, its namespace or nodes.

`decide` leaves the endpoints of these zones out while there are others, and `express` hints them for no zone. The
annotation names one zone, or several separated by commas. On a node it can only name the node's own zone; one such node
is enough, so that a node that joins the zone later does not end the drain. An invalid value drains nothing and makes a
complaint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from zonewise.api.names import DRAIN_ZONE, DRAINED
from zonewise.objects import Endpoint, Node, Service, key_of
from zonewise.routing.load import consumed_by
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.topology import value_problem, zone_of

NO_CONSUMERS: Final = consumed_by(DRAINED)

_SHOWN: Final = 80
_NAMED: Final = 5


@dataclass(frozen=True, slots=True)
class Drain:
    """The drained zones with the objects that request it, and complaints about the Service or its namespace."""

    zones: Mapping[str, tuple[RoutingSubject, ...]] = field(default_factory=dict, hash=False)
    complaints: tuple[RoutingReason, ...] = ()


NO_DRAIN: Final = Drain()


@dataclass(frozen=True, slots=True)
class NodeDrains:
    """The drains requested by nodes, and all zones; built once per node change."""

    drain: Drain = NO_DRAIN
    zones: frozenset[str] = frozenset()


def drained_by_nodes(nodes: Iterable[Node]) -> NodeDrains:
    zones: dict[str, list[RoutingSubject]] = {}
    all_zones: set[str] = set()
    complaints: list[RoutingReason] = []
    for node in nodes:
        own = zone_of(node.metadata.labels)
        all_zones.add(own or "")
        if (text := node.metadata.annotations.get(DRAIN_ZONE)) is None:
            continue
        subject = RoutingSubject("Node", node.metadata.name)
        if own in _named(text):
            zones.setdefault(own, []).append(subject)
        if _named(text) != {own}:
            complaints.append(_not_its_own(text, subject, own))
    drained = {zone: tuple(sorted(subjects)) for zone, subjects in sorted(zones.items())}
    return NodeDrains(Drain(drained, tuple(sorted(complaints, key=str))), frozenset(all_zones - {""}))


def drained_zones(service: Service, namespace_annotations: Mapping[str, str], node_drains: NodeDrains) -> Drain:
    requests = [
        (subject, text)
        for subject, annotations in (
            (RoutingSubject("Service", str(key_of(service))), service.metadata.annotations),
            (RoutingSubject("Namespace", service.metadata.namespace), namespace_annotations),
        )
        if (text := annotations.get(DRAIN_ZONE)) is not None
    ]
    if not requests:
        return NO_DRAIN if not node_drains.drain.zones else Drain(node_drains.drain.zones)
    zones = dict(node_drains.drain.zones)
    for subject, text in requests:
        for zone in sorted(_valid(text)):
            zones[zone] = (subject, *zones.get(zone, ()))
    complaints = [
        complaint for subject, text in requests for complaint in _complaints(text, subject, node_drains.zones)
    ]
    return Drain(zones, tuple(complaints))


def split(
    endpoints: Mapping[str, Endpoint], homes: Mapping[str, str | None], drain: Drain
) -> tuple[dict[str, Endpoint], dict[str, Endpoint]]:
    """The endpoints that stay in use, and those that are drained, by address."""
    stay: dict[str, Endpoint] = {}
    leave: dict[str, Endpoint] = {}
    for address, endpoint in endpoints.items():
        (leave if homes[address] in drain.zones else stay)[address] = endpoint
    return stay, leave


def drained_reason(drain: Drain, left: int, used: int, service: Service) -> RoutingReason:
    zones, by = _zones_and_requesters(drain)
    sentence = f"{_zones(zones)} drained by {by}: {left} endpoints there get no traffic, {used} elsewhere take it"
    if kept := [name for name, value in _traffic_policies(service) if value == "Local"]:
        sentence += f"; what {' and '.join(kept)} Local keeps on its node is not moved"
    facts = {"zones": zones, "drained_endpoints": left, "endpoints": used}
    remedy = f"remove {DRAIN_ZONE} to let traffic return"
    return RoutingReason(RoutingCode.ZONE_DRAINED, sentence, facts, _blame(drain), remedy)


def not_drained_reason(drain: Drain, endpoints: int) -> RoutingReason:
    zones, by = _zones_and_requesters(drain)
    sentence = (
        f"{_zones(zones)} not drained, though {by} asks for it: all {endpoints} endpoints are there, so traffic stays"
    )
    remedy = "run an endpoint in another zone"
    return RoutingReason(
        RoutingCode.NOT_DRAINED, sentence, {"zones": zones, "endpoints": endpoints}, _blame(drain), remedy
    )


def _zones_and_requesters(drain: Drain) -> tuple[tuple[str, ...], str]:
    subjects = _blame(drain)
    more = f" and {len(subjects) - 1} more" if len(subjects) > 1 else ""
    return tuple(sorted(drain.zones)), f"{subjects[0]}{more}"


def _blame(drain: Drain) -> tuple[RoutingSubject, ...]:
    return tuple(dict.fromkeys(subject for by in drain.zones.values() for subject in by))


def _zones(zones: tuple[str, ...]) -> str:
    return f"zone {zones[0]} is" if len(zones) == 1 else f"zones {', '.join(zones)} are"


def _traffic_policies(service: Service) -> tuple[tuple[str, str], ...]:
    spec = service.spec
    return (
        ("internalTrafficPolicy", spec.internal_traffic_policy),
        ("externalTrafficPolicy", spec.external_traffic_policy),
    )


def _named(text: str) -> set[str]:
    return {zone.strip() for zone in text.split(",")}


def _valid(text: str) -> set[str]:
    return {zone for zone in _named(text) if zone and not value_problem(zone)}


def _complaints(text: str, subject: RoutingSubject, all_zones: frozenset[str]) -> Iterator[RoutingReason]:
    """At most one for invalid names, and one for zones without nodes."""
    valid = _valid(text)
    if bad := sorted(_named(text) - valid):
        yield _complaint(
            RoutingCode.INVALID_VALUE, text, subject, f"has the invalid zone name {_shown(bad[0])}, which is ignored"
        )
    if unknown := sorted(valid - all_zones):
        names = ", ".join(unknown[:_NAMED])
        yield _complaint(RoutingCode.NO_EFFECT, text, subject, f"has no effect for {names}: no node is in such a zone")


def _complaint(code: RoutingCode, text: str, subject: RoutingSubject, problem: str) -> RoutingReason:
    sentence = f"{DRAIN_ZONE} of {subject}: {_shown(text)} {problem}"
    remedy = "write the name of a zone, or several separated by commas"
    return RoutingReason(code, sentence, {"where": DRAIN_ZONE, "value": text}, (subject,), remedy)


def _not_its_own(text: str, subject: RoutingSubject, own: str | None) -> RoutingReason:
    location = f"is in zone {own}" if own else "has no zone label"
    sentence = f"{DRAIN_ZONE} of {subject}: {_shown(text)} names another zone, and the node {location}"
    remedy = "annotate nodes with their own zone only; use a Service or a Namespace for others"
    return RoutingReason(RoutingCode.NO_EFFECT, sentence, {"where": DRAIN_ZONE, "value": text}, (subject,), remedy)


def _shown(text: str) -> str:
    return repr(text if len(text) <= _SHOWN else f"{text[:_SHOWN]}...")
