from zonewise.lab.kwok import manifests
from zonewise.lab.status import ZoneStatus, count


def test_nodes_are_counted_by_zone_and_kind() -> None:
    kwok = manifests(5, ["zone-a", "zone-b"], tainted=True)
    real = {"metadata": {"name": "n", "labels": {"topology.kubernetes.io/zone": "zone-b"}}, "status": {}}
    stray = {"metadata": {"name": "s"}}
    assert count(("zone-a", "zone-b", "zone-c"), [*kwok, real, stray]) == (
        ZoneStatus("zone-a", 0, 3, 3),
        ZoneStatus("zone-b", 1, 2, 2),
        ZoneStatus("zone-c"),
        ZoneStatus("", 1, 0, 0),
    )


def test_kwok_nodes_are_dealt_out_evenly_and_differ_in_size() -> None:
    nodes = manifests(1000, ["zone-a", "zone-b", "zone-c"], tainted=False)
    labels = [node["metadata"]["labels"] for node in nodes]
    zones = [label["topology.kubernetes.io/zone"] for label in labels]
    assert sorted(zones.count(zone) for zone in set(zones)) == [333, 333, 334]
    assert len({label["kubernetes.io/hostname"] for label in labels}) == 1000
    assert len({label["zonewise.dev/rack"] for label in labels}) == 3 * 17
    assert {node["status"]["allocatable"]["cpu"] for node in nodes} == {"16", "32", "64"}
    assert not any(node["spec"]["taints"] for node in nodes)
