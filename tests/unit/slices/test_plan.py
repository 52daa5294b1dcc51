"""The plan for a Service without a policy, as the stock controller has it: scope, metadata, identity and placement."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from unit.slices.build import SliceStore, pod, pods_in, service, zones
from zonewise.objects import EndpointHints, EndpointSlice, Hint, OwnerReference, Pod, Service, ServicePort
from zonewise.slices.decide.plan import SlicesPlan, has_slices, plan_slices

A = zones("a", "b", "c")
TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
HEADLESS = "service.kubernetes.io/headless"


def counts(plan: SlicesPlan) -> tuple[int, int, int]:
    return len(plan.creates), len(plan.updates), len(plan.deletes)


def store_of(*sizes: int, most: int = 100) -> tuple[SliceStore, list[Pod]]:
    """A store with slices of these sizes, made by removing pods from full ones, and the remaining pods."""
    store = SliceStore(A, most=most)
    pods = pods_in({"a": most * len(sizes)})
    store.sync(service(), pods)
    names = [
        [end.target_ref.name for end in endpoint_slice.endpoints or () if end.target_ref]
        for endpoint_slice in store.slices
    ]
    kept_names = {name for slice_names, size in zip(names, sizes, strict=True) for name in slice_names[:size]}
    kept_pods = [candidate for candidate in pods if candidate.metadata.name in kept_names]
    store.sync(service(), kept_pods)
    assert store.sizes == sorted(sizes)
    return store, kept_pods


def changed(endpoint_slice: EndpointSlice, **metadata: Any) -> EndpointSlice:
    return msgspec.structs.replace(
        endpoint_slice, metadata=msgspec.structs.replace(endpoint_slice.metadata, **metadata)
    )


# Scope

SCOPE = {
    "with a selector": (service(), True),
    "with an empty selector": (service(selector={}), True),
    "without a selector": (service(selector=None), False),
    "an external name": (service(type="ExternalName"), False),
    "headless": (service(cluster_ip="None"), True),
}


@pytest.mark.parametrize(("svc", "expected"), SCOPE.values(), ids=SCOPE)
def test_scope(svc: Service, expected: bool) -> None:
    assert has_slices(svc) is expected
    assert bool(plan_slices(svc, pods_in({"a": 1}), A, []).writes) is expected


def test_slices_of_a_service_out_of_scope_are_unchanged() -> None:
    store, pods = store_of(3)
    assert store.plan(service(selector=None), pods) == SlicesPlan()


def test_slices_that_are_being_deleted_are_ignored() -> None:
    store, pods = store_of(3)
    store.put(changed(store.slices[0], deletion_timestamp="2026-01-01T00:00:00Z"))
    plan = store.plan(service(), pods)
    assert counts(plan) == (1, 0, 0)


def test_slices_of_an_earlier_service_are_deleted_not_reused() -> None:
    store, pods = store_of(3)
    old = OwnerReference(api_version="v1", kind="Service", name="web", uid="old")
    store.put(changed(store.slices[0], owner_references=(old,)))
    assert counts(store.plan(service(), pods)) == (1, 0, 1)
    assert counts(store.plan(service(), [])) == (1, 0, 1)


def test_nothing_is_created_for_a_service_that_is_being_deleted() -> None:
    deleting = service()
    deleting = msgspec.structs.replace(
        deleting, metadata=msgspec.structs.replace(deleting.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    store, pods = store_of(3, most=3)
    more = [*pods, *pods_in({"b": 1})]
    assert counts(store.plan(service(), more)) == (1, 0, 0)
    assert counts(store.plan(deleting, more)) == (0, 0, 0)
    assert counts(store.plan(deleting, pods[:2])) == (0, 1, 0)


def test_slices_of_a_removed_family_are_deleted() -> None:
    store = SliceStore(A)
    pods = [pod("p", "10.0.0.1", "fd00::1")]
    store.sync(service(ip_families=("IPv4", "IPv6")), pods)
    assert sorted(endpoint_slice.address_type for endpoint_slice in store.slices) == ["IPv4", "IPv6"]
    assert counts(store.sync(service(), pods)) == (0, 0, 1)
    assert [endpoint_slice.address_type for endpoint_slice in store.slices] == ["IPv4"]


# Metadata


def labels_of(svc: Service) -> dict[str, str]:
    store = SliceStore(A)
    store.sync(svc, pods_in({"a": 1}))
    return store.slices[0].metadata.labels


OURS = {
    "kubernetes.io/service-name": "web",
    "endpointslice.kubernetes.io/managed-by": "endpointslice-controller.k8s.io",
}
RESERVED = {
    "kubernetes.io/service-name": "other",
    "endpointslice.kubernetes.io/managed-by": "me",
    HEADLESS: "yes",
    "zonewise.dev/consumer": "a",
}
LABELS = {
    "none of its own": (service(), OURS),
    "mirrored": (service(labels={"team": "shop"}), OURS | {"team": "shop"}),
    "reserved labels are overwritten": (service(labels=RESERVED), OURS),
    "headless": (service(cluster_ip="None"), OURS | {HEADLESS: ""}),
    "no cluster IP yet": (service(cluster_ip=""), OURS | {HEADLESS: ""}),
    "reserved and headless": (service(labels=RESERVED, cluster_ip="None"), OURS | {HEADLESS: ""}),
    "another proxy's": (
        service(labels={"service.kubernetes.io/service-proxy-name": "zonewise"}),
        OURS | {"service.kubernetes.io/service-proxy-name": "zonewise"},
    ),
}


@pytest.mark.parametrize(("svc", "expected"), LABELS.values(), ids=LABELS)
def test_labels(svc: Service, expected: dict[str, str]) -> None:
    assert labels_of(svc) == expected


def test_a_reserved_label_on_the_service_writes_nothing() -> None:
    store, pods = store_of(3)
    assert store.plan(service(labels=RESERVED), pods).writes == 0


def test_changed_service_labels_update_every_slice() -> None:
    store, pods = store_of(3, 2, most=3)
    assert counts(store.sync(service(labels={"team": "shop"}), pods)) == (0, 2, 0)
    assert counts(store.sync(service(), pods)) == (0, 2, 0)
    assert all(endpoint_slice.metadata.labels == OURS for endpoint_slice in store.slices)


def test_trigger_time_is_set_on_written_slices_only() -> None:
    store, pods = store_of(3, 2, most=3)
    store.sync(service(), pods[:-1], trigger_time="2026-01-01T00:00:00Z")
    assert sorted(endpoint_slice.metadata.annotations.get(TRIGGER, "") for endpoint_slice in store.slices) == [
        "",
        "2026-01-01T00:00:00Z",
    ]
    store.sync(service(), pods)
    assert all(TRIGGER not in endpoint_slice.metadata.annotations for endpoint_slice in store.slices)
    assert store.plan(service(), pods, trigger_time="2026-02-01T00:00:00Z").writes == 0


# Identity

BASE = pod("p", "10.0.0.1")
IDENTITY = {
    "ready": (pod("p", "10.0.0.1", ready=False), (0, 0)),
    "terminating": (pod("p", "10.0.0.1", terminating=True), (0, 0)),
    "node and zone": (pod("p", "10.0.0.1", node_name="b1"), (0, 0)),
    "address": (pod("p", "10.0.0.2"), (1, 1)),
    "name of the pod": (pod("q", "10.0.0.1"), (1, 1)),
    "hostname": (pod("p", "10.0.0.1", hostname="p", subdomain="web"), (1, 1)),
}


@pytest.mark.parametrize(("after", "added_and_removed"), IDENTITY.values(), ids=IDENTITY)
def test_endpoint_identity(after: Pod, added_and_removed: tuple[int, int]) -> None:
    store = SliceStore(A)
    other_pods = pods_in({"b": 2})
    store.sync(service(), [BASE, *other_pods])
    plan = store.sync(service(), [after, *other_pods])
    assert counts(plan) == (0, 1, 0)
    assert (plan.added, plan.removed) == added_and_removed


def test_endpoints_that_move_to_slices_of_other_ports_count_as_added() -> None:
    store, pods = store_of(3)
    moved = service(ports=(ServicePort(name="http", port=80, target_port=9090),))
    assert store.sync(moved, pods).added == 3


def test_hints_without_a_policy_are_removed() -> None:
    store, pods = store_of(3)
    (endpoint_slice,) = store.slices
    store.stored[endpoint_slice.metadata.name]["endpoints"][1]["hints"] = {"forZones": [{"name": "a"}]}
    assert store.endpoints[1].hints == EndpointHints(for_zones=(Hint(name="a"),))
    assert counts(store.sync(service(), pods)) == (0, 1, 0)
    assert all(endpoint.hints is None for endpoint in store.endpoints)


def test_a_foreign_edit_is_reverted() -> None:
    store, pods = store_of(3)
    (endpoint_slice,) = store.slices
    store.stored[endpoint_slice.metadata.name]["endpoints"] = store.stored[endpoint_slice.metadata.name]["endpoints"][
        :1
    ]
    assert counts(store.sync(service(), pods)) == (0, 1, 0)
    assert store.sizes == [3]


# Placement: `sizes` before, then how many are removed from each slice and how many are added

PLACEMENT: dict[str, tuple[Sequence[int], Sequence[int], int, list[int], tuple[int, int, int]]] = {
    "nothing changes": ((10, 5), (0, 0), 0, [5, 10], (0, 0, 0)),
    "one is removed": ((10, 5), (0, 1), 0, [4, 10], (0, 1, 0)),
    "one is added where it fits best": ((5, 7, 3), (0, 0, 0), 1, [3, 5, 8], (0, 1, 0)),
    "added ones go into one slice": ((9, 8, 5), (0, 0, 0), 3, [8, 8, 9], (0, 1, 0)),
    "one is replaced": ((10, 5), (1, 0), 1, [5, 10], (0, 1, 0)),
    "written slices are filled, the fullest first": ((10, 9, 5), (1, 1, 0), 2, [5, 9, 10], (0, 2, 0)),
    "more than the written slices take": ((10, 9, 5), (1, 0, 0), 3, [7, 9, 10], (0, 2, 0)),
    "too many for any one slice": ((7, 7), (0, 0), 4, [4, 7, 7], (1, 0, 0)),
    "a full slice more": ((5,), (0,), 10, [5, 10], (1, 0, 0)),
    "more than a slice, the rest where it fits": ((5,), (0,), 13, [8, 10], (1, 1, 0)),
    "more than a slice, and no room for the rest": ((7, 7), (0, 0), 15, [5, 7, 7, 10], (2, 0, 0)),
    "an emptied slice is deleted": ((10, 3), (0, 3), 0, [10], (0, 0, 1)),
    "an emptied slice is reused": ((10, 3), (0, 3), 3, [3, 10], (0, 1, 0)),
    "even where another has room": ((5, 3), (0, 3), 3, [3, 5], (0, 1, 0)),
    "no repacking": ((4, 3, 2), (0, 0, 0), 0, [2, 3, 4], (0, 0, 0)),
}


@pytest.mark.parametrize(("sizes", "removed", "added", "expected", "writes"), PLACEMENT.values(), ids=PLACEMENT)
def test_placement(
    sizes: Sequence[int], removed: Sequence[int], added: int, expected: list[int], writes: tuple[int, int, int]
) -> None:
    store, pods = store_of(*sizes, most=10)
    removed_names = {
        end.target_ref.name
        for endpoint_slice, count in zip(store.slices, removed, strict=True)
        for end in (endpoint_slice.endpoints or ())[:count]
        if end.target_ref
    }
    plan = store.sync(
        service(),
        [candidate for candidate in pods if candidate.metadata.name not in removed_names] + pods_in({"b": added}),
    )
    assert (store.sizes, counts(plan)) == (expected, writes)
    assert (plan.added, plan.removed) == (added, sum(removed))


@pytest.mark.parametrize("most", [1, 10, 1000])
def test_slices_are_filled_up_to_the_limit(most: int) -> None:
    store = SliceStore(A, most=most)
    plan = store.sync(service(), pods_in({"a": 25}))
    assert len(plan.creates) == -(-25 // most)
    assert plan.desired_slices == plan.slices == len(plan.creates)
    assert max(store.sizes) <= most


def test_slices_above_a_lowered_limit_stay() -> None:
    store, pods = store_of(10, most=10)
    store.most = 4
    assert store.plan(service(), pods).writes == 0
    assert counts(store.sync(service(), pods + pods_in({"b": 1}))) == (1, 0, 0)


def test_slices_are_packed_if_all_must_be_written() -> None:
    store, pods = store_of(3, 3, 3, 3, most=10)
    assert store.plan(service(), pods).writes == 0
    plan = store.sync(service(ports=(ServicePort(name="http", port=80, target_port=9000),)), pods)
    assert (store.sizes, counts(plan)) == ([2, 10], (0, 2, 2))


# Placeholders


def test_without_endpoints_every_family_has_a_placeholder() -> None:
    store = SliceStore(A)
    plan = store.sync(service(ip_families=("IPv4", "IPv6")), [])
    assert (counts(plan), plan.desired_slices, plan.desired_endpoints) == ((2, 0, 0), 2, 0)
    assert {
        (endpoint_slice.address_type, endpoint_slice.ports, endpoint_slice.endpoints) for endpoint_slice in store.slices
    } == {
        ("IPv4", (), ()),
        ("IPv6", (), ()),
    }
    assert store.plan(service(ip_families=("IPv4", "IPv6")), []).writes == 0


def test_placeholder_with_null_fields_is_unchanged() -> None:
    store = SliceStore(A)
    store.sync(service(), [])
    (endpoint_slice,) = store.slices
    store.put(msgspec.structs.replace(endpoint_slice, ports=None, endpoints=None))
    assert store.plan(service(), []).writes == 0


def test_last_endpoint_leaves_a_placeholder_that_is_reused() -> None:
    store, pods = store_of(3)
    (before,) = store.slices
    assert counts(store.sync(service(), [])) == (0, 1, 0)
    assert (store.slices[0].ports, store.slices[0].endpoints) == ((), ())
    assert counts(store.sync(service(), pods)) == (0, 1, 0)
    assert store.slices[0].metadata.name == before.metadata.name


def test_one_of_several_slices_stays_as_placeholder() -> None:
    store, _ = store_of(3, 3, 2, most=3)
    assert counts(store.sync(service(), [])) == (0, 1, 2)
    assert store.sizes == [0]


def test_labels_of_a_placeholder_follow_the_service() -> None:
    store = SliceStore(A)
    store.sync(service(), [])
    assert counts(store.sync(service(labels={"team": "shop"}), [])) == (0, 1, 0)


@pytest.mark.parametrize("how_many", [3, 100, 150])
def test_a_headless_service_without_ports_needs_no_second_slice(how_many: int) -> None:
    """Its endpoints have the ports of a placeholder: none."""
    store = SliceStore(A)
    headless = service(cluster_ip="None", ports=())
    store.sync(headless, [])
    plan = store.sync(headless, pods_in({"a": how_many}))
    assert counts(plan) == (how_many // 101, 1, 0)
    assert sum(store.sizes) == how_many


def test_pods_without_a_node_are_left_out_and_named() -> None:
    store = SliceStore(A)
    plan = store.sync(service(), [*pods_in({"a": 1}), pod("lost", "10.9.9.9", node_name="gone")])
    assert (store.sizes, plan.pods_without_node) == ([1], ("lost",))
