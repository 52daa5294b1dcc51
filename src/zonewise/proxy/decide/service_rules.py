"""From a Service and its slices to the rules of its ports in every family: the whole decision of the proxy. Pure.

`ServiceRules` keeps what the next decision starts from: the last rules, whose slots stay where they can, and the last routing
decision, which preferences move away from as little as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from zonewise.objects import EndpointSlice, Key, Service, key_of
from zonewise.proxy.decide.rules import PortName, PortRules, cluster_ip_of, desired_rules, is_served
from zonewise.proxy.decide.targets import NodePlace, PortTargets, find_targets, parted, serving
from zonewise.proxy.wire.family import Family
from zonewise.routing import Decision, read_policy
from zonewise.routing.policy import SameDomain, TopologyKeys

T = TypeVar("T")

_FEW_PORTS: Final = 16
Answer = dict[Family, dict[PortName, PortRules]]
_Memory = dict[tuple[str, str, str], Decision]
"""By family, and a port's name and protocol."""


@dataclass(slots=True)
class ServiceRules:
    families: tuple[Family, ...]
    all_services: bool = False
    answers: dict[Key, Answer] = field(default_factory=dict)
    by_labels: set[Key] = field(default_factory=set)
    """The Services whose answer depends on the labels of nodes."""
    _decisions: dict[Key, _Memory] = field(default_factory=dict)

    def decide(
        self, key: Key, service: Service | None, slices: Sequence[EndpointSlice], place: NodePlace
    ) -> dict[Family, dict[PortName, PortRules | None]]:
        """What changes for the Service: rules by port, None for ports that are gone. Remembered once all is decided."""
        before, remembered = self.answers.get(key, {}), self._decisions.get(key, {})
        after: Answer = {}
        made: _Memory = {}
        served = service is not None and is_served(service, all_services=self.all_services)
        if service is not None and served:
            after = {
                family: _answer(service, slices, place, family, before.get(family, {}), remembered, made)
                for family in self.families
                if cluster_ip_of(service, family)
            }
        _put(self.answers, key, after if served else None)
        _put(self._decisions, key, made or None)
        (self.by_labels.add if service and served and depends_on_labels(service) else self.by_labels.discard)(key)
        return {family: {**dict.fromkeys(before.get(family, ())), **after.get(family, {})} for family in self.families}


def _put(into: dict[Key, T], key: Key, value: T | None) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def _answer(
    service: Service,
    slices: Sequence[EndpointSlice],
    place: NodePlace,
    family: Family,
    old: Mapping[PortName, PortRules],
    remembered: _Memory,
    made: _Memory,
) -> dict[PortName, PortRules]:
    """`made` gets the routing decisions, which the next answer starts from."""
    key = key_of(service)
    answer: dict[PortName, PortRules] = {}
    many = parted(slices) if len(service.spec.ports) > _FEW_PORTS else None
    for port in service.spec.ports:
        name = PortName(*key, port.name, port.protocol)
        offered = slices if many is None else many.get((port.name, port.protocol), ())
        memory = (family.name, port.name, port.protocol)
        targets = find_targets(service, port, offered, place, family.name, remembered.get(memory))
        if targets.decision is not None:
            made[memory] = targets.decision
        flows = serving(port, offered, family.name) if port.protocol == "UDP" else None
        rules = desired_rules(service, port, targets, family, old.get(name), flows=flows)
        if rules is not None:
            answer[name] = rules
    return answer


def depends_on_labels(service: Service) -> bool:
    if not service.metadata.annotations and not service.spec.topology_keys:
        return False
    return isinstance(read_policy(service).policy, TopologyKeys | SameDomain)


def explain(
    service: Service, slices: Sequence[EndpointSlice], place: NodePlace, families: Iterable[Family]
) -> list[tuple[Family, PortTargets, PortRules]]:
    """The targets and rules of every port, for a person to read."""
    found = []
    for family in families:
        for port in service.spec.ports:
            targets = find_targets(service, port, slices, place, family.name)
            if rules := desired_rules(service, port, targets, family):
                found.append((family, targets, rules))
    return found
