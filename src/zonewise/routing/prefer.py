"""The `Prefer` rule: keep traffic in its domain as long as no endpoint is overloaded.

Given the demand of each domain, the homes of the endpoints and their last consumers, it assigns consumers to each
endpoint, or decides for an even spread. Domains are zones or regions; the same rules also serve the stable form of
automatic hints. The result is an even spread below the starting threshold (with padding against flapping), and if no
split keeps the overload below its threshold. The last assignment is kept while it breaks no threshold, and is repaired
with the fewest moves when it does. Automatic hints also give it up for one that keeps more traffic in its domain.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import floor
from typing import Any, Final

from zonewise.api.names import OVERLOAD_THRESHOLD, PADDING, STARTING_THRESHOLD
from zonewise.routing.algorithms import Algorithm
from zonewise.routing.assign import compose, moves, pick, settle
from zonewise.routing.load import Composition, Consumers, consumed_by, in_domain_share, loads, sizes_of
from zonewise.routing.reason import NO_ENDPOINT_READY, RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.rebalance import OUTSIDE, AssignmentDraft, new_composition
from zonewise.routing.tuning import StartingPoint

DEFAULT_OVERLOAD: Final = 0.5
_ROUNDING: Final = 1e-9


@dataclass(frozen=True, slots=True)
class PreferLimits:
    """A new assignment stays below `overload`; an existing one is kept until it reaches `keep_overload`.

    Without `lazy` every change makes a new assignment, for comparison. With `regain` an existing one also ends when a
    new one keeps more traffic in its domain.
    """

    algorithm: Algorithm
    start: StartingPoint
    padding: int
    overload: float = DEFAULT_OVERLOAD
    keep_overload: float = DEFAULT_OVERLOAD
    lazy: bool = True
    regain: bool = False


@dataclass(frozen=True, slots=True)
class Preference:
    """`consumers` by address, or None for an even spread. `moved` endpoints serve other domains than before.

    `started` means that there are enough endpoints, even if something else prevents the preference.
    """

    consumers: Mapping[str, Consumers] | None
    reason: RoutingReason
    started: bool
    in_domain: float = 0.0
    worst_overload: float = 0.0
    moved: int = 0

    @property
    def memory(self) -> Mapping[str, Consumers] | None:
        """The `previous` argument of the next call."""
        return self.consumers or ({} if self.started else None)


def prefer(
    demand: Mapping[str, int],
    homes: Mapping[str, str | None],
    limits: PreferLimits,
    previous: Mapping[str, Consumers] | None = None,
    *,
    level: str = "zone",
    after_nodes: bool = False,
) -> Preference:
    """`demand` by domain, all above zero; `homes` the domain of each endpoint, by address; `level` names a domain.

    `after_nodes`: nodes may keep to their own endpoints, so the reason does not state what endpoints get in the end.

    `previous` is the memory of the last preference, None if there is none. The result depends on nothing else, not
    even on the order of the items.
    """
    sorted_demand = dict(sorted(demand.items()))
    sorted_homes = {
        address: home if (home := homes[address]) in sorted_demand else OUTSIDE for address in sorted(homes)
    }
    settled = settle(previous or {}, sorted_homes, sorted_demand)
    active = previous is not None
    was_even = active and not previous
    case = _Case(
        sorted_demand, sorted_homes, limits, settled, compose(settled, sorted_homes), was_even, level, after_nodes
    )
    if why_not := case.why_not_possible():
        return case.spread_evenly(why_not, started=active)
    if why_not := case.why_not_started(active=active):
        return case.spread_evenly(why_not, started=False)
    kept = case.repaired() if settled and limits.lazy else None
    if kept and not kept.moved:
        return case.regained(kept)
    fresh = case.fresh()
    chosen = kept if kept and (fresh is None or kept.moved < fresh.moved) else fresh
    return case.regained(chosen) if chosen else case.spread_evenly(case.why_not_split(), started=True)


@dataclass(frozen=True, slots=True)
class _Case:
    demand: Mapping[str, int]
    homes: Mapping[str, str]
    limits: PreferLimits
    settled: Mapping[str, Consumers]
    composed: Composition
    was_even: bool
    level: str
    after_nodes: bool

    def repaired(self) -> Preference | None:
        """The last assignment with new endpoints and the fewest moves that break no threshold; None if impossible."""
        free = Counter(home for address, home in self.homes.items() if address not in self.settled)
        draft = AssignmentDraft(self.demand, self.composed, free)
        if draft.loads().within(self.limits.keep_overload) or draft.repair(self.limits.overload):
            return self._preferred(draft.composition(), "kept")
        return None

    def fresh(self) -> Preference | None:
        """The assignment of the algorithm; None if it is an even spread or breaks the threshold."""
        counts = Counter(self.homes.values())
        last_composition = {consumed_by(*self.demand): dict(counts)} if self.was_even else self.composed
        composition = new_composition(
            self.limits.algorithm, self.demand, counts, self.limits.overload, last_composition
        )
        if not composition or not loads(sizes_of(composition), self.demand).within(self.limits.overload):
            return None
        return self._preferred(composition, "afresh")

    def regained(self, chosen: Preference) -> Preference:
        """A new assignment if it keeps more traffic in its domain than the chosen one.

        Moves are weighed from the chosen one, as the next call will do, until nothing is gained: repeated calls agree.
        """
        if not self.limits.regain or not chosen.consumers or chosen.in_domain > 1 - _ROUNDING:
            return chosen
        in_order = {address: chosen.consumers[address] for address in self.homes}
        fresh = replace(self, composed=compose(in_order, self.homes), was_even=False).fresh()
        if fresh is None or fresh.in_domain <= chosen.in_domain + _ROUNDING:
            return chosen
        return self.regained(fresh)

    def spread_evenly(self, reason: RoutingReason, *, started: bool) -> Preference:
        if not self.demand or not self.homes:
            return Preference(None, reason, started)
        everyone = {consumed_by(*self.demand): dict(Counter(self.homes.values()))}
        return Preference(None, reason, started, in_domain_share(everyone, self.demand))

    def why_not_possible(self) -> RoutingReason | None:
        if not self.homes:
            return NO_ENDPOINT_READY
        if not self.demand:
            remedy = f"label the nodes with their {self.level}"
            return RoutingReason(RoutingCode.NO_NODES, f"no node has a {self.level} label", remedy=remedy)
        if len(self.demand) == 1:
            (only,) = self.demand
            return RoutingReason(RoutingCode.ONE_DOMAIN, f"all nodes are in {self.level} {only}", {self.level: only})
        return None

    def why_not_started(self, *, active: bool) -> RoutingReason | None:
        """Starts at start + padding endpoints and ends at start - padding; in between nothing changes."""
        start = self.limits.start.at(len(self.demand))
        padding = min(self.limits.padding, start)  # more would never end
        starts = not (active and padding)
        needed = start + padding if starts else start - padding + 1
        missing = needed - len(self.homes)
        if missing <= 0:
            return None
        bounds = f"starting threshold {start}, padding {padding}"
        few = "1 endpoint is" if len(self.homes) == 1 else f"{len(self.homes)} endpoints are"
        sentence = f"{few} too few: {needed} are needed ({bounds})"
        facts = self._facts() | {"starting_threshold": start, "padding": padding, "needed": needed}
        remedy = f"run {missing} more, or lower {STARTING_THRESHOLD}" + (
            f" or {PADDING}: their sum counts" if starts and padding else ""
        )
        return RoutingReason(RoutingCode.BELOW_START, sentence, facts, remedy=remedy)

    def why_not_split(self) -> RoutingReason:
        nodes, endpoints, limit = sum(self.demand.values()), len(self.homes), self.limits.overload
        least = sum(floor(endpoints * count / nodes / (1 + limit)) + 1 for count in self.demand.values())
        if least <= endpoints:
            return RoutingReason(
                RoutingCode.BALANCED, f"an even spread is best, by {self.limits.algorithm}", self._facts()
            )
        own = Counter(self.homes.values())
        worst = max(self.demand, key=lambda domain: self.demand[domain] / (own[domain] or 0.5))
        expected = endpoints * self.demand[worst] / nodes
        sentence = (
            f"no split keeps every endpoint's overload below {limit:.0%}: {self.level} {worst} sends the traffic of "
            f"{expected:.1f} endpoints and has {own[worst]}"
        )
        facts = self._facts() | {"own": own[worst], "expected": round(expected, 2), "overload_threshold": limit}
        remedy = f"run more endpoints in {worst}, or raise {OVERLOAD_THRESHOLD}"
        return RoutingReason(
            RoutingCode.WOULD_OVERLOAD, sentence, facts, (RoutingSubject(self.level.title(), worst),), remedy
        )

    def _preferred(self, composition: Composition, origin: str) -> Preference:
        consumers = pick(composition, self.homes, self.settled)
        in_domain = in_domain_share(composition, self.demand)
        overload = loads(sizes_of(composition), self.demand).worst_overload
        stays = f"{in_domain:.0%} of the traffic stays in its {self.level}"
        above = f"{overload:.0%} above ".removeprefix("0% above ")
        loaded = f"{stays} and no endpoint gets more than {above}an even share"
        at_least = "" if in_domain == 1 else "at least "
        sentence = f"{at_least}{stays}" if self.after_nodes else loaded
        sentence += f" ({len(self.homes)} endpoints, {len(self.demand)} {self.level}s)"
        shares = {"in_domain": round(in_domain, 4)}
        shares |= {} if self.after_nodes else {"worst_overload": round(overload, 4)}
        moved = moves(consumers, self.settled)
        reason = RoutingReason(
            RoutingCode.PREFERRED, sentence, self._facts() | shares | {"assignment": origin, "moved": moved}
        )
        return Preference(consumers, reason, started=True, in_domain=in_domain, worst_overload=overload, moved=moved)

    def _facts(self) -> dict[str, Any]:
        return {
            "algorithm": self.limits.algorithm.value,
            "level": self.level,
            "endpoints": len(self.homes),
            "domains": len(self.demand),
        }
