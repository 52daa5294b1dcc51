"""`Prefer`: keep traffic in its domain as long as no endpoint gets too much of it.

Given the demand of each domain, where the endpoints are and who consumed them so far, says who consumes each endpoint
from now on, or that traffic is better spread evenly. Domains are zones, or regions; the same rules serve both, and the
stable form of automatic hints. Below the starting threshold, with a padding against flapping, and where no split keeps
the overload below its threshold, the answer is an even spread. As long as the last assignment breaks no threshold it
stays, and is repaired by the fewest moves when it does.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import floor
from typing import Any, Final

from zonewise.routing.algorithms import Algorithm
from zonewise.routing.load import Composition, Consumers, consumed_by, in_domain_share, loads
from zonewise.routing.pick import compose, moves, pick, settle
from zonewise.routing.reason import NO_ENDPOINT_READY, Code, Reason, Subject
from zonewise.routing.rebalance import OUTSIDE, Draft, afresh
from zonewise.routing.tuning import OVERLOAD_THRESHOLD, STARTING_THRESHOLD, Start

DEFAULT_OVERLOAD: Final = 0.5


@dataclass(frozen=True, slots=True)
class Limits:
    """A new assignment keeps below `overload`; one that is there already is kept until it reaches `keep_overload`.

    Without `lazy` every change makes a new assignment, for comparison.
    """

    algorithm: Algorithm
    start: Start
    padding: int
    overload: float = DEFAULT_OVERLOAD
    keep_overload: float = DEFAULT_OVERLOAD
    lazy: bool = True


@dataclass(frozen=True, slots=True)
class Preference:
    """`consumers` by address, or None for an even spread. `moved` endpoints serve others than before."""

    consumers: Mapping[str, Consumers] | None
    reason: Reason
    in_domain: float = 0.0
    worst_overload: float = 0.0
    moved: int = 0


def prefer(
    demand: Mapping[str, int],
    homes: Mapping[str, str | None],
    limits: Limits,
    previous: Mapping[str, Consumers] | None = None,
) -> Preference:
    """`demand` by domain, all above zero; `homes` the domain of each endpoint, by address.

    `previous` is the last assignment, None where traffic was spread evenly. The answer depends on nothing else, not
    even on the order of the items.
    """
    demand = dict(sorted(demand.items()))
    placed = {address: home if (home := homes[address]) in demand else OUTSIDE for address in sorted(homes)}
    if why_not := _why_not_started(demand, placed, limits, active=previous is not None):
        return _spread_evenly(demand, placed, why_not)
    case = _Case(demand, placed, limits, settle(previous or {}, placed, demand))
    kept = case.repaired() if previous is not None and limits.lazy else None
    if kept and not kept.moved:
        return kept
    fresh = case.fresh()
    if kept and (fresh is None or kept.moved < fresh.moved):
        return kept
    return fresh or _spread_evenly(demand, placed, _why_not_split(demand, placed, limits))


@dataclass(frozen=True, slots=True)
class _Case:
    demand: Mapping[str, int]
    homes: Mapping[str, str]
    limits: Limits
    settled: Mapping[str, Consumers]

    def repaired(self) -> Preference | None:
        """The last assignment with what is new, and the fewest moves that break no threshold; None if there are none."""
        free = Counter(home for address, home in self.homes.items() if address not in self.settled)
        draft = Draft(self.demand, compose(self.settled, self.homes), free)
        if draft.loads().within(self.limits.keep_overload) or draft.repair(self.limits.overload):
            return self._preferred(draft.composition(), "kept")
        return None

    def fresh(self) -> Preference | None:
        """The algorithm's assignment; None where it spreads evenly, or breaks the threshold."""
        counts = Counter(self.homes.values())
        composition = afresh(self.limits.algorithm, self.demand, counts, self.limits.overload)
        if not composition or not loads(_sizes(composition), self.demand).within(self.limits.overload):
            return None
        return self._preferred(composition, "afresh")

    def _preferred(self, composition: Composition, how: str) -> Preference:
        consumers = pick(composition, self.homes, self.settled)
        in_domain = in_domain_share(composition, self.demand)
        overload = loads(_sizes(composition), self.demand).worst_overload
        facts = {
            "algorithm": self.limits.algorithm.value,
            "assignment": how,
            "endpoints": len(self.homes),
            "domains": len(self.demand),
            "in_domain": round(in_domain, 4),
            "worst_overload": round(overload, 4),
        }
        sentence = (
            f"{in_domain:.0%} of the traffic stays in its domain and no endpoint gets more than {overload:.0%} "
            f"above an even share ({len(self.homes)} endpoints, {len(self.demand)} domains)"
        )
        moved = moves(consumers, self.settled)
        return Preference(consumers, Reason(Code.PREFERRED, sentence, facts), in_domain, overload, moved)


def _why_not_started(
    demand: Mapping[str, int], homes: Mapping[str, str], limits: Limits, *, active: bool
) -> Reason | None:
    if not homes:
        return NO_ENDPOINT_READY
    if not demand:
        return Reason(Code.NO_NODES, "no node says which domain it is in", remedy="label the nodes with their domain")
    if len(demand) == 1:
        (only,) = demand
        return Reason(Code.ONE_DOMAIN, f"all nodes are in {only}", {"domain": only}, (Subject("Domain", only),))
    return _below_start(len(homes), limits.start.at(len(demand)), limits.padding, active=active)


def _below_start(endpoints: int, start: int, padding: int, *, active: bool) -> Reason | None:
    """Starts at start + padding endpoints and ends at start - padding, so that an update in between changes nothing."""
    enough = start - padding + 1 if active and padding else start + padding
    if endpoints >= enough:
        return None
    facts = {"endpoints": endpoints, "starting_threshold": start, "padding": padding, "needed": enough}
    sentence = f"{endpoints} endpoints are too few: {enough} are needed (starting threshold {start}, padding {padding})"
    return Reason(
        Code.BELOW_START, sentence, facts, remedy=f"run {enough - endpoints} more, or lower {STARTING_THRESHOLD}"
    )


def _why_not_split(demand: Mapping[str, int], homes: Mapping[str, str], limits: Limits) -> Reason:
    counts = Counter(homes.values())
    nodes, endpoints = sum(demand.values()), len(homes)
    least = sum(floor(endpoints * count / nodes / (1 + limits.overload)) + 1 for count in demand.values())
    if least <= endpoints:
        facts: dict[str, Any] = {"algorithm": limits.algorithm.value, "endpoints": endpoints, "domains": len(demand)}
        return Reason(Code.BALANCED, f"{limits.algorithm} finds an even spread best", facts)
    worst = max(demand, key=lambda domain: demand[domain] / (counts[domain] or 0.5))
    expected = endpoints * demand[worst] / nodes
    facts = {
        "domain": worst,
        "endpoints": counts[worst],
        "expected": round(expected, 2),
        "overload_threshold": limits.overload,
    }
    sentence = (
        f"no split keeps every endpoint's overload below {limits.overload:.0%}: {worst} sends the traffic of "
        f"{expected:.1f} endpoints and has {counts[worst]}"
    )
    remedy = f"run more endpoints in {worst}, or raise {OVERLOAD_THRESHOLD}"
    return Reason(Code.WOULD_OVERLOAD, sentence, facts, (Subject("Domain", worst),), remedy)


def _spread_evenly(demand: Mapping[str, int], homes: Mapping[str, str], reason: Reason) -> Preference:
    if not demand or not homes:
        return Preference(None, reason)
    everyone = {consumed_by(*demand): dict(Counter(homes.values()))}
    return Preference(None, reason, in_domain_share(everyone, demand))


def _sizes(composition: Composition) -> dict[Consumers, int]:
    return {consumers: sum(homes.values()) for consumers, homes in composition.items()}
