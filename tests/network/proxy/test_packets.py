"""What the rules do to packets, counted: shares, families, refusals, sources, stickiness, and no gap while they change."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from network.proxy.conftest import Node, near
from network.proxy.node import FAR_NODE, FAR_PODS, NEAR_PODS, NETWORK, NODE, OUTSIDE, SILENT, Bed, fits
from unit.proxy.build import endpoint
from zonewise.lab.network import namespaces
from zonewise.proxy import conntrack
from zonewise.proxy.decide.shares import assign_slots, count_slots
from zonewise.proxy.decide.targets import EndpointTarget
from zonewise.proxy.nft_socket import NftMonitor
from zonewise.proxy.wire.family import IPV4, IPV6

FAR = [endpoint(four, "b1") for four, _ in FAR_PODS]
HERE = [near("p1"), near("p2")]
SIX = [endpoint(six, "b1") for _, six in FAR_PODS]
DNS = [{"name": "dns", "port": 53, "protocol": "UDP"}]
OUTWARD = {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}], "vips": ["10.97.0.1"]}
VIP, BALANCER = "10.96.0.1", "10.97.0.1"


def addresses(endpoints: list[dict[str, Any]]) -> dict[str, float]:
    return {each["addresses"][0]: 1.0 for each in endpoints}


def test_connections_spread_evenly_over_endpoints(bed: Bed, node: Node) -> None:
    node.serve([*FAR, *HERE])
    for place in ("out", "node"):
        assert fits(Counter(bed.endpoints(place, VIP, count=400)), addresses([*FAR, *HERE])), place


def test_weights_are_shares_of_connections(bed: Bed, node: Node) -> None:
    (rules,) = node.serve([*FAR, *HERE])
    shares = dict(zip(addresses([*FAR, *HERE]), (0.5, 0.25, 1.0, 0.75, 0.5), strict=True))
    slots = assign_slots(count_slots({EndpointTarget(address, 8080): share for address, share in shares.items()}))
    weighted = msgspec.structs.replace(rules, cluster=slots)
    node.plane.apply({IPV4: {weighted.name: weighted}})
    assert fits(Counter(bed.endpoints("out", VIP, count=800)), shares)


def test_udp_and_ipv6(bed: Bed, node: Node) -> None:
    node.serve(FAR, "dns", clusterIP="10.96.0.2", ports=DNS)
    assert fits(Counter(bed.endpoints("out", "10.96.0.2", 53, 200, protocol="UDP")), addresses(FAR))
    node.serve(SIX, "six", clusterIP="fd96::1")
    assert fits(Counter(bed.endpoints("out", "fd96::1", 80, 200)), addresses(SIX))
    node.serve(SIX, "six-dns", clusterIP="fd96::2", ports=DNS)
    assert fits(Counter(bed.endpoints("p1", "fd96::2", 53, 200, protocol="UDP")), addresses(SIX))


def test_who_has_no_endpoint_is_refused_at_once(bed: Bed, node: Node) -> None:
    node.serve([], externalIPs=["10.98.0.1"], **OUTWARD)
    for place in ("p1", "node", "out"):
        answers = bed.ask(place, *({"address": a, "port": p} for a, p in _doors()))
        assert answers == [["refused"]] * 4, place
    node.serve(FAR)
    assert bed.knock("p1", VIP, 81) == ["refused"], "a port that the Service does not have"


def _doors() -> list[tuple[str, int]]:
    return [(VIP, 80), (BALANCER, 80), ("10.98.0.1", 80), (NODE[0], 30080)]


@pytest.mark.parametrize(
    ("policies", "endpoints", "place", "inside", "outside"),
    [
        pytest.param({}, FAR, "out", "served", "served", id="cluster"),
        pytest.param(
            {"internalTrafficPolicy": "Local"}, FAR, "p1", "silence", "served", id="internal local, none here"
        ),
        pytest.param({"internalTrafficPolicy": "Local"}, [*FAR, *HERE], "p1", "near", "served", id="internal local"),
        pytest.param({"externalTrafficPolicy": "Local"}, [*FAR, *HERE], "out", "served", "near", id="external local"),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, FAR, "out", "served", "silence", id="external local, none here"
        ),
        pytest.param({"externalTrafficPolicy": "Local"}, FAR, "p1", "served", "served", id="a pod goes as the cluster"),
        pytest.param({"externalTrafficPolicy": "Local"}, FAR, "node", "served", "served", id="the node does too"),
        pytest.param({"externalTrafficPolicy": "Local"}, FAR, "far", "served", "silence", id="another node is outside"),
    ],
)
def test_traffic_policies(
    bed: Bed, node: Node, policies: dict[str, str], endpoints: Any, place: str, inside: str, outside: str
) -> None:
    node.serve(endpoints, **OUTWARD, **policies)
    expected = {"served": set(addresses(endpoints)), "near": set(addresses(HERE)), "silence": {"silence"}}
    wanted = [inside, outside, outside]
    doors = [(VIP, 80), (BALANCER, 80), (NODE[0], 30080)]
    patience = [SILENT if fate == "silence" else {} for fate in wanted]
    requests = ({"address": a, "port": p, "count": 12, **more} for (a, p), more in zip(doors, patience, strict=True))
    answers = bed.ask(place, *requests)
    for door, fate, got in zip(doors, wanted, answers, strict=True):
        assert {each.split()[0] for each in got} <= expected[fate], (door, fate)


@pytest.mark.parametrize(
    ("policies", "place", "door", "seen_as"),
    [
        pytest.param({}, "p1", (VIP, 80), NEAR_PODS["p1"][0], id="a pod keeps its address"),
        pytest.param({}, "out", (VIP, 80), NODE[0], id="who is no pod is masqueraded"),
        pytest.param({}, "out", (NODE[0], 30080), NODE[0], id="from outside"),
        pytest.param({}, "p1", (BALANCER, 80), NODE[0], id="a pod on an outer address"),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, "out", (BALANCER, 80), OUTSIDE[0], id="local keeps the client"
        ),
        pytest.param({"externalTrafficPolicy": "Local"}, "out", (NODE[0], 30080), OUTSIDE[0], id="on node ports too"),
        pytest.param({"externalTrafficPolicy": "Local"}, "far", (NODE[0], 30080), FAR_NODE[0], id="and another node"),
    ],
)
def test_sources(
    bed: Bed, node: Node, policies: dict[str, str], place: str, door: tuple[str, int], seen_as: str
) -> None:
    node.serve([near("p2")], **OUTWARD, **policies)
    assert {each.split()[1] for each in bed.knock(place, *door, 4)} == {seen_as}


def test_a_pod_reaches_itself(bed: Bed, node: Node) -> None:
    node.serve([near("p1")])
    assert bed.knock("p1", VIP, count=3) == [f"{NEAR_PODS['p1'][0]} {NODE[0]}"] * 3


def test_source_ranges(bed: Bed, node: Node) -> None:
    node.serve(FAR, loadBalancerSourceRanges=["172.31.0.0/24"], **OUTWARD)
    assert "silence" in bed.knock("far", BALANCER, **SILENT)
    assert bed.endpoints("out", BALANCER)[0] in addresses(FAR)
    assert bed.endpoints("far", NODE[0], 30080)[0] in addresses(FAR), "only the balancer's address is guarded"


def test_clients_stay_with_their_endpoint(bed: Bed, node: Node, restarted: Callable[[Node], Node]) -> None:
    sticky = {"sessionAffinity": "ClientIP", **OUTWARD}
    node.serve([*FAR, *HERE], **sticky)
    (kept,) = set(bed.endpoints("out", VIP, count=40))
    assert set(bed.endpoints("out", BALANCER, count=10)) == {kept}, "whatever address of the Service"
    again = restarted(node)
    assert set(bed.endpoints("out", VIP, count=10)) == {kept}, "over a restart"
    left = [each for each in (*FAR, *HERE) if each["addresses"][0] != kept]
    again.serve(left, **sticky)
    (moved,) = set(bed.endpoints("out", VIP, count=40))
    assert moved != kept
    again.serve([*FAR, *HERE], **sticky)
    assert set(bed.endpoints("out", VIP, count=10)) == {moved}


def test_sticky_in_both_families_and_for_local_traffic(bed: Bed, node: Node) -> None:
    node.serve(SIX, "six", clusterIP="fd96::1", sessionAffinity="ClientIP")
    assert len(set(bed.endpoints("out", "fd96::1", count=30))) == 1
    node.serve([*FAR, *HERE], sessionAffinity="ClientIP", externalTrafficPolicy="Local", **OUTWARD)
    (kept,) = set(bed.endpoints("out", NODE[0], 30080, 30))
    assert kept in addresses(HERE)


def test_a_flow_to_an_endpoint_that_is_gone_is_forgotten(bed: Bed, node: Node) -> None:
    def ask() -> str:
        return bed.endpoints("out", VIP, 53, protocol="UDP", source=OUTSIDE[0], source_port=5555)[0]

    node.serve(FAR, ports=DNS)
    stuck = ask()
    assert ask() == stuck
    rules = node.serve([each for each in FAR if each["addresses"][0] != stuck], ports=DNS)
    assert ask() == stuck, "the kernel goes on sending a flow where it went"
    wanted = conntrack.stale_frontends(rules, IPV4, NODE)
    assert namespaces.inside(bed.inside("node"), lambda: conntrack.forget(IPV4, wanted)) == 1
    assert ask() != stuck


def test_node_ports_are_served_on_the_given_addresses_only(bed: Bed, node: Node) -> None:
    namespaces.ip(["addr replace 10.0.0.77/32 dev lo"], bed.inside("node"))
    node.serve(FAR, **OUTWARD)
    assert bed.endpoints("out", NODE[0], 30080)[0] in addresses(FAR)
    assert bed.knock("out", "10.0.0.77", 30080) == ["refused"]
    node.plane.move(replace(NETWORK, addresses=(*NODE, "10.0.0.77")))
    assert bed.endpoints("out", "10.0.0.77", 30080)[0] in addresses(FAR), "when the node has got another"
    assert bed.endpoints("out", VIP)[0] in addresses(FAR)


def test_what_others_break_is_noticed_and_repaired(bed: Bed, node: Node) -> None:
    node.serve(FAR)
    watch = namespaces.inside(bed.inside("node"), lambda: NftMonitor(node.kernel.port))
    try:
        node.serve(HERE)
        assert not watch.touched(), "our own changes are no reason"
        many = [endpoint(f"10.250.{n >> 8}.{n & 255}", "b1") for n in range(1000)]
        for number in range(60):
            node.serve(many, f"large-{number}", clusterIP=f"10.96.8.{number}")
        node.plane.repair()
        assert not watch.touched(), "however much it is"
        bed.nft("add", "table", "ip", "other")
        assert not watch.touched(), "nor are other tables"
        for damage in (("delete", "table", "ip", "zonewise"), ("flush", "chain", "ip", "zonewise", "nat-in")):
            bed.nft(*damage)
            assert watch.touched()
            node.plane.repair()
            assert bed.endpoints("out", VIP)[0] in addresses(HERE)
        bed.nft("flush", "map", "ip", "zonewise", "ep")
        node.serve(FAR)  # refused by the kernel: the elements to remove are not there
        assert bed.endpoints("out", VIP)[0] in addresses(FAR)
    finally:
        watch.close()
        bed.nft("delete", "table", "ip", "other")


def test_no_connection_fails_while_rules_change(bed: Bed, node: Node, restarted: Callable[[Node], Node]) -> None:
    """Endpoints come and go, the proxy restarts, the table is made anew: there is always a healthy endpoint."""
    node.serve([*FAR, *HERE])
    stop = threading.Event()

    def change() -> None:
        current, turn = node, 0
        while not stop.is_set():
            turn += 1
            shown = [*FAR, *HERE][turn % 3 : turn % 3 + 3]
            current.serve(shown)
            if turn % 20 == 0:
                current = restarted(current)
            if turn % 33 == 0:
                current.kernel.commit(current.plane._rulesets[IPV4].whole(anew=True))
            time.sleep(0.002)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        answers = [each for _ in range(3) for each in bed.endpoints("out", VIP, count=500)]
    finally:
        stop.set()
        changing.join()
    assert set(answers) <= set(addresses([*FAR, *HERE]))


def test_the_tables_can_be_listed(bed: Bed, node: Node) -> None:
    """`nft` gives up with an assertion on rules that its grammar can't say."""
    node.serve(FAR, loadBalancerSourceRanges=["172.31.0.0/24"], sessionAffinity="ClientIP", **OUTWARD)
    node.serve([*FAR, *HERE], "api", clusterIP="10.96.0.3", externalTrafficPolicy="Local", type="NodePort")
    node.serve(SIX, "six", clusterIP="fd96::1", sessionAffinity="ClientIP")
    listed = bed.nft("list", "ruleset")
    assert "table ip zonewise" in listed
    assert "table ip6 zonewise" in listed
    assert IPV6.table in listed
