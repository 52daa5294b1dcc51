"""The report of explain volume: the pool, the nodes that reach it, and the effect of a takeover."""

from typing import Any

from zonewise.api.names import CSI_DRIVER
from zonewise.ceph.decide.domains import ACTIVE, DomainLabels, Segments, accessible_topology, takeover_key
from zonewise.ceph.decide.takeover import NO_TAKEOVERS, TakeoverDomain, TakeoverMap
from zonewise.diagnostics.decide.explain.volume import (
    VolumeFacts,
    VolumeReach,
    VolumeReport,
    build_unbound_report,
    build_volume_report,
)
from zonewise.objects import Condition, Metadata, Node, NodeStatus

LABELS = DomainLabels.parse("topology.kubernetes.io/zone")
ZONE = (("zone", "a"),)


def node(name: str, zone: str = "", *, ready: bool = True, **more: str) -> Node:
    zone_label = {"topology.kubernetes.io/zone": zone} if zone else {}
    labels = (
        zone_label | LABELS.advertised(zone_label) | {takeover_key("zone", key): value for key, value in more.items()}
    )
    status = NodeStatus(conditions=(Condition(type="Ready", status=str(ready)),))
    return Node(metadata=Metadata(name=name, labels=labels), status=status)


def volume(segments: Segments, **attributes: str) -> dict[str, Any]:
    terms = [
        {"matchExpressions": [{"key": key, "operator": "In", "values": [value]} for key, value in term.items()]}
        for term in accessible_topology(segments)
    ]
    spec: dict[str, Any] = {
        "storageClassName": "ceph-rbd",
        "csi": {"driver": CSI_DRIVER, "volumeHandle": "id", "volumeAttributes": attributes},
    }
    if terms:
        spec["nodeAffinity"] = {"required": {"nodeSelectorTerms": terms}}
    return {"metadata": {"name": "pv"}, "spec": spec}


def report(body: dict[str, Any], *nodes: Node, takeovers: TakeoverMap = NO_TAKEOVERS) -> VolumeReport:
    return build_volume_report(VolumeFacts("shop/data", body, nodes, LABELS, takeovers))


def test_a_volume_is_reached_from_its_own_domain_only() -> None:
    reported = report(volume(ZONE, pool="rbd-a", reason="PreferredDomain"), node("a1", "a"), node("b1", "b"), node("x"))
    assert reported.sentence == "lies in pool rbd-a of zone=a: 1 of 3 nodes reach it, 1 of them ready"
    assert reported.is_reached
    assert reported.reach == (VolumeReach("zone=a", "its domain", ("a1",), 1),)
    assert "domain of the pod" in reported.reason
    (takeover,) = reported.takeovers
    assert (takeover.domain, takeover.entry) == ("zone=a", "")
    assert takeover.would == (
        VolumeReach("no domain", "takeover", ("x",), 1),
        VolumeReach("zone=b", "takeover", ("b1",), 1),
    )


def test_a_takeover_adds_nodes() -> None:
    nodes = (node("a1", "a", ready=False), node("b1", "b", a=ACTIVE), node("c1", "c"))
    reported = report(
        volume(ZONE, pool="rbd-a"), *nodes, takeovers=TakeoverMap({TakeoverDomain("a"): (TakeoverDomain("b"),)})
    )
    assert {(reach.by, reach.nodes, reach.ready) for reach in reported.reach} == {
        ("its domain", ("a1",), 0),
        ("takeover", ("b1",), 1),
    }
    assert reported.is_reached
    (takeover,) = reported.takeovers
    assert takeover.entry == "b"
    assert [reach.nodes for reach in takeover.would] == [("c1",)]


def test_a_volume_without_a_ready_node_is_not_reached() -> None:
    reported = report(volume(ZONE, pool="rbd-a"), node("a1", "a", ready=False), node("b1", "b"))
    assert not reported.is_reached
    assert not report(volume(ZONE, pool="rbd-a"), node("b1", "b")).reach


def test_a_volume_without_a_domain_is_reached_from_everywhere() -> None:
    reported = report(volume((), pool="rbd-a", reason="AnyDomain"), node("a1", "a"), node("x"))
    assert [reach.by for reach in reported.reach] == ["everywhere", "everywhere"]
    assert reported.takeovers == ()
    assert reported.domain == ""


def test_an_unbound_claim_lists_its_pools() -> None:
    reported = build_unbound_report("shop/data", "ceph-rbd", [("zone=a", "rbd-a")], ["something"])
    assert not reported.is_reached
    assert reported.pools == (("zone=a", "rbd-a"),)
    assert reported.problems == ("something",)
