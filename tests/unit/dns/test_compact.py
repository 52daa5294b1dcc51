"""Compact cache entries keep the fields that records need, and no others."""

from __future__ import annotations

import msgspec

from support.dns.cluster import endpoint, headless, slice_of
from zonewise.dns.decide import compact
from zonewise.objects import EndpointSlice, Service

REFERENCE = {"targetRef": {"kind": "Pod", "name": "db-0", "uid": "1"}, "hostname": "db-0"}


def test_slice_round_trip_drops_pod_references_unless_needed() -> None:
    original = slice_of(
        "db", [endpoint("10.0.11.1", "zone-a-1", conditions={"ready": False}, **REFERENCE), endpoint("::1")]
    )
    packed = compact.pack_slice(original)
    opened = compact.open_slice(packed)
    assert packed.owner == "db"
    assert opened.ports == original.ports
    assert [item.target_ref for item in opened.endpoints or ()] == [None, None]
    assert [msgspec.structs.replace(item, target_ref=None) for item in original.endpoints or ()] == list(
        opened.endpoints or ()
    )
    with_pods = compact.open_slice(compact.pack_slice_with_pods(original)).endpoints or ()
    assert with_pods[0].target_ref is not None
    assert with_pods[0].target_ref.name == "db-0"


def test_slice_without_endpoints_or_owner_is_packed() -> None:
    original = msgspec.convert({"metadata": {"name": "x"}, "endpoints": None, "ports": None}, EndpointSlice)
    packed = compact.pack_slice(original)
    assert packed.owner == ""
    assert compact.open_slice(packed).endpoints == ()


def test_service_keeps_rules_and_drops_unused_fields() -> None:
    rules = {"zonewise.dev/topology-keys": '["*"]'}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "long" * 1000}
    original: Service = headless(
        "db", annotations=rules | applied, selector={"app": "db"}, ports=[{"name": "x", "port": 1}]
    )
    opened = compact.open_service(compact.pack_service(original))
    assert opened.metadata.annotations == rules
    assert opened.spec == msgspec.structs.replace(original.spec, selector=None)
