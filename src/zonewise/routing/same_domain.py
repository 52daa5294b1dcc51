"""Same node, zone and region policies: `Balanced`, `Require` and `Prefer` at three levels, combined.

`Require` walls off the smallest domain it names; within the walls each preferred level becomes a tier, the smallest
first. `prefer` balances zones and regions against overload; then `same_node` lets nodes keep to their own endpoints as
long as the sum of all traffic does not overload these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from zonewise.objects import Endpoint
from zonewise.routing.algorithms import Algorithm
from zonewise.routing.load import Consumers
from zonewise.routing.policy import SameDomain, Strength
from zonewise.routing.prefer import DEFAULT_OVERLOAD, Preference, PreferLimits, prefer
from zonewise.routing.reason import NO_ENDPOINT_READY, RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.routing_nodes import NODE_NAME, RoutingNodes
from zonewise.routing.same_node import OwnEndpoints, keep_to_nodes
from zonewise.routing.tiers import EVERYONE, Memory, Tier, own_tier
from zonewise.topology import REGION, ZONE

_WEIGHTED: Final = {Algorithm.LOCAL_WEIGHTED, Algorithm.LOCAL_OPT}
"""Their weights fit one number of endpoints only, and hints store none, so they are always recomputed."""
_COVERED: Final = RoutingReason(
    RoutingCode.PREFERRED, "every zone is served as same-zone decided; regions count if that ends", {"level": "region"}
)
"""Beside zones in force, regions would add to the load of some endpoints only. The tier stays empty, and started."""
_WORD: Final = {NODE_NAME: "node", ZONE: "zone", REGION: "region"}


@dataclass(frozen=True, slots=True)
class LevelPlan:
    """`reasons` has one per level that applies."""

    tiers: tuple[Tier, ...]
    walls: Tier | None
    reasons: tuple[RoutingReason, ...]


def plan_same_domain(
    policy: SameDomain, endpoints: Mapping[str, Endpoint], cluster: RoutingNodes, memory: Memory
) -> LevelPlan:
    levels = {NODE_NAME: policy.node, ZONE: policy.zone, REGION: policy.region}
    within = next((key for key, strength in levels.items() if strength is Strength.REQUIRE), None)
    task = _Task(policy, endpoints, cluster, memory, within)
    preferred = [key for key in _below(levels, within) if levels[key] is Strength.PREFER]
    tiers: list[Tier] = []
    reasons: list[RoutingReason] = []
    for key in preferred:
        if key != NODE_NAME:
            covered = any(tier.consumers for tier in tiers)
            tier, reason = (Tier(key, {}), _COVERED) if covered else task.prefer(key)
            reasons.append(reason)
            tiers += [tier] if tier else []
    if NODE_NAME in preferred:
        own, node_reason = task.prefer_node(tiers)
        tiers = [own, *tiers] if own else tiers
        reasons = [node_reason, *reasons]
    if within:
        reasons.append(task.required(within))
    if not reasons:
        reasons.append(
            RoutingReason(RoutingCode.BALANCED, "every client gets every endpoint", {"endpoints": len(endpoints)})
        )
    walls = own_tier(within, cluster.homes(endpoints, within)) if within else None
    return LevelPlan((*tiers, EVERYONE), walls, tuple(reasons))


def _below(levels: Mapping[str, Strength], within: str | None) -> Sequence[str]:
    """The levels inside the walls."""
    keys = list(levels)
    return keys[: keys.index(within)] if within else keys


@dataclass(frozen=True, slots=True)
class _Task:
    policy: SameDomain
    endpoints: Mapping[str, Endpoint]
    cluster: RoutingNodes
    memory: Memory
    within: str | None

    def prefer(self, key: str) -> tuple[Tier | None, RoutingReason]:
        """One assignment per walled domain, or one for the cluster; an empty tier records that it started."""
        tuning = self.policy.tuning
        overload = tuning.overload or DEFAULT_OVERLOAD
        lazy = tuning.algorithm not in _WEIGHTED
        limits = PreferLimits(tuning.algorithm, tuning.start, tuning.padding, overload, overload, lazy=lazy)
        homes = self.cluster.homes(self.endpoints, key)
        after_nodes = self.policy.node is Strength.PREFER
        consumers: dict[str, Consumers] = {}
        preferences: dict[str, Preference] = {}
        for wall, (clients, members) in self._walled().items():
            demand = self.cluster.demand(key, clients if self.within else None)
            walled_homes = {address: homes[address] for address in members}
            previous = self._remembered(key, members)
            preferences[wall] = prefer(
                demand, walled_homes, limits, previous, level=_WORD[key], after_nodes=after_nodes
            )
            consumers |= preferences[wall].consumers or {}
        started = any(preference.started for preference in preferences.values())
        reason = _level_reason(key, preferences, self.cluster.clients_without(key))
        return Tier(key, consumers) if started else None, reason

    def prefer_node(self, tiers: Sequence[Tier]) -> tuple[Tier | None, RoutingReason]:
        """`tiers` are those of zones and regions, which nodes use that do not keep to their own endpoints."""
        overload = self.policy.tuning.overload or DEFAULT_OVERLOAD
        served = next((tier for tier in tiers if tier.consumers), EVERYONE)
        parts: list[OwnEndpoints] = []
        for domain, (_, members) in self._walled().items():
            inside = {address: self.endpoints[address] for address in members} if self.within else self.endpoints
            wall = (self.within, domain) if self.within else None
            parts.append(keep_to_nodes(inside, served, self.cluster, overload, wall))
        consumers = {address: node for part in parts for address, node in part.consumers.items()}
        return Tier(NODE_NAME, consumers) if consumers else None, _node_reason(consumers, parts, overload)

    def required(self, key: str) -> RoutingReason:
        homes = self.cluster.homes(self.endpoints, key)
        word = _WORD[key]
        cut_off = sorted(set(self.cluster.demand(key)) - set(homes.values()))
        hidden = [address for address, home in homes.items() if not home]
        facts = {"level": word, "cut_off": tuple(cut_off), "hidden": len(hidden), "endpoints": len(homes)}
        sentence = f"clients reach only the endpoints of their own {word}"
        if cut_off:
            have = f"{word} has" if len(cut_off) == 1 else f"{word}s have"
            sentence += f"; {len(cut_off)} {have} none and cannot reach the Service: {', '.join(cut_off[:5])}"
        if hidden:
            sentence += f"; {len(hidden)} endpoints are in no {word} and get no traffic"
        blame = (
            *(RoutingSubject(word.title(), name) for name in cut_off),
            *(RoutingSubject("Endpoint", name) for name in hidden),
        )
        remedy = f"run an endpoint in every {word}, or prefer it instead" if blame else ""
        return RoutingReason(RoutingCode.REQUIRED, sentence, facts, blame, remedy)

    def _walled(self) -> dict[str, tuple[list[str], list[str]]]:
        """The client nodes and endpoints of every walled domain. Without a wall, all endpoints under ""."""
        if self.within is None:
            return {"": ([], list(self.endpoints))}
        walls = self.cluster.domains(self.within)
        walled: dict[str, tuple[list[str], list[str]]] = {}
        for address, home in self.cluster.homes(self.endpoints, self.within).items():
            if home:
                walled.setdefault(home, ([], []))[1].append(address)
        for name in self.cluster.clients:
            if name in walls and walls[name] in walled:
                walled[walls[name]][0].append(name)
        return dict(sorted(walled.items()))

    def _remembered(self, key: str, members: list[str]) -> Mapping[str, Consumers] | None:
        """The last consumers of these endpoints; None if the preference had not started."""
        remembered = self.memory.get(key)
        if not remembered or self.within is None:
            return remembered
        return {address: remembered[address] for address in members if address in remembered} or None


def _level_reason(key: str, preferences: Mapping[str, Preference], without_domain: list[str]) -> RoutingReason:
    """The reason of the first wall without a preference in force, else of the first wall."""
    word = _WORD[key]
    refused = [wall for wall, preference in preferences.items() if preference.consumers is None]
    if not preferences:
        return NO_ENDPOINT_READY
    shown = refused[0] if refused else next(iter(preferences))
    reason = preferences[shown].reason
    if shown:
        reason = replace(reason, sentence=f"{shown}: {reason.sentence}")
    if not without_domain:
        return reason
    return replace(
        reason,
        sentence=f"{reason.sentence}; {len(without_domain)} nodes have no {word} label and use every endpoint",
        facts={**reason.facts, "nodes_without_domain": len(without_domain)},
        blame=(*reason.blame, *(RoutingSubject("Node", name) for name in without_domain)),
    )


def _node_reason(consumers: Mapping[str, Consumers], parts: Sequence[OwnEndpoints], overload: float) -> RoutingReason:
    crowded = sorted(name for part in parts for name in part.overloaded)
    worst = max((part.worst_load for part in parts), default=1.0) - 1
    facts = {
        "level": "node",
        "local_endpoints": len(consumers),
        "crowded_nodes": len(crowded),
        "worst_overload": round(worst, 4),
    }
    nodes = "1 node" if len(crowded) == 1 else f"{len(crowded)} nodes"
    blame = tuple(RoutingSubject("Node", name) for name in crowded)
    remedy = "run as many endpoints on every node" if crowded else ""
    if crowded and not consumers:
        sentence = f"{nodes} would overload their own endpoints by {overload:.0%} or more, so none keeps to its own"
        return RoutingReason(RoutingCode.WOULD_OVERLOAD, sentence, facts, blame, remedy)
    above = f"{worst:.0%} above ".removeprefix("0% above ")
    sentence = f"nodes use their own endpoints first ({len(consumers)} endpoints), and no endpoint gets more than {above}an even share"
    if crowded:
        sentence += f"; {nodes} would overload theirs by {overload:.0%} or more and use others too"
    return RoutingReason(RoutingCode.PREFERRED, sentence, facts, blame, remedy)
