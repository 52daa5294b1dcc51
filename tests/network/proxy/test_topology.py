"""Who answers the clients of a node, counted: every rule of topology, each by a Service of its own on one node's kernel.

The endpoints stand on nodes of three zones. The node that asks is another in each case: what it is called decides.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from network.proxy.conftest import Node
from network.proxy.node import FAR_PODS, MANY_PODS, NEAR_PODS, Bed, fits
from unit.proxy.build import cluster, endpoint, node, service, slice_of
from unit.slices.build import SliceStore
from unit.slices.build import pod as slices_pod
from unit.slices.build import service as slices_service
from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED
from zonewise.lab.network import namespaces
from zonewise.objects import EndpointSlice
from zonewise.proxy.applier import clean_up
from zonewise.proxy.decide.targets import NodePlace
from zonewise.proxy.nft_socket import NftSocket

TRIES = 100
P1, P2 = (NEAR_PODS[name][0] for name in ("p1", "p2"))
F1, F2, F3 = (four for four, _ in FAR_PODS)
HOMES = {P1: "a1", P2: "a1", F1: "a2", F2: "b1", F3: "c1"}
EVERYWHERE = [endpoint(address, at) for address, at in HOMES.items()]
REGION, HOSTNAME, ZONE = "topology.kubernetes.io/region", "kubernetes.io/hostname", "topology.kubernetes.io/zone"
NODES = {
    "a1": node("a1", "a", **{REGION: "west", "rack": "r1"}),
    "a2": node("a2", "a", **{REGION: "west", "rack": "r2"}),
    "b1": node("b1", "b", **{REGION: "east"}),
    "c1": node("c1", "c", **{REGION: "west", "rack": "r2"}),
    "c2": node("c2", "c", **{REGION: "west"}),
    "d1": node("d1", "d", **{REGION: "east", "rack": "r2"}),
    "bare": node("bare"),
}
CLUSTER = cluster(**NODES)
SAME = "endpointslice.kubernetes.io/same-{}".format


@dataclass(frozen=True)
class Case:
    """`expected` are shares by address; nobody: refused."""

    at: str
    expected: Mapping[str, float]
    endpoints: list[dict[str, Any]] = field(default_factory=lambda: EVERYWHERE)
    annotations: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    slices: list[EndpointSlice] | None = None


def even(*addresses: str) -> dict[str, float]:
    return dict.fromkeys(addresses, 1.0)


def keys(at: str, listed: list[str], *expected: str) -> Case:
    return Case(at, even(*expected), annotations={"zonewise.dev/topology-keys": json.dumps(listed)})


def same(at: str, level: str, strength: str, *expected: str, **more: str) -> Case:
    return Case(at, even(*expected), annotations={SAME(level): strength, **more})


def hinted(at: str, hints: Mapping[str, list[str] | None], *expected: str, nodes: bool = False, **spec: Any) -> Case:
    """Zones by address; with `nodes` each endpoint is for its own node, too."""
    endpoints = [
        endpoint(address, home, zones=hints.get(address), nodes=[home] if nodes else None)
        for address, home in HOMES.items()
    ]
    return Case(at, even(*expected), endpoints, spec=spec)


OWN_ZONES: dict[str, list[str] | None] = {P1: ["a"], P2: ["a"], F1: ["a"], F2: ["b"], F3: ["c"]}

TOPOLOGY_KEYS = {
    "no keys: everyone": Case("a1", even(*HOMES)),
    "same host, hard": keys("a1", [HOSTNAME], P1, P2),
    "same host, hard, none there": keys("c2", [HOSTNAME]),
    "same host, soft, by an empty key": keys("c2", [HOSTNAME, ""], *HOMES),
    "same host, soft, by a star": keys("c2", [HOSTNAME, "*"], *HOMES),
    "a soft rule keeps to the host while it can": keys("a2", [HOSTNAME, "*"], F1),
    "host, then zone": keys("c2", [HOSTNAME, ZONE, REGION], F3),
    "host, zone, then region": keys("d1", [HOSTNAME, ZONE, REGION], F2),
    "old names of the labels": keys("c2", ["failure-domain.beta.kubernetes.io/zone"], F3),
    "any label": keys("d1", ["rack"], F1, F3),
    "the node lacks the label: next key": keys("c2", ["rack", ZONE], F3),
    "the node lacks all labels, hard": keys("bare", ["rack", ZONE]),
    "the node lacks all labels, soft": keys("bare", ["rack", "*"], *HOMES),
    "a node that nobody knows, soft": keys("unknown", [ZONE, "*"], *HOMES),
    "said in the spec": Case("b1", even(F2), spec={"topologyKeys": [ZONE]}),
    "keys before same-zone": Case(
        "a1", even(P1, P2), annotations={"zonewise.dev/topology-keys": f'["{HOSTNAME}"]', SAME("zone"): "Require"}
    ),
}
SAME_DOMAIN = {
    "zone, required": same("a1", "zone", "Require", P1, P2, F1),
    "zone, required, none there": same("d1", "zone", "Require"),
    "zone, preferred, too few to start": same("a1", "zone", "Prefer", *HOMES),
    "zone, balanced": same("a1", "zone", "Balanced", *HOMES),
    "node, required": same("a2", "node", "Require", F1),
    "node, required, none there": same("c2", "node", "Require"),
    "region, required": same("d1", "region", "Require", F2),
    "region, required, the larger": same("c2", "region", "Require", P1, P2, F1, F3),
    "a drained zone": same("a1", "zone", "Prefer", F2, F3, **{"zonewise.dev/drain-zone": "a"}),
    "nonsense asks for nothing": same("a1", "zone", "Never", *HOMES),
}
HINTS = {
    "own zone": hinted("a1", OWN_ZONES, P1, P2, F1),
    "another": hinted("c2", OWN_ZONES, F3),
    "a zone that no hint names: all": hinted("d1", OWN_ZONES, *HOMES),
    "a node without a zone: all": hinted("bare", OWN_ZONES, *HOMES),
    "one endpoint without a hint: all": hinted("a1", OWN_ZONES | {F3: None}, *HOMES),
    "several zones": hinted("b1", OWN_ZONES | {P1: ["a", "b"], F3: ["b", "c"]}, P1, F2, F3),
    "own node": hinted("a2", OWN_ZONES, F1, nodes=True),
    "no hint for the node: its zone": hinted("c2", OWN_ZONES, F3, nodes=True),
    "not where traffic is bound to the node": hinted(
        "a1", OWN_ZONES | {P2: ["b"]}, P1, P2, internalTrafficPolicy="Local"
    ),
}
CONDITIONS = {
    "terminating ones wait": Case(
        "a1", even(F1), [endpoint(F1, "a2"), endpoint(F2, "b1", ready=False, serving=True, terminating=True)]
    ),
    "only terminating ones": Case(
        "a1", even(F2), [endpoint(F2, "b1", ready=False, serving=True, terminating=True), endpoint(F1, ready=False)]
    ),
    "none that serves": Case("a1", {}, [endpoint(F1, "a2", ready=False, serving=False)]),
    "named ports of different numbers": Case(
        "a1",
        even(F1, F2),
        slices=[
            slice_of(endpoint(F1, "a2")),
            slice_of(endpoint(F2, "b1"), name="web-2", ports=[{"name": "http", "port": 9090, "protocol": "TCP"}]),
            slice_of(endpoint(F3, "c1"), name="web-3", ports=[{"name": "admin", "port": 9090, "protocol": "TCP"}]),
        ],
    ),
}

COUNTS = {"a1": 7, "b1": 4, "c1": 2}
MANY_HOMES = dict(zip(MANY_PODS, (at for at, count in COUNTS.items() for _ in range(count)), strict=True))
THREE_ZONES = cluster(a2=node("a2", "b"))
"""Of unequal size: b has twice the nodes of the others."""


def planned(annotations: dict[str, str], **spec: Any) -> list[EndpointSlice]:
    """What the slice controller writes."""
    store = SliceStore(THREE_ZONES)
    pods = [slices_pod(f"web-{n}", ip, node_name=at) for n, (ip, at) in enumerate(MANY_HOMES.items())]
    store.sync(slices_service(annotations, **spec), pods)
    return store.slices


def preferred(at: str, algorithm: str, expected: Mapping[str, float], *, groups: bool) -> Case:
    """By the node's own decision, or by what it watches of the controller's groups."""
    annotations = {SAME("zone"): "Prefer", "zonewise.dev/algorithm": algorithm}
    endpoints = [endpoint(address, home) for address, home in MANY_HOMES.items()]
    if not groups:
        return Case(at, expected, endpoints, annotations)
    watched = {CONSUMER_ALL, CONSUMER_SHARED, THREE_ZONES.domains(ZONE)[at]}
    slices = [found for found in planned(annotations) if found.metadata.labels[CONSUMER] in watched]
    return Case(at, expected, [], annotations, slices=slices)


def numbered(*numbers: int, fourth: float = 0.0) -> dict[str, float]:
    """Shares of the many pods by number: whole ones, and the fourth's, which zones share."""
    shares = {f"10.244.3.{number}": 1.0 for number in numbers}
    return shares | ({"10.244.3.4": fourth} if fourth else {})


WHOLE = {"a1": numbered(1, 2, 3, 4), "b1": numbered(5, 6, 8, 9, 10, 11), "c1": numbered(7, 12, 13)}
"""13 endpoints for 1, 2 and 1 nodes: 3.25, 6.5 and 3.25 would be even."""
BY_ALGORITHM = {
    "local": WHOLE,
    "local-shared": WHOLE,
    "local-weighted": {
        "a1": numbered(1, 2, 3, fourth=0.25),
        "b1": numbered(5, 6, 8, 9, 10, 11, fourth=0.5),
        "c1": numbered(7, 12, 13, fourth=0.25),
    },
    "local-opt": {
        "a1": numbered(1, 2, 3, fourth=1 / 3),
        "b1": numbered(5, 6, 8, 9, 10, 11, fourth=1 / 3),
        "c1": numbered(7, 12, 13, fourth=1 / 3),
    },
    "optimal": WHOLE,
}
PREFERRED = {
    f"{algorithm} at {at}{', from groups' if groups else ''}": preferred(at, algorithm, shares, groups=groups)
    for algorithm, by_node in BY_ALGORITHM.items()
    for at, shares in by_node.items()
    for groups in (False, True)
}
DISTRIBUTED = {
    f"{wish} at {at}": Case(
        at,
        {address: 1.0 for address, home in MANY_HOMES.items() if home == at},
        slices=planned({}, traffic_distribution=wish),
    )
    for wish in ("PreferClose", "PreferSameZone", "PreferSameNode")
    for at in COUNTS
}
CASES = TOPOLOGY_KEYS | SAME_DOMAIN | HINTS | CONDITIONS | PREFERRED | DISTRIBUTED


@dataclass(frozen=True)
class Seen:
    """Who has which part of the chances in the kernel, and who answered."""

    slots: Counter[str]
    answers: Counter[str]


@pytest.fixture(scope="module")
def seen(bed: Bed) -> dict[str, Seen]:
    """Of all cases at once: each is a Service with an address of its own, decided for its own node."""
    requests, slots = [], []
    with namespaces.inside(bed.inside("node"), NftSocket) as kernel:
        serving = Node(kernel)
        for number, (name, case) in enumerate(CASES.items(), 1):
            address = f"10.96.1.{number}"
            asked = service(f"case-{number}", annotations=case.annotations, clusterIP=address, **case.spec)
            serving.place = NodePlace(case.at, THREE_ZONES if name in PREFERRED | DISTRIBUTED else CLUSTER)
            (rules,) = serving.follow(asked, case.slices or [slice_of(*case.endpoints)])
            slots.append(Counter(target.address for target in rules.cluster or rules.local))
            requests.append({"address": address, "port": 80, "count": TRIES if case.expected else 4})
        told = [Counter(each.split()[0] for each in answers) for answers in bed.ask("out", *requests)]
        clean_up(kernel)
    return {name: Seen(*found) for name, *found in zip(CASES, slots, told, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_connections_go_where_topology_says(seen: dict[str, Seen], name: str) -> None:
    """Chances are exactly the shares, and connections what chance makes of them."""
    expected, found = CASES[name].expected, seen[name]
    if not expected:
        assert set(found.answers) == {"refused"}
        return
    whole, slots = sum(expected.values()), found.slots.total()
    assert {each: count / slots for each, count in found.slots.items()} == pytest.approx(
        {each: share / whole for each, share in expected.items()}
    )
    assert fits(found.answers, expected), found.answers
