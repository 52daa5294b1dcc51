"""Which pool a new volume goes to, and why. Pure: the state of the pools and the luck of the draw are arguments.

CSI has no word for the binding mode. Who asks with a preference has a pod that waits on a node: the first preferred domain is the only
one that is right for it, and when that has no room the answer is RESOURCE_EXHAUSTED, so that the pod is scheduled elsewhere. Who asks
without one, or whose class says Immediate, gets any domain, and a volume that is said to be reached from everywhere, as Ceph's pools
can be. A domain that no pool is for is treated the same way: nobody has told us better.

A pool for a wider domain serves the narrower ones in it. Among pools that fit, those for the narrowest domain win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from zonewise.ceph.decide.domains import Segments, describe, lies_in
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.model import PoolState, TopologyRequirement
from zonewise.ceph.decide.parameters import CloneDomain, PoolBalance, PoolRule, StorageClassParameters
from zonewise.topology import Reason


class PoolReason(StrEnum):
    """Stable: events and volume contexts carry these."""

    ONLY_POOL = "OnlyPool"
    PREFERRED_DOMAIN = "PreferredDomain"
    ANY_DOMAIN = "AnyDomain"
    UNKNOWN_DOMAIN = "UnknownDomain"
    SOURCE_DOMAIN = "SourceDomain"


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """`domain` is where the volume is said to be reached from; empty for everywhere."""

    rule: PoolRule
    domain: Segments
    reason: Reason


def choose(
    storage_class: StorageClassParameters,
    requirement: TopologyRequirement,
    states: Mapping[str, PoolState],
    size_bytes: int,
    draw: float,
) -> PoolChoice:
    """`draw` in [0, 1) decides where chance does. CsiError RESOURCE_EXHAUSTED says of every pool why not."""
    rules = storage_class.rules
    first = _first_preferred(storage_class, requirement)
    if first:
        fitting = narrowest(storage_class, first)
        if fitting:
            rule = _pick(fitting, storage_class, states, size_bytes, draw, f"domain {describe(first)}")
            return PoolChoice(rule, rule.segments, _preferred_reason(rule, first))
        candidates = _within(storage_class, requirement.requisite) or tuple(rules)
        rule = _pick(candidates, storage_class, states, size_bytes, draw, "any domain")
        return PoolChoice(rule, (), _unknown_reason(rule, first))
    candidates = _within(storage_class, requirement.requisite) or tuple(rules)
    rule = _pick(candidates, storage_class, states, size_bytes, draw, "any domain")
    return PoolChoice(rule, (), _any_reason(rule, candidates, storage_class))


def choose_for_copy(
    storage_class: StorageClassParameters, requirement: TopologyRequirement, source: PoolRule
) -> PoolChoice | None:
    """For a copy of something: its source's own pools and domain; None where the class and request ask for a choice.

    RESOURCE_EXHAUSTED where the request leaves that domain out and the class does not say that copies may leave it.
    """
    if storage_class.clone_domain is CloneDomain.REQUESTED:
        return None
    terms = [term for term in requirement.requisite if term]
    if source.segments and terms and not any(_touches(source.segments, term) for term in terms):
        raise CsiError(
            GrpcCode.RESOURCE_EXHAUSTED,
            f"the source lies in {describe(source.segments)}, which the request leaves out, and copies stay there: "
            "a class with the parameter cloneDomain: requested makes independent copies in other domains",
        )
    where = f" ({describe(source.segments)})" if source.segments else ""
    sentence = f"pool {source.pool}, where its source is{where}"
    return PoolChoice(source, source.segments, Reason(PoolReason.SOURCE_DOMAIN, sentence, {"pool": source.pool}))


def reachable(domain: Segments, requirement: TopologyRequirement) -> bool:
    """Whether a volume of this domain is in what was asked for; one without a domain is everywhere."""
    terms = [term for term in requirement.requisite if term]
    return not domain or not terms or any(_touches(domain, term) for term in terms)


def capacity(
    storage_class: StorageClassParameters, topology: Segments, states: Mapping[str, PoolState]
) -> tuple[int, int]:
    """Free bytes for new volumes in a domain, and the size of the largest volume that would be taken."""
    rules: Sequence[PoolRule] = narrowest(storage_class, topology) if topology else ()
    found = [state_of(rule, states) for rule in rules or storage_class.rules]
    by_name = {state.name: state for state in found if state is not None}  # two may have their data in one pool
    free = [state.free_bytes for state in by_name.values() if not _refusal(state, 0, 0)]
    largest = max(free, default=0)
    ratio = storage_class.overcommit
    return sum(free), int(largest * ratio) if ratio else 0


def needed(rules: Iterable[PoolRule]) -> set[str]:
    """The pools whose state a choice among these depends on."""
    return {pool for rule in rules for pool in (rule.pool, rule.data_pool) if pool}


def state_of(rule: PoolRule, states: Mapping[str, PoolState]) -> PoolState | None:
    """Of a pool for images; where their data goes to another pool, that one's, and both must serve. None where one is not known."""
    own = states.get(rule.pool)
    if own is None or not rule.data_pool:
        return own
    data = states.get(rule.data_pool)
    if data is None:
        return None
    if _refusal(own, 0, 0):
        return own
    problem = f"its data pool {data.name}: {data.problem}" if data.problem else ""
    return replace(data, volumes=own.volumes, problem=problem)


def narrowest(storage_class: StorageClassParameters, term: Segments) -> tuple[PoolRule, ...]:
    """The pools whose domain the term lies in, of the narrowest such domain; else those that lie in the term; else those for all."""
    around = [rule for rule in storage_class.rules if lies_in(term, rule.segments)]
    with_domain = [rule for rule in around if rule.segments]
    if with_domain:
        most = max(_depth(rule, storage_class.hierarchy) for rule in with_domain)
        return tuple(rule for rule in with_domain if _depth(rule, storage_class.hierarchy) == most)
    inside = [rule for rule in storage_class.rules if rule.segments and lies_in(rule.segments, term)]
    return tuple(inside or around)


def _depth(rule: PoolRule, hierarchy: Sequence[str]) -> tuple[int, int]:
    """How narrow a domain is: by its narrowest label, then by how many it has. Labels that nobody has ordered are the narrowest."""
    ranks = [hierarchy.index(name) if name in hierarchy else len(hierarchy) for name, _ in rule.segments]
    return max(ranks), len(ranks)


def _first_preferred(storage_class: StorageClassParameters, requirement: TopologyRequirement) -> Segments:
    if storage_class.is_immediate or not requirement.preferred:
        return ()
    return requirement.preferred[0]


def _within(storage_class: StorageClassParameters, terms: Sequence[Segments]) -> tuple[PoolRule, ...]:
    """The pools for at least one of the terms, each once."""
    found = (rule for term in terms if term for rule in narrowest(storage_class, term))
    return tuple(dict.fromkeys(found))


def _touches(domain: Segments, term: Segments) -> bool:
    return lies_in(term, domain) or lies_in(domain, term)


def _pick(
    rules: Sequence[PoolRule],
    storage_class: StorageClassParameters,
    states: Mapping[str, PoolState],
    size_bytes: int,
    draw: float,
    where: str,
) -> PoolRule:
    refused: dict[str, str] = {}
    left = []
    for rule in rules:
        state = state_of(rule, states)
        refusal = _refusal(state, size_bytes, storage_class.overcommit) if state is not None else ""
        if refusal:
            refused[rule.pool] = refusal
        else:
            left.append(rule)
    if not left:
        said = "; ".join(f"{pool} {refusal}" for pool, refusal in refused.items())
        raise CsiError(GrpcCode.RESOURCE_EXHAUSTED, f"no pool of {where} takes a volume of {size_bytes} bytes: {said}")
    return _weighted(left, [_weight(rule, storage_class.balance, states) for rule in left], draw)


def _refusal(state: PoolState, size_bytes: int, overcommit: float) -> str:
    if not state.is_serving:
        return f"is not serving ({state.problem})" if state.problem else "is not serving"
    if state.is_full:
        return f"is full ({state.problem})" if state.problem else "is full"
    if overcommit and size_bytes > state.free_bytes * overcommit:
        return f"has {state.free_bytes} bytes free, and the class allows {overcommit:g} times that"
    return ""


def _weight(rule: PoolRule, balance: PoolBalance, states: Mapping[str, PoolState]) -> float:
    state = state_of(rule, states)
    if state is None or balance is PoolBalance.RANDOM:
        return 1.0
    return float(max(state.free_bytes, 1)) if balance is PoolBalance.SPACE else 1.0 / (1 + state.volumes)


def _weighted(rules: Sequence[PoolRule], weights: Sequence[float], draw: float) -> PoolRule:
    point = draw * sum(weights)
    for rule, weight in zip(rules, weights, strict=True):
        point -= weight
        if point < 0:
            return rule
    return rules[-1]


def _preferred_reason(rule: PoolRule, first: Segments) -> Reason:
    facts = {"pool": rule.pool, "preferred": describe(first), "domain": describe(rule.segments)}
    whose = f"which is for {describe(rule.segments)}" if rule.segments else "which is for every domain"
    return Reason(
        PoolReason.PREFERRED_DOMAIN, f"the pod's domain is {describe(first)}: pool {rule.pool}, {whose}", facts
    )


def _unknown_reason(rule: PoolRule, first: Segments) -> Reason:
    sentence = f"no pool is for {describe(first)}, so pool {rule.pool} was chosen as for any domain: name a pool for it"
    return Reason(PoolReason.UNKNOWN_DOMAIN, sentence, {"pool": rule.pool, "preferred": describe(first)})


def _any_reason(rule: PoolRule, candidates: Sequence[PoolRule], storage_class: StorageClassParameters) -> Reason:
    facts = {"pool": rule.pool, "candidates": ", ".join(each.pool for each in candidates)}
    if len(candidates) == 1:
        return Reason(PoolReason.ONLY_POOL, f"pool {rule.pool} is the only one that may be used", facts)
    how = {
        PoolBalance.RANDOM: "at random",
        PoolBalance.SPACE: "by free space",
        PoolBalance.COUNT: "by number of volumes",
    }
    sentence = f"no domain is preferred: pool {rule.pool}, chosen {how[storage_class.balance]} of {len(candidates)}"
    return Reason(PoolReason.ANY_DOMAIN, sentence, facts)
