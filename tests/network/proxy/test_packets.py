"""Packets through the rules: shares, families, rejects, sources, affinity, and no gap during changes."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from network.proxy.conftest import ProxyNode, near
from network.proxy.node import FAR_NODE, FAR_PODS, NEAR_PODS, NETWORK, NODE, OUTSIDE, SILENT, NodeNet, fits
from unit.proxy.build import endpoint
from zonewise.lab.network import namespaces
from zonewise.proxy import conntrack
from zonewise.proxy.decide.shares import assign_slots, count_slots
from zonewise.proxy.decide.targets import EndpointTarget
from zonewise.proxy.nft_socket import NftMonitor
from zonewise.proxy.wire.family import IPV4, IPV6

FAR = [endpoint(four, "b1") for four, _ in FAR_PODS]
LOCAL = [near("p1"), near("p2")]
FAR_IPV6 = [endpoint(six, "b1") for _, six in FAR_PODS]
DNS = [{"name": "dns", "port": 53, "protocol": "UDP"}]
EXTERNAL = {"type": "LoadBalancer", "ports": [{"name": "http", "port": 80, "nodePort": 30080}], "vips": ["10.97.0.1"]}
VIP, BALANCER = "10.96.0.1", "10.97.0.1"


def addresses(endpoints: list[dict[str, Any]]) -> dict[str, float]:
    return {item["addresses"][0]: 1.0 for item in endpoints}


def test_connections_spread_evenly_over_endpoints(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve([*FAR, *LOCAL])
    for host in ("out", "node"):
        assert fits(Counter(node_net.endpoints(host, VIP, count=400)), addresses([*FAR, *LOCAL])), host


def test_weights_are_shares_of_connections(node_net: NodeNet, node: ProxyNode) -> None:
    (rules,) = node.serve([*FAR, *LOCAL])
    shares = dict(zip(addresses([*FAR, *LOCAL]), (0.5, 0.25, 1.0, 0.75, 0.5), strict=True))
    slots = assign_slots(count_slots({EndpointTarget(address, 8080): share for address, share in shares.items()}))
    weighted = msgspec.structs.replace(rules, cluster=slots)
    node.applier.apply({IPV4: {weighted.name: weighted}})
    assert fits(Counter(node_net.endpoints("out", VIP, count=800)), shares)


def test_udp_and_ipv6(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve(FAR, "dns", clusterIP="10.96.0.2", ports=DNS)
    assert fits(Counter(node_net.endpoints("out", "10.96.0.2", 53, 200, protocol="UDP")), addresses(FAR))
    node.serve(FAR_IPV6, "six", clusterIP="fd96::1")
    assert fits(Counter(node_net.endpoints("out", "fd96::1", 80, 200)), addresses(FAR_IPV6))
    node.serve(FAR_IPV6, "six-dns", clusterIP="fd96::2", ports=DNS)
    assert fits(Counter(node_net.endpoints("p1", "fd96::2", 53, 200, protocol="UDP")), addresses(FAR_IPV6))


def test_service_without_endpoints_is_rejected_at_once(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve([], externalIPs=["10.98.0.1"], **EXTERNAL)
    for host in ("p1", "node", "out"):
        answers = node_net.request(host, *({"address": a, "port": p} for a, p in _frontends()))
        assert answers == [["refused"]] * 4, host
    node.serve(FAR)
    assert node_net.connect("p1", VIP, 81) == ["refused"], "a port that the Service does not have"


def _frontends() -> list[tuple[str, int]]:
    return [(VIP, 80), (BALANCER, 80), ("10.98.0.1", 80), (NODE[0], 30080)]


@pytest.mark.parametrize(
    ("policies", "endpoints", "host", "inside", "outside"),
    [
        pytest.param({}, FAR, "out", "served", "served", id="cluster"),
        pytest.param(
            {"internalTrafficPolicy": "Local"}, FAR, "p1", "silence", "served", id="internal local, none here"
        ),
        pytest.param({"internalTrafficPolicy": "Local"}, [*FAR, *LOCAL], "p1", "near", "served", id="internal local"),
        pytest.param({"externalTrafficPolicy": "Local"}, [*FAR, *LOCAL], "out", "served", "near", id="external local"),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, FAR, "out", "served", "silence", id="external local, none here"
        ),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, FAR, "p1", "served", "served", id="pod uses cluster endpoints"
        ),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, FAR, "node", "served", "served", id="node uses cluster endpoints"
        ),
        pytest.param({"externalTrafficPolicy": "Local"}, FAR, "far", "served", "silence", id="another node is outside"),
    ],
)
def test_traffic_policies(
    node_net: NodeNet, node: ProxyNode, policies: dict[str, str], endpoints: Any, host: str, inside: str, outside: str
) -> None:
    node.serve(endpoints, **EXTERNAL, **policies)
    expected = {"served": set(addresses(endpoints)), "near": set(addresses(LOCAL)), "silence": {"silence"}}
    outcomes = [inside, outside, outside]
    frontends = [(VIP, 80), (BALANCER, 80), (NODE[0], 30080)]
    patience = [SILENT if outcome == "silence" else {} for outcome in outcomes]
    requests = (
        {"address": a, "port": p, "count": 12, **more} for (a, p), more in zip(frontends, patience, strict=True)
    )
    answers = node_net.request(host, *requests)
    for frontend, outcome, got in zip(frontends, outcomes, answers, strict=True):
        assert {answer.split()[0] for answer in got} <= expected[outcome], (frontend, outcome)


@pytest.mark.parametrize(
    ("policies", "host", "frontend", "seen_as"),
    [
        pytest.param({}, "p1", (VIP, 80), NEAR_PODS["p1"][0], id="a pod keeps its address"),
        pytest.param({}, "out", (VIP, 80), NODE[0], id="client that is not a pod"),
        pytest.param({}, "out", (NODE[0], 30080), NODE[0], id="from outside"),
        pytest.param({}, "p1", (BALANCER, 80), NODE[0], id="pod to an external address"),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, "out", (BALANCER, 80), OUTSIDE[0], id="local keeps the client address"
        ),
        pytest.param({"externalTrafficPolicy": "Local"}, "out", (NODE[0], 30080), OUTSIDE[0], id="local, node port"),
        pytest.param(
            {"externalTrafficPolicy": "Local"}, "far", (NODE[0], 30080), FAR_NODE[0], id="local, from another node"
        ),
    ],
)
def test_source_address_seen_by_the_endpoint(
    node_net: NodeNet, node: ProxyNode, policies: dict[str, str], host: str, frontend: tuple[str, int], seen_as: str
) -> None:
    node.serve([near("p2")], **EXTERNAL, **policies)
    assert {answer.split()[1] for answer in node_net.connect(host, *frontend, 4)} == {seen_as}


def test_pod_reaches_itself_through_the_service(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve([near("p1")])
    assert node_net.connect("p1", VIP, count=3) == [f"{NEAR_PODS['p1'][0]} {NODE[0]}"] * 3


def test_source_ranges_apply_to_load_balancer_addresses(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve(FAR, loadBalancerSourceRanges=["172.31.0.0/24"], **EXTERNAL)
    assert "silence" in node_net.connect("far", BALANCER, **SILENT)
    assert node_net.endpoints("out", BALANCER)[0] in addresses(FAR)
    assert node_net.endpoints("far", NODE[0], 30080)[0] in addresses(FAR), (
        "only the load balancer's address is restricted"
    )


@pytest.mark.parametrize(("sources", "allowed"), [("10.0.0.0/24", True), ("172.31.0.0/24", False)])
def test_node_with_a_balancer_address_reaches_it_if_allowed(
    node_net: NodeNet, node: ProxyNode, sources: str, allowed: bool
) -> None:
    """Some balancers' addresses are added to each node: then they are the source of what the node sends to them.

    As with kube-proxy, the ranges are for the node's own address, whichever addresses serve node ports.
    """
    node.applier.set_node_network(replace(NETWORK, addresses=(), node_ips=NODE))
    node.serve(FAR, loadBalancerSourceRanges=[sources], **EXTERNAL)
    namespaces.ip([f"addr add {BALANCER}/32 dev lo"], node_net.netns("node"))
    try:
        outcome = node_net.endpoints("node", BALANCER, **({} if allowed else SILENT))
    finally:
        namespaces.ip([f"addr del {BALANCER}/32 dev lo"], node_net.netns("node"))
    assert (outcome[0] in addresses(FAR)) if allowed else (outcome == ["silence"])


def test_session_affinity_survives_restarts_and_updates(
    node_net: NodeNet, node: ProxyNode, restarted: Callable[[ProxyNode], ProxyNode]
) -> None:
    sticky = {"sessionAffinity": "ClientIP", **EXTERNAL}
    node.serve([*FAR, *LOCAL], **sticky)
    (sticky_to,) = set(node_net.endpoints("out", VIP, count=40))
    assert set(node_net.endpoints("out", BALANCER, count=10)) == {sticky_to}, "by every address of the Service"
    again = restarted(node)
    assert set(node_net.endpoints("out", VIP, count=10)) == {sticky_to}, "over a restart"
    left = [item for item in (*FAR, *LOCAL) if item["addresses"][0] != sticky_to]
    again.serve(left, **sticky)
    (moved,) = set(node_net.endpoints("out", VIP, count=40))
    assert moved != sticky_to
    again.serve([*FAR, *LOCAL], **sticky)
    assert set(node_net.endpoints("out", VIP, count=10)) == {moved}


def test_session_affinity_in_both_families_and_for_local_traffic(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve(FAR_IPV6, "six", clusterIP="fd96::1", sessionAffinity="ClientIP")
    assert len(set(node_net.endpoints("out", "fd96::1", count=30))) == 1
    node.serve([*FAR, *LOCAL], sessionAffinity="ClientIP", externalTrafficPolicy="Local", **EXTERNAL)
    (sticky_to,) = set(node_net.endpoints("out", NODE[0], 30080, 30))
    assert sticky_to in addresses(LOCAL)


def test_udp_flow_to_a_deleted_endpoint_is_removed(node_net: NodeNet, node: ProxyNode) -> None:
    def ask() -> str:
        return node_net.endpoints("out", VIP, 53, protocol="UDP", source=OUTSIDE[0], source_port=5555)[0]

    node.serve(FAR, ports=DNS)
    stuck = ask()
    assert ask() == stuck
    rules = node.serve([item for item in FAR if item["addresses"][0] != stuck], ports=DNS)
    assert ask() == stuck, "conntrack keeps the flow's endpoint"
    outcomes = conntrack.stale_frontends(rules, IPV4, NODE)
    assert namespaces.inside(node_net.netns("node"), lambda: conntrack.forget(IPV4, outcomes)) == 1
    assert ask() != stuck


def test_node_ports_are_served_on_the_given_addresses_only(node_net: NodeNet, node: ProxyNode) -> None:
    namespaces.ip(["addr replace 10.0.0.77/32 dev lo"], node_net.netns("node"))
    node.serve(FAR, **EXTERNAL)
    assert node_net.endpoints("out", NODE[0], 30080)[0] in addresses(FAR)
    assert node_net.connect("out", "10.0.0.77", 30080) == ["refused"]
    node.applier.set_node_network(replace(NETWORK, addresses=(*NODE, "10.0.0.77")))
    assert node_net.endpoints("out", "10.0.0.77", 30080)[0] in addresses(FAR), "after the node got another address"
    assert node_net.endpoints("out", VIP)[0] in addresses(FAR)


def test_foreign_changes_are_detected_and_repaired(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve(FAR)
    watch = namespaces.inside(node_net.netns("node"), lambda: NftMonitor(node.kernel.port))
    try:
        node.serve(LOCAL)
        assert not watch.touched(), "our own changes are ignored"
        many = [endpoint(f"10.250.{n >> 8}.{n & 255}", "b1") for n in range(1000)]
        for number in range(60):
            node.serve(many, f"large-{number}", clusterIP=f"10.96.8.{number}")
        node.applier.repair()
        assert not watch.touched(), "also large ones"
        node_net.nft("add", "table", "ip", "other")
        assert not watch.touched(), "other tables are ignored"
        for damage in (("delete", "table", "ip", "zonewise"), ("flush", "chain", "ip", "zonewise", "nat-in")):
            node_net.nft(*damage)
            assert watch.touched()
            node.applier.repair()
            assert node_net.endpoints("out", VIP)[0] in addresses(LOCAL)
        node_net.nft("flush", "map", "ip", "zonewise", "ep")
        node.serve(FAR)  # rejected by the kernel: the elements to delete do not exist
        assert node_net.endpoints("out", VIP)[0] in addresses(FAR)
    finally:
        watch.close()
        node_net.nft("delete", "table", "ip", "other")


def test_no_connection_fails_while_rules_change(
    node_net: NodeNet, node: ProxyNode, restarted: Callable[[ProxyNode], ProxyNode]
) -> None:
    """Endpoints change, the proxy restarts, the table is recreated: there is always a healthy endpoint."""
    node.serve([*FAR, *LOCAL])
    stop = threading.Event()

    def change() -> None:
        current, turn = node, 0
        while not stop.is_set():
            turn += 1
            shown = [*FAR, *LOCAL][turn % 3 : turn % 3 + 3]
            current.serve(shown)
            if turn % 20 == 0:
                current = restarted(current)
            if turn % 33 == 0:
                current.kernel.commit(current.applier._rulesets[IPV4].full_sync(recreate=True))
            time.sleep(0.002)

    changing = threading.Thread(target=change)
    changing.start()
    try:
        answers = [answer for _ in range(3) for answer in node_net.endpoints("out", VIP, count=500)]
    finally:
        stop.set()
        changing.join()
    assert set(answers) <= set(addresses([*FAR, *LOCAL]))


def test_nft_can_list_the_tables(node_net: NodeNet, node: ProxyNode) -> None:
    """`nft` aborts with an assertion on rules that its grammar can't express."""
    node.serve(FAR, loadBalancerSourceRanges=["172.31.0.0/24"], sessionAffinity="ClientIP", **EXTERNAL)
    node.serve([*FAR, *LOCAL], "api", clusterIP="10.96.0.3", externalTrafficPolicy="Local", type="NodePort")
    node.serve(FAR_IPV6, "six", clusterIP="fd96::1", sessionAffinity="ClientIP")
    listed = node_net.nft("list", "ruleset")
    assert "table ip zonewise" in listed
    assert "table ip6 zonewise" in listed
    assert IPV6.table in listed
