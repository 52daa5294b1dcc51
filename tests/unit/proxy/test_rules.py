"""Traffic to each address of a Service: served, rejected or dropped, as kube-proxy does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Service
from zonewise.proxy.decide.rules import (
    NO_LIMITS,
    AddressLimits,
    PortRefusal,
    PortRules,
    Scope,
    address_limits,
    desired_rules,
    is_served,
)
from zonewise.proxy.decide.targets import EndpointTarget, NodeLocation, find_targets
from zonewise.proxy.wire.family import IPV4, IPV6

ENDPOINTS = [endpoint("10.1.0.1", "a1"), endpoint("10.2.0.1", "b1")]
BALANCED = {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}], "vips": ["10.97.0.1"]}


def rules(svc: Service, *endpoints: Any, at: str = "a1", family: Any = IPV4) -> PortRules:
    port = svc.spec.ports[0]
    targets = find_targets(svc, port, [slice_of(*endpoints)], NodeLocation(at, cluster()), family.name)
    port_rules = desired_rules(svc, port, targets, family)
    assert port_rules is not None
    return port_rules


@pytest.mark.parametrize(
    ("spec", "endpoints", "at", "internal", "external"),
    [
        pytest.param({}, ENDPOINTS, "a1", Scope.CLUSTER, Scope.CLUSTER, id="plain"),
        pytest.param({}, [], "a1", PortRefusal.REJECT, PortRefusal.REJECT, id="no endpoint at all"),
        pytest.param(
            {"internalTrafficPolicy": "Local"}, ENDPOINTS, "a1", Scope.LOCAL, Scope.CLUSTER, id="internal local"
        ),
        pytest.param(
            {"internalTrafficPolicy": "Local"}, ENDPOINTS, "c1", PortRefusal.DROP, Scope.CLUSTER, id="none on the node"
        ),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, ENDPOINTS, "a1", Scope.CLUSTER, Scope.LOCAL, id="external local"
        ),
        pytest.param(
            {"externalTrafficPolicy": "Local"},
            ENDPOINTS,
            "c1",
            Scope.CLUSTER,
            PortRefusal.DROP,
            id="external, none here",
        ),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, [], "c1", PortRefusal.REJECT, PortRefusal.REJECT, id="local and none"
        ),
    ],
)
def test_scope_or_refusal_by_policy_and_endpoints(
    spec: dict[str, Any], endpoints: list[Any], at: str, internal: Any, external: Any
) -> None:
    port = rules(service(**BALANCED, **spec), *endpoints, at=at)
    assert (port.internal, port.external) == (internal, external)


def test_addresses_of_old_objects_lose_their_leading_zeros() -> None:
    """Otherwise they would be no addresses, or not the same as those of another Service."""
    svc = service(
        clusterIP="10.096.000.001",
        clusterIPs=["10.096.000.001", "FD96:0::01"],
        externalIPs=["1.2.3.004", "1.2.3.4", "FD00::09"],
        type="LoadBalancer",
        vips=["10.97.0.001"],
        loadBalancerSourceRanges=["203.0.113.000/025", "fd00:0::/08"],
    )
    limits = address_limits(["172.30.0.0/16"])
    port = svc.spec.ports[0]
    ipv4, ipv6 = (
        desired_rules(
            svc, port, find_targets(svc, port, [], NodeLocation("a1", cluster()), "IPv4"), family, limits=limits
        )
        for family in (IPV4, IPV6)
    )
    assert ipv4 is not None
    assert (ipv4.cluster_ip, ipv4.external_ips, ipv4.balancer_ips) == ("10.96.0.1", ("1.2.3.4",), ("10.97.0.1",))
    assert (ipv4.source_ranges, ipv4.left_out) == (("203.0.113.0/25",), ())
    assert ipv6 is not None
    assert (ipv6.cluster_ip, ipv6.external_ips, ipv6.source_ranges) == ("fd96::1", ("fd00::9",), ("fd00::/8",))


def test_flows_that_udp_may_keep_are_in_the_form_that_the_kernel_reports() -> None:
    svc = service(ports=[{"name": "http", "port": 53, "protocol": "UDP"}], clusterIPs=["10.96.0.1", "fd96::1"])
    port = svc.spec.ports[0]
    targets = find_targets(svc, port, [], NodeLocation("a1", cluster()), "IPv4")
    flows = frozenset({EndpointTarget("10.1.00.01", 53), EndpointTarget("FD00:0::1", 53)})
    for family, kept in ((IPV4, "10.1.0.1"), (IPV6, "fd00::1")):
        port_rules = desired_rules(svc, port, targets, family, flows=flows)
        assert port_rules is not None
        assert port_rules.flows == {EndpointTarget(kept, 53)}


def test_addresses_are_split_by_family() -> None:
    svc = service(
        clusterIP="10.96.0.1",
        clusterIPs=["10.96.0.1", "fd96::1"],
        externalIPs=["1.2.3.4", "fd00::9", "1.2.3.4"],
        type="LoadBalancer",
        vips=["10.97.0.1", "fd97::1"],
        loadBalancerSourceRanges=["10.0.0.0/8", " fd00::/8", "no"],
    )
    ipv4 = rules(svc, *ENDPOINTS)
    assert (ipv4.external_ips, ipv4.balancer_ips, ipv4.source_ranges) == (("1.2.3.4",), ("10.97.0.1",), ("10.0.0.0/8",))
    assert ipv4.left_out == ("loadBalancerSourceRanges: 'no' is not a network and is ignored",)
    ipv6 = rules(svc, family=IPV6)
    assert (ipv6.cluster_ip, ipv6.external_ips, ipv6.balancer_ips, ipv6.internal) == (
        "fd96::1",
        ("fd00::9",),
        ("fd97::1",),
        PortRefusal.REJECT,
    )


@pytest.mark.parametrize(
    ("address", "of_pods"),
    [
        pytest.param("9.255.255.255", False, id="before the first"),
        pytest.param("10.0.0.0", True, id="start of the first"),
        pytest.param("10.0.1.0", False, id="gap"),
        pytest.param("10.19.126.255", True, id="end of one of many"),
        pytest.param("10.40.0.1", False, id="after the last of IPv4"),
        pytest.param("::a00:1", False, id="IPv6 before all ranges of IPv6"),
        pytest.param("fd00::9", True, id="IPv6"),
        pytest.param("fd00:0:0:1::9", False, id="IPv6 after the last"),
    ],
)
def test_addresses_are_found_among_many_pod_ranges(address: str, of_pods: bool) -> None:
    ranges = [f"10.{number // 256}.{number % 256}.0/24" for number in range(0, 10_000, 2)]
    limits = address_limits(("10.96.0.0/12",), ("fd00::/64", *reversed(ranges)))
    assert len(limits.pod_ranges) == 5_001
    assert limits.of_pods(address) is of_pods


@pytest.mark.parametrize(
    ("limits", "external", "balancers"),
    [
        pytest.param(NO_LIMITS, ("10.96.0.7", "1.2.3.4"), ("10.96.0.8", "5.6.7.8"), id="none"),
        pytest.param(
            address_limits(("10.96.0.0/16", "fd96::/112")),
            ("1.2.3.4",),
            ("5.6.7.8",),
            id="cluster IPs of other Services",
        ),
        pytest.param(
            address_limits(("10.97.0.0/16",), ("1.2.2.0/24", "1.2.3.0/24", "5.6.7.0/24", "fd00::/64", "none")),
            ("10.96.0.7",),
            ("10.96.0.8", "5.6.7.8"),
            id="pods, but controllers choose load balancer addresses",
        ),
        pytest.param(address_limits((), ignore_external_ips=True), (), ("10.96.0.8", "5.6.7.8"), id="no external IPs"),
        pytest.param(address_limits(()), (), ("10.96.0.8", "5.6.7.8"), id="unknown service ranges"),
        pytest.param(
            address_limits((), all_services=True),
            ("10.96.0.7", "1.2.3.4"),
            ("10.96.0.8", "5.6.7.8"),
            id="unknown service ranges, but all cluster IPs are ours",
        ),
    ],
)
def test_limits_bar_external_addresses(
    limits: AddressLimits, external: tuple[str, ...], balancers: tuple[str, ...]
) -> None:
    svc = service(type="LoadBalancer", externalIPs=["10.96.0.7", "1.2.3.4"], vips=["10.96.0.8", "5.6.7.8"])
    targets = find_targets(svc, svc.spec.ports[0], [slice_of(*ENDPOINTS)], NodeLocation("a1", cluster()), "IPv4")
    port = desired_rules(svc, svc.spec.ports[0], targets, IPV4, limits=limits)
    assert port is not None
    assert (port.external_ips, port.balancer_ips) == (external, balancers)
    assert len(port.left_out) == 4 - len(external) - len(balancers)


def test_service_without_a_cluster_ip_of_the_family_has_no_rules() -> None:
    svc = service()
    targets = find_targets(svc, svc.spec.ports[0], [], NodeLocation("a1", cluster()), "IPv6")
    assert desired_rules(svc, svc.spec.ports[0], targets, IPV6) is None


def test_endpoints_of_another_family_are_left_out_and_reported() -> None:
    port = rules(service(), endpoint("fd00::1"), endpoint("10.1.0.1"))
    assert port.cluster == (EndpointTarget("10.1.0.1", 8080),)
    assert port.left_out == ("1 endpoints have no IPv4 address, such as [fd00::1]:8080",)


def test_session_affinity_and_hairpin_targets() -> None:
    config = {"clientIP": {"timeoutSeconds": 60}}
    port = rules(service(sessionAffinity="ClientIP", sessionAffinityConfig=config), *ENDPOINTS)
    assert port.affinity_seconds == 60
    assert port.hairpin == (EndpointTarget("10.1.0.1", 8080),)


@pytest.mark.parametrize(
    ("labels", "spec", "by_label", "by_all"),
    [
        pytest.param({}, {}, False, True, id="plain"),
        pytest.param({"service.kubernetes.io/service-proxy-name": "zonewise"}, {}, True, True, id="ours"),
        pytest.param({"service.kubernetes.io/service-proxy-name": "other"}, {}, False, False, id="another proxy's"),
        pytest.param({"service.kubernetes.io/headless": ""}, {}, False, False, id="marked headless"),
        pytest.param({}, {"clusterIP": "None"}, False, False, id="headless"),
        pytest.param({}, {"type": "ExternalName", "clusterIP": ""}, False, False, id="ExternalName"),
    ],
)
def test_served_services(labels: dict[str, str], spec: dict[str, Any], by_label: bool, by_all: bool) -> None:
    svc = service(**spec)
    svc = msgspec.structs.replace(svc, metadata=msgspec.structs.replace(svc.metadata, labels=labels))
    assert is_served(svc, all_services=False) is by_label
    assert is_served(svc, all_services=True) is by_all
