"""Cache readers: indexes, handlers and their errors, and consistent reads during a relist."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from zonewise.kube.decide.reflector import Reflector
from zonewise.kube.watch.cache import Cache
from zonewise.kube.wire.codec import EventType, WatchEvent
from zonewise.kube.wire.errors import Gone
from zonewise.objects import Key, Metadata, Pod, PodSpec
from zonewise.objects.change import Change


def pod(name: str, node: str = "", version: int = 1) -> Pod:
    return Pod(
        metadata=Metadata(name=name, namespace="n", uid=name, resource_version=str(version)),
        spec=PodSpec(node_name=node),
    )


def key(name: str) -> Key:
    return Key("n", name)


def by_node(pod_object: Pod) -> Iterable[str]:
    return [pod_object.spec.node_name] if pod_object.spec.node_name else []


class Fed:
    """Cache fed by hand with lists and events."""

    def __init__(self, *pods: Pod) -> None:
        self.errors = 0
        self.reflector: Reflector[Pod] = Reflector()
        self.cache = Cache("pods", self.reflector, self.count_error)
        self.version = 10
        if pods:
            self.list(*pods)

    def count_error(self) -> None:
        self.errors += 1

    def list(self, *pods: Pod) -> None:
        """Full list, as after a 410."""
        self.reflector.failed(Gone("too old", status=410), 0.0, 0.0)
        self.reflector.next(0.0, 0.0)
        self.reflector.next(0.0, 0.0)
        self.reflector.page(pods, 0.0)
        self.version += 1
        self.cache.publish(self.reflector.listed(str(self.version)))

    def event(self, kind: EventType, pod_object: Pod) -> None:
        self.cache.publish(self.reflector.watched(WatchEvent(kind, pod_object), 0.0))

    def put(self, pod_object: Pod) -> None:
        self.event(EventType.MODIFIED, pod_object)

    def delete(self, name: str) -> None:
        self.event(EventType.DELETED, pod(name))


def names(pods: Iterable[Pod]) -> list[str]:
    return sorted(pod_object.metadata.name for pod_object in pods)


def test_reads_by_key() -> None:
    cache = Fed(pod("a", "n1"), pod("b")).cache
    assert cache.get(key("a")) == pod("a", "n1")
    assert cache.get(key("c")) is None
    assert (len(cache), key("a") in cache, key("c") in cache) == (2, True, False)
    assert cache.keys() == (key("a"), key("b"))
    assert names(cache) == ["a", "b"]


def test_iteration_is_over_a_snapshot() -> None:
    fed = Fed(pod("a"), pod("b"))
    visited = []
    for pod_object in fed.cache:
        fed.put(pod(f"new-{pod_object.metadata.name}"))
        visited.append(pod_object.metadata.name)
    assert visited == ["a", "b"]


def test_index_follows_every_change() -> None:
    fed = Fed(pod("a", "n1"))
    fed.cache.add_index("node", by_node)
    fed.put(pod("b", "n1"))
    assert names(fed.cache.by_index("node", "n1")) == ["a", "b"]
    fed.put(pod("a", "n2", version=12))
    assert names(fed.cache.by_index("node", "n1")) == ["b"]
    assert fed.cache.by_index("node", "n2") == [pod("a", "n2", version=12)]
    fed.delete("b")
    assert fed.cache.by_index("node", "n1") == []
    fed.list(pod("c", "n1"))
    assert names(fed.cache.by_index("node", "n1")) == ["c"]
    assert fed.cache.by_index("node", "n2") == []


def test_empty_index_entry_is_removed() -> None:
    fed = Fed(pod("a", "n1"))
    fed.cache.add_index("node", by_node)
    fed.delete("a")
    assert fed.cache._indexes["node"].entries == {}


def test_index_name_has_one_function() -> None:
    cache = Fed(pod("a", "n1")).cache
    cache.add_index("node", by_node)
    cache.add_index("node", by_node)
    with pytest.raises(ValueError, match="pods already has another index 'node'"):
        cache.add_index("node", lambda pod_object: [pod_object.metadata.name])


def test_unknown_index_error_lists_the_existing_ones() -> None:
    cache = Fed().cache
    cache.add_index("node", by_node)
    with pytest.raises(KeyError, match=r"pods has no index 'zone', only \['node'\]: add_index first"):
        cache.by_index("zone", "a")


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("put"), st.sampled_from("abcd"), st.lists(st.sampled_from("xyz"), max_size=3)),
            st.tuples(st.just("delete"), st.sampled_from("abcd"), st.just([])),
            st.tuples(st.just("list"), st.sampled_from("abcd"), st.lists(st.sampled_from("xyz"), max_size=3)),
        )
    )
)
def test_incremental_index_equals_one_built_at_the_end(steps: list[tuple[str, str, list[str]]]) -> None:
    fed = Fed(pod("a", "x,y"))

    def values(pod_object: Pod) -> Iterable[str]:
        return filter(None, pod_object.spec.node_name.split(","))

    fed.cache.add_index("early", values)
    for version, (action, name, values_held) in enumerate(steps, start=100):
        fed.version = version
        match action:
            case "put":
                fed.put(pod(name, ",".join(values_held), version))
            case "delete":
                fed.delete(name)
            case "list":
                other_pods = [pod_object for pod_object in fed.cache if pod_object.metadata.name != name]
                fed.list(*other_pods, pod(name, ",".join(values_held), version))
    fed.cache.add_index("late", values)
    assert fed.cache._indexes["early"].entries == fed.cache._indexes["late"].entries


def test_handlers_get_every_change_in_order() -> None:
    fed = Fed()
    received: list[Change[Pod]] = []
    fed.cache.on_change(received.append)
    fed.list(pod("a"))
    fed.put(pod("a", version=2))
    fed.delete("a")
    assert received == [
        Change(key("a"), None, pod("a")),
        Change(key("a"), pod("a"), pod("a", version=2)),
        Change(key("a"), pod("a", version=2), None),
    ]


def test_late_handler_gets_existing_objects_as_additions() -> None:
    fed = Fed(pod("a"), pod("b"))
    received: list[Change[Pod]] = []
    fed.cache.on_change(received.append)
    assert received == [Change(key("a"), None, pod("a")), Change(key("b"), None, pod("b"))]
    fed.delete("a")
    assert received[2:] == [Change(key("a"), pod("a"), None)]


def test_handler_added_by_a_handler_gets_each_object_once() -> None:
    fed = Fed()
    received: list[Change[Pod]] = []

    def adds_another(_: Change[Pod]) -> None:
        if not received:
            fed.cache.on_change(received.append)

    fed.cache.on_change(adds_another)
    fed.list(pod("a"), pod("b"))
    assert received == [Change(key("a"), None, pod("a")), Change(key("b"), None, pod("b"))]


def test_handlers_never_see_a_partial_list() -> None:
    fed = Fed(pod("a", "n1"), pod("b", "n1"), pod("c", "n2"))
    fed.cache.add_index("node", by_node)
    views: list[tuple[list[str], list[str]]] = []
    fed.cache.on_change(lambda _: views.append((names(fed.cache), names(fed.cache.by_index("node", "n1")))))
    views.clear()
    fed.list(pod("b", "n1"), pod("d", "n1"), pod("e", "n2"))
    assert views == [(["b", "d", "e"], ["b", "d"])] * 4


def test_handler_error_is_counted_logged_and_stops_nothing() -> None:
    fed = Fed()
    received: list[Key] = []

    def fails(change: Change[Pod]) -> None:
        raise RuntimeError(f"no idea what to do with {change.key}")

    fed.cache.on_change(fails)
    fed.cache.on_change(lambda change: received.append(change.key))
    with capture_logs() as logs:
        fed.list(pod("a"), pod("b"))
        fed.put(pod("c"))
    assert received == [key("a"), key("b"), key("c")]
    assert fed.errors == 3
    failures = [(line["key"], line["exc_info"]) for line in logs if line["event"] == "a handler failed"]
    assert failures == [("n/a", True), ("n/b", True), ("n/c", True)]


def test_failing_index_function_omits_the_object_from_its_index() -> None:
    fed = Fed()

    def fails_on_b(pod_object: Pod) -> Iterable[str]:
        yield pod_object.spec.node_name
        if pod_object.metadata.name == "b":
            raise RuntimeError("not this pod")

    fed.cache.add_index("picky", fails_on_b)
    fed.cache.add_index("node", by_node)
    with capture_logs() as logs:
        fed.list(pod("a", "n1"), pod("b", "n1"))
        assert names(fed.cache.by_index("picky", "n1")) == ["a"]
        assert names(fed.cache.by_index("node", "n1")) == ["a", "b"]
        fed.delete("b")
    assert fed.cache._indexes["picky"].entries == {"n1": {key("a"): pod("a", "n1")}}
    assert fed.errors == 2
    assert [line["index"] for line in logs if line["event"] == "an index function failed"] == ["picky", "picky"]


async def test_wait_synced_waits_for_the_first_list() -> None:
    fed = Fed()
    waiting = asyncio.create_task(fed.cache.wait_synced())
    await asyncio.sleep(0)
    assert not fed.cache.synced
    assert not waiting.done()
    fed.list()
    await waiting
    assert fed.cache.synced
    assert fed.cache.resource_version == "11"


def test_staleness_is_infinite_before_the_first_event() -> None:
    fed = Fed()
    assert fed.cache.staleness_seconds(5.0) == float("inf")
    fed.reflector.watched(WatchEvent(EventType.BOOKMARK, pod("", version=9)), 100.0)
    assert fed.cache.staleness_seconds(107.5) == 7.5
    assert fed.cache.staleness_seconds(99.0) == 0.0
