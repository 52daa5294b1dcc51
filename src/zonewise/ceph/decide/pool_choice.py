"""Pool choice: which pool a new volume goes to, and why. Pure: pool states and the random draw are arguments.

CSI does not pass the binding mode. A request with a preferred topology has a pod that waits for a node: only the first
preferred domain is right for it, and if no pool there has room the answer is RESOURCE_EXHAUSTED, so that the pod is
scheduled elsewhere. A request without a preference, or of a class with `volumeBindingMode: Immediate`, may get any
domain, and the volume is accessible from every node, as Ceph's pools are. The same holds for a domain that has no pool.

A pool of a wider domain serves the narrower ones in it. Among pools that fit, those of the narrowest domain win.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from zonewise.ceph.decide.domains import Segments, describe, is_within
from zonewise.ceph.decide.errors import CsiError, GrpcCode
from zonewise.ceph.decide.model import PoolState, TopologyRequirement
from zonewise.ceph.decide.parameters import CloneDomain, PoolBalance, PoolRule, StorageClassParameters
from zonewise.topology import Reason


class PoolReason(StrEnum):
    """Stable codes, used in events and volume contexts."""

    ONLY_POOL = "OnlyPool"
    PREFERRED_DOMAIN = "PreferredDomain"
    ANY_DOMAIN = "AnyDomain"
    UNKNOWN_DOMAIN = "UnknownDomain"
    SOURCE_DOMAIN = "SourceDomain"


@dataclass(frozen=True, slots=True)
class PoolChoice:
    """`domain` is the volume's accessible topology; empty for every node."""

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
    """`draw` in [0, 1) is the random choice. Raises RESOURCE_EXHAUSTED with the reason of every pool."""
    rules = storage_class.rules
    first = _first_preferred(storage_class, requirement)
    if first:
        matching = narrowest_rules(storage_class, first)
        if matching:
            rule = _pick(matching, storage_class, states, size_bytes, draw, f"domain {describe(first)}")
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
    """Pool and domain of the source, for a copy; None if the class has `cloneDomain: requested`.

    Raises RESOURCE_EXHAUSTED if the request excludes the source's domain.
    """
    if storage_class.clone_domain is CloneDomain.REQUESTED:
        return None
    terms = [term for term in requirement.requisite if term]
    if source.segments and terms and not any(_touches(source.segments, term) for term in terms):
        raise CsiError(
            GrpcCode.RESOURCE_EXHAUSTED,
            f"the source is in {describe(source.segments)}, which the request excludes, and copies stay in its domain: "
            "use a StorageClass with cloneDomain: requested for independent copies in other domains",
        )
    domain = f" ({describe(source.segments)})" if source.segments else ""
    sentence = f"pool {source.pool}, the pool of its source{domain}"
    return PoolChoice(source, source.segments, Reason(PoolReason.SOURCE_DOMAIN, sentence, {"pool": source.pool}))


def satisfies(domain: Segments, requirement: TopologyRequirement) -> bool:
    """Whether a volume of this domain satisfies the requirement; one without a domain always does."""
    terms = [term for term in requirement.requisite if term]
    return not domain or not terms or any(_touches(domain, term) for term in terms)


def capacity(
    storage_class: StorageClassParameters, topology: Segments, states: Mapping[str, PoolState]
) -> tuple[int, int]:
    """Free bytes for new volumes in a domain, and the largest volume that would be accepted (0: no limit)."""
    rules: Sequence[PoolRule] = narrowest_rules(storage_class, topology) if topology else ()
    known_states = [state_of(rule, states) for rule in rules or storage_class.rules]
    by_name = {state.name: state for state in known_states if state is not None}  # two rules may share a data pool
    free = [state.free_bytes for state in by_name.values() if not _refusal(state, 0, 0)]
    largest = max(free, default=0)
    ratio = storage_class.overcommit
    return sum(free), int(largest * ratio) if ratio else 0


def pools_of(rules: Iterable[PoolRule]) -> set[str]:
    """The pools whose state a choice among these rules depends on."""
    return {pool for rule in rules for pool in (rule.pool, rule.data_pool) if pool}


def state_of(rule: PoolRule, states: Mapping[str, PoolState]) -> PoolState | None:
    """Of the rule's pool; with a data pool the state of that one, and both must serve. None if one is unknown."""
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


def narrowest_rules(storage_class: StorageClassParameters, term: Segments) -> tuple[PoolRule, ...]:
    """Rules of the narrowest domain that contains the term; else rules within the term; else rules without a domain."""
    enclosing = [rule for rule in storage_class.rules if is_within(term, rule.segments)]
    with_domain = [rule for rule in enclosing if rule.segments]
    if with_domain:
        deepest = max(_depth(rule, storage_class.hierarchy) for rule in with_domain)
        return tuple(rule for rule in with_domain if _depth(rule, storage_class.hierarchy) == deepest)
    inside = [rule for rule in storage_class.rules if rule.segments and is_within(rule.segments, term)]
    return tuple(inside or enclosing)


def _depth(rule: PoolRule, hierarchy: Sequence[str]) -> tuple[int, int]:
    """By its narrowest label, then by the number of labels. Labels outside the hierarchy are the narrowest."""
    ranks = [hierarchy.index(name) if name in hierarchy else len(hierarchy) for name, _ in rule.segments]
    return max(ranks), len(ranks)


def _first_preferred(storage_class: StorageClassParameters, requirement: TopologyRequirement) -> Segments:
    if storage_class.is_immediate or not requirement.preferred:
        return ()
    return requirement.preferred[0]


def _within(storage_class: StorageClassParameters, terms: Sequence[Segments]) -> tuple[PoolRule, ...]:
    """The rules for at least one of the terms, each once."""
    rules = (rule for term in terms if term for rule in narrowest_rules(storage_class, term))
    return tuple(dict.fromkeys(rules))


def _touches(domain: Segments, term: Segments) -> bool:
    return is_within(term, domain) or is_within(domain, term)


def _pick(
    rules: Sequence[PoolRule],
    storage_class: StorageClassParameters,
    states: Mapping[str, PoolState],
    size_bytes: int,
    draw: float,
    where: str,
) -> PoolRule:
    refused: dict[str, str] = {}
    accepted = []
    for rule in rules:
        state = state_of(rule, states)
        refusal = _refusal(state, size_bytes, storage_class.overcommit) if state is not None else ""
        if refusal:
            refused[rule.pool] = refusal
        else:
            accepted.append(rule)
    if not accepted:
        reasons = "; ".join(f"{pool} {refusal}" for pool, refusal in refused.items())
        raise CsiError(
            GrpcCode.RESOURCE_EXHAUSTED, f"no pool of {where} accepts a volume of {size_bytes} bytes: {reasons}"
        )
    return _weighted(accepted, [_weight(rule, storage_class.balance, states) for rule in accepted], draw)


def _refusal(state: PoolState, size_bytes: int, overcommit: float) -> str:
    if not state.is_serving:
        return f"is not serving ({state.problem})" if state.problem else "is not serving"
    if state.is_full:
        return f"is full ({state.problem})" if state.problem else "is full"
    if overcommit and size_bytes > state.free_bytes * overcommit:
        return f"has {state.free_bytes} bytes free, and overcommit allows {overcommit:g} times that"
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
    scope = f"which is for {describe(rule.segments)}" if rule.segments else "which is for every domain"
    return Reason(
        PoolReason.PREFERRED_DOMAIN, f"the pod's domain is {describe(first)}: pool {rule.pool}, {scope}", facts
    )


def _unknown_reason(rule: PoolRule, first: Segments) -> Reason:
    sentence = f"no pool is for {describe(first)}, so pool {rule.pool} was chosen as for any domain: add a pool for it"
    return Reason(PoolReason.UNKNOWN_DOMAIN, sentence, {"pool": rule.pool, "preferred": describe(first)})


def _any_reason(rule: PoolRule, candidates: Sequence[PoolRule], storage_class: StorageClassParameters) -> Reason:
    facts = {"pool": rule.pool, "candidates": ", ".join(candidate.pool for candidate in candidates)}
    if len(candidates) == 1:
        return Reason(PoolReason.ONLY_POOL, f"pool {rule.pool} is the only candidate", facts)
    method = {
        PoolBalance.RANDOM: "at random",
        PoolBalance.SPACE: "by free space",
        PoolBalance.COUNT: "by number of volumes",
    }
    sentence = f"no domain is preferred: pool {rule.pool}, chosen {method[storage_class.balance]} of {len(candidates)}"
    return Reason(PoolReason.ANY_DOMAIN, sentence, facts)
