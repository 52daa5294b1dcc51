"""Endpoints from pods: which pods belong, every field, and ports by number and by name."""

import pytest

from unit.slices.build import HTTP, SliceStore, node, pod, service, zones
from zonewise.objects import (
    Container,
    ContainerPort,
    Endpoint,
    EndpointConditions,
    EndpointPort,
    ObjectReference,
    Pod,
    PodIP,
    PodStatus,
    ServicePort,
)
from zonewise.routing import RoutingNodes
from zonewise.slices.decide.endpoints import PodEndpoints, endpoints_of, port_resolver
from zonewise.slices.decide.families import ServiceFamily

CLUSTER = RoutingNodes.of([node("a1", "a"), node("nowhere")])
BOTH = (ServiceFamily.IPV4, ServiceFamily.IPV6)
IP = "10.0.0.1"


def built(*pods: Pod, families: tuple[ServiceFamily, ...] = BOTH, **spec: object) -> PodEndpoints:
    return endpoints_of(service(**spec), pods, CLUSTER, families)


def endpoints(pod_endpoints: PodEndpoints, family: ServiceFamily = ServiceFamily.IPV4) -> list[Endpoint]:
    return [endpoint for endpoints in pod_endpoints.by_family[family].values() for endpoint in endpoints]


def only(*pods: Pod, **spec: object) -> Endpoint:
    (endpoint,) = endpoints(built(*pods, **spec))
    return endpoint


BELONGING: dict[str, tuple[Pod, bool]] = {
    "running and ready": (pod("p", IP), True),
    "running, not ready": (pod("p", IP, ready=False), True),
    "pending with an address": (pod("p", IP, phase="Pending", ready=False), True),
    "terminating": (pod("p", IP, terminating=True), True),
    "without an address": (pod("p"), False),
    "succeeded": (pod("p", IP, phase="Succeeded"), False),
    "failed": (pod("p", IP, phase="Failed"), False),
    "failed and terminating": (pod("p", IP, phase="Failed", terminating=True), False),
    "on an unknown node": (pod("p", IP, node_name="gone"), False),
    "on no node": (pod("p", IP, node_name=""), False),
    "only of the other family": (pod("p", "fd00::1"), False),
    "with an invalid address": (pod("p", "localhost"), False),
}


@pytest.mark.parametrize(("candidate", "belongs"), BELONGING.values(), ids=BELONGING)
def test_pods_with_endpoints(candidate: Pod, belongs: bool) -> None:
    assert len(endpoints(built(candidate))) == belongs


def test_pods_on_unknown_nodes_are_named() -> None:
    pod_endpoints = built(pod("q", IP, node_name="gone"), pod("p", IP, node_name=""), pod("fine", IP))
    assert pod_endpoints.without_node == ("p", "q")


def test_published_pods_need_no_node() -> None:
    pod_endpoints = built(pod("p", IP, node_name="gone", ready=False), publish_not_ready_addresses=True)
    (endpoint,) = endpoints(pod_endpoints)
    assert (endpoint.node_name, endpoint.zone, pod_endpoints.without_node) == ("gone", None, ())


@pytest.mark.parametrize(
    ("ready", "terminating", "publish", "expected"),
    [
        (True, False, False, (True, True, False)),
        (False, False, False, (False, False, False)),
        (True, True, False, (False, True, True)),
        (False, True, False, (False, False, True)),
        (True, False, True, (True, True, False)),
        (False, False, True, (True, False, False)),
        (True, True, True, (True, True, True)),
        (False, True, True, (True, False, True)),
    ],
)
def test_conditions(ready: bool, terminating: bool, publish: bool, expected: tuple[bool, bool, bool]) -> None:
    endpoint = only(pod("p", IP, ready=ready, terminating=terminating), publish_not_ready_addresses=publish)
    assert endpoint.conditions == EndpointConditions(ready=expected[0], serving=expected[1], terminating=expected[2])


def test_pod_without_ready_condition_is_not_ready() -> None:
    silent = Pod(metadata=pod("p").metadata, spec=pod("p").spec, status=PodStatus(pod_ips=(PodIP(ip=IP),)))
    assert only(silent).conditions.serving is False


def test_every_field() -> None:
    assert only(pod("p", IP)) == Endpoint(
        addresses=(IP,),
        conditions=EndpointConditions(ready=True, serving=True, terminating=False),
        node_name="a1",
        zone="a",
        target_ref=ObjectReference(kind="Pod", namespace="shop", name="p", uid="uid-p"),
    )


def test_node_without_zone_gives_endpoint_without_zone() -> None:
    endpoint = only(pod("p", IP, node_name="nowhere"))
    assert (endpoint.node_name, endpoint.zone) == ("nowhere", None)


@pytest.mark.parametrize(
    ("hostname", "subdomain", "expected"),
    [("db-0", "web", "db-0"), ("db-0", "other", None), ("db-0", "", None), ("", "web", None)],
    ids=["its subdomain is the Service", "another Service's", "no subdomain", "no hostname"],
)
def test_hostname(hostname: str, subdomain: str, expected: str | None) -> None:
    assert only(pod("p", IP, hostname=hostname, subdomain=subdomain)).hostname == expected


def test_each_family_gets_its_own_addresses() -> None:
    pod_endpoints = built(pod("p", IP, "FD00::1"))
    assert [endpoint.addresses for endpoint in endpoints(pod_endpoints)] == [(IP,)]
    assert [endpoint.addresses for endpoint in endpoints(pod_endpoints, ServiceFamily.IPV6)] == [("fd00::1",)]


def test_several_addresses_of_a_family_are_sorted() -> None:
    assert only(pod("p", "10.0.0.9", "10.0.0.10", "10.0.0.1")).addresses == ("10.0.0.1", "10.0.0.10", "10.0.0.9")


NAMED = ServicePort(name="web", port=80, target_port="web")
UDP = ServicePort(name="dns", port=53, protocol="UDP", target_port="dns")


def container(*ports: tuple[str, int, str], restarts: str | None = None) -> Container:
    container_ports = tuple(
        ContainerPort(name=name, container_port=number, protocol=protocol) for name, number, protocol in ports
    )
    return Container(ports=container_ports, restart_policy=restarts)


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
    "a name that no container has": ([HTTP, UDP], pod("p", containers=[WEB]), [("http", 8080)]),
    "no ports": ([], pod("p"), []),
}


@pytest.mark.parametrize(("service_ports", "of", "expected"), CASES.values(), ids=CASES)
def test_ports(service_ports: list[ServicePort], of: Pod, expected: list[tuple[str, int]]) -> None:
    ports = port_resolver(service(ports=tuple(service_ports)))(of)
    assert [(port.name, port.port) for port in ports] == expected


def test_every_field_of_a_port() -> None:
    port = ServicePort(name="", port=443, protocol="SCTP", target_port=8443, app_protocol="https")
    (resolved,) = port_resolver(service(ports=(port,)))(pod("p"))
    assert resolved == EndpointPort(name="", port=8443, protocol="SCTP", app_protocol="https")


def test_pods_with_different_named_ports_use_different_slices() -> None:
    store = SliceStore(zones("a"))
    old = [pod(f"old-{n}", f"10.0.0.{n}", containers=[WEB]) for n in range(2)]
    new = [pod(f"new-{n}", f"10.0.1.{n}", containers=[container(("web", 8081, "TCP"))]) for n in range(3)]
    without = [pod("without", "10.0.2.0")]
    store.sync(service(ports=(NAMED,)), old + new + without)
    ports = {
        tuple(port.port for port in endpoint_slice.ports or ()): len(endpoint_slice.endpoints or ())
        for endpoint_slice in store.slices
    }
    assert ports == {(8080,): 2, (8081,): 3, (): 1}


def test_changed_target_port_updates_the_slice_in_place() -> None:
    store = SliceStore(zones("a"))
    pods = [pod(f"p-{n}", f"10.0.0.{n}") for n in range(5)]
    store.sync(service(), pods)
    plan = store.sync(service(ports=(ServicePort(name="http", port=80, target_port=9000),)), pods)
    assert (len(plan.creates), len(plan.updates), len(plan.deletes)) == (0, 1, 0)
    (endpoint_slice,) = store.slices
    assert [port.port for port in endpoint_slice.ports or ()] == [9000]
    assert len(endpoint_slice.endpoints or ()) == 5


def test_order_of_ports_is_not_a_change() -> None:
    store = SliceStore(zones("a"))
    more = ServicePort(name="admin", port=81, target_port=8081)
    store.sync(service(ports=(HTTP, more)), [pod("p", "10.0.0.1")])
    assert store.plan(service(ports=(more, HTTP)), [pod("p", "10.0.0.1")]).writes == 0
