"""What the watcher keeps of objects says all that records are made of, and no more."""

from __future__ import annotations

import msgspec

from support.dns.cluster import endpoint, headless, slice_of
from zonewise.dns.decide import compact
from zonewise.objects import EndpointSlice, Service

REFERENCE = {"targetRef": {"kind": "Pod", "name": "db-0", "uid": "1"}, "hostname": "db-0"}


def test_a_slice_comes_back_as_it_was_but_for_its_pods() -> None:
    found = slice_of(
        "db", [endpoint("10.0.11.1", "zone-a-1", conditions={"ready": False}, **REFERENCE), endpoint("::1")]
    )
    packed = compact.pack_slice(found)
    opened = compact.open_slice(packed)
    assert packed.owner == "db"
    assert opened.ports == found.ports
    assert [each.target_ref for each in opened.endpoints or ()] == [None, None]
    assert [msgspec.structs.replace(each, target_ref=None) for each in found.endpoints or ()] == list(
        opened.endpoints or ()
    )
    with_pods = compact.open_slice(compact.pack_slice_with_pods(found)).endpoints or ()
    assert with_pods[0].target_ref is not None
    assert with_pods[0].target_ref.name == "db-0"


def test_a_slice_without_endpoints_or_owner() -> None:
    found = msgspec.convert({"metadata": {"name": "x"}, "endpoints": None, "ports": None}, EndpointSlice)
    packed = compact.pack_slice(found)
    assert packed.owner == ""
    assert compact.open_slice(packed).endpoints == ()


def test_a_service_keeps_its_rules_and_loses_what_nobody_reads() -> None:
    rules = {"zonewise.dev/topology-keys": '["*"]'}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "long" * 1000}
    found: Service = headless(
        "db", annotations=rules | applied, selector={"app": "db"}, ports=[{"name": "x", "port": 1}]
    )
    opened = compact.open_service(compact.pack_service(found))
    assert opened.metadata.annotations == rules
    assert opened.spec == msgspec.structs.replace(found.spec, selector=None)
