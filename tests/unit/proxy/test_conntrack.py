"""Which flows a change may end, and on which addresses a node is known."""

from __future__ import annotations

import msgspec

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Node
from zonewise.proxy.conntrack import stale_frontends
from zonewise.proxy.decide.rules import PortRules, desired_rules
from zonewise.proxy.decide.targets import NodePlace, find_targets, serving
from zonewise.proxy.node_addresses import PRIMARY, node_port_addresses
from zonewise.proxy.wire.elements import Frontend
from zonewise.proxy.wire.family import IPV4

DNS = [{"name": "dns", "port": 53, "protocol": "UDP"}]


def _rules(name: str, address: str, **spec: object) -> PortRules:
    asked = service(name, ports=DNS, **spec)
    slices = [slice_of(endpoint(address), ports=DNS)]
    found = find_targets(asked, asked.spec.ports[0], slices, NodePlace("a1", cluster()), "IPv4")
    flows = serving(asked.spec.ports[0], slices, "IPv4")
    answer = desired_rules(asked, asked.spec.ports[0], found, IPV4, flows=flows)
    assert answer is not None
    return answer


def test_flows_to_an_address_that_another_service_has_are_left_alone() -> None:
    """Else whoever claims the address of the cluster's DNS could end its clients' flows, though it gets none of them."""
    thief = _rules("thief", "10.1.0.9", clusterIP="10.96.0.9", externalIPs=["10.96.0.10"])
    own, claimed = (IPV4.pack("10.96.0.9"), 53), (IPV4.pack("10.96.0.10"), 53)
    assert stale_frontends([thief], IPV4, ()).keys() == {own, claimed}
    lost = {(thief.name, Frontend("10.96.0.10", 17, 53))}
    assert stale_frontends([thief], IPV4, (), lost).keys() == {own}


def test_what_is_no_address_is_none_of_the_node_s() -> None:
    said = [{"type": "InternalIP", "address": each} for each in ("", "a1.example", "10.0.0.1", "fd00::1", "10.0.0.2")]
    node = msgspec.convert({"metadata": {"name": "a1"}, "status": {"addresses": said}}, Node)
    assert set(node_port_addresses(node, (PRIMARY,))) == {"10.0.0.1", "fd00::1"}
