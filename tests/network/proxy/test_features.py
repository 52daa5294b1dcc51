"""Further proxy features: SCTP, dual stack, affinity timeouts, masquerading, unallocated addresses, many ports."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from dataclasses import replace

import pytest

from network.proxy.conftest import ProxyNode, near
from network.proxy.node import FAR_PODS, NEAR_PODS, NETWORK, NODE, OUTSIDE, SILENT, NodeNet, fits
from network.proxy.packets import sctp_init
from network.proxy.test_packets import BALANCER, EXTERNAL, FAR, FAR_IPV6, LOCAL, VIP, addresses
from unit.proxy.build import endpoint, service, slice_of
from zonewise.lab.network import namespaces
from zonewise.proxy import conntrack
from zonewise.proxy.applier import NodeNetwork
from zonewise.proxy.wire.family import IPV4

NEAR_IPV6 = [endpoint(six, "a1") for _, six in NEAR_PODS.values()]
IPV6_EXTERNAL = EXTERNAL | {"clusterIP": "fd96::1", "vips": ["fd97::1"]}
SHORT_AFFINITY = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}


def test_sctp_packets_are_translated(node_net: NodeNet, node: ProxyNode) -> None:
    """The kernel may lack SCTP sockets, but forwards and translates: the packets are built by hand."""
    ports = [{"name": "signal", "port": 36412, "protocol": "SCTP"}]
    node.serve(FAR, ports=ports, clusterIPs=[VIP], externalIPs=[BALANCER])
    raw = socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_SCTP
    receiver = namespaces.inside(node_net.netns("far"), lambda: socket.socket(*raw))
    sender = namespaces.inside(node_net.netns("out"), lambda: socket.socket(*raw))
    with receiver, sender:
        receiver.settimeout(30)
        counts: Counter[str] = Counter()
        for number in range(150):
            sender.sendto(sctp_init(20000 + number, 36412), (VIP if number % 2 else BALANCER, 0))
            packet = receiver.recv(1000)
            assert struct.unpack_from(">H", packet, 22) == (8080,)
            counts[socket.inet_ntoa(packet[16:20])] += 1
    assert fits(counts, addresses(FAR))


def test_ipv6_external_addresses_policies_and_sources(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve(
        [*FAR_IPV6, *NEAR_IPV6], externalTrafficPolicy="Local", loadBalancerSourceRanges=["fd31::/64"], **IPV6_EXTERNAL
    )
    answers = node_net.connect("out", "fd97::1", count=20) + node_net.connect("out", NODE[1], 30080, 20)
    assert {answer.split()[0] for answer in answers} == set(addresses(NEAR_IPV6)), "only endpoints of the node"
    assert {answer.split()[1] for answer in answers} == {OUTSIDE[1]}, "with the client's address"
    assert node_net.connect("far", "fd97::1", **SILENT) == ["silence"], "outside the ranges"
    assert {answer.split()[1] for answer in node_net.connect("out", "fd96::1", count=8)} == {NODE[1]}, "masqueraded"
    node.serve(NEAR_IPV6[:1], "one", clusterIP="fd96::2")
    assert node_net.connect("p1", "fd96::2") == [f"{NEAR_PODS['p1'][1]} {NODE[1]}"], "a pod reaches itself"
    node.serve([], "none", clusterIP="fd96::3")
    assert node_net.connect("p1", "fd96::3") + node_net.connect("p1", "fd96::2", 81) == ["refused"] * 2


def test_dual_stack_services_have_endpoints_of_both_families(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve([*FAR, *FAR_IPV6], clusterIPs=[VIP, "fd96::1"], ipFamilies=["IPv4", "IPv6"], **EXTERNAL)
    frontends = [(VIP, 80), (NODE[0], 30080), ("fd96::1", 80), (NODE[1], 30080)]
    four, four_port, six, six_port = node_net.request(
        "out", *({"address": a, "port": p, "count": 60} for a, p in frontends)
    )
    for answers, expected in ((four, FAR), (four_port, FAR), (six, FAR_IPV6), (six_port, FAR_IPV6)):
        assert fits(Counter(answer.split()[0] for answer in answers), addresses(expected))


def test_session_affinity_expires(node_net: NodeNet, node: ProxyNode) -> None:
    node.serve(FAR, **SHORT_AFFINITY)
    endpoints = set(node_net.endpoints("out", VIP, count=20))
    assert len(endpoints) == 1
    deadline = time.monotonic() + 120
    while len(endpoints) < 2 and time.monotonic() < deadline:
        time.sleep(1.5)
        endpoints |= set(node_net.endpoints("out", VIP))
    assert len(endpoints) > 1, "another endpoint after the timeout"


@pytest.mark.parametrize(
    ("network", "seen_as"),
    [
        pytest.param(NETWORK, NEAR_PODS["p1"][0], id="pods by CIDR"),
        pytest.param(NodeNetwork(addresses=NODE, pods_interface="p*"), NEAR_PODS["p1"][0], id="by interface prefix"),
        pytest.param(NodeNetwork(addresses=NODE, pods_interface="p1"), NEAR_PODS["p1"][0], id="by interface"),
        pytest.param(NodeNetwork(addresses=NODE, pods_interface="p2"), NODE[0], id="another interface: not a pod"),
        pytest.param(replace(NETWORK, masquerade_all=True), NODE[0], id="all"),
        pytest.param(NodeNetwork(addresses=NODE), NEAR_PODS["p1"][0], id="pods unknown: none"),
    ],
)
def test_masqueraded_clients(node_net: NodeNet, node: ProxyNode, network: NodeNetwork, seen_as: str) -> None:
    node.serve(FAR, externalTrafficPolicy="Local", **EXTERNAL)
    node.applier.set_node_network(network)
    assert {answer.split()[1] for answer in node_net.connect("p1", VIP, count=4)} == {seen_as}
    as_pod = network.pods_interface in {"p*", "p1"} or bool(network.pod_ranges)
    assert (node_net.connect("p1", BALANCER, **({} if as_pod else SILENT)) != ["silence"]) is as_pod, (
        "recognised pods use cluster endpoints"
    )
    assert node_net.nft("list", "ruleset")


def test_unallocated_addresses_are_dropped(node_net: NodeNet, node: ProxyNode) -> None:
    """As kube-proxy does: an unknown port of a Service is rejected, an unallocated address is dropped."""
    node.serve(FAR)
    node.applier.set_node_network(replace(NETWORK, service_ranges=("10.96.0.0/16", "fd96::/112")))
    requests = [{"address": a, "port": 80, **SILENT} for a in ("10.96.77.77", "fd96::77")]
    for host in ("p1", "node"):
        answers = node_net.request(host, *requests, {"address": VIP, "port": 81}, {"address": VIP, "port": 80})
        assert [tries[0].split()[0] for tries in answers[:2]] == ["silence"] * 2, host
        assert answers[2] == ["refused"]
        assert answers[3][0].split()[0] in addresses(FAR)
    node.serve([near("p1")], "late", clusterIP="10.96.77.77")
    assert node_net.endpoints("out", "10.96.77.77") == [NEAR_PODS["p1"][0]], "until a Service gets the address"


def test_open_flows_to_services_are_listed_with_bytes(node_net: NodeNet, node: ProxyNode) -> None:
    """And no other flows."""
    netns = node_net.netns("node")
    namespaces.sysctl(netns, {"net.netfilter.nf_conntrack_acct": 1})
    node.serve(FAR, "dns", clusterIP="10.96.2.53", ports=[{"name": "dns", "port": 53, "protocol": "UDP"}])
    node_net.connect("out", FAR_PODS[0][0], 8080)
    carried = []
    for _ in range(2):
        node_net.connect("out", "10.96.2.53", 53, protocol="UDP", source=OUTSIDE[0], source_port=5353)
        flows = namespaces.inside(netns, lambda: [flow for part in conntrack.translated(IPV4) for flow in part])
        assert not [flow for flow in flows if flow.destination == IPV4.pack(FAR_PODS[0][0])]
        (open_flow,) = [flow for flow in flows if flow.destination == IPV4.pack("10.96.2.53")]
        assert open_flow.answered_by in {IPV4.pack(address) for address in addresses(FAR)}
        carried.append(open_flow.carried)
    assert 0 < carried[0] < carried[1]


def test_service_with_many_ports_and_one_with_wrong_addresses(node_net: NodeNet, node: ProxyNode) -> None:
    """Both are served as far as possible, and other Services are not affected."""
    node.serve(LOCAL, "small", clusterIP="10.96.3.1")
    wide = service("wide", clusterIP="10.96.3.2", ports=[{"name": f"p{n}", "port": 1 + n} for n in range(20_000)])
    ports = [{"name": f"p{n}", "port": 8080, "protocol": "TCP"} for n in range(20_000)]
    node.apply(wide, [slice_of(*FAR, ports=ports)])
    wrong = service("wrong", clusterIP="10.96.3.3")
    twice = [*FAR, *FAR, endpoint("fd00::9", "b1")]
    (rules,) = node.apply(wrong, [slice_of(*twice), slice_of(FAR[0], name="web-2")])
    frontends = [("10.96.3.1", 80), ("10.96.3.2", 1), ("10.96.3.2", 20_000), ("10.96.3.3", 80)]
    small, first, last, mixed = node_net.request("out", *({"address": a, "port": p, "count": 60} for a, p in frontends))
    for answers, expected in ((small, LOCAL), (first, FAR), (last, FAR), (mixed, FAR)):
        assert fits(Counter(answer.split()[0] for answer in answers), addresses(expected))
    assert rules.left_out == ("1 endpoints have no IPv4 address, such as [fd00::9]:8080",)
    node.applier.repair()
    assert node_net.endpoints("out", "10.96.3.2", 12_345)[0] in addresses(FAR)
