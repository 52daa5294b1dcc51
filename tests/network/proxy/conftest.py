"""One bed for all tests of packets, and a plane on its node for each."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from network.proxy import node as beds
from network.proxy.node import NETWORK, Bed
from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.lab.network import namespaces
from zonewise.objects import EndpointSlice, Service, key_of
from zonewise.proxy.applier import Applier, clean_up
from zonewise.proxy.decide.rules import PortRules
from zonewise.proxy.decide.service_rules import ServiceRules
from zonewise.proxy.decide.targets import NodePlace
from zonewise.proxy.nft_socket import NftSocket
from zonewise.proxy.wire.family import FAMILIES


@pytest.hookimpl(tryfirst=True)  # xdist reads the groups in the same hook
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents and "bed" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("bed"))


@pytest.fixture(scope="session")
def bed() -> Iterator[Bed]:
    with beds.made() as made:
        yield made


@pytest.fixture
def kernel(bed: Bed) -> Iterator[NftSocket]:
    with namespaces.inside(bed.inside("node"), NftSocket) as kernel:
        yield kernel
        clean_up(kernel)


class Node:
    """The proxy's decisions and rules on the bed's node, which is called a1, without a cluster."""

    def __init__(self, kernel: NftSocket) -> None:
        self.kernel = kernel
        self.decider = ServiceRules(tuple(FAMILIES.values()), all_services=True)
        self.plane = Applier(kernel, FAMILIES.values(), NETWORK)
        self.plane.start({})
        self.place = NodePlace("a1", cluster())

    def serve(self, endpoints: list[dict[str, Any]], name: str = "web", **spec: Any) -> list[PortRules]:
        """`endpoints` of the Service that `spec` describes, from now on."""
        asked = service(name, **spec)
        ports = [{"name": port.name, "port": 8080, "protocol": port.protocol} for port in asked.spec.ports]
        slices = [
            slice_of(
                *(each for each in endpoints if (":" in each["addresses"][0]) is six), addressType=kind, ports=ports
            )
            for six, kind in ((False, "IPv4"), (True, "IPv6"))
        ]
        return self.follow(asked, slices)

    def follow(self, asked: Service, slices: list[EndpointSlice]) -> list[PortRules]:
        changes = self.decider.decide(key_of(asked), asked, slices, self.place)
        self.plane.apply(changes)
        return [rules for ports in changes.values() for rules in ports.values() if rules]


@pytest.fixture
def node(kernel: NftSocket) -> Node:
    return Node(kernel)


@pytest.fixture
def restarted(bed: Bed) -> Iterator[Callable[[Node], Node]]:
    """The node's proxy, ended and started again: another process's view of the same kernel."""
    kernels: list[NftSocket] = []

    def restart(old: Node) -> Node:
        kernels.append(namespaces.inside(bed.inside("node"), NftSocket))
        fresh = Node.__new__(Node)
        fresh.kernel, fresh.place = kernels[-1], old.place
        fresh.decider = old.decider
        fresh.plane = Applier(fresh.kernel, FAMILIES.values(), NETWORK)
        changes = {
            family: {
                name: rules for answer in old.decider.rules.values() for name, rules in answer.get(family, {}).items()
            }
            for family in FAMILIES.values()
        }
        fresh.plane.start(changes)
        return fresh

    yield restart
    for kernel in kernels:
        kernel.__exit__(None, None, None)


def near(name: str, **fields: Any) -> dict[str, Any]:
    return endpoint(beds.NEAR_PODS[name][0], "a1", **fields)
