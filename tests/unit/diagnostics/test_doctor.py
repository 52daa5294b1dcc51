"""The doctor's findings: a table of problems, each with its code and level."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import trustme

from support.diagnostics.cluster import (
    NOW,
    REGION,
    SAME_ZONE,
    convert,
    labelled,
    lease,
    make_cluster_snapshot,
    webhook,
    workload,
)
from support.planning.cluster import node, service, slice_of
from zonewise.diagnostics.decide.doctor.checks import diagnose
from zonewise.diagnostics.decide.doctor.facts import DoctorFacts
from zonewise.diagnostics.decide.doctor.findings import FindingLevel, counted
from zonewise.diagnostics.decide.status.assemble import build_status
from zonewise.install.decide.right import Right
from zonewise.objects import Node
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet


def codes(facts: DoctorFacts, level: FindingLevel | None = None, **more: Any) -> set[str]:
    findings = diagnose(facts, NOW, **more).findings
    return {finding.code for finding in findings if level is None or finding.level is level}


def healthy() -> DoctorFacts:
    authority = trustme.CA().cert_pem.bytes()
    good = replace(make_cluster_snapshot(), services=[], webhooks=[webhook(authority)])
    return DoctorFacts(snapshot=good, ahead_seconds=0.2, kube_proxy_config='mode: "nftables"', reached={"overlay": ""})


def test_a_healthy_cluster_has_no_wrong_finding() -> None:
    findings = diagnose(healthy(), NOW).findings
    assert [finding for finding in findings if finding.level is FindingLevel.WRONG] == []
    assert {"Server", "Clock", "Labels", "KubeProxyMode", "Running", "WebhookReached", "Certificate"} <= codes(
        healthy()
    )


def without_labels(*labels: str) -> Node:
    """A node that lacks these labels."""
    whole = labelled("odd", "a")
    kept = {key: value for key, value in whole.metadata.labels.items() if key not in labels}
    return msgspec.structs.replace(whole, metadata=msgspec.structs.replace(whole.metadata, labels=kept))


ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"


def with_node(extra: Node) -> DoctorFacts:
    facts = healthy()
    return replace(facts, snapshot=replace(facts.snapshot, nodes=[*facts.snapshot.nodes, extra]))


def with_kubelet(version: str) -> Node:
    current = labelled("odd", "a")
    return msgspec.convert(
        {
            **msgspec.to_builtins(current),
            "status": {**msgspec.to_builtins(current.status), "nodeInfo": {"kubeletVersion": version}},
        },
        Node,
    )


def facts_with(**more: Any) -> DoctorFacts:
    facts = healthy()
    return replace(facts, snapshot=replace(facts.snapshot, **more))


LATE_LEASE = lease("a0", 400)
FINDINGS = {
    "a node without a zone": (with_node(without_labels(ZONE)), "ZoneMissing", FindingLevel.WRONG),
    "old labels only": (with_node(labelled("odd", "", **{OLD_ZONE: "a"})), "OldLabels", FindingLevel.WRONG),
    "labels that differ": (with_node(labelled("odd", "a", **{OLD_ZONE: "b"})), "LabelsDiffer", FindingLevel.NOTE),
    "no region": (with_node(without_labels(REGION)), "RegionMissing", FindingLevel.NOTE),
    "no CPU": (with_node(node("odd", "a")), "NoCPU", FindingLevel.WRONG),
    "a kube-proxy that needs an annotation": (with_node(with_kubelet("v1.28.0")), "ProxyPicky", FindingLevel.NOTE),
    "a kube-proxy that is too old": (with_node(with_kubelet("v1.22.0")), "ProxyTooOld", FindingLevel.WRONG),
    "one zone": (facts_with(nodes=[labelled("a0", "a")]), "OneZone", FindingLevel.NOTE),
    "an old server": (facts_with(version="v1.27.1"), "ServerOld", FindingLevel.WRONG),
    "a server too old": (facts_with(version="v1.20.1"), "ServerTooOld", FindingLevel.WRONG),
    "userspace": (replace(healthy(), kube_proxy_config="mode: userspace"), "KubeProxyMode", FindingLevel.WRONG),
    "no kube-proxy": (replace(healthy(), kube_proxy_config=None), "NoKubeProxy", FindingLevel.UNKNOWN),
    "Cilium without topology": (
        replace(
            healthy(),
            daemon_sets=[convert(DaemonSet, metadata={"name": "cilium"})],
            cilium_config={"kube-proxy-replacement": "true"},
        ),
        "CiliumIgnoresHints",
        FindingLevel.WRONG,
    ),
    "our clock": (replace(healthy(), ahead_seconds=90.0), "ClockSkew", FindingLevel.NOTE),
    "a node's clock": (replace(healthy(), node_leases=[LATE_LEASE]), "NodeClockSkew", FindingLevel.NOTE),
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
    "a webhook that may not be probed": (
        replace(healthy(), reached={"overlay": None}),
        "WebhookUntried",
        FindingLevel.UNKNOWN,
    ),
    "no certificate": (facts_with(webhooks=[webhook(b"rubbish")]), "CertificateUnreadable", FindingLevel.WRONG),
    "another webhook on slices": (
        replace(
            healthy(),
            other_webhooks=[
                convert(
                    WebhookConfiguration,
                    metadata={"name": "other"},
                    webhooks=[{"name": "x", "rules": [{"resources": ["endpointslices"]}]}],
                )
            ],
        ),
        "OtherWebhooks",
        FindingLevel.NOTE,
    ),
    "not installed": (facts_with(deployments=[], leases=[], webhooks=[]), "NotInstalled", FindingLevel.NOTE),
    "cut off": (facts_with(services=make_cluster_snapshot().services), "CutOff", FindingLevel.WRONG),
    "no leader": (facts_with(leases=[lease("zonewise-endpointslices", 300)]), "NoLeader", FindingLevel.WRONG),
}


@pytest.mark.parametrize("name", FINDINGS)
def test_each_problem_has_its_finding_and_a_fix(name: str) -> None:
    facts, code, level = FINDINGS[name]
    finding = next(finding for finding in diagnose(facts, NOW).findings if finding.code == code)
    assert (finding.level, bool(finding.fix)) == (level, True)


def test_headless_services_need_zonewise_dns_not_the_proxy() -> None:
    strict = service("pods", **{SAME_ZONE: "Require"})
    headless = msgspec.structs.replace(strict, spec=msgspec.structs.replace(strict.spec, cluster_ip="None"))
    slices = [slice_of(strict, {"a": 2, "b": 2, "c": 2})]
    without = facts_with(services=[headless], slices=slices)
    assert "NeedsDNS" in codes(without, FindingLevel.NOTE)
    dns = workload("zonewise-dns", readyReplicas=2, updatedReplicas=2)
    with_dns = replace(without, snapshot=replace(without.snapshot, deployments=[dns]))
    assert "Services" in codes(with_dns, FindingLevel.FINE)
    assert not {"NeedsDNS", "NeedsProxy"} & (codes(with_dns) | codes(without) - {"NeedsDNS"})


@pytest.mark.parametrize(("arguments", "needed"), [(["proxy"], True), (["proxy", "--all-services"], False)])
def test_a_proxy_for_all_services_needs_no_service_label(arguments: list[str], needed: bool) -> None:
    """Except for a Service that names another proxy."""
    strict = service("hard", **{SAME_ZONE: "Require"})
    facts = facts_with(services=[strict], slices=[slice_of(strict, {"a": 2, "b": 2, "c": 2})])
    proxy = convert(
        DaemonSet,
        metadata={"name": "zonewise-proxy", "labels": {"app.kubernetes.io/name": "zonewise-proxy"}},
        spec={"template": {"spec": {"containers": [{"name": "proxy", "args": arguments}]}}},
        status={"desiredNumberScheduled": 6, "numberReady": 6},
    )
    running = replace(facts, snapshot=replace(facts.snapshot, daemon_sets=[proxy]), kube_proxy_config=None)
    assert ("NoKubeProxy" in codes(running)) is needed
    assert ("ZonewiseProxy" in codes(running, FindingLevel.FINE)) is not needed
    assert ("NeedsProxy" in codes(running)) is needed
    assert bool(build_status(running.snapshot, NOW).services[0].outlook.losses) is needed
    labels = {"service.kubernetes.io/service-proxy-name": "other"}
    other = msgspec.structs.replace(strict, metadata=msgspec.structs.replace(strict.metadata, labels=labels))
    assert "NeedsProxy" in codes(replace(running, snapshot=replace(running.snapshot, services=[other])))


def test_an_expired_certificate_is_found() -> None:
    facts = healthy()
    assert "CertificateExpired" in {finding.code for finding in diagnose(facts, NOW.replace(year=3001)).findings}


def test_checks_before_install_skip_zonewise() -> None:
    facts = facts_with(deployments=[], leases=[], webhooks=[])
    assert not {"NotInstalled", "Running"} & codes(facts, before_install=True)


def test_two_controllers_of_one_service_are_found() -> None:
    facts = healthy()
    web = service("web")
    stock, other = slice_of(web, {"a": 1}), slice_of(web, {"b": 1})
    for slice_, manager in ((stock, "endpointslice-controller.k8s.io"), (other, "someone")):
        slice_.metadata.labels["endpointslice.kubernetes.io/managed-by"] = manager
    contested = replace(facts, snapshot=replace(facts.snapshot, services=[web], slices=[stock, other]))
    assert "TwoControllers" in codes(contested)


def test_verbs_agree_with_the_number() -> None:
    assert counted(1, "node", "{have} no label, and {write} none") == "1 node has no label, and writes none"
    assert counted(2, "node", "{are} away") == "2 nodes are away"
