"""Endpoints as pods make them: which pods, and every field."""

import pytest

from unit.slices.build import node, pod, service
from zonewise.objects import Endpoint, EndpointConditions, ObjectReference, Pod, PodIP, PodStatus
from zonewise.routing import RoutingNodes
from zonewise.slices.decide.endpoints import PodEndpoints, endpoints_of
from zonewise.slices.decide.families import ServiceFamily

CLUSTER = RoutingNodes.of([node("a1", "a"), node("nowhere")])
BOTH = (ServiceFamily.IPV4, ServiceFamily.IPV6)
IP = "10.0.0.1"


def made_of(*pods: Pod, families: tuple[ServiceFamily, ...] = BOTH, **spec: object) -> PodEndpoints:
    return endpoints_of(service(**spec), pods, CLUSTER, families)


def endpoints(found: PodEndpoints, family: ServiceFamily = ServiceFamily.IPV4) -> list[Endpoint]:
    return [endpoint for endpoints in found.by_family[family].values() for endpoint in endpoints]


def only(*pods: Pod, **spec: object) -> Endpoint:
    (endpoint,) = endpoints(made_of(*pods, **spec))
    return endpoint


WHO_BELONGS: dict[str, tuple[Pod, bool]] = {
    "running and ready": (pod("p", IP), True),
    "running, not ready": (pod("p", IP, ready=False), True),
    "pending with an address": (pod("p", IP, phase="Pending", ready=False), True),
    "terminating": (pod("p", IP, terminating=True), True),
    "without an address": (pod("p"), False),
    "succeeded": (pod("p", IP, phase="Succeeded"), False),
    "failed": (pod("p", IP, phase="Failed"), False),
    "failed and terminating": (pod("p", IP, phase="Failed", terminating=True), False),
    "on a node that nobody knows": (pod("p", IP, node_name="gone"), False),
    "on no node": (pod("p", IP, node_name=""), False),
    "only of the other family": (pod("p", "fd00::1"), False),
    "with an address that is none": (pod("p", "localhost"), False),
}


@pytest.mark.parametrize(("one", "belongs"), WHO_BELONGS.values(), ids=WHO_BELONGS)
def test_which_pods_belong(one: Pod, belongs: bool) -> None:
    assert len(endpoints(made_of(one))) == belongs


def test_pods_without_a_known_node_are_named() -> None:
    found = made_of(pod("q", IP, node_name="gone"), pod("p", IP, node_name=""), pod("fine", IP))
    assert found.without_node == ("p", "q")


def test_published_pods_need_no_node() -> None:
    found = made_of(pod("p", IP, node_name="gone", ready=False), publish_not_ready_addresses=True)
    (endpoint,) = endpoints(found)
    assert (endpoint.node_name, endpoint.zone, found.without_node) == ("gone", None, ())


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


def test_a_pod_that_says_nothing_of_readiness_is_not_ready() -> None:
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


def test_a_node_without_a_zone_gives_none() -> None:
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
    found = made_of(pod("p", IP, "FD00::1"))
    assert [endpoint.addresses for endpoint in endpoints(found)] == [(IP,)]
    assert [endpoint.addresses for endpoint in endpoints(found, ServiceFamily.IPV6)] == [("fd00::1",)]


def test_several_addresses_of_a_family_are_sorted() -> None:
    assert only(pod("p", "10.0.0.9", "10.0.0.10", "10.0.0.1")).addresses == ("10.0.0.1", "10.0.0.10", "10.0.0.9")
