"""The same Services twice on one node, one for kube-proxy and one for ours: same packets in, same fate out.

Random Services with every policy, type and state of endpoints that kube-proxy's documentation knows; asked from a pod on
the node, from the node, from another node and from outside. Both proxies run on the node, so this also shows that they
leave each other alone.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from network.proxy.cluster import answering, ask, make_service, make_slice, proxy_on, served
from support.lab.pods import Json, Pods
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
    """A Service as drawn: what both proxies get, apart from addresses that must differ."""

    spec: Json
    endpoints: list[Json]
    protocol: str


def _draw(chance: random.Random, backends: dict[str, Json]) -> Case:
    protocol = chance.choice(["TCP", "TCP", "UDP"])
    kind = chance.choice(["ClusterIP", "NodePort", "LoadBalancer"])
    spec: Json = {"type": kind, "ports": [{"name": "main", "port": 80, "protocol": protocol}]}
    spec["internalTrafficPolicy"] = chance.choice(["Cluster", "Cluster", "Local"])
    if kind != "ClusterIP":
        spec["externalTrafficPolicy"] = chance.choice(["Cluster", "Local"])
    if chance.random() < 0.3:
        spec["sessionAffinity"] = "ClientIP"
    if kind == "LoadBalancer" and chance.random() < 0.5:
        spec["loadBalancerSourceRanges"] = [chance.choice(["100.64.0.0/10", "192.0.2.0/24"])]
    hinted = chance.choice(["none", "none", "zones", "some", "nodes"])
    chosen = chance.sample(sorted(backends), chance.choice([0, 1, 1, 2, 3, 5]))
    return Case(spec, [_endpoint(chance, name, backends[name], hinted) for name in chosen], protocol)


def _endpoint(chance: random.Random, name: str, pod: Json, hinted: str) -> Json:
    node = HOMES[name]
    zone = node.rpartition("-")[0]
    hints: Json = (
        {"forZones": [{"name": zone}]} if hinted == "zones" or (hinted == "some" and chance.random() < 0.5) else {}
    )
    if hinted == "nodes":
        hints = {"forZones": [{"name": zone}], "forNodes": [{"name": node}]}
    return {
        "addresses": [pod["status"]["podIP"]],
        "nodeName": node,
        "zone": zone,
        "conditions": chance.choice(STATES),
        **({"hints": hints} if hints else {}),
    }


async def _make(pods: Pods, number: int, case: Case, *, ours: bool) -> Json:
    """Balancers' and external addresses differ in the third number: one Service must not shadow the other."""
    net = 1 if ours else 2
    spec = dict(case.spec)
    if spec["type"] == "LoadBalancer":
        spec["vips"] = [f"198.18.{net}.{number}"]
    if number % 3 == 0:
        spec["externalIPs"] = [f"198.19.{net}.{number}"]
    name = f"{'ours' if ours else 'stock'}-{number}"
    made = await make_service(pods, name, spec, ours=ours)
    await make_slice(pods, name, case.endpoints, ours=ours, protocol=case.protocol)
    return made


def _doors(service: Json, node_address: str) -> dict[str, tuple[str, int]]:
    spec = service["spec"]
    doors = {"cluster IP": (spec["clusterIP"], 80)}
    for ingress in service.get("status", {}).get("loadBalancer", {}).get("ingress", []):
        doors["balancer"] = (ingress["ip"], 80)
    for address in spec.get("externalIPs", []):
        doors["external IP"] = (address, 80)
    if node_port := spec["ports"][0].get("nodePort"):
        doors["node port"] = (node_address, node_port)
    return doors


def _fate(tries: list[str], case: Case) -> tuple[str, frozenset[str]]:
    """How it ended, and under which addresses the endpoints saw the client."""
    answered = [each.split() for each in tries if " " in each]
    if len(answered) != len(tries):
        return ",".join(sorted({each.split()[0] for each in tries})), frozenset()
    assert {each[0] for each in answered} <= {each["addresses"][0] for each in case.endpoints}
    if case.spec.get("sessionAffinity"):
        assert len({each[0] for each in answered}) == 1
    return "served", frozenset(each[1] for each in answered)


async def test_our_fates_are_those_of_kube_proxy(lab: Lab, pods: Pods, tmp_path: Path) -> None:
    chance = random.Random(20)
    made = await asyncio.gather(*(answering(pods, name, node) for name, node in HOMES.items()))
    backends = dict(zip(HOMES, made, strict=True))
    client = await answering(pods, "client", NODE)
    cases = [_draw(chance, backends) for _ in range(SERVICES)]
    cases.append(Case({"type": "ClusterIP", "ports": [{"name": "main", "port": 80}]}, [], "TCP"))
    cases[-1].endpoints.append(
        _endpoint(random.Random(1), "near", backends["near"], "none") | {"conditions": STATES[0]}
    )
    with proxy_on(lab, pods, NODE, tmp_path / "proxy.log"):
        pairs = []
        for number, case in enumerate(cases, 1):
            both = await asyncio.gather(*(_make(pods, number, case, ours=ours) for ours in (True, False)))
            pairs.append((number, case, *both))
        for service in pairs[-1][2:]:  # the last is served by both: what came before it is, too
            await served(pods.inside(client), service["spec"]["clusterIP"], 80, "the last Service")
        await asyncio.sleep(2)  # kube-proxy syncs at most once a second
        differences = await asyncio.to_thread(_compare, lab, pods, client, pairs)
    assert not differences, "\n".join(differences)


def _compare(lab: Lab, pods: Pods, client: Json, pairs: list[Any]) -> list[str]:
    plan = nodes.plan_of(lab)
    address = str(plan.node(NODE).address.v4)
    zone = next(zone for zone in plan.zones if zone.name == plan.node(NODE).zone)
    namespaces.ip([f"route add {net} via {address} dev nodes" for net in ("198.18.0.0/15",)], zone.namespace)
    # Else the kernel tells only some of those it refuses.
    namespaces.sysctl(plan.node(NODE).namespace, {"net.ipv4.icmp_ratelimit": 0, **dict.fromkeys(ICMP_LIMITS, 100000)})
    inward, outward = ("cluster IP", "balancer", "external IP", "node port"), ("balancer", "external IP", "node port")
    places = {
        "pod": (pods.inside(client), inward),
        "node": (plan.node(NODE).namespace, inward),
        "other node": (plan.node("zone-a-2").namespace, ("node port",)),
        "outside": (zone.namespace, outward),
    }
    differences: list[str] = []
    compared: Counter[str] = Counter()
    for place, (namespace, kinds) in places.items():
        asked = [
            (number, case, kind, [_doors(service, address)[kind] for service in both])
            for number, case, *both in pairs
            for kind in kinds
            if kind in _doors(both[0], address)
        ]
        requests = [
            {"address": where, "port": port, "protocol": case.protocol, "count": TRIES}
            for _, case, _, doors in asked
            for where, port in doors
        ]
        answers = iter(ask(namespace, requests))
        for number, case, kind, _ in asked:
            ours, stock = _fate(next(answers), case), _fate(next(answers), case)
            compared[place] += 1
            if ours != stock:
                differences.append(f"{place} -> {kind} of {number}: ours {ours}, stock {stock}; {case}")
    namespaces.ip(["route del 198.18.0.0/15"], zone.namespace)
    namespaces.sysctl(plan.node(NODE).namespace, {"net.ipv4.icmp_ratelimit": 1000, **ICMP_LIMITS})
    print(f"compared {dict(compared)}")
    assert compared.total() >= 300
    assert set(compared) == set(places)
    assert min(compared.values()) >= SERVICES // 3, "each position often enough"
    return differences
