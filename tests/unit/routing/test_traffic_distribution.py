"""`trafficDistribution`: nearest first, then everyone; one endpoint without a zone or node disables it and is named."""

import pytest

from unit.routing.build import cluster, endpoint, service
from zonewise.objects import Endpoint
from zonewise.routing import RoutingCode, RoutingSubject, choose, decide

CLUSTER = cluster({"a": 2, "b": 1, "c": 1})
ENDPOINTS = [endpoint("A1", "a1", "a"), endpoint("A2", "a2", "a"), endpoint("B1", "b1", "b")]

CHOICES = {
    "close means the zone": ("PreferClose", ENDPOINTS, "a1", "A1 A2"),
    "same zone": ("PreferSameZone", ENDPOINTS, "b1", "B1"),
    "same zone, none there": ("PreferSameZone", ENDPOINTS, "c1", "A1 A2 B1"),
    "same node": ("PreferSameNode", ENDPOINTS, "a1", "A1"),
    "same node, none there, zone": ("PreferSameNode", [*ENDPOINTS[1:]], "a1", "A2"),
    "same node, none there, zone neither": ("PreferSameNode", ENDPOINTS, "c1", "A1 A2 B1"),
    "one without a zone": ("PreferSameZone", [*ENDPOINTS, endpoint("X", "a1")], "b1", "A1 A2 B1 X"),
    "one without a zone leaves the node": ("PreferSameNode", [*ENDPOINTS, endpoint("X", "a2")], "a1", "A1"),
    "one without a node leaves the zone": ("PreferSameNode", [*ENDPOINTS, endpoint("X", zone="a")], "a1", "A1 A2 X"),
    "one not ready counts for nothing": (
        "PreferSameZone",
        [*ENDPOINTS, endpoint("X", "c1", ready=False)],
        "c1",
        "A1 A2 B1",
    ),
}


@pytest.mark.parametrize("name", CHOICES)
def test_choice(name: str) -> None:
    value, endpoints, client, chosen = CHOICES[name]
    decision = decide(service(traffic_distribution=value), endpoints, CLUSTER)
    assert " ".join(choose(decision, CLUSTER, client).shares) == chosen


REASONS: dict[str, tuple[str, list[Endpoint], RoutingCode, tuple[RoutingSubject, ...]]] = {
    "in force": ("PreferSameZone", ENDPOINTS, RoutingCode.DISTRIBUTED, ()),
    "no zone": (
        "PreferClose",
        [*ENDPOINTS, endpoint("X", "a1")],
        RoutingCode.ENDPOINT_WITHOUT_ZONE,
        (RoutingSubject("Endpoint", "X"),),
    ),
    "no node": (
        "PreferSameNode",
        [*ENDPOINTS, endpoint("X", zone="a")],
        RoutingCode.ENDPOINT_WITHOUT_NODE,
        (RoutingSubject("Endpoint", "X"),),
    ),
    "no node, but the zone is enough": ("PreferSameZone", [endpoint("X", zone="a")], RoutingCode.DISTRIBUTED, ()),
}


@pytest.mark.parametrize("name", REASONS)
def test_reason(name: str) -> None:
    value, endpoints, code, blame = REASONS[name]
    reason = decide(service(traffic_distribution=value), endpoints, CLUSTER).reason
    assert (reason.code, reason.blame) == (code, blame)
