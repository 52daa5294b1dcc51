"""The routing policy of a Service, read from its annotations and spec, with complaints about bad values.

The first step of every routing decision. Precedence, highest first: topology keys, same node/zone/region, automatic
hints, trafficDistribution. A bad value never breaks a Service: it counts as absent, or as the default if there is one,
and a complaint names it and the allowed values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import msgspec

from zonewise.api.names import (
    OLD_HINTS,
    OVERLOAD_THRESHOLD,
    SAME_NODE,
    SAME_REGION,
    SAME_ZONE,
    TOPOLOGY_KEYS,
    TOPOLOGY_MODE,
)
from zonewise.objects import Service, key_of
from zonewise.routing.reason import RoutingCode, RoutingReason, RoutingSubject
from zonewise.routing.tuning import TUNING_ANNOTATIONS, Tuning, read_tuning
from zonewise.topology import canonical_key, key_problem

EVERY_NODE: Final = "*"
MOST_KEYS: Final = 16
_SHOWN_CHARACTERS: Final = 80


class Strength(StrEnum):
    BALANCED = "Balanced"
    PREFER = "Prefer"
    REQUIRE = "Require"


class TrafficDistribution(StrEnum):
    PREFER_CLOSE = "PreferClose"
    PREFER_SAME_ZONE = "PreferSameZone"
    PREFER_SAME_NODE = "PreferSameNode"


@dataclass(frozen=True, slots=True)
class TopologyKeys:
    """Label keys in order of preference. `soft` if the list ended with the catch-all, which is not in `keys`."""

    keys: tuple[str, ...]
    soft: bool


@dataclass(frozen=True, slots=True)
class SameDomain:
    node: Strength = Strength.BALANCED
    zone: Strength = Strength.BALANCED
    region: Strength = Strength.BALANCED
    tuning: Tuning = field(default_factory=Tuning)

    def without_preferences(self) -> SameDomain:
        node, zone, region = (
            strength if strength is Strength.REQUIRE else Strength.BALANCED
            for strength in (self.node, self.zone, self.region)
        )
        return SameDomain(node, zone, region, self.tuning)


@dataclass(frozen=True, slots=True)
class AutomaticHints:
    tuning: Tuning = field(default_factory=Tuning)


@dataclass(frozen=True, slots=True)
class Distribution:
    value: TrafficDistribution


@dataclass(frozen=True, slots=True)
class NoPolicy:
    pass


Policy = TopologyKeys | SameDomain | AutomaticHints | Distribution | NoPolicy


@dataclass(frozen=True, slots=True)
class PolicyReading:
    """`source` is the annotation or field with the policy, as a user would write it; empty for `NoPolicy`."""

    policy: Policy
    source: str
    complaints: tuple[RoutingReason, ...]


@dataclass(frozen=True, slots=True)
class _Statement:
    source: str
    policy: Policy


def policy_name(policy: Policy) -> str:
    """The policy as a short name, also a metric label: the set of values is small."""
    match policy:
        case TopologyKeys(soft=True):
            return "topology-keys (soft)"
        case TopologyKeys():
            return "topology-keys (hard)"
        case SameDomain():
            levels = {"same-node": policy.node, "same-zone": policy.zone, "same-region": policy.region}
            names = [f"{level} {how}" for level, how in levels.items() if how is not Strength.BALANCED]
            return ", ".join(names) or "same-zone Balanced"
        case AutomaticHints():
            return "automatic hints"
        case Distribution(value):
            return f"trafficDistribution {value}"
        case NoPolicy():
            return "none"


class _Reader:
    """Collects complaints while one Service is read."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self.annotations: Mapping[str, str] = service.metadata.annotations
        self.blame = (RoutingSubject("Service", str(key_of(service))),)
        self.complaints: list[RoutingReason] = []
        self.tuning, problems = read_tuning(self.annotations)
        for annotation, value, allowed, applied in problems:
            self.refuse(annotation, value, f"is invalid, {applied} applies", f"write {allowed}")

    def complain(self, code: RoutingCode, where: str, value: str, problem: str, remedy: str) -> None:
        shown = value if len(value) <= _SHOWN_CHARACTERS else f"{value[:_SHOWN_CHARACTERS]}..."
        facts = {"where": where, "value": value}
        self.complaints.append(RoutingReason(code, f"{where}: {shown!r} {problem}", facts, self.blame, remedy))

    def refuse(self, where: str, value: str, problem: str, remedy: str) -> None:
        self.complain(RoutingCode.INVALID_VALUE, where, value, problem, remedy)


def read_policy(service: Service) -> PolicyReading:
    reader = _Reader(service)
    statements = [statement for read in _READERS for statement in read(reader)]
    winner = statements[0] if statements else _Statement("", NoPolicy())
    for loser in (statement for statement in statements[1:] if statement.policy != winner.policy):
        problem = f"has no effect: {winner.source} takes precedence"
        reader.complain(
            RoutingCode.OVERRULED, loser.source, value_of(service, loser.source), problem, "remove one of the two"
        )
    _complain_about_idle_tuning(reader, winner.policy)
    _complain_about_local_traffic(reader, winner)
    return PolicyReading(winner.policy, winner.source, tuple(reader.complaints))


def hints_enabled(annotations: Mapping[str, str]) -> bool:
    """As the stock EndpointSlice controller reads it: the old annotation, if present, hides the new one."""
    return annotations.get(OLD_HINTS, annotations.get(TOPOLOGY_MODE)) in {"Auto", "auto"}


def value_of(service: Service, source: str) -> str:
    """The value at the source of a reading."""
    match source:
        case "spec.topologyKeys":
            return ", ".join(service.spec.topology_keys)
        case "spec.trafficDistribution":
            return service.spec.traffic_distribution or ""
        case _:
            return service.metadata.annotations[source]


def _read_annotated_keys(reader: _Reader) -> Iterator[_Statement]:
    text = reader.annotations.get(TOPOLOGY_KEYS)
    if text is None:
        return
    try:
        keys = msgspec.json.decode(text, type=tuple[str, ...])
    except msgspec.DecodeError:
        example = '["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]'
        reader.refuse(
            TOPOLOGY_KEYS, text, "is not a JSON list of strings and is ignored", f"write a list such as {example}"
        )
        return
    yield from _read_keys(reader, TOPOLOGY_KEYS, text, keys)


def _read_spec_keys(reader: _Reader) -> Iterator[_Statement]:
    keys = reader.service.spec.topology_keys
    yield from _read_keys(reader, "spec.topologyKeys", ", ".join(keys), keys)


def _read_keys(reader: _Reader, where: str, text: str, raw_keys: tuple[str, ...]) -> Iterator[_Statement]:
    if not raw_keys:
        return
    keys = tuple(key or EVERY_NODE for key in raw_keys)
    problems = list(_problems_of_keys(keys, reader.service))
    for problem, remedy in problems:
        reader.refuse(where, text, f"{problem}; the list is ignored", remedy)
    if not problems:
        named = dict.fromkeys(canonical_key(key) for key in keys if key != EVERY_NODE)
        yield _Statement(where, TopologyKeys(tuple(named), soft=keys[-1] == EVERY_NODE))


def _problems_of_keys(keys: tuple[str, ...], service: Service) -> Iterator[tuple[str, str]]:
    if service.spec.external_traffic_policy == "Local":
        yield "stands beside externalTrafficPolicy Local", "set externalTrafficPolicy to Cluster or remove the keys"
    if len(keys) > MOST_KEYS:
        yield f"has {len(keys)} keys", f"write at most {MOST_KEYS}"
    if len(set(keys)) < len(keys):
        yield "names a key twice", "write every key once"
    if EVERY_NODE in keys[:-1]:
        yield 'has "*" or "" before the end', 'write "*" or "" as the last key only'
    for key in keys:
        if key != EVERY_NODE and (problem := key_problem(key)):
            yield f"has the key {key!r}, no label key", problem


def _read_same_domain(reader: _Reader) -> Iterator[_Statement]:
    present = [annotation for annotation in (SAME_NODE, SAME_ZONE, SAME_REGION) if annotation in reader.annotations]
    if not present:
        return
    node = _strength(reader, SAME_NODE)
    zone = _strength(reader, SAME_ZONE)
    region = _strength(reader, SAME_REGION)
    zone_implied = _implied(reader, SAME_ZONE, zone, SAME_NODE, node)
    region_implied = _implied(reader, SAME_REGION, region, SAME_ZONE, zone_implied)
    source = next(
        (annotation for annotation in present if reader.annotations[annotation] != Strength.BALANCED), present[0]
    )
    yield _Statement(source, SameDomain(node, zone_implied, region_implied, reader.tuning))


def _strength(reader: _Reader, annotation: str) -> Strength:
    value = reader.annotations.get(annotation, Strength.BALANCED)
    try:
        return Strength(value)
    except ValueError:
        reader.refuse(annotation, value, "is invalid, Balanced applies", f"write {', '.join(Strength)}")
        return Strength.BALANCED


def _implied(reader: _Reader, coarse: str, strength: Strength, fine: str, finer: Strength) -> Strength:
    """`Require` for the node implies `Require` for its zone and region."""
    if finer is not Strength.REQUIRE:
        return strength
    if coarse in reader.annotations and strength is not Strength.REQUIRE:
        remedy = f"remove it, or weaken {fine}"
        problem = "has no effect: Require of a smaller domain requires the larger one"
        reader.complain(RoutingCode.NO_EFFECT, coarse, reader.annotations[coarse], problem, remedy)
    return Strength.REQUIRE


def _read_hints(reader: _Reader) -> Iterator[_Statement]:
    present = [annotation for annotation in (OLD_HINTS, TOPOLOGY_MODE) if annotation in reader.annotations]
    for annotation in present:
        value = reader.annotations[annotation]
        other_controller = annotation == TOPOLOGY_MODE and "/" in value
        if not other_controller and value not in {"Auto", "auto", "Disabled", "disabled", ""}:
            reader.refuse(annotation, value, "is invalid, hints stay off", "write Auto or Disabled")
    mode = {TOPOLOGY_MODE: reader.annotations.get(TOPOLOGY_MODE, "")}
    if len(present) > 1 and hints_enabled(mode) != hints_enabled(reader.annotations):
        problem = f"has no effect: {OLD_HINTS} takes precedence"
        value = reader.annotations[TOPOLOGY_MODE]
        reader.complain(RoutingCode.OVERRULED, TOPOLOGY_MODE, value, problem, f"remove {OLD_HINTS}")
    if hints_enabled(reader.annotations):
        yield _Statement(present[0], AutomaticHints(reader.tuning))


def _read_distribution(reader: _Reader) -> Iterator[_Statement]:
    value = reader.service.spec.traffic_distribution
    if not value:
        return
    try:
        yield _Statement("spec.trafficDistribution", Distribution(TrafficDistribution(value)))
    except ValueError:
        allowed = ", ".join(TrafficDistribution)
        reader.refuse("spec.trafficDistribution", value, "is unknown and ignored", f"write one of {allowed}")


def _complain_about_idle_tuning(reader: _Reader, policy: Policy) -> None:
    used = _tuning_used_by(policy)
    for annotation in TUNING_ANNOTATIONS:
        if annotation in reader.annotations and annotation not in used:
            problem = "has no effect: it tunes a preference, and none is set that it could tune"
            remedy = f"set {SAME_ZONE} to Prefer, or remove it"
            reader.complain(RoutingCode.NO_EFFECT, annotation, reader.annotations[annotation], problem, remedy)


def _complain_about_local_traffic(reader: _Reader, winner: _Statement) -> None:
    """Traffic that must stay on its node is not routed by policies."""
    if winner.source and reader.service.spec.internal_traffic_policy == "Local":
        problem = "has no effect on traffic from inside the cluster: internalTrafficPolicy is Local"
        value = value_of(reader.service, winner.source)
        reader.complain(RoutingCode.NO_EFFECT, winner.source, value, problem, "set internalTrafficPolicy to Cluster")


def _tuning_used_by(policy: Policy) -> tuple[str, ...]:
    match policy:
        case SameDomain() if Strength.PREFER in {policy.zone, policy.region}:
            return TUNING_ANNOTATIONS
        case SameDomain(node=Strength.PREFER) | AutomaticHints():
            return (OVERLOAD_THRESHOLD,)
        case _:
            return ()


_READERS: Final[tuple[Callable[[_Reader], Iterator[_Statement]], ...]] = (
    _read_annotated_keys,
    _read_spec_keys,
    _read_same_domain,
    _read_hints,
    _read_distribution,
)
