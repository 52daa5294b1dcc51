"""The report of explain dns: it agrees with the server's answer, and has reasons."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from support.dns.cluster import DOMAIN, endpoint, headless, node, nodes, service, slice_of
from zonewise.diagnostics.decide.explain.dns import DnsState, build_dns_report
from zonewise.diagnostics.decide.explain.dns_names import NameKind, parse_name, search_path
from zonewise.diagnostics.decide.explain.dns_report import (
    ClientFoundBy,
    DnsClientReport,
    DnsReport,
    client_on_node,
    locate_client,
)
from zonewise.dns.decide.pod_records import PodNameRecords
from zonewise.dns.decide.record_builder import ClusterDomain
from zonewise.dns.decide.zone import ZoneConfig
from zonewise.dns.wire.message import RecordType
from zonewise.dns.wire.names import to_wire
from zonewise.objects import Key

KEYS = "zonewise.dev/topology-keys"
CONFIG = ZoneConfig(ClusterDomain(to_wire(DOMAIN)))
NEAR = [endpoint("10.0.11.1", "zone-a-1", hostname="a"), endpoint("10.0.21.1", "zone-b-1")]
LATE = endpoint("10.0.31.1", "zone-c-1", conditions={"ready": False})

SERVICES = [
    (headless("soft", annotations={KEYS: '["topology.kubernetes.io/zone", "*"]'}), slice_of("soft", [*NEAR, LATE])),
    (headless("hard", annotations={KEYS: '["topology.kubernetes.io/zone"]'}), slice_of("hard", NEAR)),
    (headless("wrong", annotations={KEYS: '["topology.kubernetes.io/zone"'}), slice_of("wrong", NEAR)),
    (headless("drained", annotations={"zonewise.dev/drain-zone": "zone-a"}), slice_of("drained", NEAR)),
    (headless("empty"), slice_of("empty", [LATE])),
    (service("web", clusterIPs=["10.96.0.1"], ports=[{"name": "http", "port": 80}]), slice_of("web", NEAR)),
    (service("away", type="ExternalName", externalName="example.com"), None),
    (service("inside", type="ExternalName", externalName="soft.shop.svc.cluster.local"), None),
]
STATE = DnsState(
    nodes(),
    {"shop": {}},
    {Key("shop", item.metadata.name): (item, (slice_,) if slice_ else ()) for item, slice_ in SERVICES},
    [("shop", bytes((10, 0, 11, 9)))],
)
IN_A, IN_C, NOWHERE = "10.0.11.99", "10.0.31.99", "203.0.113.9"


def report(name: str, client: str = IN_A, type_: RecordType = RecordType.A, **settings: Any) -> DnsReport:
    parsed = parse_name(f"{name}.cluster.local".lstrip("."), DOMAIN)
    located = locate_client(client, client, STATE.nodes, {})
    return build_dns_report(parsed, type_, located, STATE, ZoneConfig(CONFIG.domain, **settings))


def data(reported: DnsReport) -> list[str]:
    return sorted(f"{record.type} {record.data}" for record in reported.answer.records)


CASES = [
    ("near", "soft.shop.svc", IN_A, ["A 10.0.11.1"], "1 of 2 endpoints, for topology.kubernetes.io/zone=zone-a"),
    ("fallen back", "soft.shop.svc", IN_C, ["A 10.0.11.1", "A 10.0.21.1"], "2 of 2 endpoints, for every client"),
    ("unknown client", "hard.shop.svc", NOWHERE, ["A 10.0.11.1", "A 10.0.21.1"], "all 2, because the client is on no"),
    ("hard", "hard.shop.svc", IN_C, [], "none of 2 endpoints is for node zone-c-1"),
    ("drained", "drained.shop.svc", IN_A, ["A 10.0.21.1"], "1 of 1 endpoints, for every client"),
    ("nothing ready", "empty.shop.svc", IN_A, [], "no endpoint of headless Service shop/empty is ready"),
    ("cluster IP", "web.shop.svc", IN_A, ["A 10.96.0.1"], "the cluster IP for every client"),
    ("named endpoint", "a.soft.shop.svc", IN_C, ["A 10.0.11.1"], "the same for every client"),
    ("zone", "zone-b.pin._zone.soft.shop.svc", IN_A, ["A 10.0.21.1"], "the same for every client"),
    ("external name", "away.shop.svc", IN_A, ["CNAME example.com."], "example.com. is not a name of the cluster"),
    ("alias", "inside.shop.svc", IN_A, ["A 10.0.11.1", "CNAME soft.shop.svc.cluster.local."], "an alias, followed"),
    ("no Service", "none.shop.svc", IN_A, [], "there is no Service shop/none"),
    ("no endpoint", "b.soft.shop.svc", IN_A, [], "Service shop/soft has no ready endpoint 'b'"),
    ("no port", "_sql._tcp.soft.shop.svc", IN_A, [], "Service shop/soft has no port sql/tcp"),
    ("unknown prefix", "x.y.z.soft.shop.svc", IN_A, [], "nothing has that name below Service shop/soft"),
    ("namespace", "shop.svc", IN_A, [], "the name exists, but has no record of that type"),
    ("no pods", "10-0-11-9.shop.pod", IN_A, [], "no such pod, or the server does not answer for pods"),
    ("nothing", "nothing", IN_A, [], "nothing in the cluster has that name"),
]


@pytest.mark.parametrize(
    ("name", "client", "records", "verdict"), [case[1:] for case in CASES], ids=[case[0] for case in CASES]
)
def test_records_and_verdict(name: str, client: str, records: list[str], verdict: str) -> None:
    reported = report(name, client)
    assert data(reported) == records
    assert reported.verdict.startswith(verdict)
    assert reported.passed_on == (name == "away.shop.svc")


def test_tiers_and_endpoints_have_reasons() -> None:
    reported = report("soft.shop.svc", IN_C)
    assert reported.policy is not None
    assert reported.policy.source == KEYS
    assert [(tier.key, tier.domain, tier.endpoints, tier.won) for tier in reported.tiers] == [
        ("topology.kubernetes.io/zone", "zone-c", 0, False),
        ("*", "", 2, True),
    ]
    near = report("soft.shop.svc", IN_A)
    assert {endpoint.address: (endpoint.given, endpoint.why) for endpoint in near.endpoints} == {
        "10.0.11.1": (True, "for the client's topology.kubernetes.io/zone"),
        "10.0.21.1": (False, "not for the client's topology.kubernetes.io/zone"),
        "10.0.31.1": (False, "not ready"),
    }
    assert {endpoint.address: endpoint.why for endpoint in report("drained.shop.svc").endpoints}[
        "10.0.11.1"
    ] == "its zone is drained"
    hard = report("hard.shop.svc", IN_C)
    assert {endpoint.why for endpoint in hard.endpoints} == {"not for this client, and the rule is hard"}
    assert hard.remedies == ("run an endpoint there, or make the rule soft",)
    wrong = report("wrong.shop.svc")
    assert wrong.policy is not None
    assert [complaint.code for complaint in wrong.policy.complaints] == ["InvalidValue"]


def test_srv_txt_soa_pod_and_ptr_records() -> None:
    ports = report("_http._tcp.soft.shop.svc", type_=RecordType.SRV)
    assert data(ports) == ["SRV 0 100 8080 a.soft.shop.svc.cluster.local."]
    assert [record.data for record in ports.answer.additional] == ["10.0.11.1"]
    assert data(report("dns-version", type_=RecordType.TXT)) == ['TXT "1.1.0"']
    assert data(report("", type_=RecordType.SOA))[0].startswith(
        "SOA ns.dns.cluster.local. hostmaster.cluster.local. 0 7200"
    )
    assert data(report("10-0-11-9.shop.pod", pods=PodNameRecords.VERIFIED)) == ["A 10.0.11.9"]
    pointer = build_dns_report(
        parse_name("1.11.0.10.in-addr.arpa", DOMAIN), RecordType.PTR, DnsClientReport("x"), STATE, CONFIG
    )
    assert "PTR a.soft.shop.svc.cluster.local." in data(pointer)


CLIENTS = [
    ("a pod range", "10.0.11.99", "zone-a-1", ClientFoundBy.POD_RANGE, "in the node's pod range 10.0.11.0/24"),
    ("through a socket of both families", "::ffff:10.0.11.99", "zone-a-1", ClientFoundBy.POD_RANGE, "10.0.11.0/24"),
    ("a node", "192.168.2.1", "zone-b-1", ClientFoundBy.NODE_ADDRESS, "the node's own address"),
    ("a pod", "172.16.0.9", "bare", ClientFoundBy.POD_ADDRESS, "the address of a pod there"),
    ("unknown", "203.0.113.9", "", ClientFoundBy.NOTHING, "in no pod range (6 of 7 nodes have one)"),
]


@pytest.mark.parametrize(
    ("address", "name", "found_by", "sentence"), [case[1:] for case in CLIENTS], ids=[case[0] for case in CLIENTS]
)
def test_a_client_is_located_by_its_address(address: str, name: str, found_by: ClientFoundBy, sentence: str) -> None:
    bare = node("bare", "zone-d", [], "192.168.9.9")
    client = locate_client("x", address, [*nodes(), bare], {bytes((172, 16, 0, 9)): "bare"})
    assert (client.node, client.found_by) == (name, found_by)
    assert sentence in client.sentence
    assert client_on_node("x", bare) == DnsClientReport(
        "x", "", "bare", "zone-d", ClientFoundBy.NAMED, "asked for a client on bare"
    )


NAMES = [
    ("db.shop.svc.cluster.local.", NameKind.SERVICE, Key("shop", "db"), ""),
    ("DB.shop.SVC.cluster.local", NameKind.SERVICE, Key("shop", "db"), ""),
    ("_sql._tcp.db.shop.svc.cluster.local", NameKind.PORT, Key("shop", "db"), "sql/tcp"),
    ("db-0.db.shop.svc.cluster.local", NameKind.ENDPOINT, Key("shop", "db"), "db-0"),
    ("zone.b.pin._zone.db.shop.svc.cluster.local", NameKind.ZONE, Key("shop", "db"), "zone.b"),
    ("10-0-0-7.shop.pod.cluster.local", NameKind.POD, None, "10-0-0-7"),
    ("7.0.0.10.in-addr.arpa", NameKind.REVERSE, None, ""),
    ("cluster.local", NameKind.OTHER, None, ""),
    ("shop.svc.cluster.local", NameKind.OTHER, None, ""),
    ("example.com", NameKind.FOREIGN, None, ""),
    ("xcluster.local", NameKind.FOREIGN, None, ""),
]


@pytest.mark.parametrize(("name", "kind", "key", "detail"), NAMES, ids=[case[0] for case in NAMES])
def test_names_are_parsed(name: str, kind: NameKind, key: Key | None, detail: str) -> None:
    parsed = parse_name(name, "cluster.local")
    assert (parsed.kind, parsed.service, parsed.detail) == (kind, key, detail)


def test_short_names_follow_the_search_path() -> None:
    searched = ["db.shop.svc.cluster.local", "db.svc.cluster.local", "db.cluster.local", "db"]
    assert search_path("db", "shop", "cluster.local.") == searched
    assert search_path("db.shop.svc.cluster.local", "x", "cluster.local.") == ["db.shop.svc.cluster.local"]
    assert search_path("example.com.", "shop", "cluster.local.") == ["example.com"]
    assert search_path("7.0.0.10.in-addr.arpa", "shop", "cluster.local.") == ["7.0.0.10.in-addr.arpa"]
    assert search_path("a.b.c.d.e.f", "shop", "cluster.local.")[0] == "a.b.c.d.e.f"


FIELDS = {
    "": "name type verdict kind service client policy tiers endpoints answer passedOn remedies",
    "service": "namespace name type",
    "client": "who address node zone foundBy sentence",
    "policy": "kind source reasons complaints",
    "answer": "rcode ttl records additional",
}
LISTED = {
    "tiers": "key domain endpoints won wall",
    "endpoints": "address node zone given why",
}


def test_the_json_has_the_documented_fields() -> None:
    body = json.loads(msgspec.json.encode(report("soft.shop.svc")))
    for field, names in FIELDS.items():
        assert list(body[field] if field else body) == names.split()
    for field, names in LISTED.items():
        assert list(body[field][0]) == names.split()
    assert list(body["policy"]["reasons"][0]) == ["code", "sentence", "blame", "remedy"]
    assert list(body["answer"]["records"][0]) == ["name", "type", "ttl", "data"]
    assert body["answer"]["ttl"] == 5
