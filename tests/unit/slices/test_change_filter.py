"""Changes of objects that trigger a sync of a Service, and those that do not."""

from msgspec.structs import replace

from zonewise.api.names import ROUTING_STATE
from zonewise.objects import Condition, Metadata, Node, NodeStatus, Pod, PodIP, PodSpec, PodStatus, Service, Taint
from zonewise.routing import DRAIN_ZONE
from zonewise.slices.decide.change_filter import (
    moves_endpoints,
    pod_matters,
    routing_matters,
    service_matters,
    wants_routing,
)
from zonewise.topology import ZONE

READY = Condition(type="Ready", status="True", last_transition_time="2026-11-16T10:00:00Z")
POD = Pod(
    metadata=Metadata(name="a", uid="1"),
    spec=PodSpec(node_name="n"),
    status=PodStatus(phase="Running", pod_ip="10.0.0.1", pod_ips=(PodIP(ip="10.0.0.1"),), conditions=(READY,)),
)
NODE = Node(
    metadata=Metadata(name="n", labels={ZONE: "z"}),
    status=NodeStatus(allocatable={"cpu": "4", "memory": "8Gi"}, conditions=(READY,)),
)
SERVICE = Service(metadata=Metadata(name="web", uid="1"))


def test_pod_changes() -> None:
    status = POD.status
    ignored = {
        "another resource version": replace(POD, metadata=replace(POD.metadata, resource_version="9")),
        "an annotation": replace(POD, metadata=replace(POD.metadata, annotations={"a": "b"})),
        "from pending to running": replace(POD, status=replace(status, phase="Pending")),
        "another condition": replace(POD, status=replace(status, conditions=(READY, Condition(type="Other")))),
    }
    relevant = {
        "unready": replace(POD, status=replace(status, conditions=())),
        "another address": replace(POD, status=replace(status, pod_ips=(PodIP(ip="10.0.0.2"),))),
        "ended": replace(POD, status=replace(status, phase="Failed")),
        "terminating": replace(POD, metadata=replace(POD.metadata, deletion_timestamp="now")),
        "another pod of that name": replace(POD, metadata=replace(POD.metadata, uid="2")),
        "placed": replace(POD, spec=PodSpec(node_name="m")),
    }
    assert [name for name, changed in ignored.items() if pod_matters(POD, changed)] == []
    assert [name for name, changed in relevant.items() if not pod_matters(POD, changed)] == []


def test_node_changes() -> None:
    heartbeat = replace(NODE, metadata=replace(NODE.metadata, resource_version="9", annotations={"beat": "1"}))
    assert not routing_matters(NODE, heartbeat)
    changes = {
        "came": (None, NODE),
        "went": (NODE, None),
        "cpu": (NODE, replace(NODE, status=replace(NODE.status, allocatable={"cpu": "8"}))),
        "unready": (NODE, replace(NODE, status=replace(NODE.status, conditions=()))),
        "tainted": (NODE, replace(NODE, spec=replace(NODE.spec, taints=(Taint(key="a"),)))),
        "another role": (NODE, replace(NODE, metadata=replace(NODE.metadata, labels={ZONE: "z", "role": "x"}))),
        "drained": (NODE, replace(NODE, metadata=replace(NODE.metadata, annotations={DRAIN_ZONE: "z"}))),
    }
    assert [name for name, (old, new) in changes.items() if not routing_matters(old, new)] == []
    assert moves_endpoints(None, NODE)
    assert moves_endpoints(NODE, replace(NODE, metadata=replace(NODE.metadata, labels={ZONE: "y"})))
    assert not moves_endpoints(NODE, heartbeat)


def test_service_changes() -> None:
    with_state = replace(
        SERVICE, metadata=replace(SERVICE.metadata, annotations={ROUTING_STATE: "{}"}, resource_version="9")
    )
    with_drain = replace(SERVICE, metadata=replace(SERVICE.metadata, annotations={DRAIN_ZONE: "z"}))
    assert not service_matters(SERVICE, with_state)
    assert service_matters(SERVICE, with_drain)
    assert service_matters(None, SERVICE)
    assert service_matters(SERVICE, None)
    assert wants_routing(with_drain)
    assert not wants_routing(SERVICE)
