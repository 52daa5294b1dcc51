"""What kube-proxy makes of hints for clients taken together is what it makes of them node by node."""

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

LISTS = [[HOSTNAME], [ZONE], [HOSTNAME, ZONE], [HOSTNAME, "*"], [HOSTNAME, ZONE, "*"], ["rack"], ["rack", ZONE, "*"]]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("12")), min_size=1, max_size=9),
    st.lists(st.integers(0, 8), min_size=1, max_size=5),
    st.sampled_from(LISTS),
)
def test_node_by_node(places: list[tuple[str, str]], homes: list[int], keys: list[str]) -> None:
    nodes = [labelled(f"n{at}", zone, rack) for at, (zone, rack) in enumerate(places)]
    there = [nodes[home % len(nodes)] for home in homes]
    endpoints = tuple(
        Endpoint(addresses=(f"10.0.0.{at}",), node_name=each.metadata.name, zone=each.metadata.labels[ZONE])
        for at, each in enumerate(there)
    )
    web = service("web", **{TOPOLOGY_KEYS: json.dumps(keys)})
    found = EndpointSlice(
        metadata=msgspec.structs.replace(web.metadata, name="web-1", labels={"kubernetes.io/service-name": "web"}),
        address_type="IPv4",
        ports=PORTS,
        endpoints=endpoints,
    )
    situation = build_snapshot(nodes, [web], [found])
    made = route_family(situation.services[0], ServiceFamily.IPV4, situation)
    hints = made.expression.hints
    targets = [
        ProxyTarget(
            address=address,
            local=False,
            ready=True,
            draining=False,
            zone_hints=frozenset(hint.name for hint in hints[address].for_zones) if address in hints else frozenset(),
            node_hints=frozenset(hint.name for hint in hints[address].for_nodes) if address in hints else frozenset(),
        )
        for address in made.decision.endpoints
    ]
    got = {
        each.metadata.name: set(
            categorize(targets, TrafficPolicies(), each.metadata.name, each.metadata.labels[ZONE]).cluster
        )
        for each in nodes
    }
    told = apply_data_plane(made.decision, made.expression, situation.cluster, DataPlane.KUBE_PROXY)
    decided = {name: set(choose(made.decision, situation.cluster, name).shares) for name in got}
    if not made.expression.losses:
        assert got == decided
    assert told.astray == tuple(sorted(name for name in got if got[name] - decided[name]))
    home = situation.cluster.homes(made.decision.endpoints, ZONE)
    zones = situation.cluster.domains(ZONE)
    in_zone = [sum(home[address] == zones[name] for address in got[name]) / len(got[name]) for name in got]
    assert told.forecast.in_zone == pytest.approx(sum(in_zone) / len(got))


def labelled(name: str, zone: str, rack: str) -> Node:
    made = node(name, zone)
    made.metadata.labels.update({HOSTNAME: name, "rack": rack})
    return made
