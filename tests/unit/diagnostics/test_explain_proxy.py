"""proxy --explain: the answer, the reason and the nftables elements of one Service on one node."""

from __future__ import annotations

import msgspec
import pytest

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.diagnostics.decide.explain.proxy import explain_on_node
from zonewise.proxy.decide.rules import NO_LIMITS, AddressLimits, address_limits
from zonewise.proxy.decide.targets import NodeLocation
from zonewise.proxy.wire.family import FAMILIES


def test_a_required_zone_is_explained() -> None:
    web = service(annotations={"endpointslice.kubernetes.io/same-zone": "Require"})
    labels = {"service.kubernetes.io/service-proxy-name": "zonewise"}
    web = msgspec.structs.replace(web, metadata=msgspec.structs.replace(web.metadata, labels=labels))
    slices = [slice_of(endpoint("10.1.0.1", "a1"), endpoint("10.2.0.1", "b1"))]
    lines = list(explain_on_node(web, slices, NodeLocation("a1", cluster()), FAMILIES.values(), limits=NO_LIMITS))
    assert lines[0] == "Service shop/web on node a1 (zone a)"
    assert "  asks: endpointslice.kubernetes.io/same-zone" in lines
    assert "  cluster: 10.1.0.1:8080 gets 1/1" in lines
    assert "  nftables: 1 in svc, 10.96.0.1 leads to any-1" in lines
    without_endpoint = list(
        explain_on_node(web, slices, NodeLocation("c1", cluster()), FAMILIES.values(), limits=NO_LIMITS)
    )
    assert "  10.96.0.1:80 is refused at once: no endpoint" in without_endpoint
    assert "  to change it: run an endpoint there, or make the rule soft" in without_endpoint


def test_a_service_of_another_proxy_is_not_served() -> None:
    lines = list(explain_on_node(service(), [], NodeLocation("a1", cluster()), FAMILIES.values(), limits=NO_LIMITS))
    assert "not served by this proxy" in lines[1]


@pytest.mark.parametrize(
    ("limits", "barred"),
    [
        pytest.param(NO_LIMITS, {}, id="none"),
        pytest.param(
            address_limits(("10.96.0.0/12",), ("10.244.9.0/24",)),
            {
                "10.96.7.7": "it is within the cluster's service ranges",
                "10.96.8.8": "it is within the cluster's service ranges",
                "10.244.9.7": "it is within the cluster's pod ranges",
            },
            id="service and pod ranges",
        ),
        pytest.param(
            address_limits((), all_services=True, ignore_external_ips=True),
            dict.fromkeys(("10.96.7.7", "10.244.9.7", "192.0.2.1"), "this proxy ignores externalIPs"),
            id="external IPs ignored",
        ),
    ],
)
def test_barred_addresses_are_named_with_the_reason(limits: AddressLimits, barred: dict[str, str]) -> None:
    external = ["10.96.7.7", "10.244.9.7", "192.0.2.1"]
    web = service(type="LoadBalancer", externalIPs=external, vips=["10.96.8.8"])
    slices, at = [slice_of(endpoint("10.1.0.1", "a1"))], NodeLocation("a1", cluster())
    lines = list(explain_on_node(web, slices, at, FAMILIES.values(), limits=limits, all_services=True))
    for address in (*external, "10.96.8.8"):
        why = barred.get(address)
        assert (f"  {address}:80 goes to the endpoints below" in lines) is (why is None)
        assert (f"  left out: external address {address} is not served: {why}" in lines) is (why is not None)
