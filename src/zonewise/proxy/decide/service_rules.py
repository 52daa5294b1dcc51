"""The rules of all ports of a Service in every address family: the whole decision of the proxy. Pure.

`ServiceRules` keeps the previous rules, so that slots stay in place, and the previous routing decision, from which
preferences move as little as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, TypeVar

from zonewise.objects import EndpointSlice, Key, Service, key_of
from zonewise.proxy.decide.rules import (
    NO_LIMITS,
    AddressLimits,
    PortName,
    PortRules,
    cluster_ip_of,
    desired_rules,
    is_served,
)
from zonewise.proxy.decide.targets import NodeLocation, PortTargets, find_targets, serving, slices_by_port
from zonewise.proxy.wire.family import Family
from zonewise.routing import Decision, read_policy
from zonewise.routing.policy import SameDomain, TopologyKeys

T = TypeVar("T")

_INDEX_SLICES_ABOVE_PORTS: Final = 16
RulesByFamily = dict[Family, dict[PortName, PortRules]]
_Decisions = dict[tuple[str, str, str], Decision]
"""By family, port name and protocol."""


@dataclass(slots=True)
class ServiceRules:
    families: tuple[Family, ...]
    all_services: bool = False
    rules: dict[Key, RulesByFamily] = field(default_factory=dict)
    by_labels: set[Key] = field(default_factory=set)
    """The Services whose rules depend on node labels."""
    with_external_ips: set[Key] = field(default_factory=set)
    """The Services whose rules depend on the nodes' pod ranges."""
    limits: AddressLimits = NO_LIMITS
    _decisions: dict[Key, _Decisions] = field(default_factory=dict)

    def decide(
        self, key: Key, service: Service | None, slices: Sequence[EndpointSlice], location: NodeLocation
    ) -> dict[Family, dict[PortName, PortRules | None]]:
        """The Service's rules by port, None for deleted ports. State changes only after every port is decided."""
        before, previous = self.rules.get(key, {}), self._decisions.get(key, {})
        after: RulesByFamily = {}
        decisions: _Decisions = {}
        served = service is not None and is_served(service, all_services=self.all_services)
        if service is not None and served:
            after = {
                family: _port_rules(
                    service, slices, location, family, before.get(family, {}), previous, decisions, self.limits
                )
                for family in self.families
                if cluster_ip_of(service, family)
            }
        _put(self.rules, key, after if served else None)
        _put(self._decisions, key, decisions or None)
        _mark(self.by_labels, key, service is not None and served and depends_on_labels(service))
        _mark(self.with_external_ips, key, service is not None and served and bool(service.spec.external_ips))
        return {family: {**dict.fromkeys(before.get(family, ())), **after.get(family, {})} for family in self.families}


def _put(into: dict[Key, T], key: Key, value: T | None) -> None:
    if value is None:
        into.pop(key, None)
    else:
        into[key] = value


def _mark(keys: set[Key], key: Key, belongs: bool) -> None:
    (keys.add if belongs else keys.discard)(key)


def _port_rules(
    service: Service,
    slices: Sequence[EndpointSlice],
    location: NodeLocation,
    family: Family,
    old: Mapping[PortName, PortRules],
    previous: _Decisions,
    decisions: _Decisions,
    limits: AddressLimits,
) -> dict[PortName, PortRules]:
    """Adds the routing decisions to `decisions`, as the start of the next ones."""
    key = key_of(service)
    rules_by_port: dict[PortName, PortRules] = {}
    indexed = slices_by_port(slices) if len(service.spec.ports) > _INDEX_SLICES_ABOVE_PORTS else None
    for port in service.spec.ports:
        name = PortName(*key, port.name, port.protocol)
        port_slices = slices if indexed is None else indexed.get((port.name, port.protocol), ())
        decision_key = (family.name, port.name, port.protocol)
        targets = find_targets(service, port, port_slices, location, family.name, previous.get(decision_key))
        if targets.decision is not None:
            decisions[decision_key] = targets.decision
        flows = serving(port, port_slices, family.name) if port.protocol == "UDP" else None
        rules = desired_rules(service, port, targets, family, old.get(name), flows=flows, limits=limits)
        if rules is not None:
            rules_by_port[name] = rules
    return rules_by_port


def depends_on_labels(service: Service) -> bool:
    if not service.metadata.annotations and not service.spec.topology_keys:
        return False
    return isinstance(read_policy(service).policy, TopologyKeys | SameDomain)


def explain(
    service: Service,
    slices: Sequence[EndpointSlice],
    location: NodeLocation,
    families: Iterable[Family],
    limits: AddressLimits,
) -> list[tuple[Family, PortTargets, PortRules]]:
    """The targets and rules of every port, for diagnostics."""
    explained = []
    for family in families:
        for port in service.spec.ports:
            targets = find_targets(service, port, slices, location, family.name)
            if rules := desired_rules(service, port, targets, family, limits=limits):
                explained.append((family, targets, rules))
    return explained
