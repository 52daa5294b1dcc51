"""Reports of decisions for people and scripts: policy, reasons, tiers tried, and why each endpoint is used or not.

`explain dns`, `explain service` and the dashboard show them, so that a decision reads the same everywhere. Scripts read
the fields: fields may be added, but never renamed.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

import msgspec

from zonewise.objects import Endpoint
from zonewise.routing.decision import ClientChoice, Decision
from zonewise.routing.endpoints import is_ready
from zonewise.routing.reason import RoutingReason
from zonewise.routing.routing_nodes import RoutingNodes
from zonewise.routing.tiers import EVERYONE, Tier
from zonewise.topology import ZONE


class ReasonReport(msgspec.Struct, frozen=True, rename="camel"):
    """`blame` are the objects that caused it, `remedy` is what would change it; both empty if nothing is wrong."""

    code: str
    sentence: str
    blame: tuple[str, ...] = ()
    remedy: str = ""


class PolicyReport(msgspec.Struct, frozen=True, rename="camel"):
    """`source` is the annotation or field with the policy; empty if there is none."""

    kind: str
    source: str
    reasons: tuple[ReasonReport, ...]
    complaints: tuple[ReasonReport, ...]


class TierReport(msgspec.Struct, frozen=True, rename="camel"):
    """One tier: the client's domain, the number of endpoints in it, and whether this tier was used."""

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


def of_policy(decisions: Sequence[Decision]) -> PolicyReport | None:
    """One report for both address families: the policy is the same, the reasons mostly."""
    if not decisions:
        return None
    reading = decisions[0].reading
    reasons = dict.fromkeys(of_reason(reason) for decision in decisions for reason in decision.reasons)
    complaints = dict.fromkeys(of_reason(reason) for decision in decisions for reason in decision.complaints)
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
    """`chosen` and `drained` by address; an address is in neither if no rule applies."""
    address = endpoint.addresses[0]
    home = cluster.homes({address: endpoint}, ZONE)[address] or ""
    is_given = any(candidate in given for candidate in endpoint.addresses)
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
            return "no rule applies" if is_given else "not requested by the name"
