"""The state of a cluster from its objects, what is wrong with it, and what was measured."""

from __future__ import annotations

import base64
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest
import trustme

from plan_world import node, service, slice_of
from zonewise.install.rights import Right
from zonewise.objects import Key, Lease, Node
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet, Deployment
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.seeing import storage, traffic
from zonewise.seeing.checks import diagnose
from zonewise.seeing.facts import Facts
from zonewise.seeing.findings import Level, counted
from zonewise.seeing.report import ServiceState
from zonewise.seeing.status import Seen, assemble
from zonewise.seeing.traffic import Measured, Path

NOW = datetime(2026, 11, 16, 12, 0, tzinfo=UTC)
SAME_ZONE = "endpointslice.kubernetes.io/same-zone"
REGION = "topology.kubernetes.io/region"


def made(kind: type, **body: Any) -> Any:
    return msgspec.convert(body, kind)


def workload(name: str, **status: int) -> Deployment:
    found: Deployment = made(
        Deployment,
        metadata={"name": name, "namespace": "zonewise-system", "labels": {"app.kubernetes.io/name": name}},
        spec={"replicas": 2},
        status=status,
    )
    return found


def lease(name: str, seconds_ago: float, holder: str = "me") -> Lease:
    renewed = (NOW - timedelta(seconds=seconds_ago)).isoformat()
    spec = {"holderIdentity": holder, "renewTime": renewed, "leaseDurationSeconds": 15}
    found: Lease = made(Lease, metadata={"name": name, "namespace": "zonewise-system"}, spec=spec)
    return found


def webhook(bundle: bytes = b"x") -> WebhookConfiguration:
    called = {
        "caBundle": base64.b64encode(bundle).decode(),
        "service": {"namespace": "zonewise-system", "name": "zonewise-webhook"},
    }
    found: WebhookConfiguration = made(
        WebhookConfiguration,
        metadata={"name": "zonewise-overlay"},
        webhooks=[{"name": "overlay.zonewise.dev", "clientConfig": called, "failurePolicy": "Ignore"}],
    )
    return found


def labelled(name: str, zone: str, **labels: str) -> Node:
    found = node(name, zone)
    more = {**found.metadata.labels, REGION: "eu", **labels}
    status = msgspec.structs.replace(found.status, allocatable={"cpu": "4"})
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=more), status=status)


def seen() -> Seen:
    web, hard = service("web"), service("hard", **{SAME_ZONE: "Require"})
    soft, gone = service("soft", **{SAME_ZONE: "Prefer"}), service("gone")
    hook = service("zonewise-webhook", "zonewise-system")
    return Seen(
        version="v1.36.3",
        nodes=[labelled(f"{zone}{index}", zone) for zone in "abc" for index in range(2)],
        services=[web, hard, soft, gone],
        slices=[
            slice_of(web, {"a": 1, "b": 1}),
            slice_of(hard, {"a": 1, "b": 1}),
            slice_of(soft, {"a": 1}),
            slice_of(hook, {"a": 2}),
        ],
        deployments=[workload("zonewise-controller", readyReplicas=2, updatedReplicas=2)],
        leases=[lease("zonewise-endpointslices", 3)],
        webhooks=[webhook()],
    )


def test_services_are_counted_by_what_became_of_them() -> None:
    found = assemble(seen(), NOW)
    assert found.states == {
        ServiceState.IN_FORCE: 0,
        ServiceState.NOT_IN_FORCE: 1,
        ServiceState.CUT_OFF: 1,
        ServiceState.UNSERVED: 1,
        ServiceState.NOT_ASKED: 1,
    }
    assert [trouble.code for trouble in found.troubles] == ["ServicesCutOff", "ServicesNotInForce"]
    assert (found.installed, found.leaders[0].alive, found.webhooks[0].endpoints) == (True, True, 2)
    assert [(zone.name, zone.nodes, zone.cpu_millis) for zone in found.zones] == [
        ("a", 2, 8000),
        ("b", 2, 8000),
        ("c", 2, 8000),
    ]


def test_what_does_not_run_is_a_trouble() -> None:
    sick = replace(
        seen(),
        deployments=[workload("zonewise-controller", readyReplicas=1)],
        leases=[lease("zonewise-endpointslices", 300)],
        webhooks=[webhook(b"")],
    )
    codes = [trouble.code for trouble in assemble(sick, NOW).troubles]
    assert codes[:3] == ["ComponentNotReady", "NoLeader", "WebhookDown"]
    assert "does not run here" in assemble(Seen(nodes=[node("a0", "a")]), NOW).sentence


def test_daemon_sets_count_by_nodes() -> None:
    daemons = made(
        DaemonSet, metadata={"name": "zonewise-proxy"}, status={"desiredNumberScheduled": 6, "numberReady": 6}
    )
    assert assemble(replace(seen(), daemon_sets=[daemons]), NOW).components[0].wanted == 6


def budget(reason: str) -> TopologyDisruptionBudget:
    condition = {"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "why"}
    found: TopologyDisruptionBudget = made(
        TopologyDisruptionBudget,
        metadata={"name": "b", "namespace": "shop"},
        spec={"selector": {"matchLabels": {"app": "b"}}, "maxUnavailable": 1},
        status={"conditions": [condition], "domains": [{"name": "a", "slots": 3}]},
    )
    return found


def test_a_budget_that_is_used_up_is_no_trouble_but_one_that_nobody_keeps_is() -> None:
    used, lost = (
        assemble(replace(seen(), budgets=[budget(reason)]), NOW) for reason in ("InsufficientPods", "SyncFailed")
    )
    assert (used.budgets[0].domains[0].pods, used.budgets[0].trouble) == (3, "")
    assert (lost.budgets[0].trouble, lost.budgets[0].limit) == ("DisruptionAllowed: why", "maxUnavailable 1")


METRICS = """# HELP zonewise_proxy_bytes_total Bytes
zonewise_proxy_bytes_total{client_zone="a",endpoint_zone="a",namespace="shop",service="web"} 300.0
zonewise_proxy_bytes_total{client_zone="a",endpoint_zone="b",namespace="shop",service="web"} 1e+02
zonewise_proxy_bytes_total{client_zone="outside",endpoint_zone="b",namespace="shop",service="web"} 7.0
zonewise_proxy_bytes_total{client_zone="a",namespace="shop"} 5.0
zonewise_proxy_bytes_total{client_zone="q\\"\\\\n",endpoint_zone="",namespace="shop",service="web"} nonsense
zonewise_proxy_connections_total{client_zone="a",endpoint_zone="b",namespace="shop",service="web"} 3.0
"""
WEB = Key("shop", "web")


def test_counters_are_read_and_added_up() -> None:
    counted_ = traffic.read_bytes(METRICS)
    assert counted_ == {Path(WEB, "a", "a"): 300, Path(WEB, "a", "b"): 100, Path(WEB, "outside", "b"): 7}
    measured = Measured({"n1": counted_, "n2": {Path(WEB, "b", "b"): 50.0}}, 3, "one is away")
    found = assemble(replace(seen(), traffic=measured), NOW)
    assert (found.traffic.in_zone, found.traffic.cross_zone, found.traffic.answered) == (350, 100, 2)
    assert found.traffic.share == pytest.approx(350 / 450)
    assert any(trouble.code == "TrafficUnknown" for trouble in found.troubles)


SILENCE = {
    "nobody may ask": (
        Measured({}, 6, "no", ("a0",), forbidden=True),
        "told their traffic: no",
        "allow `get` of pods/proxy",
    ),
    "their nodes are away": (
        Measured({}, 6, "no answer", ("c1", "c0")),
        "c0, c1 are not ready",
        "kubectl describe node c0",
    ),
    "one is away by itself": (
        Measured({}, 6, "no answer", ("a0", "c0")),
        "told their traffic: no answer",
        "kubectl get pods",
    ),
}


@pytest.mark.parametrize("name", SILENCE)
def test_why_proxies_do_not_tell(name: str) -> None:
    measured, why, remedy = SILENCE[name]
    away = [made(Node, metadata={"name": name}) if name[0] == "c" else node(name, "a") for name in ("a0", "c0", "c1")]
    (found,) = assemble(Seen(nodes=away, traffic=measured), NOW).troubles
    assert found.code == "TrafficUnknown"
    assert found.sentence.startswith("0 of 6 proxies told their traffic: ")
    assert found.sentence.endswith(why)
    assert found.remedy.startswith(remedy)


def test_what_came_since_knows_restarts_and_newcomers() -> None:
    path = Path(WEB, "a", "b")
    before = Measured({"goes on": {path: 100.0}, "restarts": {path: 100.0}})
    after = Measured({"goes on": {path: 130.0}, "restarts": {path: 20.0}, "comes": {path: 5.0}})
    assert after.since(before) == {path: 30 + 20 + 5}


def volume(name: str, zone: str) -> PersistentVolume:
    terms = [
        {"matchExpressions": [{"key": "topology.ceph.zonewise.dev/zone", "operator": "In", "values": [zone]}]},
        {
            "matchExpressions": [
                {"key": f"takeover.ceph.zonewise.dev/zone.{zone}", "operator": "In", "values": ["active"]}
            ]
        },
    ]
    found: PersistentVolume = made(
        PersistentVolume,
        metadata={"name": name},
        spec={
            "csi": {"driver": "ceph.zonewise.dev"},
            "capacity": {"storage": "1Gi"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
        status={"phase": "Bound"},
    )
    return found


def test_volumes_by_domain_and_who_takes_over() -> None:
    nodes = [
        labelled("a0", "a", **{"topology.ceph.zonewise.dev/zone": "a"}),
        labelled("b0", "b", **{"topology.ceph.zonewise.dev/zone": "b", "takeover.ceph.zonewise.dev/zone.a": "active"}),
    ]
    found = storage.volumes([volume("v1", "a"), volume("v2", "a"), volume("v3", "b")], nodes)
    assert [(each.domain, each.volumes, each.bytes, each.nodes) for each in found] == [
        ("zone=a", 2, 2 << 30, 2),
        ("zone=b", 1, 1 << 30, 1),
    ]
    (taken,) = storage.takeovers(nodes)
    assert (taken.domain, taken.targets, taken.nodes) == ("zone=a", ("b",), 1)


def codes(facts: Facts, level: Level | None = None, **more: Any) -> set[str]:
    return {each.code for each in diagnose(facts, NOW, **more).findings if level is None or each.level is level}


def healthy() -> Facts:
    authority = trustme.CA().cert_pem.bytes()
    good = replace(seen(), services=[], webhooks=[webhook(authority)])
    return Facts(seen=good, ahead_seconds=0.2, kube_proxy_config='mode: "nftables"', reached={"overlay": ""})


def test_a_healthy_cluster_has_nothing_wrong() -> None:
    found = diagnose(healthy(), NOW)
    assert [each for each in found.findings if each.level is Level.WRONG] == []
    assert {"Server", "Clock", "Labels", "KubeProxyMode", "Running", "WebhookReached", "Certificate"} <= codes(
        healthy()
    )


def bare(*labels: str) -> Node:
    """A node that lost labels."""
    found = labelled("odd", "a")
    kept = {key: value for key, value in found.metadata.labels.items() if key not in labels}
    return msgspec.structs.replace(found, metadata=msgspec.structs.replace(found.metadata, labels=kept))


ZONE, OLD_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"


def with_node(extra: Node) -> Facts:
    facts = healthy()
    return replace(facts, seen=replace(facts.seen, nodes=[*facts.seen.nodes, extra]))


def versioned(version: str) -> Node:
    found = labelled("odd", "a")
    return msgspec.convert(
        {
            **msgspec.to_builtins(found),
            "status": {**msgspec.to_builtins(found.status), "nodeInfo": {"kubeletVersion": version}},
        },
        Node,
    )


def seen_with(**more: Any) -> Facts:
    facts = healthy()
    return replace(facts, seen=replace(facts.seen, **more))


CLOCK = lease("a0", 400)
FINDINGS = {
    "a node without a zone": (with_node(bare(ZONE)), "ZoneMissing", Level.WRONG),
    "old labels only": (with_node(labelled("odd", "", **{OLD_ZONE: "a"})), "OldLabels", Level.WRONG),
    "labels that differ": (with_node(labelled("odd", "a", **{OLD_ZONE: "b"})), "LabelsDiffer", Level.NOTE),
    "no region": (with_node(bare(REGION)), "RegionMissing", Level.NOTE),
    "no CPU": (with_node(node("odd", "a")), "NoCPU", Level.WRONG),
    "a kube-proxy that is picky": (with_node(versioned("v1.28.0")), "ProxyPicky", Level.NOTE),
    "a kube-proxy that is too old": (with_node(versioned("v1.22.0")), "ProxyTooOld", Level.WRONG),
    "one zone": (seen_with(nodes=[labelled("a0", "a")]), "OneZone", Level.NOTE),
    "an old server": (seen_with(version="v1.27.1"), "ServerOld", Level.NOTE),
    "a server too old": (seen_with(version="v1.20.1"), "ServerTooOld", Level.WRONG),
    "userspace": (replace(healthy(), kube_proxy_config="mode: userspace"), "KubeProxyMode", Level.WRONG),
    "no kube-proxy": (replace(healthy(), kube_proxy_config=None), "NoKubeProxy", Level.UNKNOWN),
    "Cilium without topology": (
        replace(
            healthy(),
            daemon_sets=[made(DaemonSet, metadata={"name": "cilium"})],
            cilium_config={"kube-proxy-replacement": "true"},
        ),
        "CiliumIgnoresHints",
        Level.WRONG,
    ),
    "our clock": (replace(healthy(), ahead_seconds=90.0), "ClockSkew", Level.NOTE),
    "a node's clock": (replace(healthy(), node_leases=[CLOCK]), "NodeClockSkew", Level.NOTE),
    "no right to install": (
        replace(healthy(), allowed={Right("create", "", "namespaces"): False}),
        "InstallRights",
        Level.WRONG,
    ),
    "a component without rights": (
        replace(healthy(), running={"zonewise-dns": {Right("watch", "", "nodes"): False}}),
        "ComponentRights",
        Level.WRONG,
    ),
    "a webhook out of reach": (replace(healthy(), reached={"overlay": "timeout"}), "WebhookUnreachable", Level.WRONG),
    "a webhook that may not be tried": (replace(healthy(), reached={"overlay": None}), "WebhookUntried", Level.UNKNOWN),
    "no certificate": (seen_with(webhooks=[webhook(b"rubbish")]), "CertificateUnreadable", Level.WRONG),
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
        Level.NOTE,
    ),
    "not installed": (seen_with(deployments=[], leases=[], webhooks=[]), "NotInstalled", Level.NOTE),
    "cut off": (seen_with(services=seen().services), "CutOff", Level.WRONG),
    "no leader": (seen_with(leases=[lease("zonewise-endpointslices", 300)]), "NoLeader", Level.WRONG),
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
    assert "NeedsDNS" in codes(without, Level.NOTE)
    dns = workload("zonewise-dns", readyReplicas=2, updatedReplicas=2)
    with_dns = replace(without, seen=replace(without.seen, deployments=[dns]))
    assert "Services" in codes(with_dns, Level.FINE)
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
    running = replace(facts, seen=replace(facts.seen, daemon_sets=[proxy]))
    assert ("NeedsProxy" in codes(running)) is needed
    assert bool(assemble(running.seen, NOW).services[0].outlook.losses) is needed
    labels = {"service.kubernetes.io/service-proxy-name": "other"}
    other = msgspec.structs.replace(asking, metadata=msgspec.structs.replace(asking.metadata, labels=labels))
    assert "NeedsProxy" in codes(replace(running, seen=replace(running.seen, services=[other])))


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
    contested = replace(facts, seen=replace(facts.seen, services=[web], slices=[stock, other]))
    assert "TwoControllers" in codes(contested)


def test_verbs_follow_numbers() -> None:
    assert counted(1, "node", "{have} no label, and {write} none") == "1 node has no label, and writes none"
    assert counted(2, "node", "{are} away") == "2 nodes are away"
