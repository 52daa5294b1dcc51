"""CoreDNS' own tests of its Kubernetes plugin, asked of our server: the same objects, the same queries, the same replies.

The replies are compared whole: code, truncation, and the records of all sections with their TTL, in any order. Where a test
calls an inner function, the addresses that it finds are those of our reply. Every test of the plugin is played, or stands in
`NOT_PLAYED`; every case is equal, or stands in `DIFFERENCES`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pytest
from bench.dns import coredns_cases

from support.dns.cluster import FakeCluster
from support.dns.upstream_cases import Case, RecordedCases, Reply, hosts_of, reply_of

EXTERNAL = "names for clients outside the cluster (k8s_external)"
MULTICLUSTER = "Services of several clusters (multicluster)"
FILTERS = "CoreDNS' filter of namespaces"
TRANSFER = "zone transfers: AXFR and IXFR are refused, and nothing else reads the serial"
SERIAL = "CoreDNS' own way to tell whether the zone's serial has to grow"
COREFILE = "CoreDNS' configuration file"
GO = "inner functions of CoreDNS: logger, metrics, informers, parser of names"

NOT_PLAYED: Mapping[str, tuple[str, ...]] = {
    EXTERNAL: (
        *("TestExternal", "TestNsAddrsExternal", "TestNsAddrsExternalHeadless"),
        "TestNsAddrsExternalWithPreexistingExternalIP",
    ),
    MULTICLUSTER: ("TestMultiClusterServeDNS", "TestMultiClusterHeadless"),
    FILTERS: ("TestFilteredNamespaceExists", "TestNamespaceExposed", "TestNamespaceValid"),
    TRANSFER: (
        *("TestKubernetesAXFR", "TestKubernetesAXFRMultipleNSAddrs", "TestKubernetesIXFRCurrent"),
        *("TestKubernetesIXFRFallback", "TestKubernetesMultiClusterAXFR", "TestKubernetesTransferNonAuthZone"),
    ),
    SERIAL: (
        *("TestDetectChangesPodUpdate", "TestEndpointsEquivalent", "TestEndpointsEquivalentZoneChange"),
        *("TestMulticlusterEndpointsEquivalent", "TestPodModified", "TestServiceImportEquivalent"),
        *("TestServiceModified", "TestSubsetsEquivalent"),
    ),
    COREFILE: (
        *("TestBoundIPs", "TestEndpointsDisabled", "TestEndpointsEnabled", "TestKubernetesParse"),
        *("TestKubernetesParseAPIRateLimiting", "TestKubernetesParseEndpointPodNames"),
        *("TestKubernetesParseIgnoreEmptyService", "TestKubernetesParseMulticluster"),
        *("TestKubernetesParseNoEndpoints", "TestKubernetesParseTTL", "TestKubernetesParseZonal"),
    ),
    GO: (
        *("TestDefaultProcessor", "TestDefaultProcessorWithPod", "TestLoggerAdapterDuplicateKeysLastWins"),
        *("TestLoggerAdapterErrorIncludesKeysAndValues", "TestLoggerAdapterErrorNilError"),
        *("TestLoggerAdapterInfoIncludesKeysAndValues", "TestLoggerAdapterWithValues"),
        *("TestLoggerAdapterWithValuesOddLength", "TestMetadata", "TestMetadataPodsVerified"),
        *("TestParseInvalidRequest", "TestParseRequest", "TestSanitizeLabelValue"),
    ),
}
"""Tests of what the server has not, or of what no client sees, by reason."""


class Difference(NamedTuple):
    ours: str
    reason: str


FORWARDED = "forwarded"
DIFFERENCES: Mapping[tuple[str, str, str], Difference] = {
    ("TestServeDNS", "A", "external.testns.svc.cluster.local."): Difference(
        FORWARDED, "the upstream's truncated reply is not passed on: the target is asked for again over TCP"
    ),
    ("TestServeDNSEmptyService", "A", "svcempty.testns.svc.cluster.local."): Difference(
        "NOERROR A 10.0.0.1", "no option ignore empty_service: a Service keeps its name while it has no endpoints"
    ),
    ("TestNotSyncedServeDNS", "A", "svc0.testns.svc.cluster.local."): Difference(
        "SERVFAIL", "no SOA record, which is for names that do not exist (RFC 2308)"
    ),
    ("TestServeDNSZonal", "A", "us-west-2a.pin._zone.hdls.testns.svc.cluster.local. without zonal"): Difference(
        "NOERROR A 172.0.0.1", "names of a zone are always served, not only with the option zonal"
    ),
    ("TestServicesAuthority", "NS", "ns.dns.interwebs.test."): Difference(
        "NOERROR", "CoreDNS' inner function: a client gets no data from both servers"
    ),
    ("TestReverse", "PTR", "101.0.0.10.in-addr.arpa."): Difference(
        FORWARDED, "no reverse zone is ours alone: unknown addresses may belong to others"
    ),
    ("TestReverse", "A", "svc1.testns.svc.0.10.in-addr.arpa."): Difference(
        FORWARDED, "reverse zones have PTR records only; other types are not ours"
    ),
    **{
        ("TestServices", type_, f"{name}.testns.svc.clusterset.test."): Difference(FORWARDED, MULTICLUSTER)
        for type_, name in (
            *(("A", "svc1"), ("A", "ep1a.cluster1.svc1"), ("A", "hdls1")),
            *(("SRV", "_http._tcp.svc1"), ("SRV", "_http._tcp.svc-dual-stack")),
        )
    },
}
"""What happens instead where we differ from CoreDNS on purpose."""


@pytest.fixture(scope="module")
def recorded() -> RecordedCases:
    return RecordedCases(coredns_cases.find())


@pytest.fixture(scope="module")
def not_played() -> set[str]:
    return {test for tests in NOT_PLAYED.values() for test in tests}


def test_every_test_of_the_plugin_is_played_or_named(recorded: RecordedCases, not_played: set[str]) -> None:
    played = {case.test for case in recorded.cases} - not_played
    assert sorted(coredns_cases.test_names()) == sorted((*played, *not_played))


def test_replies_are_those_that_coredns_expects(recorded: RecordedCases, not_played: set[str]) -> None:
    tests = {case.test for case in recorded.cases} - not_played
    played = [(case, *_asked(cluster, case)) for cluster, cases in recorded.clusters(tests) for case in cases]
    different = {key(case): ours for case, is_equal, ours in played if not is_equal}
    print(f"{len(played)} cases of {len(tests)} tests, {len(different)} differ")
    assert different == {name: difference.ours for name, difference in DIFFERENCES.items()}, "\n".join(
        f"{key(case)}: expected {case.reply} {set(case.hosts)}, got {ours}"
        for case, is_equal, ours in played
        if not is_equal
    )
    assert len(played) >= 100


def key(case: Case) -> tuple[str, str, str]:
    """One test asks for the same name with an option and without."""
    is_without = case.test == "TestServeDNSZonal" and not case.options.zonal
    return case.test, case.type, f"{case.name}{' without zonal' if is_without else ''}"


def _asked(cluster: FakeCluster, case: Case) -> tuple[bool, str]:
    """Whether our reply is CoreDNS', and ours in short."""
    if cluster.is_forwarded(case.name, case.type):
        return False, FORWARDED
    message = cluster.ask(case.name, case.type)
    assert message.question[0].name.to_text() == case.name, "the letters of the question are kept"
    reply = reply_of(message)
    match case.kind:
        case "hosts":
            is_equal = hosts_of(reply) == case.hosts
        case "servers":  # CoreDNS sets the TTL of the glue later
            is_equal = _without_ttl(reply) == _without_ttl(case.reply)
        case _:
            is_equal = reply == case.reply
    return is_equal, " ".join([reply.rcode, *sorted(f"{row.type} {row.data}" for row in reply.answer)])


def _without_ttl(reply: Reply) -> set[tuple[str, str, str]]:
    return {(row.name, row.type, row.data) for row in reply.additional}
