"""The ports of endpoints, by number and by name."""

import pytest

from unit.slices.build import HTTP, World, pod, service, zones
from zonewise.objects import Container, ContainerPort, EndpointPort, Pod, ServicePort
from zonewise.slices.decide.ports import port_resolver

NAMED = ServicePort(name="web", port=80, target_port="web")
UDP = ServicePort(name="dns", port=53, protocol="UDP", target_port="dns")


def container(*ports: tuple[str, int, str], restarts: str | None = None) -> Container:
    said = tuple(ContainerPort(name=name, container_port=number, protocol=protocol) for name, number, protocol in ports)
    return Container(ports=said, restart_policy=restarts)


WEB = container(("web", 8080, "TCP"))
SIDECAR = container(("web", 9090, "TCP"), restarts="Always")

CASES: dict[str, tuple[list[ServicePort], Pod, list[tuple[str, int]]]] = {
    "a number as it is": ([HTTP], pod("p"), [("http", 8080)]),
    "a name that a container has": ([NAMED], pod("p", containers=[WEB]), [("web", 8080)]),
    "the first container that has it": ([NAMED], pod("p", containers=[WEB, SIDECAR]), [("web", 8080)]),
    "a name with the other protocol": ([NAMED], pod("p", containers=[container(("web", 8080, "UDP"))]), []),
    "both protocols under one name": (
        [
            ServicePort(name="udp", protocol="UDP", port=53, target_port="dns"),
            ServicePort(name="tcp", target_port="dns"),
        ],
        pod("p", containers=[container(("dns", 53, "TCP"), ("dns", 1053, "UDP"))]),
        [("udp", 1053), ("tcp", 53)],
    ),
    "a sidecar's name": ([NAMED], pod("p", init_containers=[SIDECAR]), [("web", 9090)]),
    "a container before a sidecar": ([NAMED], pod("p", containers=[WEB], init_containers=[SIDECAR]), [("web", 8080)]),
    "an init container that ends": ([NAMED], pod("p", init_containers=[container(("web", 1, "TCP"))]), []),
    "a name that nobody has": ([HTTP, UDP], pod("p", containers=[WEB]), [("http", 8080)]),
    "no ports": ([], pod("p"), []),
}


@pytest.mark.parametrize(("wanted", "of", "expected"), CASES.values(), ids=CASES)
def test_ports(wanted: list[ServicePort], of: Pod, expected: list[tuple[str, int]]) -> None:
    found = port_resolver(service(ports=tuple(wanted)))(of)
    assert [(port.name, port.port) for port in found] == expected


def test_every_field_of_a_port() -> None:
    port = ServicePort(name="", port=443, protocol="SCTP", target_port=8443, app_protocol="https")
    (found,) = port_resolver(service(ports=(port,)))(pod("p"))
    assert found == EndpointPort(name="", port=8443, protocol="SCTP", app_protocol="https")


def test_pods_whose_named_ports_differ_stand_in_different_slices() -> None:
    world = World(zones("a"))
    old = [pod(f"old-{n}", f"10.0.0.{n}", containers=[WEB]) for n in range(2)]
    new = [pod(f"new-{n}", f"10.0.1.{n}", containers=[container(("web", 8081, "TCP"))]) for n in range(3)]
    without = [pod("without", "10.0.2.0")]
    world.sync(service(ports=(NAMED,)), old + new + without)
    ports = {tuple(port.port for port in found.ports or ()): len(found.endpoints or ()) for found in world.slices}
    assert ports == {(8080,): 2, (8081,): 3, (): 1}


def test_a_changed_target_port_updates_the_slice_in_place() -> None:
    world = World(zones("a"))
    pods = [pod(f"p-{n}", f"10.0.0.{n}") for n in range(5)]
    world.sync(service(), pods)
    plan = world.sync(service(ports=(ServicePort(name="http", port=80, target_port=9000),)), pods)
    assert (len(plan.creates), len(plan.updates), len(plan.deletes)) == (0, 1, 0)
    (found,) = world.slices
    assert [port.port for port in found.ports or ()] == [9000]
    assert len(found.endpoints or ()) == 5


def test_the_order_of_ports_is_no_change() -> None:
    world = World(zones("a"))
    more = ServicePort(name="admin", port=81, target_port=8081)
    world.sync(service(ports=(HTTP, more)), [pod("p", "10.0.0.1")])
    assert world.plan(service(ports=(more, HTTP)), [pod("p", "10.0.0.1")]).writes == 0
