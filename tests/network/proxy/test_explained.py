"""`explain service` against packets: the endpoints that answer are those that explain names, on random Services."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

import msgspec
import pytest

from network.proxy.conftest import ProxyNode
from network.proxy.node import FAR_PODS, NEAR_PODS, NodeNet
from network.proxy.test_topology import COUNTS, THREE_ZONES, controller_slices
from unit.proxy.build import cluster, endpoint, node, service, slice_of
from zonewise.api.names import CONSUMER, CONSUMER_ALL, CONSUMER_SHARED
from zonewise.diagnostics.decide.explain.service import build_service_report
from zonewise.diagnostics.decide.explain.service_report import ServiceReport
from zonewise.lab.network import namespaces
from zonewise.objects import EndpointSlice, Service
from zonewise.planning.data_plane import DataPlanes
from zonewise.proxy.applier import clean_up
from zonewise.proxy.decide.targets import NodeLocation
from zonewise.proxy.nft_socket import NftSocket
from zonewise.routing import RoutingNodes

SERVICES = 50
TRIES = 100
"""With six equal endpoints, more than any client here has, one is missed in one of ten million runs."""
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
    service: Service
    slices: list[EndpointSlice]
    cluster: RoutingNodes

    def watched(self) -> list[EndpointSlice]:
        """The slices that the proxy of that node watches."""
        zone = self.cluster.domains(ZONE).get(self.at)
        return [
            endpoint_slice
            for endpoint_slice in self.slices
            if not zone
            or endpoint_slice.metadata.labels.get(CONSUMER, CONSUMER_ALL) in {CONSUMER_ALL, CONSUMER_SHARED, zone}
        ]

    def explained(self) -> ServiceReport:
        nodes = tuple(self.cluster.nodes.values())
        return build_service_report(
            self.service, self.slices, nodes, client="here", node=self.at, data_planes=DataPlanes(all_services=True)
        )


def policies(rng: Random) -> dict[str, str]:
    levels = [HOSTNAME, ZONE, REGION, "rack"]
    annotations: dict[str, str] = {}
    if rng.random() < 0.3:
        keys = rng.sample(levels, rng.randint(1, 3)) + rng.choice([[], ["*"], [""]])
        annotations["zonewise.dev/topology-keys"] = json.dumps(keys)
    for level in ("node", "zone", "region"):
        if rng.random() < 0.3:
            annotations[f"endpointslice.kubernetes.io/same-{level}"] = rng.choice(
                ["Prefer", "Require", "Balanced", "No"]
            )
    if rng.random() < 0.2:
        annotations["zonewise.dev/drain-zone"] = rng.choice("abc")
    return annotations


def endpoints(rng: Random) -> list[dict[str, Any]]:
    """With all, most or no hints; some not ready or terminating."""
    hinted = rng.choice([0.0, 0.9, 1.0])
    by_node = rng.random() < 0.3
    chosen = []
    for address in rng.sample(ADDRESSES, rng.randint(1, len(ADDRESSES))):
        node_name = rng.choice(["a1", "a2", "b1", "c1"])
        zones = rng.sample("abcd", rng.randint(1, 2)) if rng.random() < hinted else None
        state = rng.choice([{}, {}, {}, {"ready": False}, {"ready": False, "serving": True, "terminating": True}])
        chosen.append(
            endpoint(address, node_name, zones=zones, nodes=[node_name] if zones and by_node else None, **state)
        )
    return chosen


def random_case(number: int, rng: Random) -> Case:
    address = f"10.96.7.{number}"
    local = {"internalTrafficPolicy": "Local"} if rng.random() < 0.1 else {}
    if number % 5 == 0:  # as the controller writes slices, in groups
        annotations = {
            "endpointslice.kubernetes.io/same-zone": "Prefer",
            "zonewise.dev/algorithm": rng.choice(["local", "optimal"]),
        }
        at, slices, nodes = rng.choice(list(COUNTS)), controller_slices(annotations), THREE_ZONES
    else:
        annotations, nodes = policies(rng), CLUSTER
        at = rng.choice(["a1", "a2", "b1", "c1", "d1", "bare"])
        slices = [slice_of(*endpoints(rng))]
    svc = service(f"case-{number}", annotations=annotations, clusterIP=address, **local)
    return Case(at, svc, [_owned_by(item, svc) for item in slices], nodes)


def _owned_by(endpoint_slice: EndpointSlice, svc: Service) -> EndpointSlice:
    labels = {**endpoint_slice.metadata.labels, "kubernetes.io/service-name": svc.metadata.name}
    metadata = msgspec.structs.replace(endpoint_slice.metadata, labels=labels, namespace=svc.metadata.namespace)
    return msgspec.structs.replace(endpoint_slice, metadata=metadata)


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    rng = Random(20)
    return [random_case(number, rng) for number in range(1, SERVICES + 1)]


def test_answering_endpoints_are_those_named_by_explain(node_net: NodeNet, cases: Sequence[Case]) -> None:
    reports = [case.explained() for case in cases]
    with namespaces.inside(node_net.netns("node"), NftSocket) as kernel:
        serving = ProxyNode(kernel)
        for case in cases:
            serving.location = NodeLocation(case.at, case.cluster)
            serving.apply(case.service, case.watched())
        requests = [
            {
                "address": case.service.spec.cluster_ip,
                "port": 80,
                "count": TRIES if report.fronts[0].clients[0].gets else 3,
            }
            for case, report in zip(cases, reports, strict=True)
        ]
        answers = node_net.request("p1", *requests)
        clean_up(kernel)
    for case, report, tries in zip(cases, reports, answers, strict=True):
        named = {share.address for share in report.fronts[0].clients[0].shares}
        answered = {answer.split()[0] for answer in tries}
        assert answered == named if named else answered <= {"refused", "silence"}, (case.service, report.verdict)


def test_random_cases_cover_many_kinds(cases: Sequence[Case]) -> None:
    clients = [case.explained().fronts[0].clients[0] for case in cases]
    assert len({client.code for client in clients}) >= 6
    assert any(client.gets == 0 for client in clients)
    assert any(client.fell_back for client in clients)
    assert sum(not client.stock.same for client in clients) >= 10
