"""Changes of nodes that the proxy's informers report."""

from __future__ import annotations

from typing import Any

import msgspec

from unit.proxy.build import node
from zonewise.kube.decide.reflector import T
from zonewise.kube.watch.cache import Cache
from zonewise.kube.watch.informers import Caches
from zonewise.kube.wire.codec import EventType, WatchEvent
from zonewise.objects import Node
from zonewise.proxy.informers import ProxyInformers


def with_pods(*cidrs: str, name: str = "b1", **labels: str) -> Node:
    made = node(name, "b", **labels)
    metadata = msgspec.structs.replace(made.metadata, uid=name, resource_version="1")
    return msgspec.structs.replace(made, metadata=metadata, spec=msgspec.structs.replace(made.spec, pod_cidrs=cidrs))


def watched(cache: Cache[T], kind: EventType, item: T) -> None:
    cache.publish(cache._reflector.watched(WatchEvent(kind, item), 0.0))


def test_other_nodes_pod_ranges_are_reported_when_they_change() -> None:
    client: Any = None
    informers = ProxyInformers(client, Caches(client), "a1", all_services=False)
    nodes = informers.nodes
    nodes.publish(nodes._reflector.listed("1"))
    reported: list[tuple[str, ...]] = []
    informers.on_pod_ranges = lambda: reported.append(informers.pod_ranges())
    nodes.on_change(informers._node_changed)
    one, two = "10.244.1.0/24", "10.244.2.0/24"
    watched(nodes, EventType.ADDED, with_pods())
    assert reported == [], "a node that has none yet"
    watched(nodes, EventType.MODIFIED, with_pods(one))
    watched(nodes, EventType.MODIFIED, with_pods(one, rack="r1"))
    assert reported == [(one,)], "other changes of the node do not count"
    assert informers.pod_ranges() is reported[0], "nor are the ranges of thousands of nodes gathered again"
    watched(nodes, EventType.ADDED, with_pods(two, name="c1"))
    watched(nodes, EventType.DELETED, with_pods(one))
    assert reported[1:] == [(one, two), (two,)]
