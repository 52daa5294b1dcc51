"""`explain service` against packets: random Services on random nodes, and who answered is who explain named."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
import pytest

from network.proxy.conftest import Node
from network.proxy.node import FAR_PODS, NEAR_PODS, Bed
from network.proxy.test_topology import COUNTS, THREE_ZONES, planned
from unit.proxy.build import cluster, endpoint, node, service, slice_of
from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED
from zonewise.diagnostics.decide.explain.service import build_service_report
from zonewise.diagnostics.decide.explain.service_report import ServiceReport
from zonewise.lab.network import namespaces
from zonewise.objects import EndpointSlice, Service
from zonewise.planning.data_plane import DataPlanes
from zonewise.proxy.applier import clean_up
from zonewise.proxy.decide.targets import NodePlace
from zonewise.proxy.nft_socket import NftSocket
from zonewise.routing import RoutingNodes

SERVICES = 50
TRIES = 100
"""Of six endpoints with equal chances, more than any client here gets, one is missed once in ten million runs."""
ZONE, REGION, HOSTNAME = (
    "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region",
    "kubernetes.io/hostname",
)
CLUSTER = cluster(
    a1=node("a1", "a", **{REGION: "west", "rack": "r1"}),
    a2=node("a2", "a", **{REGION: "west", "rack": "r2"}),
    b1=node("b1", "b", **{REGION: "east"}),
    c1=node("c1", "c", **{REGION: "west", "rack": "r2"}),
    d1=node("d1", "d", **{REGION: "east", "rack": "r2"}),
    bare=node("bare"),
)
ADDRESSES = [NEAR_PODS["p1"][0], NEAR_PODS["p2"][0], *(four for four, _ in FAR_PODS)]


@dataclass(frozen=True)
class Case:
    at: str
    asked: Service
    slices: list[EndpointSlice]
    cluster: RoutingNodes

    def watched(self) -> list[EndpointSlice]:
        """What the proxy of that node hears of."""
        zone = self.cluster.domains(ZONE).get(self.at)
        return [
            found
            for found in self.slices
            if not zone or found.metadata.labels.get(CONSUMER, CONSUMER_ALL) in {CONSUMER_ALL, CONSUMER_SHARED, zone}
        ]

    def explained(self) -> ServiceReport:
        nodes = tuple(self.cluster.nodes.values())
        return build_service_report(
            self.asked, self.slices, nodes, client="here", node=self.at, data_planes=DataPlanes(all_services=True)
        )


def policies(chance: Random) -> dict[str, str]:
    levels = [HOSTNAME, ZONE, REGION, "rack"]
    said: dict[str, str] = {}
    if chance.random() < 0.3:
        listed = chance.sample(levels, chance.randint(1, 3)) + chance.choice([[], ["*"], [""]])
        said["zonewise.dev/topology-keys"] = json.dumps(listed)
    for level in ("node", "zone", "region"):
        if chance.random() < 0.3:
            said[f"endpointslice.kubernetes.io/same-{level}"] = chance.choice(["Prefer", "Require", "Balanced", "No"])
    if chance.random() < 0.2:
        said["zonewise.dev/drain-zone"] = chance.choice("abc")
    return said


def endpoints(chance: Random) -> list[dict[str, Any]]:
    """Hinted, half hinted or not at all; some of them not ready, or about to go."""
    hinted = chance.choice([0.0, 0.9, 1.0])
    by_node = chance.random() < 0.3
    found = []
    for address in chance.sample(ADDRESSES, chance.randint(1, len(ADDRESSES))):
        home = chance.choice(["a1", "a2", "b1", "c1"])
        zones = chance.sample("abcd", chance.randint(1, 2)) if chance.random() < hinted else None
        state = chance.choice([{}, {}, {}, {"ready": False}, {"ready": False, "serving": True, "terminating": True}])
        found.append(endpoint(address, home, zones=zones, nodes=[home] if zones and by_node else None, **state))
    return found


def made(number: int, chance: Random) -> Case:
    address = f"10.96.7.{number}"
    local = {"internalTrafficPolicy": "Local"} if chance.random() < 0.1 else {}
    if number % 5 == 0:  # as the controller writes slices, in groups
        said = {
            "endpointslice.kubernetes.io/same-zone": "Prefer",
            "zonewise.dev/algorithm": chance.choice(["local", "optimal"]),
        }
        at, slices, known = chance.choice(list(COUNTS)), planned(said), THREE_ZONES
    else:
        said, known = policies(chance), CLUSTER
        at = chance.choice(["a1", "a2", "b1", "c1", "d1", "bare"])
        slices = [slice_of(*endpoints(chance))]
    asked = service(f"case-{number}", annotations=said, clusterIP=address, **local)
    return Case(at, asked, [_of(each, asked) for each in slices], known)


def _of(found: EndpointSlice, asked: Service) -> EndpointSlice:
    labels = {**found.metadata.labels, "kubernetes.io/service-name": asked.metadata.name}
    metadata = msgspec.structs.replace(found.metadata, labels=labels, namespace=asked.metadata.namespace)
    return msgspec.structs.replace(found, metadata=metadata)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    chance = Random(20)
    return [made(number, chance) for number in range(1, SERVICES + 1)]


def test_those_who_answered_are_those_that_explain_named(bed: Bed, cases: Sequence[Case]) -> None:
    accounts = [case.explained() for case in cases]
    with namespaces.inside(bed.inside("node"), NftSocket) as kernel:
        serving = Node(kernel)
        for case in cases:
            serving.place = NodePlace(case.at, case.cluster)
            serving.follow(case.asked, case.watched())
        requests = [
            {
                "address": case.asked.spec.cluster_ip,
                "port": 80,
                "count": TRIES if found.fronts[0].clients[0].gets else 3,
            }
            for case, found in zip(cases, accounts, strict=True)
        ]
        answers = bed.ask("p1", *requests)
        clean_up(kernel)
    for case, found, tries in zip(cases, accounts, answers, strict=True):
        named = {share.address for share in found.fronts[0].clients[0].shares}
        answered = {each.split()[0] for each in tries}
        assert answered == named if named else answered <= {"refused", "silence"}, (case.asked, found.verdict)


def test_the_cases_are_of_many_kinds(cases: Sequence[Case]) -> None:
    found = [case.explained().fronts[0].clients[0] for case in cases]
    assert len({client.code for client in found}) >= 6
    assert any(client.gets == 0 for client in found)
    assert any(client.fell_back for client in found)
    assert sum(not client.stock.same for client in found) >= 10
