"""Frontends whose flows may be stale, and the node's own addresses."""

from __future__ import annotations

import msgspec

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Node
from zonewise.proxy.conntrack import stale_frontends
from zonewise.proxy.decide.rules import PortRules, desired_rules
from zonewise.proxy.decide.targets import NodeLocation, find_targets, serving
from zonewise.proxy.node_addresses import PRIMARY, node_port_addresses
from zonewise.proxy.wire.elements import Frontend
from zonewise.proxy.wire.family import IPV4

DNS = [{"name": "dns", "port": 53, "protocol": "UDP"}]


def _rules(name: str, address: str, **spec: object) -> PortRules:
    svc = service(name, ports=DNS, **spec)
    slices = [slice_of(endpoint(address), ports=DNS)]
    targets = find_targets(svc, svc.spec.ports[0], slices, NodeLocation("a1", cluster()), "IPv4")
    flows = serving(svc.spec.ports[0], slices, "IPv4")
    port_rules = desired_rules(svc, svc.spec.ports[0], targets, IPV4, flows=flows)
    assert port_rules is not None
    return port_rules


def test_flows_of_a_lost_frontend_are_not_stale() -> None:
    """Otherwise a Service that claims the cluster DNS address could delete the flows of its clients."""
    claimant = _rules("claimant", "10.1.0.9", clusterIP="10.96.0.9", externalIPs=["10.96.0.10"])
    own, claimed = (IPV4.pack("10.96.0.9"), 53), (IPV4.pack("10.96.0.10"), 53)
    assert stale_frontends([claimant], IPV4, ()).keys() == {own, claimed}
    lost = {(claimant.name, Frontend("10.96.0.10", 17, 53))}
    assert stale_frontends([claimant], IPV4, (), lost).keys() == {own}


def test_invalid_node_addresses_are_ignored() -> None:
    addresses = [
        {"type": "InternalIP", "address": address} for address in ("", "a1.example", "10.0.0.1", "fd00::1", "10.0.0.2")
    ]
    node = msgspec.convert({"metadata": {"name": "a1"}, "status": {"addresses": addresses}}, Node)
    assert set(node_port_addresses(node, (PRIMARY,))) == {"10.0.0.1", "fd00::1"}
