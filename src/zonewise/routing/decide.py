"""The routing decision: which endpoints of a Service serve which clients, and why.

The controller, the node proxy, DNS, `plan` and `explain` all call `decide`, so they agree. The result depends on the
arguments alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from zonewise.objects import Endpoint, Service
from zonewise.routing.decision import Decision
from zonewise.routing.drain import NO_CONSUMERS, NO_DRAIN, Drain, drained_reason, not_drained_reason, split
from zonewise.routing.endpoints import UsableEndpoints, usable
from zonewise.routing.hints_codec import zone_consumers
from zonewise.routing.hints_stable import hint_stably
from zonewise.routing.hints_strict import hint_strictly
from zonewise.routing.policy import (
    AutomaticHints,
    Distribution,
    NoPolicy,
    PolicyReading,
    SameDomain,
    TopologyKeys,
    read_policy,
)
from zonewise.routing.reason import NO_ENDPOINT_READY, RoutingCode, RoutingReason, only_terminating
from zonewise.routing.routing_nodes import RoutingNodes
from zonewise.routing.same_domain import plan_same_domain
from zonewise.routing.tiers import EVERYONE, Memory, Tier
from zonewise.routing.topology_keys import key_reason, key_tiers
from zonewise.routing.traffic_distribution import distribution_tiers
from zonewise.topology import ZONE

NOTHING_REMEMBERED: Final[Memory] = MappingProxyType({})


class HintsForm(StrEnum):
    """How automatic hints are computed: exactly as upstream, or without its refusals and flapping."""

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
    """`endpoints` are those of one address family; `previous` is the last decision, or the memory of it in slices."""
    reading = read_policy(service)
    memory = _memory(previous, reading)
    candidates = usable(endpoints)
    if drained is NO_DRAIN:
        return _decide(reading, candidates, cluster, _after_drain(memory, candidates), hints)
    stay, leave = split(candidates.by_address, cluster.homes(candidates.by_address, ZONE), drained)
    used = UsableEndpoints(stay, candidates.draining) if stay else candidates
    decision = replace(_decide(reading, used, cluster, _after_drain(memory, used), hints), drain=drained)
    if not leave:
        return decision
    if not stay:
        return replace(decision, reasons=_with_drain(decision, not_drained_reason(drained, len(leave))))
    reason = drained_reason(drained, len(leave), len(stay), service)
    return replace(decision, drained=leave, reasons=_with_drain(decision, reason))


def _with_drain(decision: Decision, reason: RoutingReason) -> tuple[RoutingReason, ...]:
    """The reason of the policy comes first, if there is a policy."""
    if isinstance(decision.reading.policy, NoPolicy):
        return (reason, *decision.reasons)
    return (*decision.reasons, reason)


def _decide(
    reading: PolicyReading, usable_endpoints: UsableEndpoints, cluster: RoutingNodes, memory: Memory, hints: HintsForm
) -> Decision:
    match reading.policy:
        case _ if not usable_endpoints.by_address:
            return _decided(reading, usable_endpoints, (EVERYONE,), NO_ENDPOINT_READY)
        case TopologyKeys() as policy:
            tiers = key_tiers(policy, usable_endpoints.by_address, cluster)
            return _decided(reading, usable_endpoints, tiers, key_reason(policy, tiers, usable_endpoints.by_address))
        case SameDomain() as policy:
            return _decide_same_domain(reading, policy, usable_endpoints, cluster, memory)
        case AutomaticHints() | Distribution() if usable_endpoints.draining:
            return _decided(reading, usable_endpoints, (EVERYONE,), _only_draining(usable_endpoints))
        case AutomaticHints() as policy if hints is HintsForm.STABLE:
            return _decided(reading, usable_endpoints, *_hint_stably(policy, usable_endpoints, cluster, memory))
        case AutomaticHints():
            return _decided(reading, usable_endpoints, *_hint_strictly(usable_endpoints, cluster))
        case Distribution(value):
            return _decided(reading, usable_endpoints, *distribution_tiers(value, usable_endpoints.by_address))
        case NoPolicy():
            sentence = "the Service has no routing policy, so every client gets every endpoint"
            facts = {"endpoints": len(usable_endpoints.by_address)}
            return _decided(
                reading, usable_endpoints, (EVERYONE,), RoutingReason(RoutingCode.NO_POLICY, sentence, facts)
            )


def _memory(previous: Decision | Memory, reading: PolicyReading) -> Memory:
    """The memory of a decision for another policy is dropped."""
    if not isinstance(previous, Decision):
        return previous
    return previous.memory if previous.reading.policy == reading.policy else NOTHING_REMEMBERED


def _after_drain(memory: Memory, usable_endpoints: UsableEndpoints) -> Memory:
    """When endpoints return from a drain, only their `NO_CONSUMERS` entries of the memory stay.

    They tell a preference that it had started, and not that it had chosen an even spread.
    """
    zones = memory.get(ZONE, {})
    returned = {address: NO_CONSUMERS for address in usable_endpoints.by_address if zones.get(address) == NO_CONSUMERS}
    return dict.fromkeys(memory, returned) if returned else memory


def _decided(
    reading: PolicyReading, usable_endpoints: UsableEndpoints, tiers: tuple[Tier, ...], reason: RoutingReason
) -> Decision:
    return Decision(reading, usable_endpoints.by_address, tiers, (reason,))


def _decide_same_domain(
    reading: PolicyReading, policy: SameDomain, usable_endpoints: UsableEndpoints, cluster: RoutingNodes, memory: Memory
) -> Decision:
    """Draining endpoints are not preferred, but `Require` still holds."""
    effective_policy = policy.without_preferences() if usable_endpoints.draining else policy
    plan = plan_same_domain(effective_policy, usable_endpoints.by_address, cluster, memory)
    reasons = (_only_draining(usable_endpoints), *plan.reasons) if usable_endpoints.draining else plan.reasons
    return Decision(reading, usable_endpoints.by_address, plan.tiers, reasons, plan.walls)


def _hint_stably(
    policy: AutomaticHints, usable_endpoints: UsableEndpoints, cluster: RoutingNodes, memory: Memory
) -> tuple[tuple[Tier, ...], RoutingReason]:
    homes = cluster.homes(usable_endpoints.by_address, ZONE)
    preference = hint_stably(cluster.capacities, homes, policy.tuning.overload, memory.get(ZONE))
    tiers = (Tier(ZONE, preference.consumers), EVERYONE) if preference.consumers else (EVERYONE,)
    return tiers, preference.reason


def _hint_strictly(usable_endpoints: UsableEndpoints, cluster: RoutingNodes) -> tuple[tuple[Tier, ...], RoutingReason]:
    """All endpoints as one unchanged slice: its hints are kept if they are valid."""
    endpoints = tuple(usable_endpoints.by_address.values())
    hinted = hint_strictly(cluster.cpu_shares, (), (endpoints,))
    if not hinted.by_zone:
        return (EVERYONE,), hinted.reason
    hints = hinted.slices[0] or tuple(endpoint.hints for endpoint in endpoints)
    consumers_of = {endpoint_hints: zone_consumers(endpoint_hints) for endpoint_hints in set(hints)}
    consumers = {
        address: consumers_of[endpoint_hints]
        for address, endpoint_hints in zip(usable_endpoints.by_address, hints, strict=True)
    }
    return (Tier(ZONE, consumers), EVERYONE), hinted.reason


def _only_draining(usable_endpoints: UsableEndpoints) -> RoutingReason:
    count = len(usable_endpoints.by_address)
    return only_terminating(count, "used without preference", {"endpoints": count})
