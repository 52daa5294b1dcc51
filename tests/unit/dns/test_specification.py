"""Records of the Kubernetes DNS specification 1.1.0, read by dnspython."""

from __future__ import annotations

from typing import Any

import dns.rcode
import dns.rdatatype
import pytest

from support.dns.cluster import FakeCluster, answer_texts, endpoint, headless, service, slice_of
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.objects import Key

PORTS: list[dict[str, Any]] = [
    {"name": "http", "protocol": "TCP", "port": 80},
    {"name": "dns", "protocol": "UDP", "port": 53},
]


def make_cluster(**settings: Any) -> FakeCluster:
    cluster = FakeCluster(**settings)
    cluster.put(
        service("web", clusterIPs=["10.96.0.1", "fd96::1"], ports=PORTS),
        slice_of("web", [endpoint("10.0.11.1", "zone-a-1")]),
    )
    cluster.put(
        headless("db", ports=[{"name": "sql", "port": 5432}]),
        slice_of(
            "db",
            [
                endpoint("10.0.11.2", "zone-a-1", hostname="db-0"),
                endpoint("10.0.21.2", "zone-b-1", conditions={"ready": True}),
                endpoint("10.0.31.2", "zone-c-1", conditions={"ready": False}, hostname="db-2"),
            ],
            [("sql", "TCP", 5432)],
        ),
        slice_of("db", [endpoint("fd00:11::2", "zone-a-1", hostname="db-0")], [("sql", "TCP", 5432)], family="IPv6"),
    )
    cluster.put(headless("portless"), slice_of("portless", [endpoint("10.0.11.3")], []))
    cluster.put(headless("empty"), slice_of("empty", [endpoint("10.0.11.4", conditions={"ready": False})]))
    cluster.put(service("away", type="ExternalName", externalName="example.com"))
    cluster.put(service("inside", type="ExternalName", externalName="web.shop.svc.cluster.local"))
    cluster.put(service("loop", type="ExternalName", externalName="loop.shop.svc.cluster.local"))
    cluster.put(service("address", type="ExternalName", externalName="192.0.2.1"))
    fqdn = [
        endpoint("web.shop.svc.cluster.local", "zone-a-1"),
        endpoint("b.example.com", conditions={"ready": False}),
    ]
    cluster.put(headless("named"), slice_of("named", fqdn, [("http", "TCP", 80)], family="FQDN"))
    return cluster


@pytest.fixture(scope="module")
def cluster() -> FakeCluster:
    return make_cluster()


SRV_DB0 = "SRV 0 33 5432 db-0.db.shop.svc.cluster.local."
SRV_DB1 = "SRV 0 33 5432 10-0-21-2.db.shop.svc.cluster.local."
SOA = "SOA ns.dns.cluster.local. hostmaster.cluster.local. 1 7200 1800 86400 5"

ANSWERS = [
    ("ClusterIP A", "web.shop.svc", "A", ["A 10.96.0.1"]),
    ("ClusterIP AAAA", "web.shop.svc", "AAAA", ["AAAA fd96::1"]),
    ("ClusterIP SRV", "_http._tcp.web.shop.svc", "SRV", ["SRV 0 50 80 web.shop.svc.cluster.local."]),
    ("ClusterIP SRV of UDP", "_dns._udp.web.shop.svc", "SRV", ["SRV 0 50 53 web.shop.svc.cluster.local."]),
    (
        "ClusterIP SRV of all ports",
        "web.shop.svc",
        "SRV",
        ["SRV 0 25 53 web.shop.svc.cluster.local.", "SRV 0 25 80 web.shop.svc.cluster.local."],
    ),
    ("endpoint of a ClusterIP Service", "10-0-11-1.web.shop.svc", "A", ["A 10.0.11.1"]),
    ("headless A, ready ones only", "db.shop.svc", "A", ["A 10.0.11.2", "A 10.0.21.2"]),
    ("headless AAAA", "db.shop.svc", "AAAA", ["AAAA fd00:11::2"]),
    ("headless SRV, equal targets merged", "_sql._tcp.db.shop.svc", "SRV", [SRV_DB1, SRV_DB0]),
    ("headless addresses under a port", "_sql._tcp.db.shop.svc", "A", ["A 10.0.11.2", "A 10.0.21.2"]),
    ("endpoint by host name", "db-0.db.shop.svc", "A", ["A 10.0.11.2"]),
    ("endpoint by host name, IPv6", "db-0.db.shop.svc", "AAAA", ["AAAA fd00:11::2"]),
    ("endpoint by address", "10-0-21-2.db.shop.svc", "A", ["A 10.0.21.2"]),
    ("headless without ports", "portless.shop.svc", "A", ["A 10.0.11.3"]),
    ("ExternalName CNAME", "away.shop.svc", "CNAME", ["CNAME example.com."]),
    (
        "ExternalName of the cluster",
        "inside.shop.svc",
        "A",
        ["A 10.96.0.1", "CNAME web.shop.svc.cluster.local."],
    ),
    ("FQDN endpoint", "named.shop.svc", "A", ["A 10.96.0.1", "CNAME web.shop.svc.cluster.local."]),
    ("FQDN endpoint, CNAME", "named.shop.svc", "CNAME", ["CNAME web.shop.svc.cluster.local."]),
    ("FQDN endpoint, port", "_http._tcp.named.shop.svc", "AAAA", ["AAAA fd96::1", "CNAME web.shop.svc.cluster.local."]),
    (
        "the endpoint by its name",
        "web-shop-svc-cluster-local.named.shop.svc",
        "A",
        ["A 10.96.0.1", "CNAME web.shop.svc.cluster.local."],
    ),
    ("FQDN endpoint, zone", "zone-a.pin._zone.named.shop.svc", "CNAME", ["CNAME web.shop.svc.cluster.local."]),
    (
        "FQDN endpoint, other zone preferred",
        "zone-x.prefer._zone.named.shop.svc",
        "CNAME",
        ["CNAME web.shop.svc.cluster.local."],
    ),
    ("schema version", "dns-version", "TXT", ['TXT "1.1.0"']),
    ("SOA", "", "SOA", [SOA]),
    ("NS", "", "NS", ["NS ns.dns.cluster.local."]),
    ("name server", "ns.dns", "A", ["A 10.96.0.10"]),
    ("one zone of a headless Service", "zone-b.pin._zone.db.shop.svc", "A", ["A 10.0.21.2"]),
    ("the zone preferred", "zone-b.prefer._zone.db.shop.svc", "A", ["A 10.0.21.2"]),
    ("no such zone, preferred", "zone.x.prefer._zone.db.shop.svc", "A", ["A 10.0.11.2", "A 10.0.21.2"]),
    ("no such zone, preferred, SRV", "zone.x.prefer._zone.db.shop.svc", "SRV", [SRV_DB1, SRV_DB0]),
]


@pytest.mark.parametrize(
    ("name", "kind", "expected"), [case[1:] for case in ANSWERS], ids=[case[0] for case in ANSWERS]
)
def test_names_have_the_specified_records(cluster: FakeCluster, name: str, kind: str, expected: list[str]) -> None:
    reply = cluster.ask(f"{name}.cluster.local.".lstrip("."), kind)
    assert reply.rcode() == dns.rcode.NOERROR
    assert answer_texts(reply) == expected
    assert not reply.authority
    assert all(rrset.ttl == (28800 if kind == "TXT" else 5) for rrset in reply.answer)


DENIALS = [
    ("the domain has no address", "", "A", "NOERROR"),
    ("svc exists", "svc", "A", "NOERROR"),
    ("pod exists", "pod", "A", "NOERROR"),
    ("a namespace exists", "shop.svc", "A", "NOERROR"),
    ("another type of a Service", "web.shop.svc", "MX", "NOERROR"),
    ("TXT of a Service", "web.shop.svc", "TXT", "NOERROR"),
    ("AAAA of a Service with A only", "portless.shop.svc", "AAAA", "NOERROR"),
    ("SRV of a Service without ports", "portless.shop.svc", "SRV", "NOERROR"),
    ("a protocol without a port", "_tcp.web.shop.svc", "A", "NOERROR"),
    ("an ExternalName that names itself", "loop.shop.svc", "A", "NOERROR"),
    ("a drained or mistyped zone", "zone-x.pin._zone.db.shop.svc", "A", "NOERROR"),
    ("a zone of a Service without endpoints", "zone-a.prefer._zone.empty.shop.svc", "A", "NOERROR"),
    ("SRV of an FQDN endpoint", "named.shop.svc", "SRV", "NOERROR"),
    ("another zone of an FQDN endpoint", "zone-x.pin._zone.named.shop.svc", "A", "NOERROR"),
    ("another port of an FQDN endpoint", "_sql._tcp.named.shop.svc", "A", "NXDOMAIN"),
    ("an FQDN endpoint that is not ready", "b-example-com.named.shop.svc", "A", "NXDOMAIN"),
    ("no such namespace", "nowhere.svc", "A", "NXDOMAIN"),
    ("no such Service", "none.shop.svc", "A", "NXDOMAIN"),
    ("no such endpoint", "db-9.db.shop.svc", "A", "NXDOMAIN"),
    ("an endpoint that is not ready", "db-2.db.shop.svc", "A", "NXDOMAIN"),
    ("no such port", "_nope._tcp.web.shop.svc", "SRV", "NXDOMAIN"),
    ("no such protocol", "_http._udp.web.shop.svc", "SRV", "NXDOMAIN"),
    ("a headless Service without a ready endpoint", "empty.shop.svc", "A", "NXDOMAIN"),
    ("an ExternalName that is an address", "address.shop.svc", "A", "NXDOMAIN"),
    ("a name of the search path", "example.com.shop.svc", "A", "NXDOMAIN"),
    ("zones of a ClusterIP Service", "zone-a.pin._zone.web.shop.svc", "A", "NXDOMAIN"),
    ("an unknown word before _zone", "zone-a.only._zone.db.shop.svc", "A", "NXDOMAIN"),
    ("pods, unless configured", "10-0-11-1.shop.pod", "A", "NXDOMAIN"),
    ("anything else in the domain", "nothing", "A", "NXDOMAIN"),
]


@pytest.mark.parametrize(("name", "kind", "rcode"), [case[1:] for case in DENIALS], ids=[case[0] for case in DENIALS])
def test_negative_answers_carry_the_soa(cluster: FakeCluster, name: str, kind: str, rcode: str) -> None:
    reply = cluster.ask(f"{name}.cluster.local.".lstrip("."), kind)
    assert dns.rcode.to_text(reply.rcode()) == rcode
    assert not reply.answer
    assert [(rrset.name.to_text(), rrset.rdtype, rrset.ttl) for rrset in reply.authority] == [
        ("cluster.local.", dns.rdatatype.SOA, 5)
    ]


POINTERS = [
    ("a cluster IP", "1.0.96.10.in-addr.arpa.", ["PTR web.shop.svc.cluster.local."]),
    ("an endpoint with a host name", "2.11.0.10.in-addr.arpa.", ["PTR db-0.db.shop.svc.cluster.local."]),
    ("an endpoint of a ClusterIP Service", "1.11.0.10.in-addr.arpa.", ["PTR 10-0-11-1.web.shop.svc.cluster.local."]),
    (
        "an IPv6 endpoint",
        "2.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.0.1.1.0.0.0.0.d.f.ip6.arpa.",
        ["PTR db-0.db.shop.svc.cluster.local."],
    ),
]


@pytest.mark.parametrize(("name", "expected"), [case[1:] for case in POINTERS], ids=[case[0] for case in POINTERS])
def test_ptr_records_by_address(cluster: FakeCluster, name: str, expected: list[str]) -> None:
    assert answer_texts(cluster.ask(name, "PTR")) == expected
    assert cluster.is_forwarded(name, "A"), "other types of reverse zones are forwarded"


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("example.com.", "A"),
        ("local.", "A"),
        ("9.9.9.9.in-addr.arpa.", "PTR"),
        ("notcluster.local.", "A"),
        ("away.shop.svc.cluster.local.", "A"),
    ],
)
def test_names_outside_the_domain_are_forwarded(cluster: FakeCluster, name: str, kind: str) -> None:
    assert cluster.is_forwarded(name, kind)


def test_srv_and_ns_answers_have_glue(cluster: FakeCluster) -> None:
    reply = cluster.ask("_sql._tcp.db.shop.svc.cluster.local.", "SRV")
    assert sorted(str(rrset) for rrset in reply.additional) == [
        "10-0-21-2.db.shop.svc.cluster.local. 5 IN A 10.0.21.2",
        "db-0.db.shop.svc.cluster.local. 5 IN A 10.0.11.2",
        "db-0.db.shop.svc.cluster.local. 5 IN AAAA fd00:11::2",
    ]
    reply = cluster.ask("cluster.local.", "NS")
    assert [str(rrset) for rrset in reply.additional] == ["ns.dns.cluster.local. 5 IN A 10.96.0.10"]


def test_ns_names_follow_the_service_of_this_server() -> None:
    """As in CoreDNS: the Service's name and cluster IPs, or those of each endpoint of a headless one."""
    cluster = FakeCluster(servers=(bytes((10, 0, 11, 1)),))
    own = slice_of("kube-dns", [endpoint("10.0.11.1", "zone-a-1"), endpoint("10.0.21.1", "zone-b-1")])
    assert answer_texts(cluster.ask("cluster.local.", "NS")) == ["NS ns.dns.cluster.local."]
    cluster.put(service("kube-dns", clusterIPs=["10.96.0.10", "fd96::a"]), own)
    reply = cluster.ask("cluster.local.", "NS")
    assert answer_texts(reply) == ["NS kube-dns.shop.svc.cluster.local."]
    assert sorted(str(rrset) for rrset in reply.additional) == [
        "kube-dns.shop.svc.cluster.local. 5 IN A 10.96.0.10",
        "kube-dns.shop.svc.cluster.local. 5 IN AAAA fd96::a",
    ]
    assert answer_texts(cluster.ask("ns.dns.cluster.local.")) == ["A 10.96.0.10"]
    assert answer_texts(cluster.ask("ns.dns.cluster.local.", "AAAA")) == ["AAAA fd96::a"]
    cluster.put(headless("kube-dns"), own)
    names = [f"NS 10-0-{z}1-1.kube-dns.shop.svc.cluster.local." for z in (1, 2)]
    assert answer_texts(cluster.ask("cluster.local.", "NS")) == names
    assert answer_texts(cluster.ask("ns.dns.cluster.local.")) == ["A 10.0.11.1", "A 10.0.21.1"]
    cluster.remove("kube-dns")
    assert answer_texts(cluster.ask("cluster.local.", "NS")) == ["NS ns.dns.cluster.local."]
    assert answer_texts(cluster.ask("ns.dns.cluster.local.")) == ["A 10.0.11.1"]


def test_pod_records_insecure_and_verified() -> None:
    insecure = make_cluster(pods=PodNameRecords.INSECURE)
    assert answer_texts(insecure.ask("10-0-11-1.shop.pod.cluster.local.")) == ["A 10.0.11.1"]
    assert answer_texts(insecure.ask("fd00--1.shop.pod.cluster.local.", "AAAA")) == ["AAAA fd00::1"]
    assert insecure.ask("10-0-11-1.shop.pod.cluster.local.", "AAAA").rcode() == dns.rcode.NOERROR
    for missing in ("10-0-11-1.nowhere", "10-0-11-256.shop", "web.shop"):
        assert insecure.ask(f"{missing}.pod.cluster.local.").rcode() == dns.rcode.NXDOMAIN
    verified = make_cluster(pods=PodNameRecords.VERIFIED)
    verified.apply(verified.zone.set_pod(Key("shop", "p"), [bytes((10, 0, 11, 1))], "zone-a-1"))
    assert answer_texts(verified.ask("10-0-11-1.shop.pod.cluster.local.")) == ["A 10.0.11.1"]
    assert verified.ask("10-0-11-2.shop.pod.cluster.local.").rcode() == dns.rcode.NXDOMAIN


def test_endpoints_are_named_after_pods_if_configured() -> None:
    cluster = FakeCluster(domain={"name_endpoints_by_pod": True, "ttl": 30})
    pods = [endpoint("10.0.11.2", targetRef={"name": "db-x7"}), endpoint("10.0.11.3", targetRef={"name": "x" * 64})]
    cluster.put(headless("db"), slice_of("db", pods))
    reply = cluster.ask("db-x7.db.shop.svc.cluster.local.")
    assert answer_texts(reply) == ["A 10.0.11.2"]
    assert reply.answer[0].ttl == 30
    assert answer_texts(cluster.ask("10-0-11-3.db.shop.svc.cluster.local.")) == ["A 10.0.11.3"]


def test_servfail_until_the_cluster_was_read() -> None:
    cluster = FakeCluster()
    cluster.table.loaded = False
    assert cluster.ask("web.shop.svc.cluster.local.").rcode() == dns.rcode.SERVFAIL
