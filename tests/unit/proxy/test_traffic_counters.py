"""Whose traffic an ended connection was: the Service by its first destination, zones by both ends."""

from __future__ import annotations

from ipaddress import ip_network

import pytest
from prometheus_client import REGISTRY

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Key
from zonewise.proxy.conntrack import ConntrackFlow
from zonewise.proxy.decide.rules import desired_rules
from zonewise.proxy.decide.targets import NodePlace, find_targets
from zonewise.proxy.traffic_counters import OUTSIDE, TrafficCount, TrafficKey, TrafficMeter
from zonewise.proxy.wire.family import IPV4

WEB = Key("shop", "web")
HERE = (ip_network("10.1.0.0/24"), ip_network("fd00::/64"), ip_network("192.168.0.1"))


def _flow(source: str, destination: str, port: int, answered_by: str) -> ConntrackFlow:
    packed = [IPV4.pack(each) for each in (source, destination, answered_by)]
    return ConntrackFlow(6, packed[0], packed[1], port, packed[2], 8080, 100, b"")


@pytest.fixture
def tally() -> TrafficCount:
    made = TrafficCount()
    asked = service(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}])
    slices = [slice_of(endpoint("10.1.0.1", "a1"), endpoint("10.2.0.1", "b1"))]
    found = find_targets(asked, asked.spec.ports[0], slices, NodePlace("a1", cluster()), "IPv4")
    rules = desired_rules(asked, asked.spec.ports[0], found, IPV4)
    assert rules is not None
    made.follow(WEB, [rules], slices, ["192.168.0.1", "fd00::1"])
    return made


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        pytest.param(
            _flow("10.1.0.9", "10.96.0.1", 80, "10.2.0.1"), TrafficKey(WEB, "a", "b"), id="a pod, to another zone"
        ),
        pytest.param(
            _flow("192.168.0.1", "10.96.0.1", 80, "10.1.0.1"), TrafficKey(WEB, "a", "a"), id="the node itself"
        ),
        pytest.param(
            _flow("1.2.3.4", "192.168.0.1", 30080, "10.1.0.1"), TrafficKey(WEB, OUTSIDE, "a"), id="from outside"
        ),
        pytest.param(
            _flow("10.1.0.9", "10.96.0.1", 80, "10.9.9.9"), TrafficKey(WEB, "a", ""), id="an endpoint that is gone"
        ),
        pytest.param(_flow("10.1.0.9", "10.96.0.1", 81, "10.1.0.1"), None, id="another port"),
        pytest.param(_flow("10.1.0.9", "8.8.8.8", 80, "8.8.8.8"), None, id="no Service"),
    ],
)
def test_where_a_connection_belongs(tally: TrafficCount, flow: ConntrackFlow, expected: TrafficKey | None) -> None:
    assert tally.locate(flow, "a", HERE) == expected


def test_a_service_that_is_gone_counts_no_more(tally: TrafficCount) -> None:
    tally.follow(WEB, [], [], [])
    assert tally.locate(_flow("10.1.0.9", "10.96.0.1", 80, "10.2.0.1"), "a", HERE) is None


def _lasting(carried: int, identity: bytes = b"1") -> ConntrackFlow:
    return _flow("10.1.0.9", "10.96.0.1", 80, "10.2.0.1")._replace(carried=carried, identity=identity)


def _counted(service: str) -> tuple[float, float]:
    labels = {"namespace": "shop", "service": service, "client_zone": "a", "endpoint_zone": "b"}
    names = ("zonewise_proxy_connections_total", "zonewise_proxy_bytes_total")
    connections, carried = (REGISTRY.get_sample_value(name, labels) or 0.0 for name in names)
    return connections, carried


def test_a_connection_that_lasts_counts_while_it_goes_on_and_only_once() -> None:
    meter, where = TrafficMeter(), TrafficKey(Key("shop", "lasting"), "a", "b")

    def look(*flows: ConntrackFlow) -> tuple[float, float]:
        meter.begin()
        for flow in flows:
            meter.goes_on(flow, where)
        meter.looked()
        return _counted("lasting")

    assert look(_lasting(100)) == (1, 100)
    assert look(_lasting(250)) == (1, 250)
    meter.ended(_lasting(300), where)
    assert _counted("lasting") == (1, 300)
    assert look(_lasting(40)) == (2, 340), "another of the same ports"
    assert look(_lasting(10)) == (3, 350), "and one more, of the end of the last nobody told"
    assert look() == (3, 350)
    assert look(_lasting(60)) == (4, 410), "what was not seen had ended"
    meter.begin()
    meter.ended(_lasting(70), where)
    meter.goes_on(_lasting(60), where)
    meter.looked()
    assert _counted("lasting") == (4, 420), "it ended while we looked"
