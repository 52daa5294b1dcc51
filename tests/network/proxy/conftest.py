"""One network of namespaces for all packet tests, and an applier on its node for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from network.proxy import node as node_nets
from network.proxy.node import NETWORK, NodeNet
from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.lab.network import namespaces
from zonewise.objects import EndpointSlice, Service, key_of
from zonewise.proxy.applier import Applier, clean_up
from zonewise.proxy.decide.rules import PortRules
from zonewise.proxy.decide.service_rules import ServiceRules
from zonewise.proxy.decide.targets import NodeLocation
from zonewise.proxy.nft_socket import NftSocket
from zonewise.proxy.wire.family import FAMILIES


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "node_net" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("node_net"))


@pytest.fixture(scope="session")
def node_net() -> Iterator[NodeNet]:
    with node_nets.create() as net:
        yield net


@pytest.fixture
def kernel(node_net: NodeNet) -> Iterator[NftSocket]:
    with namespaces.inside(node_net.netns("node"), NftSocket) as kernel:
        yield kernel
        clean_up(kernel)


class ProxyNode:
    """The proxy's decisions and rules on the network's node, called a1, without a cluster."""

    def __init__(self, kernel: NftSocket) -> None:
        self.kernel = kernel
        self.service_rules = ServiceRules(tuple(FAMILIES.values()), all_services=True)
        self.applier = Applier(kernel, FAMILIES.values(), NETWORK)
        self.applier.start({})
        self.location = NodeLocation("a1", cluster())

    def serve(self, endpoints: list[dict[str, Any]], name: str = "web", **spec: Any) -> list[PortRules]:
        """Set the endpoints of the Service described by `spec`."""
        svc = service(name, **spec)
        ports = [{"name": port.name, "port": 8080, "protocol": port.protocol} for port in svc.spec.ports]
        slices = [
            slice_of(
                *(item for item in endpoints if (":" in item["addresses"][0]) is six), addressType=kind, ports=ports
            )
            for six, kind in ((False, "IPv4"), (True, "IPv6"))
        ]
        return self.apply(svc, slices)

    def apply(self, svc: Service, slices: list[EndpointSlice]) -> list[PortRules]:
        changes = self.service_rules.decide(key_of(svc), svc, slices, self.location)
        self.applier.apply(changes)
        return [rules for ports in changes.values() for rules in ports.values() if rules]


@pytest.fixture
def node(kernel: NftSocket) -> ProxyNode:
    return ProxyNode(kernel)


@pytest.fixture
def restarted(node_net: NodeNet) -> Iterator[Callable[[ProxyNode], ProxyNode]]:
    """Restart the node's proxy: a new process with the same kernel."""
    kernels: list[NftSocket] = []

    def restart(old: ProxyNode) -> ProxyNode:
        kernels.append(namespaces.inside(node_net.netns("node"), NftSocket))
        fresh = ProxyNode.__new__(ProxyNode)
        fresh.kernel, fresh.location = kernels[-1], old.location
        fresh.service_rules = old.service_rules
        fresh.applier = Applier(fresh.kernel, FAMILIES.values(), NETWORK)
        changes = {
            family: {
                name: rules
                for by_family in old.service_rules.rules.values()
                for name, rules in by_family.get(family, {}).items()
            }
            for family in FAMILIES.values()
        }
        fresh.applier.start(changes)
        return fresh

    yield restart
    for kernel in kernels:
        kernel.__exit__(None, None, None)


def near(name: str, **fields: Any) -> dict[str, Any]:
    return endpoint(node_nets.NEAR_PODS[name][0], "a1", **fields)
