"""What is wrong with a cluster, as its objects and its programs tell it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trustme

from support.diagnostics.cluster import NOW, REGION, SAME_ZONE, labelled, lease, made, seen, webhook, workload
from support.planning.cluster import node, service, slice_of
from zonewise.diagnostics.decide.doctor.checks import diagnose
from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
from zonewise.diagnostics.decide.doctor.findings import FindingLevel, counted
from zonewise.diagnostics.decide.status.assemble import build_status
from zonewise.install.decide.rights import Right
from zonewise.objects import Node
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet


def codes(facts: DoctorFacts, level: FindingLevel | None = None, **more: Any) -> set[str]:
    return {each.code for each in diagnose(facts, NOW, **more).findings if level is None or each.level is level}


def healthy() -> DoctorFacts:
    authority = trustme.CA().cert_pem.bytes()
    good = replace(seen(), services=[], webhooks=[webhook(authority)])
    return DoctorFacts(snapshot=good, ahead_seconds=0.2, kube_proxy_config='mode: "nftables"', reached={"overlay": ""})


def test_a_healthy_cluster_has_nothing_wrong() -> None:
    found = diagnose(healthy(), NOW)
    assert [each for each in found.findings if each.level is FindingLevel.WRONG] == []
    assert {"Server", "Clock", "Labels", "KubeProxyMode", "Running", "WebhookReached", "Certificate"} <= codes(
        healthy()
    )


def bare(*labels: str) -> Node:
    """A node that lost labels."""
    found = labelled("odd", "a")
    kept = {key: value for key, value in found.metadata.labels.items() if key not in labels}
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=kept))


ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"


def with_node(extra: Node) -> DoctorFacts:
    facts = healthy()
    return replace(facts, snapshot=replace(facts.snapshot, nodes=[*facts.snapshot.nodes, extra]))


def versioned(version: str) -> Node:
    found = labelled("odd", "a")
    return msgspec.convert(
        {
            **msgspec.to_builtins(found),
            "status": {**msgspec.to_builtins(found.status), "nodeInfo": {"kubeletVersion": version}},
        },
        Node,
    )


def seen_with(**more: Any) -> DoctorFacts:
    facts = healthy()
    return replace(facts, snapshot=replace(facts.snapshot, **more))


CLOCK = lease("a0", 400)
FINDINGS = {
    "a node without a zone": (with_node(bare(ZONE)), "ZoneMissing", FindingLevel.WRONG),
    "old labels only": (with_node(labelled("odd", "", **{OLD_ZONE: "a"})), "OldLabels", FindingLevel.WRONG),
    "labels that differ": (with_node(labelled("odd", "a", **{OLD_ZONE: "b"})), "LabelsDiffer", FindingLevel.NOTE),
    "no region": (with_node(bare(REGION)), "RegionMissing", FindingLevel.NOTE),
    "no CPU": (with_node(node("odd", "a")), "NoCPU", FindingLevel.WRONG),
    "a kube-proxy that is picky": (with_node(versioned("v1.28.0")), "ProxyPicky", FindingLevel.NOTE),
    "a kube-proxy that is too old": (with_node(versioned("v1.22.0")), "ProxyTooOld", FindingLevel.WRONG),
    "one zone": (seen_with(nodes=[labelled("a0", "a")]), "OneZone", FindingLevel.NOTE),
    "an old server": (seen_with(version="v1.27.1"), "ServerOld", FindingLevel.NOTE),
    "a server too old": (seen_with(version="v1.20.1"), "ServerTooOld", FindingLevel.WRONG),
    "userspace": (replace(healthy(), kube_proxy_config="mode: userspace"), "KubeProxyMode", FindingLevel.WRONG),
    "no kube-proxy": (replace(healthy(), kube_proxy_config=None), "NoKubeProxy", FindingLevel.UNKNOWN),
    "Cilium without topology": (
        replace(
            healthy(),
            daemon_sets=[made(DaemonSet, metadata={"name": "cilium"})],
            cilium_config={"kube-proxy-replacement": "true"},
        ),
        "CiliumIgnoresHints",
        FindingLevel.WRONG,
    ),
    "our clock": (replace(healthy(), ahead_seconds=90.0), "ClockSkew", FindingLevel.NOTE),
    "a node's clock": (replace(healthy(), node_leases=[CLOCK]), "NodeClockSkew", FindingLevel.NOTE),
    "no right to install": (
        replace(healthy(), allowed={Right("create", "", "namespaces"): False}),
        "InstallRights",
        FindingLevel.WRONG,
    ),
    "a component without rights": (
        replace(healthy(), running={"zonewise-dns": {Right("watch", "", "nodes"): False}}),
        "ComponentRights",
        FindingLevel.WRONG,
    ),
    "a webhook out of reach": (
        replace(healthy(), reached={"overlay": "timeout"}),
        "WebhookUnreachable",
        FindingLevel.WRONG,
    ),
    "a webhook that may not be tried": (
        replace(healthy(), reached={"overlay": None}),
        "WebhookUntried",
        FindingLevel.UNKNOWN,
    ),
    "no certificate": (seen_with(webhooks=[webhook(b"rubbish")]), "CertificateUnreadable", FindingLevel.WRONG),
    "another webhook on slices": (
        replace(
            healthy(),
            other_webhooks=[
                made(
                    WebhookConfiguration,
                    metadata={"name": "other"},
                    webhooks=[{"name": "x", "rules": [{"resources": ["endpointslices"]}]}],
                )
            ],
        ),
        "OtherWebhooks",
        FindingLevel.NOTE,
    ),
    "not installed": (seen_with(deployments=[], leases=[], webhooks=[]), "NotInstalled", FindingLevel.NOTE),
    "cut off": (seen_with(services=seen().services), "CutOff", FindingLevel.WRONG),
    "no leader": (seen_with(leases=[lease("zonewise-endpointslices", 300)]), "NoLeader", FindingLevel.WRONG),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_the_doctor_finds(name: str) -> None:
    facts, code, level = FINDINGS[name]
    found = next(each for each in diagnose(facts, NOW).findings if each.code == code)
    assert (found.level, bool(found.fix)) == (level, True)


def test_headless_services_need_our_dns_and_no_proxy() -> None:
    asking = service("pods", **{SAME_ZONE: "Require"})
    headless = msgspec.structs.replace(asking, spec=msgspec.structs.replace(asking.spec, cluster_ip="None"))
    slices = [slice_of(asking, {"a": 2, "b": 2, "c": 2})]
    without = seen_with(services=[headless], slices=slices)
    assert "NeedsDNS" in codes(without, FindingLevel.NOTE)
    dns = workload("zonewise-dns", readyReplicas=2, updatedReplicas=2)
    with_dns = replace(without, snapshot=replace(without.snapshot, deployments=[dns]))
    assert "Services" in codes(with_dns, FindingLevel.FINE)
    assert not {"NeedsDNS", "NeedsProxy"} & (codes(with_dns) | codes(without) - {"NeedsDNS"})


@pytest.mark.parametrize(("words", "needed"), [(["proxy"], True), (["proxy", "--all-services"], False)])
def test_a_proxy_for_all_services_needs_no_label(words: list[str], needed: bool) -> None:
    """But where a Service names another proxy."""
    asking = service("hard", **{SAME_ZONE: "Require"})
    facts = seen_with(services=[asking], slices=[slice_of(asking, {"a": 2, "b": 2, "c": 2})])
    proxy = made(
        DaemonSet,
        metadata={"name": "zonewise-proxy", "labels": {"app.kubernetes.io/name": "zonewise-proxy"}},
        spec={"template": {"spec": {"containers": [{"name": "proxy", "args": words}]}}},
        status={"desiredNumberScheduled": 6, "numberReady": 6},
    )
    running = replace(facts, snapshot=replace(facts.snapshot, daemon_sets=[proxy]))
    assert ("NeedsProxy" in codes(running)) is needed
    assert bool(build_status(running.snapshot, NOW).services[0].outlook.losses) is needed
    labels = {"service.kubernetes.io/service-proxy-name": "other"}
    other = msgspec.structs.replace(asking, metadata=msgspec.structs.replace(asking.metadata, labels=labels))
    assert "NeedsProxy" in codes(replace(running, snapshot=replace(running.snapshot, services=[other])))


def test_certificates_end() -> None:
    facts = healthy()
    ends = NOW.replace(year=3001)
    assert "CertificateExpired" in {each.code for each in diagnose(facts, ends).findings}


def test_before_install_nothing_is_asked_of_zonewise() -> None:
    facts = seen_with(deployments=[], leases=[], webhooks=[])
    assert not {"NotInstalled", "Running"} & codes(facts, before_install=True)


def test_two_who_write_a_services_slices() -> None:
    facts = healthy()
    web = service("web")
    stock, other = slice_of(web, {"a": 1}), slice_of(web, {"b": 1})
    for found, manager in ((stock, "endpointslice-controller.k8s.io"), (other, "someone")):
        found.metadata.labels["endpointslice.kubernetes.io/managed-by"] = manager
    contested = replace(facts, snapshot=replace(facts.snapshot, services=[web], slices=[stock, other]))
    assert "TwoControllers" in codes(contested)


def test_verbs_follow_numbers() -> None:
    assert counted(1, "node", "{have} no label, and {write} none") == "1 node has no label, and writes none"
    assert counted(2, "node", "{are} away") == "2 nodes are away"
