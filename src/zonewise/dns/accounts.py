"""What `zonewise explain dns` tells, as values: the fields of its JSON, and how each follows from objects and decisions.

Users read these fields in scripts: one is never renamed, only added.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import StrEnum
from ipaddress import ip_address, ip_network

import msgspec

from zonewise.dns.clients import plain
from zonewise.dns.presentation import Shown
from zonewise.dns.ranges import own_addresses, places
from zonewise.dns.service import is_headless
from zonewise.objects import Endpoint, Node, Service
from zonewise.routing import EVERYONE, Choice, Cluster, Decision, Reason, Tier
from zonewise.routing.endpoints import is_ready
from zonewise.topology import ZONE, zone_of


class FoundBy(StrEnum):
    POD_RANGE = "PodRange"
    NODE_ADDRESS = "NodeAddress"
    POD_ADDRESS = "PodAddress"
    NAMED = "Named"
    NOTHING = "Nothing"


class Account(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """`passed_on` where other servers are asked for the name, or for where it points."""

    name: str
    type: str
    verdict: str
    kind: str
    service: ServiceAccount | None
    client: Client
    policy: PolicyAccount | None
    tiers: tuple[TierAccount, ...]
    endpoints: tuple[EndpointAccount, ...]
    answer: Shown
    passed_on: bool
    remedies: tuple[str, ...]


class ServiceAccount(msgspec.Struct, frozen=True, rename="camel"):
    namespace: str
    name: str
    type: str


class Client(msgspec.Struct, frozen=True, rename="camel"):
    """Who asks; `sentence` says how its node was found, or why none was."""

    who: str
    address: str = ""
    node: str = ""
    zone: str = ""
    found_by: FoundBy = FoundBy.NOTHING
    sentence: str = ""


class ReasonAccount(msgspec.Struct, frozen=True, rename="camel"):
    code: str
    sentence: str


class PolicyAccount(msgspec.Struct, frozen=True, rename="camel"):
    """`source` is where the Service says it; empty where it says nothing."""

    kind: str
    source: str
    reasons: tuple[ReasonAccount, ...]
    complaints: tuple[ReasonAccount, ...]


class TierAccount(msgspec.Struct, frozen=True, rename="camel"):
    """One step of the rule: the client's domain there, how many endpoints that has, and whether it gave the answer."""

    key: str
    domain: str
    endpoints: int
    won: bool
    wall: bool = False


class EndpointAccount(msgspec.Struct, frozen=True, rename="camel"):
    address: str
    node: str
    zone: str
    given: bool
    why: str


def of_service(service: Service) -> ServiceAccount:
    headless = service.spec.type != "ExternalName" and is_headless(service)
    kind = "Headless" if headless else service.spec.type
    return ServiceAccount(service.metadata.namespace, service.metadata.name, kind)


def of_policy(made: Sequence[Decision]) -> PolicyAccount | None:
    """Both address families have the same policy, and mostly the same reasons."""
    if not made:
        return None
    reading = made[0].reading
    reasons = dict.fromkeys(_told(reason) for decision in made for reason in decision.reasons)
    complaints = dict.fromkeys(_told(reason) for decision in made for reason in decision.complaints)
    return PolicyAccount(type(reading.policy).__name__, reading.source, tuple(reasons), tuple(complaints))


def _told(reason: Reason) -> ReasonAccount:
    return ReasonAccount(reason.code.value, reason.sentence)


def tiers(decision: Decision, choice: Choice, cluster: Cluster, node: str) -> Iterator[TierAccount]:
    if wall := decision.walls:
        yield _tier(wall, decision, cluster, node, won=False, wall=True)
    for tier in decision.tiers:
        yield _tier(tier, decision, cluster, node, won=tier is choice.tier)


def _tier(tier: Tier, decision: Decision, cluster: Cluster, node: str, *, won: bool, wall: bool = False) -> TierAccount:
    if tier is EVERYONE:
        return TierAccount(tier.key, "", len(decision.endpoints), won)
    domain = cluster.domains(tier.key).get(node, "")
    return TierAccount(tier.key, domain, len(tier.by_domain.get(domain, {})), won, wall)


def of_endpoint(
    endpoint: Endpoint,
    given: set[str],
    chosen: Mapping[str, Choice],
    drained: Mapping[str, Endpoint],
    cluster: Cluster,
) -> EndpointAccount:
    """`chosen` and `drained` by address; an address is in neither where no rule had a say."""
    address = endpoint.addresses[0]
    home = cluster.homes({address: endpoint}, ZONE)[address] or ""
    is_given = not given.isdisjoint(endpoint.addresses)
    return EndpointAccount(
        address, endpoint.node_name or "", home, is_given, _why(endpoint, is_given, chosen.get(address), drained)
    )


def _why(endpoint: Endpoint, is_given: bool, choice: Choice | None, drained: Mapping[str, Endpoint]) -> str:
    match choice:
        case _ if not is_ready(endpoint):
            return "not ready"
        case _ if endpoint.addresses[0] in drained:
            return "its zone is drained"
        case Choice(shares=shares) if endpoint.addresses[0] in shares and not is_given:
            return "its slice has no such port"
        case Choice(tier=tier) if tier is not None:
            where = "every client" if tier is EVERYONE else f"the client's {tier.key}"
            return f"for {where}" if is_given else f"not for {where}"
        case Choice():
            return "not for this client, and the rule is hard"
        case _:
            return "no rule had a say" if is_given else "not what the name says"


def located(who: str, address: str, nodes: Sequence[Node], pods: Mapping[bytes, str]) -> Client:
    """Where the server finds a client of that address; `pods` are nodes by address where it locates by pods."""
    name = places(nodes, pods).node(address)
    node = next((each for each in nodes if each.metadata.name == name), None)
    if node is None:
        ranges = sum(bool(each.spec.pod_cidrs) for each in nodes)
        sentence = f"{address} is no node's address and in no pod range ({ranges} of {len(nodes)} nodes have one)"
        return Client(who, address, sentence=sentence)
    found_by, sentence = _traced(address, node, pods)
    return Client(who, address, name, zone_of(node.metadata.labels) or "", found_by, sentence)


def on_node(who: str, node: Node) -> Client:
    name = node.metadata.name
    return Client(who, "", name, zone_of(node.metadata.labels) or "", FoundBy.NAMED, f"asked for a client on {name}")


def _traced(address: str, node: Node, pods: Mapping[bytes, str]) -> tuple[FoundBy, str]:
    found = plain(address)
    assert found is not None, "a node was found for it"
    if found in own_addresses(node):
        return FoundBy.NODE_ADDRESS, f"{address} is the node's own address"
    if found in pods:
        return FoundBy.POD_ADDRESS, f"{address} is the address of a pod there"
    ranges = (ip_network(text, strict=False) for text in node.spec.pod_cidrs)
    within = next(each for each in ranges if ip_address(found) in each)
    return FoundBy.POD_RANGE, f"{address} is in the node's pod range {within}"
