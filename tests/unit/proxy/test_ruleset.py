"""Transactions: as small as the change, in an order the kernel takes, and never two owners of one address."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.proxy.decide.rules import PortName, PortRules, desired_rules
from zonewise.proxy.decide.targets import NodePlace, find_targets
from zonewise.proxy.wire.elements import ElementWriter
from zonewise.proxy.wire.family import IPV4
from zonewise.proxy.wire.layout import LayoutOptions
from zonewise.proxy.wire.netlink import Message, MessageType, attributes
from zonewise.proxy.wire.ruleset import Ruleset


def rules(name: str, addresses: list[str], previous: PortRules | None = None, **spec: Any) -> PortRules:
    asked = service(name, **spec)
    port = asked.spec.ports[0]
    slices = [slice_of(*(endpoint(address, "b1") for address in addresses))]
    found = find_targets(asked, port, slices, NodePlace("a1", cluster()), "IPv4")
    answer = desired_rules(asked, port, found, IPV4, previous)
    assert answer is not None
    return answer


def kinds(messages: list[Message]) -> Counter[MessageType]:
    return Counter(MessageType(message.kind) for message in messages)


def ruleset(*wanted: PortRules) -> Ruleset:
    made = Ruleset(ElementWriter(IPV4, LayoutOptions()))
    made.adopt({each.name: each for each in wanted})
    made.whole()
    return made


def test_nothing_changed_says_nothing() -> None:
    here = rules("web", ["10.1.0.1"])
    assert ruleset(here).change({here.name: here, PortName("shop", "gone", "http", "TCP"): None}) == []


def test_an_endpoint_replaced_by_another_is_one_element() -> None:
    before = rules("web", ["10.1.0.1", "10.1.0.2", "10.1.0.3"])
    after = rules("web", ["10.1.0.1", "10.1.0.9", "10.1.0.3"], before)
    messages = ruleset(before).change({before.name: after})
    assert kinds(messages) == {MessageType.DELETE_ELEMENTS: 1, MessageType.NEW_ELEMENTS: 1}
    assert bytes([10, 1, 0, 9]) in messages[1].body
    assert bytes([10, 1, 0, 1]) not in messages[1].body


def test_a_chain_is_made_once_for_all_services_with_as_many_endpoints() -> None:
    first, second = rules("web", ["10.1.0.1"]), rules("api", ["10.1.0.2"], clusterIP="10.96.0.2")
    made = ruleset()
    assert kinds(made.change({first.name: first}))[MessageType.NEW_CHAIN] == 1
    assert kinds(made.change({second.name: second}))[MessageType.NEW_CHAIN] == 0


def test_what_two_ports_share_goes_with_the_last() -> None:
    ports = [{"name": "http", "port": 80}, {"name": "https", "port": 443}]
    first, second = (rules("web", [], ports=[port]) for port in ports)
    made = ruleset(first, second)
    assert kinds(made.change({first.name: None})) == {MessageType.DELETE_ELEMENTS: 1}
    assert kinds(made.change({second.name: None})) == {MessageType.DELETE_ELEMENTS: 2}


def test_an_address_has_one_owner_and_a_cluster_ip_comes_first() -> None:
    owner = rules("web", ["10.1.0.1"])
    thief = rules("a-thief", ["10.1.0.6"], clusterIP="10.96.0.2", externalIPs=["10.96.0.1"])
    made = ruleset(thief)
    assert made.contests() == []
    made.change({owner.name: owner})
    (contest,) = made.contests()
    assert (contest.winner, contest.loser) == (owner.name, thief.name)
    messages = made.change({owner.name: None})
    assert any(bytes([10, 1, 0, 6]) in each.body for each in messages if each.kind == MessageType.NEW_ELEMENTS)
    assert made.contests() == []


def test_a_sticky_port_takes_its_chains_along() -> None:
    before = rules("web", ["10.1.0.1", "10.1.0.2"], sessionAffinity="ClientIP")
    made = ruleset()
    assert kinds(made.change({before.name: before}))[MessageType.NEW_SET] == 3
    after = kinds(made.change({before.name: None}))
    assert after[MessageType.DELETE_CHAIN] == 3
    assert after[MessageType.DELETE_SET] == 3


def test_the_whole_removes_what_nobody_knows() -> None:
    made = ruleset(rules("web", ["10.1.0.1"]))
    messages = made.whole({"any-1", "any-7", "nat-in"}, {"svc", "a-old"})
    assert kinds(messages)[MessageType.DELETE_CHAIN] == 1
    assert kinds(messages)[MessageType.DELETE_SET] == 1


@pytest.mark.parametrize("spec", [{}, {"internalTrafficPolicy": "Local"}])
def test_moved_slots_are_said_as_two_whole_states_would_say_them(spec: dict[str, Any]) -> None:
    """The short way for what most changes are, against the long way, which a second port that changes with it asks for."""
    addresses = [f"10.1.0.{number}" for number in range(1, 9)]
    before = rules("web", addresses, **spec)
    after = rules("web", [*addresses[2:], "10.1.0.21", "10.1.0.22"], before, **spec)
    other = rules("api", ["10.1.0.2"], clusterIP="10.96.0.2")
    short = ruleset(before, other).change({before.name: after})
    long = ruleset(before, other).change({before.name: after, other.name: rules("api", [], clusterIP="10.96.0.2")})
    assert kinds(short) == ({} if spec else {MessageType.DELETE_ELEMENTS: 1, MessageType.NEW_ELEMENTS: 1})
    for message in short:
        elements = set(_elements(message))
        assert len(elements) == 2
        assert elements <= {one for each in long if each.kind == message.kind for one in _elements(each)}


def _elements(message: Message) -> list[bytes]:
    listed = dict(attributes(memoryview(message.body)))[3]
    return [bytes(one) for _, one in attributes(listed)]
