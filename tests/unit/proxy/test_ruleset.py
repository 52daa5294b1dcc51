"""nftables transactions: minimal, in an order the kernel accepts, with one owner per address."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.proxy.decide.rules import PortName, PortRules, desired_rules
from zonewise.proxy.decide.targets import NodeLocation, find_targets
from zonewise.proxy.wire.elements import ElementWriter
from zonewise.proxy.wire.family import IPV4
from zonewise.proxy.wire.layout import LayoutOptions
from zonewise.proxy.wire.netlink import Message, MessageType, attributes
from zonewise.proxy.wire.ruleset import Ruleset


def rules(name: str, addresses: list[str], previous: PortRules | None = None, **spec: Any) -> PortRules:
    svc = service(name, **spec)
    port = svc.spec.ports[0]
    slices = [slice_of(*(endpoint(address, "b1") for address in addresses))]
    targets = find_targets(svc, port, slices, NodeLocation("a1", cluster()), "IPv4")
    port_rules = desired_rules(svc, port, targets, IPV4, previous)
    assert port_rules is not None
    return port_rules


def kinds(messages: list[Message]) -> Counter[MessageType]:
    return Counter(MessageType(message.kind) for message in messages)


def ruleset(*desired: PortRules) -> Ruleset:
    current = Ruleset(ElementWriter(IPV4, LayoutOptions()))
    current.adopt({port.name: port for port in desired})
    current.full_sync()
    return current


def test_unchanged_rules_need_no_message() -> None:
    here = rules("web", ["10.1.0.1"])
    assert ruleset(here).diff({here.name: here, PortName("shop", "gone", "http", "TCP"): None}) == []


def test_replaced_endpoint_changes_one_element() -> None:
    before = rules("web", ["10.1.0.1", "10.1.0.2", "10.1.0.3"])
    after = rules("web", ["10.1.0.1", "10.1.0.9", "10.1.0.3"], before)
    messages = ruleset(before).diff({before.name: after})
    assert kinds(messages) == {MessageType.DELETE_ELEMENTS: 1, MessageType.NEW_ELEMENTS: 1}
    assert bytes([10, 1, 0, 9]) in messages[1].body
    assert bytes([10, 1, 0, 1]) not in messages[1].body


def test_services_with_as_many_endpoints_share_a_chain() -> None:
    first, second = rules("web", ["10.1.0.1"]), rules("api", ["10.1.0.2"], clusterIP="10.96.0.2")
    current = ruleset()
    assert kinds(current.diff({first.name: first}))[MessageType.NEW_CHAIN] == 1
    assert kinds(current.diff({second.name: second}))[MessageType.NEW_CHAIN] == 0


def test_shared_element_is_deleted_with_its_last_port() -> None:
    ports = [{"name": "http", "port": 80}, {"name": "https", "port": 443}]
    first, second = (rules("web", [], ports=[port]) for port in ports)
    current = ruleset(first, second)
    assert kinds(current.diff({first.name: None})) == {MessageType.DELETE_ELEMENTS: 1}
    assert kinds(current.diff({second.name: None})) == {MessageType.DELETE_ELEMENTS: 2}


def test_cluster_ip_wins_over_an_external_ip() -> None:
    owner = rules("web", ["10.1.0.1"])
    claimant = rules("a-claimant", ["10.1.0.6"], clusterIP="10.96.0.2", externalIPs=["10.96.0.1"])
    current = ruleset(claimant)
    assert current.conflicts() == []
    current.diff({owner.name: owner})
    (conflict,) = current.conflicts()
    assert (conflict.winner, conflict.loser) == (owner.name, claimant.name)
    messages = current.diff({owner.name: None})
    assert any(bytes([10, 1, 0, 6]) in message.body for message in messages if message.kind == MessageType.NEW_ELEMENTS)
    assert current.conflicts() == []


def test_contested_address_goes_to_the_balancer_then_to_the_oldest() -> None:
    """A name is chosen by its writer, an address of a load balancer is not."""
    balanced: dict[str, Any] = {"type": "LoadBalancer", "vips": ["192.0.2.1"]}
    thief = rules("a-thief", [], clusterIP="10.96.0.2", externalIPs=["192.0.2.1"], created="2026-11-18T00:00:00Z")
    later = rules("b-later", [], clusterIP="10.96.0.3", created="2026-11-18T00:00:02Z", **balanced)
    owner = rules("owner", [], clusterIP="10.96.0.4", created="2026-11-18T00:00:01Z", **balanced)
    outcome = [
        (conflict.winner.service, conflict.loser.service) for conflict in ruleset(thief, later, owner).conflicts()
    ]
    assert outcome == [("owner", "b-later"), ("owner", "a-thief")]


def test_deleting_a_sticky_port_deletes_its_chains_and_sets() -> None:
    before = rules("web", ["10.1.0.1", "10.1.0.2"], sessionAffinity="ClientIP")
    current = ruleset()
    assert kinds(current.diff({before.name: before}))[MessageType.NEW_SET] == 3
    after = kinds(current.diff({before.name: None}))
    assert after[MessageType.DELETE_CHAIN] == 3
    assert after[MessageType.DELETE_SET] == 3


def test_full_sync_deletes_unknown_chains_and_sets() -> None:
    current = ruleset(rules("web", ["10.1.0.1"]))
    messages = current.full_sync({"any-1", "any-7", "nat-in"}, {"svc", "a-old"})
    assert kinds(messages)[MessageType.DELETE_CHAIN] == 1
    assert kinds(messages)[MessageType.DELETE_SET] == 1


@pytest.mark.parametrize("spec", [{}, {"internalTrafficPolicy": "Local"}])
def test_fast_path_of_slot_changes_equals_the_general_diff(spec: dict[str, Any]) -> None:
    """A second changed port forces the general diff."""
    addresses = [f"10.1.0.{number}" for number in range(1, 9)]
    before = rules("web", addresses, **spec)
    after = rules("web", [*addresses[2:], "10.1.0.21", "10.1.0.22"], before, **spec)
    other = rules("api", ["10.1.0.2"], clusterIP="10.96.0.2")
    fast = ruleset(before, other).diff({before.name: after})
    general = ruleset(before, other).diff({before.name: after, other.name: rules("api", [], clusterIP="10.96.0.2")})
    assert kinds(fast) == ({} if spec else {MessageType.DELETE_ELEMENTS: 1, MessageType.NEW_ELEMENTS: 1})
    for message in fast:
        elements = set(_elements(message))
        assert len(elements) == 2
        assert elements <= {
            element for reference in general if reference.kind == message.kind for element in _elements(reference)
        }


def _elements(message: Message) -> list[bytes]:
    listed = dict(attributes(memoryview(message.body)))[3]
    return [bytes(element) for _, element in attributes(listed)]
