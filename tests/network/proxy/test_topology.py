"""Endpoints that serve a node's clients, counted per topology rule: one Service per case in one node's kernel.

The endpoints are on nodes in three zones. Each case decides for a client node by its name.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest

from network.proxy.conftest import ProxyNode
from network.proxy.node import FAR_PODS, MANY_PODS, NEAR_PODS, NodeNet, fits
from unit.proxy.build import cluster, endpoint, node, service, slice_of
from unit.slices.build import SliceStore
from unit.slices.build import pod as slices_pod
from unit.slices.build import service as slices_service
from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED
from zonewise.lab.network import namespaces
from zonewise.objects import EndpointSlice
from zonewise.proxy.applier import clean_up
from zonewise.proxy.decide.targets import NodeLocation
from zonewise.proxy.nft_socket import NftSocket

TRIES = 100
P1, P2 = (NEAR_PODS[name][0] for name in ("p1", "p2"))
F1, F2, F3 = (four for four, _ in FAR_PODS)
NODE_OF = {P1: "a1", P2: "a1", F1: "a2", F2: "b1", F3: "c1"}
EVERYWHERE = [endpoint(address, at) for address, at in NODE_OF.items()]
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
    """`expected` are shares by address; empty means refused."""

    at: str
    expected: Mapping[str, float]
    endpoints: list[dict[str, Any]] = field(default_factory=lambda: EVERYWHERE)
    annotations: dict[str, str] = field(default_factory=dict)
    spec: dict[str, Any] = field(default_factory=dict)
    slices: list[EndpointSlice] | None = None


def even(*addresses: str) -> dict[str, float]:
    return dict.fromkeys(addresses, 1.0)


def keys(at: str, names: list[str], *expected: str) -> Case:
    return Case(at, even(*expected), annotations={"zonewise.dev/topology-keys": json.dumps(names)})


def same(at: str, level: str, strength: str, *expected: str, **more: str) -> Case:
    return Case(at, even(*expected), annotations={SAME(level): strength, **more})


def hinted(at: str, hints: Mapping[str, list[str] | None], *expected: str, nodes: bool = False, **spec: Any) -> Case:
    """Zone hints by address; with `nodes` each endpoint also has a hint for its own node."""
    endpoints = [
        endpoint(address, node_name, zones=hints.get(address), nodes=[node_name] if nodes else None)
        for address, node_name in NODE_OF.items()
    ]
    return Case(at, even(*expected), endpoints, spec=spec)


OWN_ZONES: dict[str, list[str] | None] = {P1: ["a"], P2: ["a"], F1: ["a"], F2: ["b"], F3: ["c"]}

TOPOLOGY_KEYS = {
    "no keys: all": Case("a1", even(*NODE_OF)),
    "same host, hard": keys("a1", [HOSTNAME], P1, P2),
    "same host, hard, none there": keys("c2", [HOSTNAME]),
    "same host, soft, by an empty key": keys("c2", [HOSTNAME, ""], *NODE_OF),
    "same host, soft, by a star": keys("c2", [HOSTNAME, "*"], *NODE_OF),
    "soft rule stays on the host if possible": keys("a2", [HOSTNAME, "*"], F1),
    "host, then zone": keys("c2", [HOSTNAME, ZONE, REGION], F3),
    "host, zone, then region": keys("d1", [HOSTNAME, ZONE, REGION], F2),
    "old names of the labels": keys("c2", ["failure-domain.beta.kubernetes.io/zone"], F3),
    "any label": keys("d1", ["rack"], F1, F3),
    "the node lacks the label: next key": keys("c2", ["rack", ZONE], F3),
    "the node lacks all labels, hard": keys("bare", ["rack", ZONE]),
    "the node lacks all labels, soft": keys("bare", ["rack", "*"], *NODE_OF),
    "unknown node, soft": keys("unknown", [ZONE, "*"], *NODE_OF),
    "in the spec": Case("b1", even(F2), spec={"topologyKeys": [ZONE]}),
    "keys before same-zone": Case(
        "a1", even(P1, P2), annotations={"zonewise.dev/topology-keys": f'["{HOSTNAME}"]', SAME("zone"): "Require"}
    ),
}
SAME_DOMAIN = {
    "zone, required": same("a1", "zone", "Require", P1, P2, F1),
    "zone, required, none there": same("d1", "zone", "Require"),
    "zone, preferred, too few to start": same("a1", "zone", "Prefer", *NODE_OF),
    "zone, balanced": same("a1", "zone", "Balanced", *NODE_OF),
    "node, required": same("a2", "node", "Require", F1),
    "node, required, none there": same("c2", "node", "Require"),
    "region, required": same("d1", "region", "Require", F2),
    "region, required, the larger": same("c2", "region", "Require", P1, P2, F1, F3),
    "a drained zone": same("a1", "zone", "Prefer", F2, F3, **{"zonewise.dev/drain-zone": "a"}),
    "invalid value is ignored": same("a1", "zone", "Never", *NODE_OF),
}
HINTS = {
    "own zone": hinted("a1", OWN_ZONES, P1, P2, F1),
    "another": hinted("c2", OWN_ZONES, F3),
    "zone without hints: all": hinted("d1", OWN_ZONES, *NODE_OF),
    "a node without a zone: all": hinted("bare", OWN_ZONES, *NODE_OF),
    "one endpoint without a hint: all": hinted("a1", OWN_ZONES | {F3: None}, *NODE_OF),
    "several zones": hinted("b1", OWN_ZONES | {P1: ["a", "b"], F3: ["b", "c"]}, P1, F2, F3),
    "own node": hinted("a2", OWN_ZONES, F1, nodes=True),
    "no hint for the node: its zone": hinted("c2", OWN_ZONES, F3, nodes=True),
    "hints do not apply to node-local traffic": hinted(
        "a1", OWN_ZONES | {P2: ["b"]}, P1, P2, internalTrafficPolicy="Local"
    ),
}
CONDITIONS = {
    "terminating endpoints are not used": Case(
        "a1", even(F1), [endpoint(F1, "a2"), endpoint(F2, "b1", ready=False, serving=True, terminating=True)]
    ),
    "only terminating endpoints": Case(
        "a1", even(F2), [endpoint(F2, "b1", ready=False, serving=True, terminating=True), endpoint(F1, ready=False)]
    ),
    "none serving": Case("a1", {}, [endpoint(F1, "a2", ready=False, serving=False)]),
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
NODE_OF_MANY = dict(zip(MANY_PODS, (at for at, count in COUNTS.items() for _ in range(count)), strict=True))
THREE_ZONES = cluster(a2=node("a2", "b"))
"""Zone b has twice the nodes of the others."""


def controller_slices(annotations: dict[str, str], **spec: Any) -> list[EndpointSlice]:
    """The slices that the controller writes."""
    store = SliceStore(THREE_ZONES)
    pods = [slices_pod(f"web-{n}", ip, node_name=at) for n, (ip, at) in enumerate(NODE_OF_MANY.items())]
    store.sync(slices_service(annotations, **spec), pods)
    return store.slices


def preferred(at: str, algorithm: str, expected: Mapping[str, float], *, groups: bool) -> Case:
    """By the node's own decision, or by the controller's groups that it watches."""
    annotations = {SAME("zone"): "Prefer", "zonewise.dev/algorithm": algorithm}
    endpoints = [endpoint(address, node_name) for address, node_name in NODE_OF_MANY.items()]
    if not groups:
        return Case(at, expected, endpoints, annotations)
    watched = {CONSUMER_ALL, CONSUMER_SHARED, THREE_ZONES.domains(ZONE)[at]}
    slices = [result for result in controller_slices(annotations) if result.metadata.labels[CONSUMER] in watched]
    return Case(at, expected, [], annotations, slices=slices)


def numbered(*numbers: int, fourth: float = 0.0) -> dict[str, float]:
    """Shares by pod number: whole ones, and that of the fourth pod, which zones share."""
    shares = {f"10.244.3.{number}": 1.0 for number in numbers}
    return shares | ({"10.244.3.4": fourth} if fourth else {})


WHOLE_SHARES = {"a1": numbered(1, 2, 3, 4), "b1": numbered(5, 6, 8, 9, 10, 11), "c1": numbered(7, 12, 13)}
"""13 endpoints for 1, 2 and 1 nodes: 3.25, 6.5 and 3.25 would be even."""
BY_ALGORITHM = {
    "local": WHOLE_SHARES,
    "local-shared": WHOLE_SHARES,
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
    "optimal": WHOLE_SHARES,
}
PREFERRED = {
    f"{algorithm} at {at}{', from groups' if groups else ''}": preferred(at, algorithm, shares, groups=groups)
    for algorithm, by_node in BY_ALGORITHM.items()
    for at, shares in by_node.items()
    for groups in (False, True)
}
DISTRIBUTED = {
    f"{distribution} at {at}": Case(
        at,
        {address: 1.0 for address, node_name in NODE_OF_MANY.items() if node_name == at},
        slices=controller_slices({}, traffic_distribution=distribution),
    )
    for distribution in ("PreferClose", "PreferSameZone", "PreferSameNode")
    for at in COUNTS
}
CASES = TOPOLOGY_KEYS | SAME_DOMAIN | HINTS | CONDITIONS | PREFERRED | DISTRIBUTED


@dataclass(frozen=True)
class Observation:
    """Slots per address in the kernel, and answers per address."""

    slots: Counter[str]
    answers: Counter[str]


@pytest.fixture(scope="module")
def observed(node_net: NodeNet) -> dict[str, Observation]:
    """All cases at once: each is a Service with its own address, decided for its own node."""
    requests, slots = [], []
    with namespaces.inside(node_net.netns("node"), NftSocket) as kernel:
        serving = ProxyNode(kernel)
        for number, (name, case) in enumerate(CASES.items(), 1):
            address = f"10.96.1.{number}"
            svc = service(f"case-{number}", annotations=case.annotations, clusterIP=address, **case.spec)
            serving.location = NodeLocation(case.at, THREE_ZONES if name in PREFERRED | DISTRIBUTED else CLUSTER)
            (rules,) = serving.apply(svc, case.slices or [slice_of(*case.endpoints)])
            slots.append(Counter(target.address for target in rules.cluster or rules.local))
            requests.append({"address": address, "port": 80, "count": TRIES if case.expected else 4})
        answers_per_case = [
            Counter(answer.split()[0] for answer in answers) for answers in node_net.request("out", *requests)
        ]
        clean_up(kernel)
    return {name: Observation(*result) for name, *result in zip(CASES, slots, answers_per_case, strict=True)}


@pytest.mark.parametrize("name", CASES)
def test_connections_are_spread_as_topology_requires(observed: dict[str, Observation], name: str) -> None:
    """Slots match the shares exactly, connections statistically."""
    expected, result = CASES[name].expected, observed[name]
    if not expected:
        assert set(result.answers) == {"refused"}
        return
    total, slots = sum(expected.values()), result.slots.total()
    assert {address: count / slots for address, count in result.slots.items()} == pytest.approx(
        {address: share / total for address, share in expected.items()}
    )
    assert fits(result.answers, expected), result.answers
