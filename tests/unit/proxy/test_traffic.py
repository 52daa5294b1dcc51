"""Whose traffic an ended connection was: the Service by its first destination, zones by both ends."""

from __future__ import annotations

from ipaddress import ip_network

import pytest

from unit.proxy.build import cluster, endpoint, service, slice_of
from zonewise.objects import Key
from zonewise.proxy.conntrack import Flow
from zonewise.proxy.family import IPV4
from zonewise.proxy.rules import desired_rules
from zonewise.proxy.targets import Place, find_targets
from zonewise.proxy.traffic import OUTSIDE, Tally, Where

WEB = Key("shop", "web")
HERE = [ip_network("10.1.0.0/24"), ip_network("fd00::/64"), ip_network("192.168.0.1")]


def _flow(source: str, destination: str, port: int, answered_by: str) -> Flow:
    packed = [IPV4.pack(each) for each in (source, destination, answered_by)]
    return Flow(6, packed[0], packed[1], port, packed[2], 8080, 100, b"")


@pytest.fixture
def tally() -> Tally:
    made = Tally()
    asked = service(type="NodePort", ports=[{"name": "http", "port": 80, "nodePort": 30080}])
    slices = [slice_of(endpoint("10.1.0.1", "a1"), endpoint("10.2.0.1", "b1"))]
    found = find_targets(asked, asked.spec.ports[0], slices, Place("a1", cluster()), "IPv4")
    rules = desired_rules(asked, asked.spec.ports[0], found, IPV4)
    assert rules is not None
    made.follow(WEB, [rules], slices, ["192.168.0.1", "fd00::1"])
    return made


@pytest.mark.parametrize(
    ("flow", "expected"),
    [
        pytest.param(_flow("10.1.0.9", "10.96.0.1", 80, "10.2.0.1"), Where(WEB, "a", "b"), id="a pod, to another zone"),
        pytest.param(_flow("192.168.0.1", "10.96.0.1", 80, "10.1.0.1"), Where(WEB, "a", "a"), id="the node itself"),
        pytest.param(_flow("1.2.3.4", "192.168.0.1", 30080, "10.1.0.1"), Where(WEB, OUTSIDE, "a"), id="from outside"),
        pytest.param(
            _flow("10.1.0.9", "10.96.0.1", 80, "10.9.9.9"), Where(WEB, "a", ""), id="an endpoint that is gone"
        ),
        pytest.param(_flow("10.1.0.9", "10.96.0.1", 81, "10.1.0.1"), None, id="another port"),
        pytest.param(_flow("10.1.0.9", "8.8.8.8", 80, "8.8.8.8"), None, id="no Service"),
    ],
)
def test_where_a_connection_belongs(tally: Tally, flow: Flow, expected: Where | None) -> None:
    assert tally.locate(flow, "a", HERE) == expected


def test_a_service_that_is_gone_counts_no_more(tally: Tally) -> None:
    tally.follow(WEB, [], [], [])
    assert tally.locate(_flow("10.1.0.9", "10.96.0.1", 80, "10.2.0.1"), "a", HERE) is None
