"""Traffic metrics: the Service of a connection by its original destination, zones by both ends."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from prometheus_client import REGISTRY

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Key
from zonewise.proxy.connection_stats import OUTSIDE, TrafficCount, TrafficKey, TrafficMeter
from zonewise.proxy.conntrack import ConntrackFlow
from zonewise.proxy.decide.rules import desired_rules
from zonewise.proxy.decide.targets import NodeLocation, find_targets
from zonewise.proxy.wire.family import IPV4

WEB = Key("shop", "web")
LOCAL_NETWORKS = (ip_network("10.1.0.0/24"), ip_network("fd00::/64"), ip_network("192.168.0.1"))


def _flow(source: str, destination: str, port: int, answered_by: str) -> ConntrackFlow:
    packed = [IPV4.pack(address) for address in (source, destination, answered_by)]
    return ConntrackFlow(6, packed[0], packed[1], port, packed[2], 8080, 100, b"")


@pytest.fixture
def traffic() -> TrafficCount:
    count = TrafficCount()
    web = service(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}])
    slices = [slice_of(endpoint("10.1.0.1", "a1"), endpoint("10.2.0.1", "b1"))]
    targets = find_targets(web, web.spec.ports[0], slices, NodeLocation("a1", cluster()), "IPv4")
    rules = desired_rules(web, web.spec.ports[0], targets, IPV4)
    assert rules is not None
    count.update(WEB, [rules], slices, ["192.168.0.1", "fd00::1"])
    return count


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        pytest.param(
            _flow("10.1.0.9", "10.96.0.1", 80, "10.2.0.1"), TrafficKey(WEB, "a", "b"), id="pod to another zone"
        ),
        pytest.param(
            _flow("192.168.0.1", "10.96.0.1", 80, "10.1.0.1"), TrafficKey(WEB, "a", "a"), id="the node itself"
        ),
        pytest.param(
            _flow("1.2.3.4", "192.168.0.1", 30080, "10.1.0.1"), TrafficKey(WEB, OUTSIDE, "a"), id="from outside"
        ),
        pytest.param(_flow("10.1.0.9", "10.96.0.1", 80, "10.9.9.9"), TrafficKey(WEB, "a", ""), id="deleted endpoint"),
        pytest.param(_flow("10.1.0.9", "10.96.0.1", 81, "10.1.0.1"), None, id="another port"),
        pytest.param(_flow("10.1.0.9", "8.8.8.8", 80, "8.8.8.8"), None, id="no Service"),
    ],
)
def test_flow_is_mapped_to_service_and_zones(
    traffic: TrafficCount, flow: ConntrackFlow, expected: TrafficKey | None
) -> None:
    assert traffic.locate(flow, "a", LOCAL_NETWORKS) == expected


def test_deleted_service_is_not_counted(traffic: TrafficCount) -> None:
    traffic.update(WEB, [], [], [])
    assert traffic.locate(_flow("10.1.0.9", "10.96.0.1", 80, "10.2.0.1"), "a", LOCAL_NETWORKS) is None


def _open_flow(carried: int, identity: bytes = b"1") -> ConntrackFlow:
    return _flow("10.1.0.9", "10.96.0.1", 80, "10.2.0.1")._replace(carried=carried, identity=identity)


def _counted(service: str) -> tuple[float, float]:
    labels = {"namespace": "shop", "service": service, "client_zone": "a", "endpoint_zone": "b"}
    names = ("zonewise_proxy_connections_total", "zonewise_proxy_bytes_total")
    connections, carried = (REGISTRY.get_sample_value(name, labels) or 0.0 for name in names)
    return connections, carried


def test_bytes_of_an_open_connection_are_counted_once() -> None:
    meter, key = TrafficMeter(), TrafficKey(Key("shop", "open"), "a", "b")

    def dump(*flows: ConntrackFlow) -> tuple[float, float]:
        meter.begin_dump()
        for flow in flows:
            meter.open(flow, key)
        meter.end_dump()
        return _counted("open")

    assert dump(_open_flow(100)) == (1, 100)
    assert dump(_open_flow(250)) == (1, 250)
    meter.ended(_open_flow(300), key)
    assert _counted("open") == (1, 300)
    assert dump(_open_flow(40)) == (2, 340), "a new connection with the same ports"
    assert dump(_open_flow(10)) == (3, 350), "and another: the end of the last was not reported"
    assert dump() == (3, 350)
    assert dump(_open_flow(60)) == (4, 410), "a connection missing from a dump has ended"
    meter.begin_dump()
    meter.ended(_open_flow(70), key)
    meter.open(_open_flow(60), key)
    meter.end_dump()
    assert _counted("open") == (4, 420), "it ended during the dump"
