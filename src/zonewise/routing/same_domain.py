"""Same node, zone and region policies: `Balanced`, `Require` and `Prefer` at three levels, combined.

`Require` walls off the smallest domain it names; within the walls each preferred level becomes a tier, the smallest
first. `prefer` balances zones and regions against overload; a node uses its own endpoints as long as it does not
overload them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from zonewise.objects import Endpoint
from zonewise.routing.algorithms import Algorithm
from zonewise.routing.cluster import NODE_NAME, RoutingNodes
from zonewise.routing.load import Consumers, consumed_by, is_overload
from zonewise.routing.policy import SameDomain, Strength
from zonewise.routing.prefer import DEFAULT_OVERLOAD, Preference, PreferLimits, prefer
from zonewise.routing.reason import NO_ENDPOINT_READY, RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.tiers import EVERYONE, Memory, Tier, own_tier
from zonewise.topology import REGION, ZONE

_WEIGHTED: Final = {Algorithm.LOCAL_WEIGHTED, Algorithm.LOCAL_OPT}
"""Their weights fit one number of endpoints only, and hints store none, so they are always recomputed."""
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
    tiers: list[Tier] = []
    reasons: list[RoutingReason] = []
    for key, strength in levels.items():
        if key == within:
            break
        if strength is Strength.PREFER:
            tier, reason = task.prefer_node() if key == NODE_NAME else task.prefer(key)
            reasons.append(reason)
            tiers += [tier] if tier else []
    if within:
        reasons.append(task.required(within))
    if not reasons:
        reasons.append(
            RoutingReason(RoutingCode.BALANCED, "every client gets every endpoint", {"endpoints": len(endpoints)})
        )
    walls = own_tier(within, cluster.homes(endpoints, within)) if within else None
    return LevelPlan((*tiers, EVERYONE), walls, tuple(reasons))


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
        consumers: dict[str, Consumers] = {}
        preferences: dict[str, Preference] = {}
        for wall, (clients, members) in self._walled().items():
            demand = self.cluster.demand(key, clients)
            walled_homes = {address: homes[address] for address in members}
            previous = self._remembered(key, members)
            preferences[wall] = prefer(demand, walled_homes, limits, previous, level=_WORD[key])
            consumers |= preferences[wall].consumers or {}
        started = any(preference.started for preference in preferences.values())
        reason = _level_reason(key, preferences, self.cluster.clients_without(key))
        return Tier(key, consumers) if started else None, reason

    def prefer_node(self) -> tuple[Tier, RoutingReason]:
        consumers: dict[str, Consumers] = {}
        overloaded_nodes: list[str] = []
        overload = self.policy.tuning.overload or DEFAULT_OVERLOAD
        for clients, members in self._walled().values():
            local = Counter(node for address in members if (node := self.endpoints[address].node_name))
            expected = len(members) / max(1, len(clients))
            fitting = {node for node, count in local.items() if not is_overload(expected / count, overload)}
            overloaded_nodes += sorted(set(local) - fitting)
            for address in members:
                node = self.endpoints[address].node_name
                if node in fitting:
                    consumers[address] = consumed_by(node)
        return Tier(NODE_NAME, consumers), _node_reason(consumers, overloaded_nodes, overload)

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
        """The client nodes and endpoints of every walled domain; all of them under "" if there is no wall."""
        if self.within is None:
            return {"": (list(self.cluster.clients), list(self.endpoints))}
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


def _node_reason(consumers: Mapping[str, Consumers], overloaded_nodes: list[str], overload: float) -> RoutingReason:
    facts = {"level": "node", "local_endpoints": len(consumers), "crowded_nodes": len(overloaded_nodes)}
    sentence = f"nodes use their own endpoints first ({len(consumers)} endpoints)"
    if not overloaded_nodes:
        return RoutingReason(RoutingCode.PREFERRED, sentence, facts)
    return RoutingReason(
        RoutingCode.PREFERRED,
        f"{sentence}; {len(overloaded_nodes)} nodes would overload theirs by {overload:.0%} or more and use others too",
        facts,
        tuple(RoutingSubject("Node", name) for name in overloaded_nodes),
        "run as many endpoints on every node",
    )
