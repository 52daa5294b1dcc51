"""The report of explain service: endpoints per client, reasons, and the stock comparison; a table of named cases."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from unit.proxy.build import ZONE, cluster, endpoint, node, service, slice_of
from zonewise.diagnostics.decide.explain.service import build_service_report
from zonewise.diagnostics.decide.explain.service_report import ServiceReport
from zonewise.objects import EndpointSlice, Service
from zonewise.planning.data_plane import STOCK, DataPlane, DataPlanes

SAME_ZONE = "endpointslice.kubernetes.io/same-zone"
ZONEWISE_PROXY = {"service.kubernetes.io/service-proxy-name": "zonewise"}
HOMES = {"10.1.0.1": "a1", "10.1.0.2": "a2", "10.1.0.3": "b1", "10.1.0.4": "c1"}
OWN = {"10.1.0.1": ["a"], "10.1.0.2": ["a"], "10.1.0.3": ["b"], "10.1.0.4": ["c"]}


@dataclass(frozen=True)
class Case:
    """`gets`: last digits of addresses by client zone. `stock`: the same for kube-proxy, if it differs."""

    gets: Mapping[str, str]
    words: str = ""
    annotations: Mapping[str, str] = field(default_factory=dict)
    hints: Mapping[str, list[str]] = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    spec: Mapping[str, Any] = field(default_factory=dict)
    down: tuple[str, ...] = ()
    nodes: Mapping[str, str] = field(default_factory=dict)
    stock: Mapping[str, str] | None = None
    carrier: DataPlane = DataPlane.KUBE_PROXY
    data_planes: DataPlanes = STOCK


CASES = {
    "no policy and no hints": Case({"a": "1234", "b": "1234", "c": "1234"}, "38 % of traffic stays in its zone"),
    "hints for every zone": Case({"a": "12", "b": "3", "c": "4"}, "every client stays in its zone", hints=OWN),
    "one endpoint without hints": Case(
        {"a": "1234", "b": "1234", "c": "1234"}, hints={key: OWN[key] for key in list(OWN)[:3]}
    ),
    "a zone that nothing is hinted for": Case(
        {"a": "12", "b": "3", "c": "4", "d": "1234"}, "clients in d leave it", hints=OWN, nodes={"d1": "d"}
    ),
    "a node without a zone": Case({"a": "12", "b": "3", "c": "4", "": "1234"}, hints=OWN, nodes={"x": ""}),
    "required, by our proxy": Case(
        {"a": "12", "b": "3", "c": "4"},
        "every client stays in its zone",
        {SAME_ZONE: "Require"},
        labels=ZONEWISE_PROXY,
        stock={"a": "1234", "b": "1234", "c": "1234"},
        carrier=DataPlane.ZONEWISE_PROXY,
    ),
    "required, and a zone has none": Case(
        {"a": "12", "b": "", "c": "4"},
        "clients in b reach no endpoint",
        {SAME_ZONE: "Require"},
        labels=ZONEWISE_PROXY,
        down=("10.1.0.3",),
        stock={"a": "124", "b": "124", "c": "124"},
        carrier=DataPlane.ZONEWISE_PROXY,
    ),
    "a drained zone": Case(
        {"a": "34", "b": "34", "c": "34"},
        annotations={SAME_ZONE: "Prefer", "zonewise.dev/drain-zone": "a"},
        labels=ZONEWISE_PROXY,
        stock={"a": "1234", "b": "1234", "c": "1234"},
        carrier=DataPlane.ZONEWISE_PROXY,
    ),
    "no endpoint is ready": Case({"a": "", "b": "", "c": ""}, "no endpoint is ready", down=tuple(HOMES)),
    "headless, by our DNS": Case(
        {"a": "12", "b": "3", "c": "4"},
        annotations={"zonewise.dev/topology-keys": f'["{ZONE}"]'},
        spec={"clusterIP": "None"},
        stock={"a": "1234", "b": "1234", "c": "1234"},
        carrier=DataPlane.DNS,
        data_planes=DataPlanes(dns=True),
    ),
    "headless, by stock DNS": Case(
        {"a": "1234", "b": "1234", "c": "1234"},
        "38 % of traffic stays in its zone",
        annotations={"zonewise.dev/topology-keys": f'["{ZONE}"]'},
        spec={"clusterIP": "None"},
        carrier=DataPlane.STOCK_DNS,
    ),
    "required, by our proxy as a replacement of kube-proxy": Case(
        {"a": "12", "b": "3", "c": "4"},
        "every client stays in its zone",
        {SAME_ZONE: "Require"},
        stock={"a": "1234", "b": "1234", "c": "1234"},
        carrier=DataPlane.ZONEWISE_PROXY,
        data_planes=DataPlanes(all_services=True),
    ),
}


def objects(case: Case) -> tuple[Service, list[EndpointSlice]]:
    web = service("web", annotations=dict(case.annotations), **case.spec)
    metadata = msgspec.structs.replace(web.metadata, labels=dict(case.labels))
    endpoints = [
        endpoint(address, home, zones=case.hints.get(address), ready=address not in case.down)
        for address, home in HOMES.items()
    ]
    return msgspec.structs.replace(web, metadata=metadata), [slice_of(*endpoints)]


def report(case: Case, at: str = "") -> ServiceReport:
    nodes = cluster(**{name: node(name, zone) for name, zone in case.nodes.items()}).nodes.values()
    return build_service_report(
        *objects(case), list(nodes), client=at and f"node {at}", node=at, data_planes=case.data_planes
    )


@pytest.mark.parametrize("name", CASES)
def test_clients_get_the_endpoints_of_their_data_plane(name: str) -> None:
    case = CASES[name]
    explained = report(case)
    (front,) = explained.fronts
    gets = {client.zone: "".join(share.address[-1] for share in client.shares) for client in front.clients}
    stock = {client.zone: "".join(address[-1] for address in client.stock.addresses) for client in front.clients}
    assert (gets, explained.carrier) == (case.gets, case.carrier)
    assert stock == (case.stock or case.gets)
    assert [client.stock.same for client in front.clients] == [stock[zone] == gets[zone] for zone in gets]
    assert case.words in explained.verdict


def test_a_fallback_names_its_cause_and_a_remedy() -> None:
    explained = report(CASES["one endpoint without hints"], "a1")
    client = explained.fronts[0].clients[0]
    assert (client.code, client.fell_back, client.blame) == ("MissingHints", True, ("Endpoint 10.1.0.4:8080",))
    assert "hint every ready endpoint" in explained.remedies
    without_zone = report(CASES["a node without a zone"], "x")
    assert without_zone.fronts[0].clients[0].blame == ("Node x",)
    assert any(remedy.startswith("label node x") for remedy in without_zone.remedies)


def test_each_endpoint_has_a_reason() -> None:
    def reasons(name: str, at: str = "") -> dict[str, str]:
        return {endpoint.address[-1]: endpoint.why for endpoint in report(CASES[name], at).fronts[0].endpoints}

    assert reasons("hints for every zone") == {"1": "for a", "2": "for a", "3": "for b", "4": "for c"}
    assert reasons("hints for every zone", "b1")["1"] == "hinted for a"
    assert reasons("required, and a zone has none")["3"] == "not ready"
    assert reasons("a drained zone")["1"] == "its zone is drained"


def test_tiers_are_reported_in_order() -> None:
    keys = '["kubernetes.io/hostname", "topology.kubernetes.io/zone", "*"]'
    case = Case({}, annotations={"zonewise.dev/topology-keys": keys}, labels=ZONEWISE_PROXY, down=("10.1.0.1",))
    client = report(case, "a1").fronts[0].clients[0]
    assert [(tier.key.rpartition("/")[2], tier.endpoints, tier.won) for tier in client.tiers] == [
        ("hostname", 0, False),
        ("zone", 1, True),
        ("*", 3, False),
    ]


def test_losses_of_stock_dns_suggest_zonewise_dns() -> None:
    by_stock, by_ours = report(CASES["headless, by stock DNS"]), report(CASES["headless, by our DNS"])
    assert (len(by_stock.losses), by_ours.losses) == (1, ())
    assert any("zonewise dns" in remedy for remedy in by_stock.remedies)
    assert not any("zonewise dns" in remedy for remedy in by_ours.remedies)


def test_missing_hints_in_slices_are_reported_as_stale() -> None:
    case = Case({}, annotations={SAME_ZONE: "Require"})
    assert report(case).stale.startswith("the slices are not up to date: 4 of 4")
    assert report(Case({}, annotations={SAME_ZONE: "Require"}, hints=OWN)).stale == ""
    assert report(Case({}, annotations={SAME_ZONE: "Require"}, labels=ZONEWISE_PROXY)).stale == "", (
        "the Zonewise proxy needs no hints"
    )


def test_an_overruled_setting_is_a_complaint() -> None:
    both = Case({}, annotations={SAME_ZONE: "Require"}, spec={"trafficDistribution": "PreferClose"})
    explained = report(both)
    assert explained.asks == f"{SAME_ZONE}: Require"
    assert [complaint.code for complaint in explained.policy.complaints] == ["Overruled"]


def test_an_old_kube_proxy_ignores_hints() -> None:
    web, slices = objects(CASES["hints for every zone"])
    old = msgspec.convert({"nodeInfo": {"kubeletVersion": "v1.29.4-gke.1"}}, type(node("a1").status))
    nodes = [
        msgspec.structs.replace(item, status=msgspec.structs.replace(item.status, node_info=old.node_info))
        for item in cluster().nodes.values()
    ]
    client = build_service_report(web, slices, nodes, client="here", node="a1").fronts[0].clients[0]
    assert (client.gets, client.code, client.stock.program) == (4, "ProxyIgnoresHints", "kube-proxy 1.29")


def dual(ipv6_homes: Mapping[str, str], at: str = "") -> ServiceReport:
    """A dual-stack Service behind the Zonewise proxy, whose IPv6 endpoints are on other nodes."""
    web, slices = objects(
        Case({}, annotations={SAME_ZONE: "Require"}, labels=ZONEWISE_PROXY, spec={"ipFamilies": ["IPv4", "IPv6"]})
    )
    ipv6 = slice_of(*(endpoint(address, home) for address, home in ipv6_homes.items()))
    named = msgspec.structs.replace(ipv6.metadata, name="web-6")
    slices.append(msgspec.structs.replace(ipv6, address_type="IPv6", metadata=named))
    return build_service_report(web, slices, list(cluster().nodes.values()), client=at and f"node {at}", node=at)


def test_the_verdict_is_of_the_worst_port_and_family() -> None:
    only_in_a = {"fd00::1": "a1"}
    assert dual(only_in_a).verdict == "http/TCP over IPv6: clients in b, c reach no endpoint"
    assert dual(only_in_a, "b1").verdict == "http/TCP over IPv6: reaches none of 1 endpoints"
    alike = {f"fd00::{address[-1]}": home for address, home in HOMES.items()}
    assert dual(alike).verdict == "every client stays in its zone"


def test_an_external_name_has_no_data_plane() -> None:
    web = service("web", type="ExternalName", externalName="db.example.com", clusterIP="", clusterIPs=[], ports=[])
    explained = build_service_report(web, [], list(cluster().nodes.values()))
    assert (explained.carrier, explained.fronts) == (DataPlane.NONE, ())
    assert "db.example.com" in explained.verdict
