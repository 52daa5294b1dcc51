"""Decisions as people and scripts read them: policy, reasons, tiers tried, and why each endpoint is or is not given. Pure.

`explain dns`, `explain service` and the dashboard tell these, so that one decision is never told in two ways. Users
read the fields in scripts: one is never renamed, only added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from zonewise.objects import Endpoint
from zonewise.routing.cluster import RoutingNodes
from zonewise.routing.decision import ClientChoice, Decision
from zonewise.routing.endpoints import is_ready
from zonewise.routing.reason import RoutingReason
from zonewise.routing.tiers import EVERYONE, Tier
from zonewise.topology import ZONE


class ReasonReport(msgspec.Struct, frozen=True, rename="camel"):
    """`blame` are the objects that made it so, `remedy` what would change it; both empty where nothing is amiss."""

    code: str
    sentence: str
    blame: tuple[str, ...] = ()
    remedy: str = ""


class PolicyReport(msgspec.Struct, frozen=True, rename="camel"):
    """`source` is where the Service says it; empty where it says nothing."""

    kind: str
    source: str
    reasons: tuple[ReasonReport, ...]
    complaints: tuple[ReasonReport, ...]


class TierReport(msgspec.Struct, frozen=True, rename="camel"):
    """One step of the rule: the client's domain there, how many endpoints that has, and whether it gave the answer."""

    key: str
    domain: str
    endpoints: int
    won: bool
    wall: bool = False


class EndpointReport(msgspec.Struct, frozen=True, rename="camel"):
    address: str
    node: str
    zone: str
    given: bool
    why: str


def of_reason(reason: RoutingReason) -> ReasonReport:
    return ReasonReport(reason.code.value, reason.sentence, tuple(map(str, reason.blame)), reason.remedy)


def of_policy(made: Sequence[Decision]) -> PolicyReport | None:
    """Both address families have the same policy, and mostly the same reasons."""
    if not made:
        return None
    reading = made[0].reading
    reasons = dict.fromkeys(of_reason(reason) for decision in made for reason in decision.reasons)
    complaints = dict.fromkeys(of_reason(reason) for decision in made for reason in decision.complaints)
    return PolicyReport(type(reading.policy).__name__, reading.source, tuple(reasons), tuple(complaints))


def tiers(decision: Decision, choice: ClientChoice, cluster: RoutingNodes, node: str) -> Iterator[TierReport]:
    if wall := decision.walls:
        yield _tier(wall, decision, cluster, node, won=False, wall=True)
    for tier in decision.tiers:
        yield _tier(tier, decision, cluster, node, won=tier is choice.tier)


def _tier(
    tier: Tier, decision: Decision, cluster: RoutingNodes, node: str, *, won: bool, wall: bool = False
) -> TierReport:
    if tier is EVERYONE:
        return TierReport(tier.key, "", len(decision.endpoints), won)
    domain = cluster.domains(tier.key).get(node, "")
    return TierReport(tier.key, domain, len(tier.by_domain.get(domain, {})), won, wall)


def of_endpoint(
    endpoint: Endpoint,
    given: Collection[str],
    chosen: Mapping[str, ClientChoice],
    drained: Mapping[str, Endpoint],
    cluster: RoutingNodes,
) -> EndpointReport:
    """`chosen` and `drained` by address; an address is in neither where no rule had a say."""
    address = endpoint.addresses[0]
    home = cluster.homes({address: endpoint}, ZONE)[address] or ""
    is_given = any(each in given for each in endpoint.addresses)
    return EndpointReport(
        address, endpoint.node_name or "", home, is_given, _why(endpoint, is_given, chosen.get(address), drained)
    )


def _why(endpoint: Endpoint, is_given: bool, choice: ClientChoice | None, drained: Mapping[str, Endpoint]) -> str:
    match choice:
        case _ if not is_ready(endpoint):
            return "not ready"
        case _ if endpoint.addresses[0] in drained:
            return "its zone is drained"
        case ClientChoice(shares=shares) if endpoint.addresses[0] in shares and not is_given:
            return "its slice has no such port"
        case ClientChoice(tier=tier) if tier is not None:
            where = "every client" if tier is EVERYONE else f"the client's {tier.key}"
            return f"for {where}" if is_given else f"not for {where}"
        case ClientChoice():
            return "not for this client, and the rule is hard"
        case _:
            return "no rule had a say" if is_given else "not what the name says"
