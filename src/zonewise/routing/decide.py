"""One face of routing: which endpoints of a Service serve which clients, and why.

The controller, the node proxy, DNS, `plan` and `explain` all call `decide`, so they can't disagree. Pure: the answer
follows from the arguments alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from zonewise.objects import Endpoint, Service
from zonewise.routing.cluster import RoutingNodes
from zonewise.routing.decision import Decision
from zonewise.routing.drain import NO_DRAIN, NOBODY, Drain, drained_reason, not_drained_reason, split
from zonewise.routing.endpoints import UsableEndpoints, usable
from zonewise.routing.hints_codec import zone_consumers
from zonewise.routing.hints_stable import hint_stably
from zonewise.routing.hints_strict import hint_strictly
from zonewise.routing.keys import key_reason, key_tiers
from zonewise.routing.policy import (
    AutomaticHints,
    Distribution,
    NoPolicy,
    PolicyReading,
    SameDomain,
    TopologyKeys,
    read_policy,
)
from zonewise.routing.reason import NO_ENDPOINT_READY, RoutingCode, RoutingReason
from zonewise.routing.same_domain import plan_same_domain
from zonewise.routing.tiers import EVERYONE, Memory, Tier
from zonewise.routing.traffic_distribution import distribution_tiers
from zonewise.topology import ZONE

NOTHING_REMEMBERED: Final[Memory] = MappingProxyType({})


class HintsForm(StrEnum):
    """How automatic hints are computed: as upstream does, or without its refusals and flapping."""

    STRICT = "strict"
    STABLE = "stable"


def decide(
    service: Service,
    endpoints: Iterable[Endpoint],
    cluster: RoutingNodes,
    previous: Decision | Memory = NOTHING_REMEMBERED,
    *,
    hints: HintsForm = HintsForm.STABLE,
    drained: Drain = NO_DRAIN,
) -> Decision:
    """`endpoints` are those of one address family; `previous` is the last decision, or what slices recall of it."""
    reading = read_policy(service)
    memory = _memory(previous, reading)
    found = usable(endpoints)
    if drained is NO_DRAIN:
        return _decide(reading, found, cluster, _after_drain(memory, found), hints)
    stay, leave = split(found.by_address, cluster.homes(found.by_address, ZONE), drained)
    used = UsableEndpoints(stay, found.draining) if stay else found
    decision = replace(_decide(reading, used, cluster, _after_drain(memory, used), hints), drain=drained)
    if not leave:
        return decision
    if not stay:
        return replace(decision, reasons=_with_drain(decision, not_drained_reason(drained, len(leave))))
    reason = drained_reason(drained, len(leave), len(stay), service)
    return replace(decision, drained=leave, reasons=_with_drain(decision, reason))


def _with_drain(decision: Decision, reason: RoutingReason) -> tuple[RoutingReason, ...]:
    """The policy speaks first, where there is one."""
    if isinstance(decision.reading.policy, NoPolicy):
        return (reason, *decision.reasons)
    return (*decision.reasons, reason)


def _decide(
    reading: PolicyReading, found: UsableEndpoints, cluster: RoutingNodes, memory: Memory, hints: HintsForm
) -> Decision:
    match reading.policy:
        case _ if not found.by_address:
            return _decided(reading, found, (EVERYONE,), NO_ENDPOINT_READY)
        case TopologyKeys() as policy:
            tiers = key_tiers(policy, found.by_address, cluster)
            return _decided(reading, found, tiers, key_reason(policy, tiers, found.by_address))
        case SameDomain() as policy:
            return _decide_same_domain(reading, policy, found, cluster, memory)
        case AutomaticHints() | Distribution() if found.draining:
            return _decided(reading, found, (EVERYONE,), _only_draining(found))
        case AutomaticHints() as policy if hints is HintsForm.STABLE:
            return _decided(reading, found, *_hint_stably(policy, found, cluster, memory))
        case AutomaticHints():
            return _decided(reading, found, *_hint_strictly(found, cluster))
        case Distribution(value):
            return _decided(reading, found, *distribution_tiers(value, found.by_address))
        case NoPolicy():
            sentence = "the Service asks for nothing, so every client gets every endpoint"
            facts = {"endpoints": len(found.by_address)}
            return _decided(reading, found, (EVERYONE,), RoutingReason(RoutingCode.NO_POLICY, sentence, facts))


def _memory(previous: Decision | Memory, reading: PolicyReading) -> Memory:
    """A Service that asks for something else starts afresh."""
    if not isinstance(previous, Decision):
        return previous
    return previous.memory if previous.reading.policy == reading.policy else NOTHING_REMEMBERED


def _after_drain(memory: Memory, found: UsableEndpoints) -> Memory:
    """When endpoints come back from a drain, what was lent for its time is forgotten: only that they were nobody's stays.

    That tells a preference that it had started, and not that it had found an even spread best.
    """
    zones = memory.get(ZONE, {})
    back = {address: NOBODY for address in found.by_address if zones.get(address) == NOBODY}
    return dict.fromkeys(memory, back) if back else memory


def _decided(
    reading: PolicyReading, found: UsableEndpoints, tiers: tuple[Tier, ...], reason: RoutingReason
) -> Decision:
    return Decision(reading, found.by_address, tiers, (reason,))


def _decide_same_domain(
    reading: PolicyReading, policy: SameDomain, found: UsableEndpoints, cluster: RoutingNodes, memory: Memory
) -> Decision:
    """Draining endpoints are nobody's preference, but walls stand."""
    asked = policy.without_preferences() if found.draining else policy
    plan = plan_same_domain(asked, found.by_address, cluster, memory)
    reasons = (_only_draining(found), *plan.reasons) if found.draining else plan.reasons
    return Decision(reading, found.by_address, plan.tiers, reasons, plan.walls)


def _hint_stably(
    policy: AutomaticHints, found: UsableEndpoints, cluster: RoutingNodes, memory: Memory
) -> tuple[tuple[Tier, ...], RoutingReason]:
    homes = cluster.homes(found.by_address, ZONE)
    preference = hint_stably(cluster.capacities, homes, policy.tuning.overload, memory.get(ZONE))
    tiers = (Tier(ZONE, preference.consumers), EVERYONE) if preference.consumers else (EVERYONE,)
    return tiers, preference.reason


def _hint_strictly(found: UsableEndpoints, cluster: RoutingNodes) -> tuple[tuple[Tier, ...], RoutingReason]:
    """All endpoints as one slice that nobody is about to change: its hints stay if they are valid."""
    endpoints = tuple(found.by_address.values())
    hinted = hint_strictly(cluster.cpu_shares, (), (endpoints,))
    if not hinted.by_zone:
        return (EVERYONE,), hinted.reason
    hints = hinted.slices[0] or tuple(endpoint.hints for endpoint in endpoints)
    meaning = {given: zone_consumers(given) for given in set(hints)}
    consumers = {address: meaning[given] for address, given in zip(found.by_address, hints, strict=True)}
    return (Tier(ZONE, consumers), EVERYONE), hinted.reason


def _only_draining(found: UsableEndpoints) -> RoutingReason:
    count = len(found.by_address)
    sentence = f"no endpoint is ready, so the {count} that terminate but still serve are used without preference"
    return RoutingReason(
        RoutingCode.ONLY_TERMINATING, sentence, {"endpoints": count}, remedy="make a pod of the Service ready"
    )
