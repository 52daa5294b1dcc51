"""The effect of kube-proxy on grouped clients equals its effect node by node."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.planning.cluster import PORTS, node, service
from zonewise.api.names import TOPOLOGY_KEYS
from zonewise.objects import Endpoint, EndpointSlice, Node
from zonewise.planning.data_plane import DataPlane
from zonewise.planning.effective_routing import apply_data_plane
from zonewise.planning.forecast import route_family
from zonewise.planning.snapshot import build_snapshot
from zonewise.routing import choose
from zonewise.routing.kube_proxy import ProxyTarget, TrafficPolicies, categorize
from zonewise.slices.decide.families import ServiceFamily
from zonewise.topology import HOSTNAME, ZONE

KEY_LISTS = [
    [HOSTNAME],
    [ZONE],
    [HOSTNAME, ZONE],
    [HOSTNAME, "*"],
    [HOSTNAME, ZONE, "*"],
    ["rack"],
    ["rack", ZONE, "*"],
]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12")), min_size=1, max_size=9),
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.sampled_from(KEY_LISTS),
)
def test_grouped_clients_agree_with_each_node_alone(
    places: list[tuple[str, str]], homes: list[int], keys: list[str]
) -> None:
    nodes = [labelled(f"n{at}", zone, rack) for at, (zone, rack) in enumerate(places)]
    hosts = [nodes[home % len(nodes)] for home in homes]
    endpoints = tuple(
        Endpoint(addresses=(f"10.0.0.{at}",), node_name=host.metadata.name, zone=host.metadata.labels[ZONE])
        for at, host in enumerate(hosts)
    )
    web = service("web", **{TOPOLOGY_KEYS: json.dumps(keys)})
    slice_ = EndpointSlice(
        metadata=msgspec.structs.replace(web.metadata, name="web-1", labels={"kubernetes.io/service-name": "web"}),
        address_type="IPv4",
        ports=PORTS,
        endpoints=endpoints,
    )
    snapshot = build_snapshot(nodes, [web], [slice_])
    routed = route_family(snapshot.services[0], ServiceFamily.IPV4, snapshot)
    hints = routed.expression.hints
    targets = [
        ProxyTarget(
            address=address,
            local=False,
            ready=True,
            draining=False,
            zone_hints=frozenset(hint.name for hint in hints[address].for_zones) if address in hints else frozenset(),
            node_hints=frozenset(hint.name for hint in hints[address].for_nodes) if address in hints else frozenset(),
        )
        for address in routed.decision.endpoints
    ]
    received = {
        item.metadata.name: set(
            categorize(targets, TrafficPolicies(), item.metadata.name, item.metadata.labels[ZONE]).cluster
        )
        for item in nodes
    }
    effective = apply_data_plane(routed.decision, routed.expression, snapshot.cluster, DataPlane.KUBE_PROXY)
    decided = {name: set(choose(routed.decision, snapshot.cluster, name).shares) for name in received}
    if not routed.expression.losses:
        assert received == decided
    assert effective.astray == tuple(sorted(name for name in received if received[name] - decided[name]))
    home = snapshot.cluster.homes(routed.decision.endpoints, ZONE)
    zones = snapshot.cluster.domains(ZONE)
    in_zone = [
        sum(home[address] == zones[name] for address in received[name]) / len(received[name]) for name in received
    ]
    assert effective.forecast.in_zone == pytest.approx(sum(in_zone) / len(received))


def labelled(name: str, zone: str, rack: str) -> Node:
    routed = node(name, zone)
    routed.metadata.labels.update({HOSTNAME: name, "rack": rack})
    return routed
