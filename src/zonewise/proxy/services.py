"""From a Service and its slices to the rules of its ports in every family: the whole decision of the proxy. Pure.

`Decider` keeps what the next decision starts from: the last rules, whose slots stay where they can, and the last routing
decision, which preferences move away from as little as possible.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from zonewise.objects import EndpointSlice, Key, Service, key_of
from zonewise.proxy.family import Family
from zonewise.proxy.rules import PortName, PortRules, cluster_ip_of, desired_rules, is_served
from zonewise.proxy.targets import Place, Targets, find_targets, serving
from zonewise.routing import Decision, read_policy
from zonewise.routing.policy import SameDomain, TopologyKeys

Answer = dict[Family, dict[PortName, PortRules]]


@dataclass(slots=True)
class Decider:
    families: tuple[Family, ...]
    all_services: bool = False
    answers: dict[Key, Answer] = field(default_factory=dict)
    by_labels: set[Key] = field(default_factory=set)
    """The Services whose answer depends on the labels of nodes."""
    _decisions: dict[Key, dict[tuple[str, str], Decision]] = field(default_factory=dict)

    def decide(
        self, key: Key, service: Service | None, slices: Sequence[EndpointSlice], place: Place
    ) -> dict[Family, dict[PortName, PortRules | None]]:
        """What changes for the Service: rules by port, None for ports that are gone."""
        before = self.answers.pop(key, {})
        after: Answer = {}
        self.by_labels.discard(key)
        if service is not None and is_served(service, all_services=self.all_services):
            if depends_on_labels(service):
                self.by_labels.add(key)
            after = {family: self._answer(service, slices, place, family, before) for family in self.families}
            self.answers[key] = after
        else:
            self._decisions.pop(key, None)
        return {
            family: dict.fromkeys(before.get(family, {})) | dict(after.get(family, {}).items())
            for family in self.families
        }

    def _answer(
        self, service: Service, slices: Sequence[EndpointSlice], place: Place, family: Family, before: Answer
    ) -> dict[PortName, PortRules]:
        if not cluster_ip_of(service, family):
            return {}
        old = before.get(family, {})
        key = key_of(service)
        remembered = self._decisions.get(key, {})
        answer: dict[PortName, PortRules] = {}
        for port in service.spec.ports:
            name = PortName(*key, port.name, port.protocol)
            memory = (family.name, f"{port.name}/{port.protocol}")
            targets = find_targets(service, port, slices, place, family.name, remembered.get(memory))
            if targets.decision is not None:
                self._decisions.setdefault(key, {})[memory] = targets.decision
            flows = serving(port, slices, family.name) if port.protocol == "UDP" else None
            rules = desired_rules(service, port, targets, family, old.get(name), flows=flows)
            if rules is not None:
                answer[name] = rules
        return answer


def depends_on_labels(service: Service) -> bool:
    if not service.metadata.annotations and not service.spec.topology_keys:
        return False
    return isinstance(read_policy(service).policy, TopologyKeys | SameDomain)


def explain(
    service: Service, slices: Sequence[EndpointSlice], place: Place, families: Iterable[Family]
) -> list[tuple[Family, Targets, PortRules]]:
    """The targets and rules of every port, for a person to read."""
    found = []
    for family in families:
        for port in service.spec.ports:
            targets = find_targets(service, port, slices, place, family.name)
            if rules := desired_rules(service, port, targets, family):
                found.append((family, targets, rules))
    return found
