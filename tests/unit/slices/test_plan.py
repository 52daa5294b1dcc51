"""The plan for a Service without a policy, as the stock controller has it: scope, metadata, identity and placement."""

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from unit.slices.build import World, pod, pods_in, service, zones
from zonewise.objects import EndpointHints, EndpointSlice, Hint, OwnerReference, Pod, Service, ServicePort
from zonewise.slices.decide.plan import SlicesPlan, has_slices, plan_slices

A = zones("a", "b", "c")
TRIGGER = "endpoints.kubernetes.io/last-change-trigger-time"
HEADLESS = "service.kubernetes.io/headless"


def counts(plan: SlicesPlan) -> tuple[int, int, int]:
    return len(plan.creates), len(plan.updates), len(plan.deletes)


def world_of(*sizes: int, most: int = 100) -> tuple[World, list[Pod]]:
    """A world with slices of these sizes: made of full ones, from which pods went. Returns the pods that are left."""
    world = World(A, most=most)
    pods = pods_in({"a": most * len(sizes)})
    world.sync(service(), pods)
    names = [[end.target_ref.name for end in found.endpoints or () if end.target_ref] for found in world.slices]
    left = {name for held, size in zip(names, sizes, strict=True) for name in held[:size]}
    kept = [one for one in pods if one.metadata.name in left]
    world.sync(service(), kept)
    assert world.sizes == sorted(sizes)
    return world, kept


def changed(found: EndpointSlice, **metadata: Any) -> EndpointSlice:
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, **metadata))


# Scope

SCOPE = {
    "with a selector": (service(), True),
    "with an empty selector": (service(selector={}), True),
    "without a selector": (service(selector=None), False),
    "an external name": (service(type="ExternalName"), False),
    "headless": (service(cluster_ip="None"), True),
}


@pytest.mark.parametrize(("asked", "expected"), SCOPE.values(), ids=SCOPE)
def test_scope(asked: Service, expected: bool) -> None:
    assert has_slices(asked) is expected
    assert bool(plan_slices(asked, pods_in({"a": 1}), A, []).writes) is expected


def test_slices_of_a_service_out_of_scope_are_left_alone() -> None:
    world, pods = world_of(3)
    assert world.plan(service(selector=None), pods) == SlicesPlan()


def test_slices_that_are_being_deleted_are_ignored() -> None:
    world, pods = world_of(3)
    world.put(changed(world.slices[0], deletion_timestamp="2026-01-01T00:00:00Z"))
    plan = world.plan(service(), pods)
    assert counts(plan) == (1, 0, 0)


def test_slices_of_an_earlier_service_are_deleted_and_not_reused() -> None:
    world, pods = world_of(3)
    old = OwnerReference(api_version="v1", kind="Service", name="web", uid="old")
    world.put(changed(world.slices[0], owner_references=(old,)))
    assert counts(world.plan(service(), pods)) == (1, 0, 1)
    assert counts(world.plan(service(), [])) == (1, 0, 1)


def test_nothing_is_created_for_a_service_that_is_being_deleted() -> None:
    going = service()
    going = msgspec.structs.replace(
        going, metadata=msgspec.structs.replace(going.metadata, deletion_timestamp="2026-01-01T00:00:00Z")
    )
    world, pods = world_of(3, most=3)
    more = [*pods, *pods_in({"b": 1})]
    assert counts(world.plan(service(), more)) == (1, 0, 0)
    assert counts(world.plan(going, more)) == (0, 0, 0)
    assert counts(world.plan(going, pods[:2])) == (0, 1, 0)


def test_slices_of_a_family_that_the_service_lost_are_deleted() -> None:
    world = World(A)
    pods = [pod("p", "10.0.0.1", "fd00::1")]
    world.sync(service(ip_families=("IPv4", "IPv6")), pods)
    assert sorted(found.address_type for found in world.slices) == ["IPv4", "IPv6"]
    assert counts(world.sync(service(), pods)) == (0, 0, 1)
    assert [found.address_type for found in world.slices] == ["IPv4"]


# Metadata


def labels_of(asked: Service) -> dict[str, str]:
    world = World(A)
    world.sync(asked, pods_in({"a": 1}))
    return world.slices[0].metadata.labels


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
    "reserved ones are ours": (service(labels=RESERVED), OURS),
    "headless": (service(cluster_ip="None"), OURS | {HEADLESS: ""}),
    "no cluster IP yet": (service(cluster_ip=""), OURS | {HEADLESS: ""}),
    "reserved and headless": (service(labels=RESERVED, cluster_ip="None"), OURS | {HEADLESS: ""}),
    "another proxy's": (
        service(labels={"service.kubernetes.io/service-proxy-name": "zonewise"}),
        OURS | {"service.kubernetes.io/service-proxy-name": "zonewise"},
    ),
}


@pytest.mark.parametrize(("asked", "expected"), LABELS.values(), ids=LABELS)
def test_labels(asked: Service, expected: dict[str, str]) -> None:
    assert labels_of(asked) == expected


def test_a_reserved_label_on_the_service_writes_nothing() -> None:
    world, pods = world_of(3)
    assert world.plan(service(labels=RESERVED), pods).writes == 0


def test_changed_labels_alone_are_an_update_of_every_slice() -> None:
    world, pods = world_of(3, 2, most=3)
    assert counts(world.sync(service(labels={"team": "shop"}), pods)) == (0, 2, 0)
    assert counts(world.sync(service(), pods)) == (0, 2, 0)
    assert all(found.metadata.labels == OURS for found in world.slices)


def test_the_trigger_time_stands_on_what_is_written_and_goes_when_there_is_none() -> None:
    world, pods = world_of(3, 2, most=3)
    world.sync(service(), pods[:-1], trigger_time="2026-01-01T00:00:00Z")
    assert sorted(found.metadata.annotations.get(TRIGGER, "") for found in world.slices) == ["", "2026-01-01T00:00:00Z"]
    world.sync(service(), pods)
    assert all(TRIGGER not in found.metadata.annotations for found in world.slices)
    assert world.plan(service(), pods, trigger_time="2026-02-01T00:00:00Z").writes == 0


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


@pytest.mark.parametrize(("after", "come_and_go"), IDENTITY.values(), ids=IDENTITY)
def test_what_makes_an_endpoint_another_one(after: Pod, come_and_go: tuple[int, int]) -> None:
    world = World(A)
    others = pods_in({"b": 2})
    world.sync(service(), [BASE, *others])
    plan = world.sync(service(), [after, *others])
    assert counts(plan) == (0, 1, 0)
    assert (plan.added, plan.removed) == come_and_go


def test_hints_that_nobody_asked_for_are_removed() -> None:
    world, pods = world_of(3)
    (found,) = world.slices
    world.stored[found.metadata.name]["endpoints"][1]["hints"] = {"forZones": [{"name": "a"}]}
    assert world.endpoints[1].hints == EndpointHints(for_zones=(Hint(name="a"),))
    assert counts(world.sync(service(), pods)) == (0, 1, 0)
    assert all(endpoint.hints is None for endpoint in world.endpoints)


def test_a_foreign_edit_is_reverted() -> None:
    world, pods = world_of(3)
    (found,) = world.slices
    world.stored[found.metadata.name]["endpoints"] = world.stored[found.metadata.name]["endpoints"][:1]
    assert counts(world.sync(service(), pods)) == (0, 1, 0)
    assert world.sizes == [3]


# Placement: `sizes` before, then how many go from each slice and how many come

PLACEMENT: dict[str, tuple[Sequence[int], Sequence[int], int, list[int], tuple[int, int, int]]] = {
    "nothing changes": ((10, 5), (0, 0), 0, [5, 10], (0, 0, 0)),
    "one goes": ((10, 5), (0, 1), 0, [4, 10], (0, 1, 0)),
    "one comes where it fits best": ((5, 7, 3), (0, 0, 0), 1, [3, 5, 8], (0, 1, 0)),
    "those who come go together": ((9, 8, 5), (0, 0, 0), 3, [8, 8, 9], (0, 1, 0)),
    "one goes, one comes into its place": ((10, 5), (1, 0), 1, [5, 10], (0, 1, 0)),
    "written slices are filled, the fullest first": ((10, 9, 5), (1, 1, 0), 2, [5, 9, 10], (0, 2, 0)),
    "more than the written slices take": ((10, 9, 5), (1, 0, 0), 3, [7, 9, 10], (0, 2, 0)),
    "too many for any one slice": ((7, 7), (0, 0), 4, [4, 7, 7], (1, 0, 0)),
    "a full slice more": ((5,), (0,), 10, [5, 10], (1, 0, 0)),
    "more than a slice, the rest where it fits": ((5,), (0,), 13, [8, 10], (1, 1, 0)),
    "more than a slice, and no room for the rest": ((7, 7), (0, 0), 15, [5, 7, 7, 10], (2, 0, 0)),
    "a slice left empty is deleted": ((10, 3), (0, 3), 0, [10], (0, 0, 1)),
    "a slice left empty is used again": ((10, 3), (0, 3), 3, [3, 10], (0, 1, 0)),
    "even where another has room": ((5, 3), (0, 3), 3, [3, 5], (0, 1, 0)),
    "no repacking": ((4, 3, 2), (0, 0, 0), 0, [2, 3, 4], (0, 0, 0)),
}


@pytest.mark.parametrize(("sizes", "go", "come", "expected", "writes"), PLACEMENT.values(), ids=PLACEMENT)
def test_placement(
    sizes: Sequence[int], go: Sequence[int], come: int, expected: list[int], writes: tuple[int, int, int]
) -> None:
    world, pods = world_of(*sizes, most=10)
    going = {
        end.target_ref.name
        for found, count in zip(world.slices, go, strict=True)
        for end in (found.endpoints or ())[:count]
        if end.target_ref
    }
    plan = world.sync(service(), [one for one in pods if one.metadata.name not in going] + pods_in({"b": come}))
    assert (world.sizes, counts(plan)) == (expected, writes)
    assert (plan.added, plan.removed) == (come, sum(go))


@pytest.mark.parametrize("most", [1, 10, 1000])
def test_as_many_per_slice_as_allowed(most: int) -> None:
    world = World(A, most=most)
    plan = world.sync(service(), pods_in({"a": 25}))
    assert len(plan.creates) == -(-25 // most)
    assert plan.desired_slices == plan.slices == len(plan.creates)
    assert max(world.sizes) <= most


def test_slices_larger_than_now_allowed_stay() -> None:
    world, pods = world_of(10, most=10)
    world.most = 4
    assert world.plan(service(), pods).writes == 0
    assert counts(world.sync(service(), pods + pods_in({"b": 1}))) == (1, 0, 0)


def test_when_all_slices_must_be_written_they_are_packed() -> None:
    world, pods = world_of(3, 3, 3, 3, most=10)
    assert world.plan(service(), pods).writes == 0
    plan = world.sync(service(ports=(ServicePort(name="http", port=80, target_port=9000),)), pods)
    assert (world.sizes, counts(plan)) == ([2, 10], (0, 2, 2))


# Placeholders


def test_without_endpoints_every_family_has_a_placeholder() -> None:
    world = World(A)
    plan = world.sync(service(ip_families=("IPv4", "IPv6")), [])
    assert (counts(plan), plan.desired_slices, plan.desired_endpoints) == ((2, 0, 0), 2, 0)
    assert {(found.address_type, found.ports, found.endpoints) for found in world.slices} == {
        ("IPv4", (), ()),
        ("IPv6", (), ()),
    }
    assert world.plan(service(ip_families=("IPv4", "IPv6")), []).writes == 0


def test_a_placeholder_that_the_server_sent_with_nulls_stays() -> None:
    world = World(A)
    world.sync(service(), [])
    (found,) = world.slices
    world.put(msgspec.structs.replace(found, ports=None, endpoints=None))
    assert world.plan(service(), []).writes == 0


def test_the_last_endpoint_leaves_a_placeholder_and_the_first_takes_it() -> None:
    world, pods = world_of(3)
    (before,) = world.slices
    assert counts(world.sync(service(), [])) == (0, 1, 0)
    assert (world.slices[0].ports, world.slices[0].endpoints) == ((), ())
    assert counts(world.sync(service(), pods)) == (0, 1, 0)
    assert world.slices[0].metadata.name == before.metadata.name


def test_of_several_slices_one_stays_as_placeholder() -> None:
    world, _ = world_of(3, 3, 2, most=3)
    assert counts(world.sync(service(), [])) == (0, 1, 2)
    assert world.sizes == [0]


def test_labels_of_a_placeholder_follow_the_service() -> None:
    world = World(A)
    world.sync(service(), [])
    assert counts(world.sync(service(labels={"team": "shop"}), [])) == (0, 1, 0)


@pytest.mark.parametrize("how_many", [3, 100, 150])
def test_a_headless_service_without_ports_needs_no_second_slice(how_many: int) -> None:
    """Its endpoints have the ports of a placeholder: none."""
    world = World(A)
    headless = service(cluster_ip="None", ports=())
    world.sync(headless, [])
    plan = world.sync(headless, pods_in({"a": how_many}))
    assert counts(plan) == (how_many // 101, 1, 0)
    assert sum(world.sizes) == how_many


def test_pods_without_a_node_are_left_out_and_told() -> None:
    world = World(A)
    plan = world.sync(service(), [*pods_in({"a": 1}), pod("lost", "10.9.9.9", node_name="gone")])
    assert (world.sizes, plan.pods_without_node) == ([1], ("lost",))
