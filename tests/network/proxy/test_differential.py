"""Differential test: the same Services for kube-proxy and for ours on one node, with the same outcome per packet.

Random Services with every policy, type and endpoint state in kube-proxy's documentation; clients are a pod on the node,
the node, another node and a host outside. Both proxies run on the node, so this also shows that they do not interfere.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from network.proxy.cluster import create_server_pod, create_service, create_slice, proxy_on, request_all, wait_served
from support.lab.pods import Json, Pods
from zonewise.lab.decide.addresses import NodePlan
from zonewise.lab.network import namespaces
from zonewise.lab.nodes import nodes
from zonewise.lab.state import Lab

SERVICES = 60
ICMP_LIMITS = {"net.ipv4.icmp_msgs_per_sec": 1000, "net.ipv4.icmp_msgs_burst": 50}
TRIES = 4
NODE = "zone-a-1"
HOMES = {"here-1": NODE, "here-2": NODE, "near": "zone-a-2", "far-1": "zone-b-1", "far-2": "zone-c-1"}
STATES: list[Json] = [
    {"ready": True, "serving": True, "terminating": False},
    {"ready": True, "serving": True, "terminating": False},
    {"ready": False, "serving": True, "terminating": True},
    {"ready": False, "serving": False, "terminating": False},
]


@dataclass(frozen=True)
class Case:
    """A random Service, the same for both proxies apart from addresses that must differ."""

    spec: Json
    endpoints: list[Json]
    protocol: str


def _random_case(rng: random.Random, backends: dict[str, Json]) -> Case:
    protocol = rng.choice(["TCP", "TCP", "UDP"])
    kind = rng.choice(["ClusterIP", "NodePort", "LoadBalancer"])
    spec: Json = {"type": kind, "ports": [{"name": "main", "port": 80, "protocol": protocol}]}
    spec["internalTrafficPolicy"] = rng.choice(["Cluster", "Cluster", "Local"])
    if kind != "ClusterIP":
        spec["externalTrafficPolicy"] = rng.choice(["Cluster", "Local"])
    if rng.random() < 0.3:
        spec["sessionAffinity"] = "ClientIP"
    if kind == "LoadBalancer" and rng.random() < 0.5:
        spec["loadBalancerSourceRanges"] = [rng.choice(["100.64.0.0/10", "192.0.2.0/24"])]
    hint_kind = rng.choice(["none", "none", "zones", "some", "nodes"])
    chosen = rng.sample(sorted(backends), rng.choice([0, 1, 1, 2, 3, 5]))
    return Case(spec, [_endpoint(rng, name, backends[name], hint_kind) for name in chosen], protocol)


def _endpoint(rng: random.Random, name: str, pod: Json, hint_kind: str) -> Json:
    node = HOMES[name]
    zone = node.rpartition("-")[0]
    hints: Json = (
        {"forZones": [{"name": zone}]} if hint_kind == "zones" or (hint_kind == "some" and rng.random() < 0.5) else {}
    )
    if hint_kind == "nodes":
        hints = {"forZones": [{"name": zone}], "forNodes": [{"name": node}]}
    return {
        "addresses": [pod["status"]["podIP"]],
        "nodeName": node,
        "zone": zone,
        "conditions": rng.choice(STATES),
        **({"hints": hints} if hints else {}),
    }


async def _create(pods: Pods, number: int, case: Case, *, ours: bool) -> Json:
    """Load balancer and external addresses differ in the third byte, so that the two do not conflict."""
    net = 1 if ours else 2
    spec = dict(case.spec)
    if spec["type"] == "LoadBalancer":
        spec["vips"] = [f"198.18.{net}.{number}"]
    if number % 3 == 0:
        spec["externalIPs"] = [f"198.19.{net}.{number}"]
    name = f"{'ours' if ours else 'stock'}-{number}"
    created = await create_service(pods, name, spec, ours=ours)
    await create_slice(pods, name, case.endpoints, ours=ours, protocol=case.protocol)
    return created


def _frontends(service: Json, node_address: str) -> dict[str, tuple[str, int]]:
    spec = service["spec"]
    frontends = {"cluster IP": (spec["clusterIP"], 80)}
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", []):
        frontends["balancer"] = (ingress["ip"], 80)
    for address in spec.get("externalIPs", []):
        frontends["external IP"] = (address, 80)
    if node_port := spec["ports"][0].get("nodePort"):
        frontends["node port"] = (node_address, node_port)
    return frontends


def _outcome(tries: list[str], case: Case, node: NodePlan) -> tuple[str, frozenset[str]]:
    """The outcome, and the client addresses seen by the endpoints. Packets to a pod of the node leave it from its address there."""
    answered = [words.split() for words in tries if " " in words]
    if len(answered) != len(tries):
        return ",".join(sorted({words.split()[0] for words in tries})), frozenset()
    assert {words[0] for words in answered} <= {words["addresses"][0] for words in case.endpoints}
    if case.spec.get("sessionAffinity"):
        assert len({words[0] for words in answered}) == 1
    own = {str(node.address.v4), str(node.pods.v4[1])}
    return "served", frozenset("the node" if words[1] in own else words[1] for words in answered)


async def test_outcomes_equal_those_of_kube_proxy(lab: Lab, pods: Pods, tmp_path: Path) -> None:
    rng = random.Random(20)
    created = await asyncio.gather(*(create_server_pod(pods, name, node) for name, node in HOMES.items()))
    backends = dict(zip(HOMES, created, strict=True))
    client = await create_server_pod(pods, "client", NODE)
    cases = [_random_case(rng, backends) for _ in range(SERVICES)]
    cases.append(Case({"type": "ClusterIP", "ports": [{"name": "main", "port": 80}]}, [], "TCP"))
    cases[-1].endpoints.append(
        _endpoint(random.Random(1), "near", backends["near"], "none") | {"conditions": STATES[0]}
    )
    with proxy_on(lab, pods, NODE, tmp_path / "proxy.log"):
        pairs = []
        for number, case in enumerate(cases, 1):
            both = await asyncio.gather(*(_create(pods, number, case, ours=ours) for ours in (True, False)))
            pairs.append((number, case, *both))
        for service in pairs[-1][2:]:  # once both serve the last, they serve all
            await wait_served(pods.inside(client), service["spec"]["clusterIP"], 80, "the last Service")
        await asyncio.sleep(2)  # kube-proxy syncs at most once a second
        differences = await asyncio.to_thread(_compare, lab, pods, client, pairs)
    assert not differences, "\n".join(differences)


def _compare(lab: Lab, pods: Pods, client: Json, pairs: list[Any]) -> list[str]:
    plan = nodes.plan_of(lab)
    address = str(plan.node(NODE).address.v4)
    zone = next(zone for zone in plan.zones if zone.name == plan.node(NODE).zone)
    namespaces.ip([f"route add {net} via {address} dev nodes" for net in ("198.18.0.0/15",)], zone.namespace)
    # Otherwise the kernel sends only some rejections.
    namespaces.sysctl(plan.node(NODE).namespace, {"net.ipv4.icmp_ratelimit": 0, **dict.fromkeys(ICMP_LIMITS, 100000)})
    internal, external = (
        ("cluster IP", "balancer", "external IP", "node port"),
        ("balancer", "external IP", "node port"),
    )
    clients = {
        "pod": (pods.inside(client), internal),
        "node": (plan.node(NODE).namespace, internal),
        "other node": (plan.node("zone-a-2").namespace, ("node port",)),
        "outside": (zone.namespace, external),
    }
    differences: list[str] = []
    compared: Counter[str] = Counter()
    for client_name, (namespace, kinds) in clients.items():
        checks = [
            (number, case, kind, [_frontends(service, address)[kind] for service in both])
            for number, case, *both in pairs
            for kind in kinds
            if kind in _frontends(both[0], address)
        ]
        requests = [
            {"address": where, "port": port, "protocol": case.protocol, "count": TRIES}
            for _, case, _, frontends in checks
            for where, port in frontends
        ]
        answers = iter(request_all(namespace, requests))
        for number, case, kind, _ in checks:
            ours, stock = (_outcome(next(answers), case, plan.node(NODE)) for _ in range(2))
            compared[client_name] += 1
            if ours != stock:
                differences.append(f"{client_name} -> {kind} of {number}: ours {ours}, stock {stock}; {case}")
    namespaces.ip(["route del 198.18.0.0/15"], zone.namespace)
    namespaces.sysctl(plan.node(NODE).namespace, {"net.ipv4.icmp_ratelimit": 1000, **ICMP_LIMITS})
    print(f"compared {dict(compared)}")
    assert compared.total() >= 300
    assert set(compared) == set(clients)
    assert min(compared.values()) >= SERVICES // 3, "enough comparisons from each client"
    return differences
