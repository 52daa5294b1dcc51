"""Cluster status from objects and measured traffic."""

from __future__ import annotations

from dataclasses import replace

import pytest

from support.diagnostics.cluster import (
    NOW,
    SAME_ZONE,
    convert,
    labelled,
    lease,
    make_cluster_snapshot,
    webhook,
    workload,
)
from support.planning.cluster import node, service, slice_of
from zonewise.diagnostics.decide.status import storage, traffic
from zonewise.diagnostics.decide.status.assemble import ClusterSnapshot, build_status
from zonewise.diagnostics.decide.status.report import ServiceState
from zonewise.diagnostics.decide.status.traffic import MeasuredTraffic, TrafficPath
from zonewise.objects import Key, Node
from zonewise.objects.admissionregistration import WebhookConfiguration
from zonewise.objects.apps import DaemonSet
from zonewise.objects.policy import TopologyDisruptionBudget
from zonewise.objects.storage import PersistentVolume
from zonewise.routing import HintsForm


def test_services_are_counted_by_state() -> None:
    status = build_status(make_cluster_snapshot(), NOW)
    assert status.states == {
        ServiceState.IN_FORCE: 0,
        ServiceState.NOT_IN_FORCE: 1,
        ServiceState.CUT_OFF: 1,
        ServiceState.UNSERVED: 1,
        ServiceState.NOT_ASKED: 1,
    }
    assert [problem.code for problem in status.troubles] == ["ServicesCutOff", "ServicesNotInForce"]
    assert (status.installed, status.leaders[0].alive, status.webhooks[0].endpoints) == (True, True, 2)
    assert [(zone.name, zone.nodes, zone.cpu_millis) for zone in status.zones] == [
        ("a", 2, 8000),
        ("b", 2, 8000),
        ("c", 2, 8000),
    ]


def test_address_of_a_webhook_is_shown_without_its_callers_key() -> None:
    url = {"caBundle": "eA==", "url": f"https://10.0.0.5:8443/endpointslices/{'ab' * 32}"}
    registered = convert(
        WebhookConfiguration,
        metadata={"name": "zonewise-overlay"},
        webhooks=[{"name": "overlay.zonewise.dev", "clientConfig": url}],
    )
    status = build_status(replace(make_cluster_snapshot(), webhooks=[registered]), NOW)
    assert [webhook.target for webhook in status.webhooks] == ["10.0.0.5:8443"]


def test_a_hard_rule_behind_kube_proxy_cuts_no_client_off() -> None:
    """kube-proxy gives the clients of c every endpoint, so the rule is not in force."""
    web = service("hard", **{SAME_ZONE: "Require"})
    status = build_status(
        replace(make_cluster_snapshot(), services=[web], slices=[slice_of(web, {"a": 1, "b": 1})]), NOW
    )
    assert [problem.code for problem in status.troubles] == ["WebhookDown", "ServicesNotInForce"]
    assert (status.services[0].state, status.services[0].outlook.cut_off) == (ServiceState.NOT_IN_FORCE, ())


def test_a_drain_ignored_by_a_node_without_zone_is_not_in_force() -> None:
    """kube-proxy on a node without a zone label keeps using the drained endpoints."""
    web = service("web", **{"zonewise.dev/drain-zone": "a"})
    snapshot = replace(make_cluster_snapshot(), services=[web], slices=[slice_of(web, {"a": 1, "b": 1})])
    assert build_status(snapshot, NOW).services[0].state is ServiceState.IN_FORCE
    (service_status,) = build_status(replace(snapshot, nodes=[*snapshot.nodes, node("x", "")]), NOW).services
    assert (service_status.state, service_status.outlook.astray) == (ServiceState.NOT_IN_FORCE, ("x",))


def test_automatic_hints_follow_the_form_of_the_controller() -> None:
    """The strict form counts only endpoints with the condition ready, as the stock controller does."""
    web = service("auto", **{"service.kubernetes.io/topology-mode": "Auto"})
    snapshot = replace(make_cluster_snapshot(), services=[web], slices=[slice_of(web, {"a": 10, "b": 1, "c": 1})])
    sentences = {form: build_status(snapshot, NOW, form).services[0].outlook.sentence for form in HintsForm}
    assert sentences[HintsForm.STABLE] != sentences[HintsForm.STRICT]


def test_components_that_do_not_run_are_problems() -> None:
    broken = replace(
        make_cluster_snapshot(),
        deployments=[workload("zonewise-controller", readyReplicas=1)],
        leases=[lease("zonewise-endpointslices", 300)],
        webhooks=[webhook(b"")],
    )
    codes = [problem.code for problem in build_status(broken, NOW).troubles]
    assert codes[:3] == ["ComponentNotReady", "NoLeader", "WebhookDown"]
    assert "not installed" in build_status(ClusterSnapshot(nodes=[node("a0", "a")]), NOW).sentence


def test_daemon_sets_are_counted_by_nodes() -> None:
    daemons = convert(
        DaemonSet, metadata={"name": "zonewise-proxy"}, status={"desiredNumberScheduled": 6, "numberReady": 6}
    )
    assert build_status(replace(make_cluster_snapshot(), daemon_sets=[daemons]), NOW).components[0].wanted == 6


def budget(reason: str) -> TopologyDisruptionBudget:
    condition = {"type": "DisruptionAllowed", "status": "False", "reason": reason, "message": "why"}
    item: TopologyDisruptionBudget = convert(
        TopologyDisruptionBudget,
        metadata={"name": "b", "namespace": "shop"},
        spec={"selector": {"matchLabels": {"app": "b"}}, "maxUnavailable": 1},
        status={"conditions": [condition], "domains": [{"name": "a", "slots": 3}]},
    )
    return item


def test_an_exhausted_budget_is_no_problem_an_unsynced_one_is() -> None:
    exhausted, unsynced = (
        build_status(replace(make_cluster_snapshot(), budgets=[budget(reason)]), NOW)
        for reason in ("InsufficientPods", "SyncFailed")
    )
    assert (exhausted.budgets[0].domains[0].pods, exhausted.budgets[0].trouble) == (3, "")
    assert (unsynced.budgets[0].trouble, unsynced.budgets[0].limit) == ("DisruptionAllowed: why", "maxUnavailable 1")


METRICS = """# HELP zonewise_proxy_bytes_total Bytes
zonewise_proxy_bytes_total{client_zone="a",endpoint_zone="a",namespace="shop",service="web"} 300.0
zonewise_proxy_bytes_total{client_zone="a",endpoint_zone="b",namespace="shop",service="web"} 1e+02
zonewise_proxy_bytes_total{client_zone="outside",endpoint_zone="b",namespace="shop",service="web"} 7.0
zonewise_proxy_bytes_total{client_zone="a",namespace="shop"} 5.0
zonewise_proxy_bytes_total{client_zone="q\\"\\\\n",endpoint_zone="",namespace="shop",service="web"} nonsense
zonewise_proxy_connections_total{client_zone="a",endpoint_zone="b",namespace="shop",service="web"} 3.0
"""
WEB = Key("shop", "web")


def test_counters_are_parsed_and_summed() -> None:
    counters = traffic.parse_counters(METRICS)
    assert counters == {
        TrafficPath(WEB, "a", "a"): 300,
        TrafficPath(WEB, "a", "b"): 100,
        TrafficPath(WEB, "outside", "b"): 7,
    }
    measured = MeasuredTraffic({"n1": counters, "n2": {TrafficPath(WEB, "b", "b"): 50.0}}, 3, "one is away")
    status = build_status(replace(make_cluster_snapshot(), traffic=measured), NOW)
    assert (status.traffic.in_zone, status.traffic.cross_zone, status.traffic.answered) == (350, 100, 2)
    assert status.traffic.share == pytest.approx(350 / 450)
    assert any(problem.code == "TrafficUnknown" for problem in status.troubles)


MISSING_TRAFFIC = {
    "scraping is forbidden": (
        MeasuredTraffic({}, 6, "no", ("a0",), forbidden=True),
        "reported their traffic: no",
        "allow `get` of pods/proxy",
    ),
    "their nodes are not ready": (
        MeasuredTraffic({}, 6, "no answer", ("c1", "c0")),
        "c0, c1 are not ready",
        "kubectl describe node c0",
    ),
    "one fails on a ready node": (
        MeasuredTraffic({}, 6, "no answer", ("a0", "c0")),
        "reported their traffic: no answer",
        "kubectl get pods",
    ),
}


@pytest.mark.parametrize("name", MISSING_TRAFFIC)
def test_missing_traffic_is_explained(name: str) -> None:
    measured, why, remedy = MISSING_TRAFFIC[name]
    nodes = [
        convert(Node, metadata={"name": name}) if name[0] == "c" else node(name, "a") for name in ("a0", "c0", "c1")
    ]
    (problem,) = build_status(ClusterSnapshot(nodes=nodes, traffic=measured), NOW).troubles
    assert problem.code == "TrafficUnknown"
    assert problem.sentence.startswith("0 of 6 proxies reported their traffic: ")
    assert problem.sentence.endswith(why)
    assert problem.remedy.startswith(remedy)


def test_increments_survive_a_proxy_restart() -> None:
    path, other = TrafficPath(WEB, "a", "b"), TrafficPath(WEB, "a", "a")
    before = MeasuredTraffic({"goes on": {path: 100.0}, "restarts": {path: 100.0}})
    after = MeasuredTraffic({"goes on": {path: 130.0, other: 7.0}, "restarts": {path: 20.0}})
    assert after.since(before) == {path: 30 + 20, other: 7}


def test_a_proxy_that_missed_a_read_adds_no_old_traffic() -> None:
    """Its counters cover the time since its start, not since the last read."""
    path = TrafficPath(WEB, "a", "b")
    both, one = {"a0": {path: 1e12}, "b0": {path: 10.0}}, {"b0": {path: 11.0}}
    again = MeasuredTraffic({"a0": {path: 1e12 + 5}, "b0": {path: 13.0}})
    assert again.since(MeasuredTraffic(one)) == {path: 2.0}
    assert MeasuredTraffic(one).since(MeasuredTraffic(both)) == {path: 1.0}
    assert again.since(MeasuredTraffic({"a0": {path: 1e12}, "b0": {path: 12.0}})) == {path: 5.0 + 1.0}


def volume(name: str, zone: str) -> PersistentVolume:
    terms = [
        {"matchExpressions": [{"key": "topology.ceph.zonewise.dev/zone", "operator": "In", "values": [zone]}]},
        {
            "matchExpressions": [
                {"key": f"takeover.ceph.zonewise.dev/zone.{zone}", "operator": "In", "values": ["active"]}
            ]
        },
    ]
    item: PersistentVolume = convert(
        PersistentVolume,
        metadata={"name": name},
        spec={
            "csi": {"driver": "ceph.zonewise.dev"},
            "capacity": {"storage": "1Gi"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
        },
        status={"phase": "Bound"},
    )
    return item


def test_volumes_by_domain_and_takeovers() -> None:
    nodes = [
        labelled("a0", "a", **{"topology.ceph.zonewise.dev/zone": "a"}),
        labelled("b0", "b", **{"topology.ceph.zonewise.dev/zone": "b", "takeover.ceph.zonewise.dev/zone.a": "active"}),
    ]
    domains = storage.volume_domains([volume("v1", "a"), volume("v2", "a"), volume("v3", "b")], nodes)
    assert [(row.domain, row.volumes, row.bytes, row.nodes) for row in domains] == [
        ("zone=a", 2, 2 << 30, 2),
        ("zone=b", 1, 1 << 30, 1),
    ]
    (takeover,) = storage.takeover_statuses(nodes)
    assert (takeover.domain, takeover.targets, takeover.nodes) == ("zone=a", ("b",), 1)
