"""What becomes of each address of a Service: served, refused at once, or dropped, as kube-proxy does."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Service
from zonewise.proxy.decide.rules import PortRefusal, PortRules, Scope, desired_rules, is_served
from zonewise.proxy.decide.targets import EndpointTarget, NodePlace, find_targets
from zonewise.proxy.wire.family import IPV4, IPV6

HERE = [endpoint("10.1.0.1", "a1"), endpoint("10.2.0.1", "b1")]
BALANCED = {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}], "vips": ["10.97.0.1"]}


def rules(asked: Service, *endpoints: Any, at: str = "a1", family: Any = IPV4) -> PortRules:
    port = asked.spec.ports[0]
    found = find_targets(asked, port, [slice_of(*endpoints)], NodePlace(at, cluster()), family.name)
    answer = desired_rules(asked, port, found, family)
    assert answer is not None
    return answer


@pytest.mark.parametrize(
    ("spec", "endpoints", "at", "internal", "external"),
    [
        pytest.param({}, HERE, "a1", Scope.CLUSTER, Scope.CLUSTER, id="plain"),
        pytest.param({}, [], "a1", PortRefusal.REJECT, PortRefusal.REJECT, id="no endpoint at all"),
        pytest.param({"internalTrafficPolicy": "Local"}, HERE, "a1", Scope.LOCAL, Scope.CLUSTER, id="internal local"),
        pytest.param(
            {"internalTrafficPolicy": "Local"}, HERE, "c1", PortRefusal.DROP, Scope.CLUSTER, id="none on the node"
        ),
        pytest.param({"externalTrafficPolicy": "Local"}, HERE, "a1", Scope.CLUSTER, Scope.LOCAL, id="external local"),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, HERE, "c1", Scope.CLUSTER, PortRefusal.DROP, id="external, none here"
        ),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, [], "c1", PortRefusal.REJECT, PortRefusal.REJECT, id="local and none"
        ),
    ],
)
def test_fates(spec: dict[str, Any], endpoints: list[Any], at: str, internal: Any, external: Any) -> None:
    found = rules(service(**BALANCED, **spec), *endpoints, at=at)
    assert (found.internal, found.external) == (internal, external)


def test_addresses_by_family() -> None:
    asked = service(
        clusterIP="10.96.0.1",
        clusterIPs=["10.96.0.1", "fd96::1"],
        externalIPs=["1.2.3.4", "fd00::9", "1.2.3.4"],
        type="LoadBalancer",
        vips=["10.97.0.1", "fd97::1"],
        loadBalancerSourceRanges=["10.0.0.0/8", " fd00::/8", "no"],
    )
    four = rules(asked, *HERE)
    assert (four.external_ips, four.balancer_ips, four.source_ranges) == (("1.2.3.4",), ("10.97.0.1",), ("10.0.0.0/8",))
    assert four.left_out == ("loadBalancerSourceRanges: 'no' is not a network and is ignored",)
    six = rules(asked, family=IPV6)
    assert (six.cluster_ip, six.external_ips, six.balancer_ips, six.internal) == (
        "fd96::1",
        ("fd00::9",),
        ("fd97::1",),
        PortRefusal.REJECT,
    )


def test_a_service_without_an_address_of_the_family_has_no_rules() -> None:
    asked = service()
    found = find_targets(asked, asked.spec.ports[0], [], NodePlace("a1", cluster()), "IPv6")
    assert desired_rules(asked, asked.spec.ports[0], found, IPV6) is None


def test_endpoints_of_another_family_are_left_out_with_a_word() -> None:
    found = rules(service(), endpoint("fd00::1"), endpoint("10.1.0.1"))
    assert found.cluster == (EndpointTarget("10.1.0.1", 8080),)
    assert found.left_out == ("1 endpoints have no IPv4 address, such as [fd00::1]:8080",)


def test_affinity_and_hairpin() -> None:
    config = {"clientIP": {"timeoutSeconds": 60}}
    found = rules(service(sessionAffinity="ClientIP", sessionAffinityConfig=config), *HERE)
    assert found.affinity_seconds == 60
    assert found.hairpin == (EndpointTarget("10.1.0.1", 8080),)


@pytest.mark.parametrize(
    ("labels", "spec", "by_label", "by_all"),
    [
        pytest.param({}, {}, False, True, id="plain"),
        pytest.param({"service.kubernetes.io/service-proxy-name": "zonewise"}, {}, True, True, id="ours"),
        pytest.param({"service.kubernetes.io/service-proxy-name": "other"}, {}, False, False, id="another's"),
        pytest.param({"service.kubernetes.io/headless": ""}, {}, False, False, id="marked headless"),
        pytest.param({}, {"clusterIP": "None"}, False, False, id="headless"),
        pytest.param({}, {"type": "ExternalName", "clusterIP": ""}, False, False, id="a name"),
    ],
)
def test_whom_we_serve(labels: dict[str, str], spec: dict[str, Any], by_label: bool, by_all: bool) -> None:
    asked = service(**spec)
    asked = msgspec.structs.replace(asked, metadata=msgspec.structs.replace(asked.metadata, labels=labels))
    assert is_served(asked, all_services=False) is by_label
    assert is_served(asked, all_services=True) is by_all
