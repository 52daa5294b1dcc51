"""Services affected by a change, and changes that reach no handler."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from zonewise.kube.decide.reflector import T
from zonewise.kube.watch.cache import Cache, matters_by
from zonewise.kube.watch.informers import Caches
from zonewise.kube.watch.service_informers import ServiceInformers, SyncCause, drain_matters
from zonewise.kube.wire.codec import EventType, WatchEvent
from zonewise.objects import (
    ENDPOINT_SLICES,
    SERVICE_NAME,
    SERVICES,
    EndpointSlice,
    Key,
    Metadata,
    Namespace,
    Node,
    Service,
)

DRAIN = "zonewise.dev/drain-zone"


def metadata(name: str, namespace: str = "n", **more: Any) -> Metadata:
    return Metadata(name=name, namespace=namespace, uid=name, resource_version="1", **more)


def service(name: str, namespace: str = "n") -> Service:
    return Service(metadata=metadata(name, namespace))


def slice_of(owner: str, name: str = "slice") -> EndpointSlice:
    return EndpointSlice(metadata=metadata(name, labels={SERVICE_NAME: owner} if owner else {}))


def owner_of(item: EndpointSlice) -> Key:
    return Key(item.metadata.namespace, item.metadata.labels.get(SERVICE_NAME, ""))


def put(cache: Cache[T], item: T) -> None:
    if not cache.synced:
        cache.publish(cache._reflector.listed("1"))
    cache.publish(cache._reflector.watched(WatchEvent(EventType.MODIFIED, item), 0.0))


class Fixture:
    def __init__(self) -> None:
        client: Any = None
        caches = Caches(client)
        self.dirty: list[tuple[str, SyncCause]] = []
        self.informers = ServiceInformers(
            caches,
            lambda key, cause: self.dirty.append((key.name, cause)),
            services=caches.of(SERVICES),
            slices=caches.of(ENDPOINT_SLICES),
            owner=owner_of,
        )


def test_slice_change_enqueues_its_old_and_new_service() -> None:
    fixture = Fixture()
    fixture.informers.follow()
    put(fixture.informers.slices, slice_of("web"))
    put(fixture.informers.slices, slice_of("shop"))
    put(fixture.informers.slices, slice_of(""))
    causes = [("web", SyncCause.SLICES), ("web", SyncCause.SLICES), ("shop", SyncCause.SLICES)]
    assert fixture.dirty == [*causes, ("shop", SyncCause.SLICES)]


def test_slices_are_indexed_by_their_current_service() -> None:
    informers = Fixture().informers
    put(informers.slices, slice_of("web", "a"))
    put(informers.slices, slice_of("web", "b"))
    put(informers.slices, slice_of("", "orphan"))
    assert [endpoint_slice.metadata.name for endpoint_slice in informers.slices_of(Key("n", "web"))] == ["a", "b"]
    put(informers.slices, slice_of("shop", "b"))
    assert [endpoint_slice.metadata.name for endpoint_slice in informers.slices_of(Key("n", "web"))] == ["a"]
    assert informers.slices_of(Key("n", "")) == []


def test_irrelevant_service_change_is_dropped() -> None:
    fixture = Fixture()
    fixture.informers.follow(service_matters=matters_by(lambda item: item.metadata.labels))
    web = service("web")
    put(fixture.informers.services, web)
    put(fixture.informers.services, replace(web, metadata=replace(web.metadata, annotations={"x": "y"})))
    assert fixture.dirty == [("web", SyncCause.SERVICE)]
    put(fixture.informers.services, replace(web, metadata=replace(web.metadata, labels={"x": "y"})))
    assert fixture.dirty == [("web", SyncCause.SERVICE)] * 2


@pytest.mark.parametrize(("from_now_on", "names"), [(False, ["web", "shop"]), (True, ["shop"])])
def test_existing_services_are_reported_unless_from_now_on(from_now_on: bool, names: list[str]) -> None:
    fixture = Fixture()
    put(fixture.informers.services, service("web"))
    fixture.informers.follow(from_now_on=from_now_on)
    put(fixture.informers.services, service("shop"))
    assert [name for name, _ in fixture.dirty] == names


def test_services_in_lists_a_namespace() -> None:
    informers = Fixture().informers
    for name, namespace in (("web", "n"), ("web", "other"), ("shop", "n")):
        put(informers.services, service(name, namespace))
    assert informers.services_in("n") == [Key("n", "web"), Key("n", "shop")]


def test_two_readers_share_caches_and_index() -> None:
    client: Any = None
    caches = Caches(client)
    first, second = (
        ServiceInformers(
            caches,
            lambda _key, _cause: None,
            services=caches.of(SERVICES),
            slices=caches.of(ENDPOINT_SLICES),
            owner=owner_of,
        )
        for _ in range(2)
    )
    assert all(
        first_cache is second_cache for first_cache, second_cache in zip(first.watches, second.watches, strict=True)
    )


PLAIN = Namespace(metadata=Metadata(name="n"))
DRAINED, MOVED = (Namespace(metadata=Metadata(name="n", annotations={DRAIN: zone})) for zone in "ab")


@pytest.mark.parametrize(
    ("old", "new", "matters"),
    [
        pytest.param(None, PLAIN, False, id="created without a drain"),
        pytest.param(PLAIN, None, False, id="deleted without a drain"),
        pytest.param(None, DRAINED, True, id="created with a drain"),
        pytest.param(DRAINED, None, True, id="deleted with a drain"),
        pytest.param(PLAIN, DRAINED, True, id="drained"),
        pytest.param(DRAINED, MOVED, True, id="another zone"),
        pytest.param(DRAINED, DRAINED, False, id="unchanged"),
    ],
)
def test_namespace_change_matters_if_drain_changes(old: Namespace | None, new: Namespace | None, matters: bool) -> None:
    assert drain_matters(old, new) is matters


def test_node_additions_and_removals_always_matter() -> None:
    matters = matters_by(lambda node: node.metadata.labels)
    node = Node(metadata=Metadata(name="a"))
    assert matters(None, node)
    assert matters(node, None)
    assert not matters(node, replace(node, metadata=replace(node.metadata, resource_version="2")))
