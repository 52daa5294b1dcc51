"""Node object and lease, and when the node must report its conditions again."""

from __future__ import annotations

import datetime as dt

import msgspec
import pytest

from zonewise.lab.decide import node_registration
from zonewise.lab.decide.addresses import plan
from zonewise.objects import Lease, Node
from zonewise.topology import hostname_of, region_of, zone_of

NODE = plan("lab", 0, ("east", "west"), 2).node("west-2")
NOW = dt.datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=dt.UTC)


def test_node_has_topology_labels_addresses_and_pod_ranges() -> None:
    node = msgspec.convert(node_registration.node_object(NODE, NOW), Node)
    labels = node.metadata.labels
    assert (zone_of(labels), region_of(labels), hostname_of(labels)) == ("west", "lab", "west-2")
    assert "west-r2" in labels.values()
    assert node.spec.pod_cidrs == ("100.64.130.0/24", "fd7a:6f6e:6500:202::/64")
    internal = [address.address for address in node.status.addresses if address.type == "InternalIP"]
    assert internal == ["100.64.128.11", "fd7a:6f6e:6500:200::b"]
    assert not node_registration.needs_conditions(node)


@pytest.mark.parametrize("status", ["Unknown", "False"])
def test_node_that_is_not_ready_must_report_again(status: str) -> None:
    body = node_registration.node_object(NODE, NOW)
    body["status"]["conditions"][0]["status"] = status
    assert node_registration.needs_conditions(msgspec.convert(body, Node))
    assert node_registration.needs_conditions(Node())


def test_lease_renew_time_has_microseconds() -> None:
    body = node_registration.lease(NODE, "uid-1", NOW)
    assert msgspec.convert(body, Lease).spec.renew_time == "2026-01-02T03:04:05.000678Z"
    assert body["metadata"]["ownerReferences"][0]["uid"] == "uid-1"
