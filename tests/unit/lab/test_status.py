import pytest

from zonewise.lab.nodes.kwok import manifests
from zonewise.lab.status import LabHealth, LabZoneStatus, count, judge


def test_nodes_are_counted_by_zone_and_kind() -> None:
    kwok = manifests(5, ["zone-a", "zone-b"], tainted=True)
    starting = {"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "zone-b"}}, "status": {}}
    stray = {"metadata": {"name": "s"}}
    assert count(("zone-a", "zone-b", "zone-c"), [*kwok, starting, stray]) == (
        LabZoneStatus("zone-a", 0, 3, 3),
        LabZoneStatus("zone-b", 1, 2, 2),
        LabZoneStatus("zone-c"),
        LabZoneStatus("", 1, 0, 0),
    )


JUDGED = {
    "no nodes": ((), (LabHealth.READY, "")),
    "all ready": ((LabZoneStatus("zone-a", 2, 1, 3), LabZoneStatus("zone-b")), (LabHealth.READY, "")),
    "a zone cut off": (
        (LabZoneStatus("zone-a", 2, 0, 2), LabZoneStatus("zone-b", 2, 0, 0, cut=True)),
        (LabHealth.DEGRADED, "not ready: 2 of 2 nodes in zone-b (cut off)"),
    ),
    "in several zones": (
        (LabZoneStatus("zone-a", 2, 5, 6), LabZoneStatus("", 1)),
        (LabHealth.DEGRADED, "not ready: 1 of 7 nodes in zone-a, 1 of 1 nodes in no zone"),
    ),
}


@pytest.mark.parametrize(("zones", "expected"), JUDGED.values(), ids=JUDGED)
def test_health_follows_the_readiness_of_nodes(
    zones: tuple[LabZoneStatus, ...], expected: tuple[LabHealth, str]
) -> None:
    assert judge(zones) == expected


def test_kwok_nodes_are_spread_evenly_and_differ_in_size() -> None:
    nodes = manifests(1000, ["zone-a", "zone-b", "zone-c"], tainted=False)
    labels = [node["metadata"]["labels"] for node in nodes]
    zones = [label["topology.kubernetes.io/zone"] for label in labels]
    assert sorted(zones.count(zone) for zone in set(zones)) == [333, 333, 334]
    assert len({label["kubernetes.io/hostname"] for label in labels}) == 1000
    assert len({label["zonewise.dev/rack"] for label in labels}) == 3 * 17
    assert {node["status"]["allocatable"]["cpu"] for node in nodes} == {"16", "32", "64"}
    assert not any(node["spec"]["taints"] for node in nodes)
