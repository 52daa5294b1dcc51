"""What a Service proxy does beside choosing: SCTP, both families, an end of stickiness, masquerading, nobody's addresses."""

from __future__ import annotations

import socket
import struct
import time
from collections import Counter
from dataclasses import replace

import pytest

from network.proxy.conftest import Node, near
from network.proxy.node import FAR_PODS, NEAR_PODS, NETWORK, NODE, OUTSIDE, SILENT, Bed, fits
from network.proxy.test_packets import BALANCER, FAR, HERE, OUTWARD, SIX, VIP, addresses
from unit.proxy.build import endpoint, service, slice_of
from zonewise.lab.network import namespaces
from zonewise.proxy import conntrack
from zonewise.proxy.applier import NodeNetwork
from zonewise.proxy.wire.family import IPV4

NEAR_SIX = [endpoint(six, "a1") for _, six in NEAR_PODS.values()]
SIX_OUTWARD = OUTWARD | {"clusterIP": "fd96::1", "vips": ["fd97::1"]}
NOT_LONG = {"sessionAffinity": "ClientIP", "sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 1}}}


def _checksum(packet: bytes) -> int:
    """CRC32c (RFC 9260, appendix A)."""
    crc = 0xFFFFFFFF
    for byte in packet:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def _init(source_port: int, port: int) -> bytes:
    """The packet that begins an association."""
    chunk = struct.pack(">BBHIIHHI", 1, 0, 20, source_port, 65535, 1, 1, 1)
    whole = struct.pack(">HHII", source_port, port, 0, 0) + chunk
    return whole[:8] + struct.pack("<I", _checksum(whole)) + whole[12:]


def test_sctp(bed: Bed, node: Node) -> None:
    """The kernel here has no sockets for it, but forwards and translates it: the first packets are written by hand."""
    ports = [{"name": "signal", "port": 36412, "protocol": "SCTP"}]
    node.serve(FAR, ports=ports, clusterIPs=[VIP], externalIPs=[BALANCER])
    raw = socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_SCTP
    arriving = namespaces.inside(bed.inside("far"), lambda: socket.socket(*raw))
    leaving = namespaces.inside(bed.inside("out"), lambda: socket.socket(*raw))
    with arriving, leaving:
        arriving.settimeout(30)
        seen: Counter[str] = Counter()
        for number in range(150):
            leaving.sendto(_init(20000 + number, 36412), (VIP if number % 2 else BALANCER, 0))
            packet = arriving.recv(1000)
            assert struct.unpack_from(">H", packet, 22) == (8080,)
            seen[socket.inet_ntoa(packet[16:20])] += 1
    assert fits(seen, addresses(FAR))


def test_ipv6_outer_addresses_policies_and_sources(bed: Bed, node: Node) -> None:
    node.serve([*SIX, *NEAR_SIX], externalTrafficPolicy="Local", loadBalancerSourceRanges=["fd31::/64"], **SIX_OUTWARD)
    kept = bed.knock("out", "fd97::1", count=20) + bed.knock("out", NODE[1], 30080, 20)
    assert {each.split()[0] for each in kept} == set(addresses(NEAR_SIX)), "only those of the node"
    assert {each.split()[1] for each in kept} == {OUTSIDE[1]}, "who see the client"
    assert bed.knock("far", "fd97::1", **SILENT) == ["silence"], "outside the ranges"
    assert {each.split()[1] for each in bed.knock("out", "fd96::1", count=8)} == {NODE[1]}, "masqueraded"
    node.serve(NEAR_SIX[:1], "one", clusterIP="fd96::2")
    assert bed.knock("p1", "fd96::2") == [f"{NEAR_PODS['p1'][1]} {NODE[1]}"], "a pod reaches itself"
    node.serve([], "none", clusterIP="fd96::3")
    assert bed.knock("p1", "fd96::3") + bed.knock("p1", "fd96::2", 81) == ["refused"] * 2


def test_dual_stack_services_have_endpoints_of_both_families(bed: Bed, node: Node) -> None:
    node.serve([*FAR, *SIX], clusterIPs=[VIP, "fd96::1"], ipFamilies=["IPv4", "IPv6"], **OUTWARD)
    doors = [(VIP, 80), (NODE[0], 30080), ("fd96::1", 80), (NODE[1], 30080)]
    four, four_port, six, six_port = bed.ask("out", *({"address": a, "port": p, "count": 60} for a, p in doors))
    for found, expected in ((four, FAR), (four_port, FAR), (six, SIX), (six_port, SIX)):
        assert fits(Counter(each.split()[0] for each in found), addresses(expected))


def test_stickiness_ends_when_a_client_stays_away(bed: Bed, node: Node) -> None:
    node.serve(FAR, **NOT_LONG)
    seen = set(bed.endpoints("out", VIP, count=20))
    assert len(seen) == 1
    deadline = time.monotonic() + 120
    while len(seen) < 2 and time.monotonic() < deadline:
        time.sleep(1.5)
        seen |= set(bed.endpoints("out", VIP))
    assert len(seen) > 1, "then it is anybody's again"


@pytest.mark.parametrize(
    ("network", "seen_as"),
    [
        pytest.param(NETWORK, NEAR_PODS["p1"][0], id="pods by their ranges"),
        pytest.param(
            NodeNetwork(addresses=NODE, pods_interface="p*"), NEAR_PODS["p1"][0], id="by an interface's beginning"
        ),
        pytest.param(NodeNetwork(addresses=NODE, pods_interface="p1"), NEAR_PODS["p1"][0], id="by an interface"),
        pytest.param(NodeNetwork(addresses=NODE, pods_interface="p2"), NODE[0], id="by another: it is no pod"),
        pytest.param(replace(NETWORK, masquerade_all=True), NODE[0], id="all"),
        pytest.param(NodeNetwork(addresses=NODE), NEAR_PODS["p1"][0], id="pods not known: nobody"),
    ],
)
def test_who_is_masqueraded(bed: Bed, node: Node, network: NodeNetwork, seen_as: str) -> None:
    node.serve(FAR, externalTrafficPolicy="Local", **OUTWARD)
    node.plane.move(network)
    assert {each.split()[1] for each in bed.knock("p1", VIP, count=4)} == {seen_as}
    as_pod = network.pods_interface in {"p*", "p1"} or bool(network.pod_ranges)
    assert (bed.knock("p1", BALANCER, **({} if as_pod else SILENT)) != ["silence"]) is as_pod, (
        "pods go as the cluster does, where they are known"
    )
    assert bed.nft("list", "ruleset")


def test_addresses_that_no_service_has(bed: Bed, node: Node) -> None:
    """As kube-proxy does: a port that a Service does not have is refused, an address that nobody has is dropped."""
    node.serve(FAR)
    node.plane.move(replace(NETWORK, service_ranges=("10.96.0.0/16", "fd96::/112")))
    requests = [{"address": a, "port": 80, **SILENT} for a in ("10.96.77.77", "fd96::77")]
    for place in ("p1", "node"):
        answers = bed.ask(place, *requests, {"address": VIP, "port": 81}, {"address": VIP, "port": 80})
        assert [each[0].split()[0] for each in answers[:2]] == ["silence"] * 2, place
        assert answers[2] == ["refused"]
        assert answers[3][0].split()[0] in addresses(FAR)
    node.serve([near("p1")], "late", clusterIP="10.96.77.77")
    assert bed.endpoints("out", "10.96.77.77") == [NEAR_PODS["p1"][0]], "until a Service gets it"


def test_flows_that_go_on_are_seen_with_their_bytes(bed: Bed, node: Node) -> None:
    """And only those to Services, whatever else the kernel tracks."""
    inside = bed.inside("node")
    namespaces.sysctl(inside, {"net.netfilter.nf_conntrack_acct": 1})
    node.serve(FAR, "dns", clusterIP="10.96.2.53", ports=[{"name": "dns", "port": 53, "protocol": "UDP"}])
    bed.knock("out", FAR_PODS[0][0], 8080)
    carried = []
    for _ in range(2):
        bed.knock("out", "10.96.2.53", 53, protocol="UDP", source=OUTSIDE[0], source_port=5353)
        found = namespaces.inside(inside, lambda: [flow for part in conntrack.translated(IPV4) for flow in part])
        assert not [flow for flow in found if flow.destination == IPV4.pack(FAR_PODS[0][0])]
        (lasting,) = [flow for flow in found if flow.destination == IPV4.pack("10.96.2.53")]
        assert lasting.answered_by in {IPV4.pack(address) for address in addresses(FAR)}
        carried.append(lasting.carried)
    assert 0 < carried[0] < carried[1]


def test_a_service_of_twenty_thousand_ports_and_one_of_wrong_addresses(bed: Bed, node: Node) -> None:
    """Both are served as far as they can be, and so are the others."""
    node.serve(HERE, "small", clusterIP="10.96.3.1")
    asked = service("wide", clusterIP="10.96.3.2", ports=[{"name": f"p{n}", "port": 1 + n} for n in range(20_000)])
    ports = [{"name": f"p{n}", "port": 8080, "protocol": "TCP"} for n in range(20_000)]
    node.follow(asked, [slice_of(*FAR, ports=ports)])
    wrong = service("wrong", clusterIP="10.96.3.3")
    twice = [*FAR, *FAR, endpoint("fd00::9", "b1")]
    (rules,) = node.follow(wrong, [slice_of(*twice), slice_of(FAR[0], name="web-2")])
    doors = [("10.96.3.1", 80), ("10.96.3.2", 1), ("10.96.3.2", 20_000), ("10.96.3.3", 80)]
    small, first, last, mixed = bed.ask("out", *({"address": a, "port": p, "count": 60} for a, p in doors))
    for found, expected in ((small, HERE), (first, FAR), (last, FAR), (mixed, FAR)):
        assert fits(Counter(each.split()[0] for each in found), addresses(expected))
    assert rules.left_out == ("1 endpoints have no IPv4 address, such as [fd00::9]:8080",)
    node.plane.repair()
    assert bed.endpoints("out", "10.96.3.2", 12_345)[0] in addresses(FAR)
